// The last two minutes of a few figures, for the charts.
export const SPAN_S = 120;
const points = [];

export function remember(live) {
  // The same document is shown again when the window changes.
  if (points.at(-1)?.at === live.time_s) return points;
  // Null while no scheduler tells: a line at 0 would say that it does.
  const sum = (name) => (live.ranks.length ? live.ranks.reduce((total, rank) => total + rank[name], 0) : null);
  const { running, waiting } = live.engine;
  points.push({
    at: live.time_s,
    used: sum("blocks_used"),
    peak: sum("blocks_peak"),
    total: sum("blocks_total"),
    tokens: live.engine.output_tokens_per_s,
    running,
    waiting: waiting && Object.values(waiting).reduce((a, b) => a + b, 0) + live.door.waiting,
  });
  while (points[0].at < live.time_s - SPAN_S) points.shift();
  return points;
}
