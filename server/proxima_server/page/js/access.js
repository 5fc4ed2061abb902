// Token of the operator and API key of the playground: asked for when the gateway wants one, kept in this tab only.
import { byId } from "./dom.js";

const NAMES = { admin: "admin token", api: "API key" };

export function authorization(kind) {
  const secret = sessionStorage.getItem(kind);
  return secret ? { Authorization: `Bearer ${secret}` } : {};
}

export const hasSecret = (kind) => sessionStorage.getItem(kind) !== null;

let asking = null;

// Resolves to whether there is a new one to try. One question at a time.
export async function ask(kind, why) {
  while (asking) await asking;
  const dialog = byId("access");
  byId("access-why").textContent = why;
  byId("access-label").textContent = NAMES[kind][0].toUpperCase() + NAMES[kind].slice(1);
  byId("access-secret").value = "";
  dialog.returnValue = "";
  dialog.showModal();
  asking = new Promise((resolve) => {
    byId("access-cancel").onclick = () => dialog.close("");
    byId("access-form").onsubmit = () => sessionStorage.setItem(kind, byId("access-secret").value.trim());
    dialog.onclose = () => resolve(dialog.returnValue === "given");
  });
  try {
    return await asking;
  } finally {
    asking = null;
  }
}
