// Line charts as SVG. The scale of time is fixed, that of values follows the highest.
import { make, makeSvg } from "./dom.js";
import { short } from "./format.js";
import { SPAN_S } from "./history.js";

const WIDTH = 600;
const HEIGHT = 120;

const CHARTS = [
  { title: "KV blocks", unit: "", series: [["used", "in use"], ["peak", "forecast peak"]], top: (points) => points.at(-1).total, limit: "capacity" },
  { title: "Output", unit: "tokens/s", series: [["tokens", "tokens/s"]] },
  { title: "Requests", unit: "", series: [["running", "running"], ["waiting", "waiting"]] },
];

export function draw(container, points) {
  container.replaceChildren(...CHARTS.map((chart) => figure(chart, points)));
}

function figure({ title, unit, series, top, limit }, points) {
  const known = series.map(([name]) => points.filter((point) => point[name] !== null));
  const highest = Math.max(1, ...series.flatMap(([name], index) => known[index].map((point) => point[name])));
  const scale = top ? Math.max(top(points), highest) : niceCeiling(highest);
  const now = series.map(([name, label]) => `${label} ${short(points.at(-1)[name])}`).join(", ");
  const keys = series.map(([, label], index) => make("span", { class: index ? "key second" : "key" }, label));
  const svg = makeSvg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": `${title}: ${now}` });
  for (const part of [0, 0.5, 1]) {
    svg.append(makeSvg("line", { class: "grid", x1: 0, x2: WIDTH, y1: HEIGHT * part, y2: HEIGHT * part }));
  }
  series.forEach(([name], index) => {
    const told = known[index];
    if (!told.length) return;
    const line = told.map((point) => `${x(point, points)},${y(point[name], scale)}`).join(" ");
    if (!index) svg.append(makeSvg("polygon", { class: "area series-0", points: `${x(told[0], points)},${HEIGHT} ${line} ${x(told.at(-1), points)},${HEIGHT}` }));
    svg.append(makeSvg("polyline", { class: `line series-${index}${index ? " dashed" : ""}`, points: line }));
  });
  return make("figure", { class: "chart", "data-chart": title },
    make("figcaption", {}, make("strong", {}, title), make("span", { class: "keys" }, ...keys)),
    svg,
    make("div", { class: "scale" }, make("span", {}, `${SPAN_S / 60} min ago`), make("span", {}, known.some((told) => told.length) ? `top: ${limit ? `${limit} ` : ""}${short(scale)} ${unit}` : "this scheduler does not tell")));
}

const x = (point, points) => (WIDTH * (1 - (points.at(-1).at - point.at) / SPAN_S)).toFixed(1);
const y = (value, scale) => (HEIGHT * (1 - value / scale)).toFixed(1);

// The next of 1, 2, 5, 10, 20, 50 …
function niceCeiling(value) {
  const unit = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * unit).find((step) => step >= value);
}
