// Numbers as people read them; "–" for what is not known.
export const NOTHING = "–";

export const count = (value) => (value === null || value === undefined ? NOTHING : value.toLocaleString("en"));

export function short(value) {
  if (value === null || value === undefined) return NOTHING;
  const size = Math.abs(value);
  return value.toLocaleString("en", { maximumFractionDigits: size < 10 ? 2 : size < 100 ? 1 : 0 });
}

export const seconds = (value) => (value === null || value === undefined ? NOTHING : `${value.toFixed(1)} s`);

export function latency(value) {
  if (value === null || value === undefined) return NOTHING;
  return value < 1 ? `${(value * 1000).toFixed(value < 0.01 ? 1 : 0)} ms` : `${short(value)} s`;
}

export function bytes(value) {
  const step = Math.min(4, Math.floor(Math.log10(Math.max(1, value)) / 3));
  return `${short(value / 1000 ** step)} ${["B", "kB", "MB", "GB", "TB"][step]}`;
}

// The engine's ids have a word before and a random end after the one that people know.
export function brief(id) {
  const known = id.replace(/^(\d+_)?[a-z]+-/, "").replace(/-[0-9a-f]{8}$/, "");
  return known.length > 18 ? `${known.slice(0, 16)}…` : known;
}

export const percent = (part, whole) => (whole ? `${Math.round((100 * part) / whole)} %` : NOTHING);
