// One bar per token: how long it let people wait.
import { make, makeSvg } from "./dom.js";
import { latency } from "./format.js";

const HEIGHT = 26;
const FEWEST = 64;

// times: ms since the request was sent, one for each piece of text
export function timing(times) {
  const gaps = times.map((time, index) => time - (index ? times[index - 1] : 0));
  const rest = gaps.slice(1).sort((a, b) => a - b);
  const middle = rest.length ? rest[Math.floor(rest.length / 2)] / 1000 : null;
  const longest = rest.length ? rest.at(-1) / 1000 : null;
  const scale = Math.max(...rest, 1);
  const svg = makeSvg("svg", { viewBox: `0 0 ${Math.max(gaps.length, FEWEST)} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": "Time before each token" });
  gaps.forEach((gap, index) => {
    const height = Math.max(1, HEIGHT * Math.min(1, gap / scale));
    svg.append(makeSvg("rect", { class: index ? "" : "first", x: index + 0.1, y: HEIGHT - height, width: 0.8, height }));
  });
  const rate = rest.length ? ((1000 * rest.length) / (times.at(-1) - times[0])).toFixed(1) : "–";
  const told = `${times.length} pieces · first after ${latency(gaps[0] / 1000)} · then ${rate}/s · median ${latency(middle)}, longest ${latency(longest)}`;
  return make("div", { class: "timing" }, svg, make("p", {}, told));
}
