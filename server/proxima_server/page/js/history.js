// The last two minutes of a few figures, for the charts.
export const SPAN_S = 120;
const points = [];

export function remember(live) {
  // The same document is shown again when the window changes.
  if (points.at(-1)?.at === live.time_s) return points;
  const sum = (name) => live.ranks.reduce((total, rank) => total + rank[name], 0);
  points.push({
    at: live.time_s,
    used: sum("blocks_used"),
    peak: sum("blocks_peak"),
    total: sum("blocks_total"),
    tokens: live.engine.output_tokens_per_s,
    running: live.engine.running,
    waiting: Object.values(live.engine.waiting).reduce((a, b) => a + b, 0) + live.door.waiting,
  });
  while (points[0].at < live.time_s - SPAN_S) points.shift();
  return points;
}
