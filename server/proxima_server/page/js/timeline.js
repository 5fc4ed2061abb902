// The last decisions on an axis of time: a row for each request, a mark for each thing that was decided about it.
import { make, makeSvg } from "./dom.js";
import { brief, count, seconds } from "./format.js";

const MOST_ROWS = 16;
const ROW = 16;
const LEFT = 150;
const WIDTH = 900;
const MARKS = [["started", "started"], ["held", "held"], ["yielded", "yielded"], ["ended", "ended"]];
const SHAPES = {
  started: (x, y) => `M${x - 4} ${y - 5}l8 5-8 5z`,
  held: (x, y) => `M${x - 1} ${y - 4}h2v8h-2z`,
  yielded: (x, y) => `M${x - 5} ${y - 4}h10l-5 8z`,
  ended: (x, y) => `M${x - 4} ${y - 4}h8v8h-8z`,
};

// decisions: oldest first
export function timeline(decisions) {
  const marks = decisions.flatMap(marksOf);
  // Those that something was decided about last.
  const ids = [...new Set(marks.map(({ id }) => id).reverse())].slice(0, MOST_ROWS).reverse();
  const from = decisions[0].time_s;
  const span = Math.max(0.001, decisions.at(-1).time_s - from);
  const x = (time) => Math.round(LEFT + ((WIDTH - LEFT - 12) * (time - from)) / span);
  const counts = MARKS.map(([kind, name]) => `${count(marks.filter((mark) => mark.kind === kind).length)} ${name}`).join(", ");
  const label = `The last ${count(decisions.length)} decisions, over ${seconds(span)}: ${counts}`;
  const svg = makeSvg("svg", { viewBox: `0 0 ${WIDTH} ${ids.length * ROW + 4}`, role: "img", "aria-label": label });
  ids.forEach((id, row) => {
    const y = row * ROW + ROW / 2 + 2;
    svg.append(makeSvg("line", { class: "row", x1: LEFT, x2: WIDTH, y1: y, y2: y }), makeSvg("text", { x: 0, y: y + 4 }, brief(id)));
    for (const { kind, time, why } of marks.filter((mark) => mark.id === id)) {
      svg.append(makeSvg("path", { class: `mark ${kind}`, d: SHAPES[kind](x(time), y) }, makeSvg("title", {}, `${brief(id)} ${why}`)));
    }
  });
  return make("figure", { class: "decision-line" },
    make("figcaption", {}, ...MARKS.map(([kind, name]) => make("span", {}, key(kind), name))),
    make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Decisions over time" }, svg),
    make("div", { class: "scale" }, make("span", {}, `${seconds(span)} before the last`), make("span", {}, `the ${count(ids.length)} requests decided about last`)));
}

const key = (kind) => makeSvg("svg", { viewBox: "0 0 12 12", width: 12, height: 12, "aria-hidden": "true" }, makeSvg("path", { class: `mark ${kind}`, d: SHAPES[kind](6, 6) }));

function marksOf({ time_s: time, started, held, yielded, ended }) {
  return [
    ...started.map((id) => ({ id, time, kind: "started", why: "started" })),
    ...Object.entries(held).map(([id, reason]) => ({ id, time, kind: "held", why: `held: ${reason.replace("_", " ")}` })),
    ...Object.entries(yielded).map(([id, mode]) => ({ id, time, kind: "yielded", why: `yielded (${mode})` })),
    ...ended.map((id) => ({ id, time, kind: "ended", why: "ended" })),
  ];
}
