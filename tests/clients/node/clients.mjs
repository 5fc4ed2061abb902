// node clients.mjs CLIENT BASE_URL MODEL: what each client makes of a chat, a stream and a forced tool call, as JSON.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, streamText, tool } from "ai";
import OpenAI from "openai";
import { z } from "zod";

const [client, baseURL, model] = process.argv.slice(2);
const question = [{ role: "user", content: "What is the capital of France?" }];
const parameters = {
  type: "object",
  properties: { city: { type: "string", enum: ["Paris", "Rome"] } },
  required: ["city"],
  additionalProperties: false,
};

async function openai() {
  const sdk = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
  const request = { model, messages: question, temperature: 0 };
  const chat = await sdk.chat.completions.create(request);
  let stream = "";
  for await (const chunk of await sdk.chat.completions.create({ ...request, stream: true })) {
    stream += chunk.choices[0]?.delta?.content ?? "";
  }
  const called = await sdk.chat.completions.create({
    ...request,
    tools: [{ type: "function", function: { name: "get_weather", parameters } }],
    tool_choice: "required",
    max_tokens: 60,
  });
  const refused = await sdk.chat.completions.create({ ...request, model: "gpt-4" }).catch((error) => error);
  return {
    chat: chat.choices[0].message.content,
    stream,
    tool: called.choices[0].message.tool_calls.map((call) => [call.function.name, JSON.parse(call.function.arguments)]),
    error: [refused.status, refused.code],
  };
}

async function vercel() {
  const provider = createOpenAICompatible({ name: "proxima", baseURL, apiKey: "none", includeUsage: true });
  const request = { model: provider(model), messages: question, temperature: 0, maxRetries: 0 };
  const chat = await generateText(request);
  const streamed = streamText(request);
  let stream = "";
  for await (const part of streamed.textStream) stream += part;
  const tools = { get_weather: tool({ inputSchema: z.object({ city: z.enum(["Paris", "Rome"]) }) }) };
  const called = await generateText({ ...request, tools, toolChoice: "required", maxOutputTokens: 60 });
  const calledStream = streamText({ ...request, tools, toolChoice: "required", maxOutputTokens: 60 });
  const refused = await generateText({ ...request, model: provider("gpt-4") }).catch((error) => error);
  const calls = (all) => all.map((call) => [call.toolName, call.input]);
  return {
    chat: chat.text,
    stream,
    tool: calls(called.toolCalls),
    tool_stream: calls(await calledStream.toolCalls),
    error: [refused.statusCode, JSON.parse(refused.responseBody).error.code],
  };
}

console.log(JSON.stringify(await { openai, vercel }[client]()));
