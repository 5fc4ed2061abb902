// The request of the playground as something to paste elsewhere. Keys are never part of it.
import { hasSecret } from "./access.js";
import { address } from "./site.js";

const inShell = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

export function curl(body) {
  const lines = [`curl ${address("v1/chat/completions")}`, "-H 'Content-Type: application/json'"];
  if (hasSecret("api")) lines.push('-H "Authorization: Bearer $API_KEY"');
  lines.push(`-d ${inShell(JSON.stringify(body, null, 2))}`);
  return lines.join(" \\\n  ");
}

export function python(body) {
  const { stream, ...rest } = body;
  const key = hasSecret("api") ? 'os.environ["API_KEY"]' : '"none"';
  // What is left to the server is undefined, which JSON leaves out by itself.
  const given = Object.entries({ ...rest, stream }).filter(([, value]) => value !== undefined);
  const values = given.map(([name, value]) => `    ${name}=${literal(value)},`);
  return [
    ...(hasSecret("api") ? ["import os", ""] : []),
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url=${literal(address("v1").href)}, api_key=${key})`,
    "stream = client.chat.completions.create(",
    ...values,
    ")",
    "for chunk in stream:",
    '    print(chunk.choices[0].delta.content or "", end="", flush=True)',
    "",
  ].join("\n");
}

// JSON is Python but for three words, which stand in no string of ours outside of quotes.
function literal(value) {
  if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`;
  if (value !== null && typeof value === "object") return `{${Object.entries(value).map(([name, inner]) => `${literal(name)}: ${literal(inner)}`).join(", ")}}`;
  return { true: "True", false: "False", null: "None" }[JSON.stringify(value)] ?? JSON.stringify(value);
}
