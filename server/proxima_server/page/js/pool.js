// Each engine's KV blocks as a map: one square per block, or per so many blocks, in the colour of who holds it.
import { colourOf } from "./colours.js";
import { make } from "./dom.js";
import { count, percent } from "./format.js";

const MOST_CELLS = 1536;
const CELL = 14;
const GAP = 2;

export function draw(container, live) {
  const head = make("div", { class: "card-head" }, make("h2", {}, "KV blocks by request"));
  if (!live.ranks.length) {
    const why = live.gateway.scheduler === "native" ? "The native scheduler does not tell about its blocks." : "Shown as soon as the engine is ready.";
    container.replaceChildren(head, make("p", { class: "empty" }, why));
    return;
  }
  const pools = live.ranks.map((rank) => pool(rank, holders(live, rank)));
  container.replaceChildren(head, ...pools.map(({ element }) => element));
  for (const { paint } of pools) paint();
}

// Who holds how many blocks of this engine; together at most those that it says are in use, for names are older.
function holders(live, rank) {
  let left = rank.blocks_used;
  return live.requests.filter((request) => request.blocks_by_rank[rank.rank] > 0).map((request) => {
    const blocks = Math.min(request.blocks_by_rank[rank.rank], left);
    left -= blocks;
    return [request.id, blocks];
  });
}

function pool(rank, held) {
  const { blocks_total: total, blocks_used: used, blocks_peak: peak, host_blocks_total: host, host_blocks_used: hostUsed } = rank;
  const own = held.reduce((sum, [, blocks]) => sum + blocks, 0);
  const perCell = Math.max(1, Math.ceil(total / MOST_CELLS));
  const text = `Engine ${rank.rank}: ${count(used)} of ${count(total)} KV blocks in use, forecast peak ${count(peak)}`;
  const canvas = make("canvas", { role: "img", "aria-label": text });
  const figures = make("p", { class: "figures" },
    make("span", {}, make("b", {}, count(used)), ` of ${count(total)} in use, `, percent(used, total)),
    make("span", {}, "forecast peak ", make("b", {}, count(peak))),
    make("span", {}, perCell === 1 ? "a square is a block" : `a square is ${count(perCell)} blocks`),
    make("span", {}, `grey: shared or not yet told, ${count(Math.max(0, used - own))}`),
    ...(host ? [make("span", {}, "host memory ", make("b", {}, count(hostUsed)), ` of ${count(host)} blocks, ${percent(hostUsed, host)}`)] : []));
  return { element: make("div", { class: "pool" }, figures, canvas), paint: () => paint(canvas, rank, held, perCell) };
}

function paint(canvas, { blocks_total: total, blocks_used: used, blocks_peak: peak }, held, perCell) {
  const style = getComputedStyle(canvas);
  const width = canvas.clientWidth;
  const cells = Math.ceil(total / perCell);
  const columns = Math.max(1, Math.floor((width + GAP) / (CELL + GAP)));
  const height = Math.ceil(cells / columns) * (CELL + GAP) - GAP;
  const ratio = devicePixelRatio;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  const colours = held.flatMap(([id, blocks]) => Array(blocks).fill(colourOf(id)));
  for (let cell = 0; cell < cells; cell += 1) {
    const block = cell * perCell;
    const x = (cell % columns) * (CELL + GAP);
    const y = Math.floor(cell / columns) * (CELL + GAP);
    context.fillStyle = block < used ? colours[block] ?? style.color : style.borderTopColor;
    context.fillRect(x, y, CELL, CELL);
    if (block >= used && block < peak) {
      context.strokeStyle = style.caretColor;
      context.strokeRect(x + 0.5, y + 0.5, CELL - 1, CELL - 1);
    }
  }
}
