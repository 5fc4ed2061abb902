// The playground: a conversation with streaming answers.
import { ask as askForKey, authorization } from "./access.js";
import { byId, make } from "./dom.js";
import { address, errorMessage } from "./site.js";
import { curl, python } from "./snippets.js";
import { eventsOf } from "./sse.js";
import { timing } from "./timing.js";

let messages = [];
let running = null;

export function start() {
  byId("ask").onsubmit = send;
  byId("prompt").onkeydown = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      byId("ask").requestSubmit();
    }
  };
  byId("stop").onclick = () => running?.abort();
  byId("clear").onclick = clear;
  byId("parameters").onsubmit = (event) => event.preventDefault();
  byId("copy-curl").onclick = () => copy(byId("copy-curl"), curl(body()));
  byId("copy-python").onclick = () => copy(byId("copy-python"), python(body()));
  clear();
}

export async function loadModels() {
  const select = byId("parameters").elements.model;
  if (select.options.length) return;
  const response = await withKey(() => fetch(address("v1/models"), { headers: authorization("api") })).catch(() => null);
  if (!response?.ok) return;
  const { data } = await response.json();
  select.replaceChildren(...data.map(({ id }) => make("option", {}, id)));
}

// Asks for a key when the gateway wants one.
async function withKey(request) {
  for (;;) {
    const response = await request();
    if (response.status !== 401) return response;
    const why = await errorMessage(response.clone());
    if (!(await askForKey("api", why))) return response;
  }
}

function body(extra = []) {
  const { elements } = byId("parameters");
  const number = (name) => (elements[name].value === "" ? undefined : Number(elements[name].value));
  const system = elements.system.value.trim();
  const draft = byId("prompt").value.trim();
  const asked = [...messages, ...extra];
  if (!extra.length && draft) asked.push({ role: "user", content: draft });
  return {
    model: elements.model.value,
    messages: [...(system ? [{ role: "system", content: system }] : []), ...asked],
    temperature: number("temperature"),
    top_p: number("top_p"),
    max_tokens: number("max_tokens"),
    seed: number("seed"),
    stream: true,
  };
}

async function send(event) {
  event.preventDefault();
  const content = byId("prompt").value.trim();
  if (!content || running || !byId("parameters").reportValidity()) return;
  const question = { role: "user", content };
  running = new AbortController();
  toggle(true);
  await loadModels();
  const talk = messages;
  const payload = body([question]);
  byId("prompt").value = "";
  if (!messages.length) byId("transcript").replaceChildren();
  say("You", content);
  const line = say(payload.model, "");
  const answer = { text: "", times: [] };
  try {
    await stream(payload, answer, line);
    line.append(...(answer.times.length ? [timing(answer.times)] : []));
  } catch (error) {
    const stopped = error.name === "AbortError";
    line.append(make("p", { class: stopped ? "muted" : "error" }, stopped ? "Stopped." : error.message));
  }
  if (answer.text) talk.push(question, { role: "assistant", content: answer.text });
  running = null;
  toggle(false);
  byId("prompt").focus();
}

async function stream(payload, answer, line) {
  const text = line.querySelector(".text");
  let sent = 0;
  const response = await withKey(() => {
    sent = performance.now();
    const headers = { "Content-Type": "application/json", ...authorization("api") };
    return fetch(address("v1/chat/completions"), { method: "POST", headers, body: JSON.stringify(payload), signal: running.signal });
  });
  if (!response.ok) throw new Error(await errorMessage(response));
  for await (const data of eventsOf(response)) {
    if (data === "[DONE]") return;
    const event = JSON.parse(data);
    if (event.error) throw new Error(event.error.message);
    const { content, reasoning_content: reasoning } = event.choices?.[0]?.delta ?? {};
    if (!content && !reasoning) continue;
    answer.times.push(performance.now() - sent);
    // What it thought is shown, and not sent back with the next question.
    if (reasoning) thought(line).textContent += reasoning;
    if (content) {
      answer.text += content;
      text.textContent = answer.text;
    }
    byId("transcript").scrollTop = byId("transcript").scrollHeight;
  }
}

function thought(line) {
  const there = line.querySelector(".thought");
  if (there) return there;
  const made = make("p", { class: "thought muted", title: "Reasoning" });
  line.querySelector(".text").before(made);
  return made;
}

function say(who, content) {
  const line = make("li", {}, make("p", { class: "who" }, who), make("p", { class: "text" }, content));
  byId("transcript").append(line);
  line.scrollIntoView({ block: "nearest" });
  return line;
}

function toggle(busy) {
  byId("send").hidden = busy;
  byId("stop").hidden = !busy;
}

function clear() {
  running?.abort();
  // An answer that still comes belongs to the old conversation.
  messages = [];
  byId("transcript").replaceChildren(make("li", { class: "muted" }, "Answers come from the model that this gateway serves. Enter sends, Shift + Enter starts a new line."));
}

async function copy(button, text) {
  const name = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    // Browsers keep the clipboard from pages that came over plain HTTP from elsewhere.
    byId("transcript").append(make("li", {}, make("pre", { class: "text" }, text)));
  }
  setTimeout(() => { button.textContent = name; }, 1500);
}
