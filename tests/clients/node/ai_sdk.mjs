// The AI SDK with its providers for servers like this one, in each API: text, objects, and its own loop of tools.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, isStepCount, Output, streamObject, streamText, tool } from "ai";
import { z } from "zod";
import { key, model, run, settings, url } from "./say.mjs";

const { system, question, copyCall, answers, callTokens } = settings;
const makers = {
  compatible: () =>
    createOpenAICompatible({
      name: "stridelm",
      baseURL: url,
      apiKey: key,
      includeUsage: true,
      supportsStructuredOutputs: true,
    })(model),
  openai: () => createOpenAI({ baseURL: url, apiKey: key }).chat(model),
  responses: () => createOpenAI({ baseURL: url, apiKey: key }).responses(model),
  anthropic: () => createAnthropic({ baseURL: url, apiKey: key })(model),
};
// Else the SDK refers to the items of earlier replies, which nobody keeps.
const providerOptions = { openai: { store: false } };
const Weather = z.strictObject({ city: z.enum(["Oslo", "Rome"]), unit: z.enum(["C", "F"]) });

function asked(provider, more = {}) {
  const chat = { instructions: system, prompt: question };
  const fields = { temperature: 0, seed: 3, maxOutputTokens: 16, maxRetries: 0, ...more };
  return { model: makers[provider](), providerOptions: provider === "responses" ? providerOptions : {}, ...chat, ...fields };
}

function toolbox(calls) {
  const made = (name, description, inputSchema) =>
    tool({
      description,
      inputSchema,
      execute: async (given) => {
        calls.push({ name, arguments: given });
        return answers[name];
      },
    });
  return {
    weather: made("weather", "The weather in a city.", Weather),
    clock: made("clock", "The time of day.", z.strictObject({})),
  };
}

// Whole or streamed, the same result; a stream's errors are thrown.
async function text(way, fields) {
  if (way === "whole") {
    const result = await generateText(fields);
    const { text, finishReason, steps, usage } = result;
    return { text, finishReason, steps, usage, output: fields.output && result.output };
  }
  let failed;
  const stream = streamText({ ...fields, onError: ({ error }) => (failed = error) });
  await stream.consumeStream();
  if (failed) throw failed;
  const result = { text: await stream.text, finishReason: await stream.finishReason, steps: await stream.steps };
  return { ...result, usage: await stream.usage, output: fields.output && (await stream.output) };
}

await run({
  async chat(provider, way) {
    const { text: said, finishReason, usage } = await text(way, asked(provider));
    return { text: said, finish: finishReason, usage };
  },

  async object(provider, way) {
    const fields = asked(provider, { schema: Weather, maxOutputTokens: callTokens });
    if (way === "whole") return (await generateObject(fields)).object;
    let failed;
    const stream = streamObject({ ...fields, onError: ({ error }) => (failed = error) });
    for await (const _ of stream.partialObjectStream);
    if (failed) throw failed;
    return await stream.object;
  },

  // Three turns: each is told what to call, the last to say something.
  async loop(provider, way) {
    const calls = [];
    const choices = [{ type: "tool", toolName: "weather" }, { type: "tool", toolName: "clock" }, "none"];
    const prepareStep = ({ stepNumber }) => ({ toolChoice: choices[stepNumber] });
    const more = { tools: toolbox(calls), stopWhen: isStepCount(3), prepareStep, maxOutputTokens: callTokens };
    const result = await text(way, asked(provider, more));
    const finish = result.steps.map((step) => step.finishReason);
    return { calls, finish, text: result.text };
  },

  async required(provider, way) {
    const calls = [];
    const more = { tools: toolbox(calls), toolChoice: "required", stopWhen: isStepCount(2), maxOutputTokens: 200 };
    const result = await text(way, asked(provider, more));
    return { calls, finish: result.steps.map((step) => step.finishReason) };
  },

  // Nothing makes it call but the question.
  async free(provider, way) {
    const calls = [];
    const more = { prompt: copyCall, instructions: undefined, tools: toolbox(calls), maxOutputTokens: callTokens };
    const result = await text(way, asked(provider, { ...more, stopWhen: isStepCount(2) }));
    return { calls, finish: result.steps.map((step) => step.finishReason) };
  },

  // Tools on the way, an object in the end.
  async output(provider, way) {
    const calls = [];
    const choices = [{ type: "tool", toolName: "weather" }, "none"];
    const prepareStep = ({ stepNumber }) => ({ toolChoice: choices[stepNumber] });
    const output = Output.object({ schema: Weather });
    const more = { tools: toolbox(calls), stopWhen: isStepCount(2), prepareStep, output, maxOutputTokens: callTokens };
    return { calls, output: (await text(way, asked(provider, more))).output };
  },

  // A chat that goes on with the messages that the SDK made of the answer.
  async again(provider, way) {
    const fields = asked(provider);
    const first = await generateText(fields);
    const user = (content) => ({ role: "user", content });
    const messages = [user(question), ...first.response.messages, user("And in Rome?")];
    return { text: (await text(way, { ...fields, prompt: undefined, messages })).text };
  },
});
