// The table of requests.
import { colourOf } from "./colours.js";
import { byId, empty, make, table } from "./dom.js";
import { NOTHING, count, seconds } from "./format.js";

const COLUMNS = [
  { title: "Request", cell: (row) => named(row.id), kind: "id" },
  { title: "Class", cell: (row) => row.class },
  { title: "Phase", cell: (row) => make("span", { class: `phase ${row.phase}` }, row.reason ? `${row.phase}: ${row.reason.replace("_", " ")}` : row.phase) },
  { title: "Age", cell: (row) => seconds(row.age_s), kind: "number" },
  { title: "Prompt", cell: (row) => count(row.prompt_tokens), kind: "number" },
  { title: "Output", cell: (row) => count(row.output_tokens), kind: "number" },
  { title: "Blocks", cell: (row) => (row.blocks ? count(row.blocks) : NOTHING), kind: "number" },
  { title: "Slack", cell: (row) => make("td", { class: row.slack_s < 0 ? "number late" : "number" }, seconds(row.slack_s)), kind: "number" },
  { title: "Starts in", cell: (row) => seconds(row.start_s), kind: "number" },
];

function named(id) {
  const dot = make("span", { class: "dot" });
  dot.style.background = colourOf(id);
  return make("span", { title: id }, dot, id.length > 18 ? `${id.slice(0, 16)}…` : id);
}

export function draw(live) {
  const { requests, requests_left_out: left } = live;
  byId("requests-note").textContent = left ? `the oldest ${count(requests.length)}; ${count(left)} more` : `${count(requests.length)} now`;
  byId("requests").replaceChildren(requests.length ? table(COLUMNS, requests) : empty("No requests. Send one, or open Chat."));
}
