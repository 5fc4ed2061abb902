// Figures, charts, pool maps and requests of one document.
import { draw as drawCharts } from "./charts.js";
import { assign } from "./colours.js";
import { byId, make } from "./dom.js";
import { bytes, count, latency, short } from "./format.js";
import { remember } from "./history.js";
import { draw as drawPools } from "./pool.js";
import { draw as drawRequests } from "./requests.js";

export function show(live) {
  const points = remember(live);
  assign(live.requests.map((request) => request.id));
  if (byId("view-overview").hidden) return;
  byId("tiles").replaceChildren(...tiles(live).map(tile));
  drawCharts(byId("charts"), points);
  drawPools(byId("pools"), live);
  drawRequests(live);
}

function tiles({ engine, door, swap, latency: times }) {
  const waiting = sum(engine.waiting);
  const blocked = engine.waiting && (engine.waiting.blocks ?? 0) + (engine.waiting.forecast ?? 0);
  return [
    { name: "Running", value: count(engine.running), note: `${short(engine.finished_per_s)} end each second` },
    { name: "Waiting", value: count(waiting), note: `${count(blocked)} blocked`, warn: blocked > 0 },
    { name: "At the door", value: count(door.waiting), note: `${count(sum(door.rejected_total))} refused so far` },
    { name: "Output", value: short(engine.output_tokens_per_s), unit: "tokens/s", note: "all requests together" },
    { name: "First token", value: latency(times.ttft_s.p50), note: `p95 ${latency(times.ttft_s.p95)}, p99 ${latency(times.ttft_s.p99)}` },
    { name: "Between tokens", value: latency(times.itl_s.p50), note: `p95 ${latency(times.itl_s.p95)}, p99 ${latency(times.itl_s.p99)}` },
    { name: "Yields", value: count(sum(engine.yields_total)), note: `${count(engine.preemptions_total)} preemptions` },
    ...(swap ? [swapped(swap)] : []),
  ];
}

const swapped = ({ requests, bytes_total: moved, failures_total: failures }) => ({
  name: "Swapped",
  value: count(requests),
  note: `${bytes(moved.out ?? 0)} out, ${bytes(moved.in ?? 0)} in so far${sum(failures) ? `; ${count(sum(failures))} failed` : ""}`,
  warn: sum(failures) > 0,
});

// Null, as all of the engine's figures are while no scheduler tells.
const sum = (counts) => counts && Object.values(counts).reduce((a, b) => a + b, 0);

const tile = ({ name, value, unit, note, warn }) =>
  make("div", { class: warn ? "tile warn" : "tile" },
    make("dt", {}, name),
    make("dd", { class: "value" }, value, ...(unit ? [" ", make("small", {}, unit)] : [])),
    make("dd", { class: "note", title: note }, note));
