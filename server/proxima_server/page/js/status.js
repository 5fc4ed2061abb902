// Pill and banner: whether all is well, and what is not.
import { byId, make } from "./dom.js";

export function showGateway({ gateway }) {
  byId("model").textContent = gateway.model;
  document.title = `${gateway.model} · Proxima Gateway`;
  const pill = gateway.draining ? ["draining", "warn"] : gateway.ready ? ["ready", "good"] : [gateway.phase, gateway.phase === "failed" ? "bad" : "warn"];
  setPill(...pill);
  setBanner(...(trouble(gateway) ?? []));
}

export function showTrouble(word, message, action) {
  setPill(word, "bad");
  setBanner(message, "bad", action);
}

function trouble(gateway) {
  if (gateway.draining) {
    const left = gateway.drain_remaining_requests;
    return [`Draining: no new requests. ${left} ${left === 1 ? "request has" : "requests have"} ${Math.round(gateway.drain_remaining_s)} s to finish.`, "warn"];
  }
  if (gateway.failure) return [gateway.failure, "bad"];
  if (gateway.phase === "starting") return [gateway.restarts ? "The engine is being started again." : "The engine is loading.", "warn"];
  if (gateway.policy.state === "degraded") return [`The scheduling policy failed and requests go by arrival: ${gateway.policy.last_error}`, "warn"];
  return null;
}

function setPill(text, kind) {
  const pill = byId("pill");
  pill.textContent = text;
  pill.className = `pill ${kind}`;
}

function setBanner(message, kind, action) {
  const banner = byId("banner");
  banner.hidden = !message;
  const text = message ?? "";
  if (banner.dataset.text === text) return;
  banner.dataset.text = text;
  banner.className = `banner ${kind ?? ""}`;
  banner.replaceChildren(make("span", {}, text));
  if (action) {
    const button = make("button", { type: "button" }, action.name);
    button.onclick = action.run;
    banner.append(button);
  }
}
