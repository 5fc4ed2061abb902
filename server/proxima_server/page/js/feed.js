// The gateway's live document, again each second; comes back by itself when the gateway does.
import { authorization } from "./access.js";
import { errorMessage, address } from "./site.js";
import { eventsOf } from "./sse.js";

const RETRY_MS = 1000;
const SILENCE_MS = 6000;

// onDocument(document); onLost(message); onRefused(status, message) may ask for a token and resolves to whether to go on.
export async function follow({ onDocument, onLost, onRefused }) {
  for (;;) {
    await visible();
    const refusal = await watch(onDocument).catch((error) => ({ status: 0, message: lost(error) }));
    if (refusal === null) continue;
    if ([401, 403, 404].includes(refusal.status)) {
      if (!(await onRefused(refusal.status, refusal.message))) return;
    } else {
      onLost(refusal.message);
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
    }
  }
}

const lost = (error) => (error.name === "TypeError" || error.name === "AbortError" ? "The gateway does not answer" : error.message);

// Until the stream ends. Null when only this page stopped it, because nobody looks.
async function watch(onDocument) {
  const abort = new AbortController();
  let hidden = false;
  const hide = () => {
    if (document.hidden) {
      hidden = true;
      abort.abort();
    }
  };
  let silence = setTimeout(() => abort.abort(), SILENCE_MS);
  document.addEventListener("visibilitychange", hide);
  try {
    const headers = { Accept: "text/event-stream", ...authorization("admin") };
    const response = await fetch(address("debug/live"), { headers, signal: abort.signal });
    if (!response.ok) return { status: response.status, message: await errorMessage(response) };
    for await (const data of eventsOf(response)) {
      clearTimeout(silence);
      silence = setTimeout(() => abort.abort(), SILENCE_MS);
      onDocument(JSON.parse(data));
    }
    return { status: 0, message: "The gateway has ended" };
  } catch (error) {
    if (hidden) return null;
    throw error;
  } finally {
    clearTimeout(silence);
    document.removeEventListener("visibilitychange", hide);
  }
}

function visible() {
  if (!document.hidden) return Promise.resolve();
  return new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));
}
