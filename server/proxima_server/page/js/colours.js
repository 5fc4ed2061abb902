// A colour for each request, the same wherever it is shown and as long as it lives.
const HUES = [212, 28, 150, 282, 52, 338, 186, 98, 252, 8, 124, 310];
const taken = new Map();

export function colourOf(id) {
  return taken.get(id) ?? "transparent";
}

// Gives new requests the colours that are free longest; call with all that there are.
export function assign(ids) {
  const present = new Set(ids);
  for (const id of taken.keys()) if (!present.has(id)) taken.delete(id);
  for (const id of ids) if (!taken.has(id)) taken.set(id, next());
}

let turn = 0;

function next() {
  const used = new Set(taken.values());
  for (let tries = 0; tries < HUES.length; tries += 1) {
    const colour = at(turn++);
    if (!used.has(colour)) return colour;
  }
  return at(turn++);
}

const at = (place) => `oklch(0.66 0.13 ${HUES[place % HUES.length]})`;
