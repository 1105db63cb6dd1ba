// openai for node: a chat, a stream, an object, and loops of tools by hand and by its runner; and its Responses API.
import OpenAI from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";
import { key, model, run, settings, url } from "./say.mjs";

const client = new OpenAI({ baseURL: url, apiKey: key, maxRetries: 0 });
const { chat, tools, answers, callTokens } = settings;
const fields = { model, temperature: 0, seed: 3, max_tokens: 16 };
const Weather = z.object({ city: z.enum(["Oslo", "Rome"]), unit: z.enum(["C", "F"]) });

// One turn, whole or streamed; the message is what the client would give back.
async function turn(way, more) {
  const asked = { ...fields, messages: chat, ...more };
  if (way === "whole") return (await client.chat.completions.create(asked)).choices[0];
  const stream = client.chat.completions.stream(asked);
  return (await stream.finalChatCompletion()).choices[0];
}

// The same as a response. Its output goes back as it is.
async function response(way, more) {
  const { messages, max_tokens, ...asked } = { ...fields, messages: chat, ...more };
  const request = { input: messages, max_output_tokens: max_tokens, ...asked };
  if (way === "whole") return client.responses.create(request);
  let last;
  for await (const event of await client.responses.create({ ...request, stream: true })) last = event;
  return last.response;
}

await run({
  async models() {
    return { id: (await client.models.retrieve(model)).id };
  },

  async chat(way) {
    const choice = await turn(way, {});
    return { text: choice.message.content, finish: choice.finish_reason };
  },

  async respond(way) {
    const { output, status } = await response(way, {});
    return { text: output[0].content[0].text, status };
  },

  async respondObject() {
    const format = zodTextFormat(Weather, "weather");
    const asked = { model, input: chat, text: { format }, max_output_tokens: callTokens, temperature: 0 };
    return (await client.responses.parse(asked)).output_parsed;
  },

  async respondLoop(way) {
    const messages = [...chat];
    const calls = [];
    const functions = tools.map(({ type, function: tool }) => ({ type, ...tool }));
    for (const name of ["weather", "clock"]) {
      const more = { messages, tools: functions, tool_choice: { type: "function", name }, max_tokens: callTokens };
      const { output, status } = await response(way, more);
      const [call] = output;
      calls.push({ name: call.name, arguments: call.arguments, finish: status });
      messages.push(...output, { type: "function_call_output", call_id: call.call_id, output: answers[name] });
    }
    const { output } = await response(way, { messages, tools: functions, tool_choice: "none" });
    return { calls, text: output[0].content[0].text };
  },

  async usage() {
    const chunks = [];
    const asked = { ...fields, messages: chat, stream: true, stream_options: { include_usage: true } };
    for await (const chunk of await client.chat.completions.create(asked)) chunks.push(chunk);
    const text = chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join("");
    return { text, usage: chunks.at(-1).usage };
  },

  async object() {
    const response_format = zodResponseFormat(Weather, "weather");
    const asked = { ...fields, messages: chat, response_format, max_tokens: callTokens };
    return (await client.chat.completions.parse(asked)).choices[0].message.parsed;
  },

  async loop(way) {
    const messages = [...chat];
    const calls = [];
    for (const name of ["weather", "clock"]) {
      const tool_choice = { type: "function", function: { name } };
      const choice = await turn(way, { messages, tools, tool_choice, max_tokens: callTokens });
      const [call] = choice.message.tool_calls;
      calls.push({ name: call.function.name, arguments: call.function.arguments, finish: choice.finish_reason });
      messages.push(choice.message, { role: "tool", tool_call_id: call.id, content: answers[name] });
    }
    const last = await turn(way, { messages, tools, tool_choice: "none" });
    return { calls, text: last.message.content, finish: last.finish_reason };
  },

  // The runner calls the functions itself; it asks for the same choice each time, so it is told when to stop.
  async runner(way) {
    const calls = [];
    const functions = tools.map(({ type, function: tool }) => ({
      type,
      function: {
        ...tool,
        parse: JSON.parse,
        function: (given) => {
          calls.push({ name: tool.name, arguments: JSON.stringify(given) });
          return answers[tool.name];
        },
      },
    }));
    const asked = { ...fields, messages: chat, tools: functions, tool_choice: "required", max_tokens: callTokens };
    const stream = way === "whole" ? {} : { stream: true };
    const runner = client.chat.completions.runTools(
      { ...asked, ...stream, parallel_tool_calls: true },
      { maxChatCompletions: 3 },
    );
    await runner.done();
    return { calls, roles: runner.messages.map((message) => message.role) };
  },
});
