// Why requests wait, and what the scheduler decided lately.
import { authorization } from "./access.js";
import { byId, empty, make, table } from "./dom.js";
import { NOTHING, brief, count, seconds } from "./format.js";
import { address } from "./site.js";
import { timeline } from "./timeline.js";

const EVERY_MS = 2000;
const SHOWN = 60;

const WAITING = [
  { title: "Request", cell: (row) => make("span", { title: row.id }, brief(row.id)), kind: "id" },
  { title: "Class", cell: (row) => row.class },
  { title: "Why it waits", cell: (row) => row.because, kind: "wide" },
  { title: "Reason", cell: (row) => row.reason, kind: "id" },
  { title: "Prompt", cell: (row) => count(row.prompt_tokens), kind: "number" },
  { title: "Waits for", cell: (row) => seconds(row.age_s), kind: "number" },
  { title: "Starts in", cell: (row) => (row.estimated_start_s === null ? NOTHING : `about ${seconds(row.estimated_start_s)}`), kind: "number" },
];

const DECISIONS = [
  { title: "Time", cell: (row) => new Date(row.time_s * 1000).toLocaleTimeString("en-GB"), kind: "number" },
  { title: "Step", cell: (row) => count(row.step), kind: "number" },
  { title: "What", cell: what, kind: "wide" },
  { title: "Running", cell: (row) => count(row.running), kind: "number" },
  { title: "Waiting", cell: (row) => count(row.waiting), kind: "number" },
  { title: "Blocks", cell: (row) => `${count(row.blocks_used)} → ${count(row.blocks_peak)}`, kind: "number" },
  { title: "Planning", cell: (row) => `${row.planning_ms.toFixed(2)} ms`, kind: "number" },
];

function what(row) {
  const said = [];
  if (row.started.length) said.push(`${names(row.started)} started${row.backfilled ? ` (${row.backfilled} passed an older one)` : ""}`);
  for (const [id, mode] of Object.entries(row.yielded)) said.push(`${brief(id)} yielded (${mode})`);
  if (row.ended.length) said.push(`${names(row.ended)} ended`);
  const held = Object.entries(row.held);
  if (held.length) said.push(`held: ${held.slice(0, 3).map(([id, reason]) => `${brief(id)} (${reason.replace("_", " ")})`).join(", ")}${held.length > 3 ? ` and ${held.length - 3} more` : ""}`);
  return said.join("; ") || "nobody is held any more";
}

const names = (ids) => (ids.length > 3 ? `${ids.length} requests` : ids.map(brief).join(", "));

const ask = (query) => fetch(address(`debug/schedule?${query}`), { headers: authorization("admin") });

async function refresh() {
  if (byId("view-scheduler").hidden || document.hidden) return;
  const response = await ask(`decisions=${SHOWN}`).catch(() => null);
  if (!response?.ok) return;
  const { scheduler, waiting, waiting_left_out: left, decisions } = await response.json();
  const native = scheduler === "native" ? "The native scheduler does not tell. " : "";
  byId("waiting").replaceChildren(waiting.length ? table(WAITING, waiting) : empty(`${native}No request waits in the engine.`));
  byId("waiting-note").textContent = left ? `the first ${count(waiting.length)}; ${count(left)} more` : "";
  byId("decision-line").replaceChildren(...(decisions.length ? [timeline(decisions)] : []));
  byId("decisions").replaceChildren(decisions.length ? table(DECISIONS, decisions.reverse()) : empty(`${native}Nothing was decided yet.`));
}

async function download() {
  const response = await ask("decisions=1000&format=chrome");
  if (!response.ok) return;
  const link = make("a", { href: URL.createObjectURL(await response.blob()), download: "proxima-schedule.json" });
  link.click();
  URL.revokeObjectURL(link.href);
}

export function start() {
  setInterval(refresh, EVERY_MS);
  addEventListener("hashchange", refresh);
  byId("trace").onclick = download;
  refresh();
}
