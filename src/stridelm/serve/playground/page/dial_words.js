// What each dial does at its current value, in a sentence. Pure functions.

import { percent, plural } from "./words.js";

const EFFECTS = {
  decoder: (value, decoder) => `${capital(decoder.what)}.`,
  tolerance: (value) =>
    value === 0
      ? "Exact: a proposed token passes only if it is the one that the model itself would write."
      : `Faster, not exact: a proposed token passes if it is at least ${percent(1 - value)} as likely as the best one.`,
  threshold: (value) =>
    `A run of tokens is taken while every one of them has a confidence of at least ${percent(value)}.`,
  k: (value, decoder) =>
    value === null
      ? "How far ahead to propose is left to the decoder."
      : decoder.name === "static"
        ? `Always ${plural(value, "token")} per pass, right or wrong.`
        : decoder.name === "adaptive"
          ? `At most ${plural(value, "token")} per pass.`
          : `The drafter looks at most ${plural(value, "token")} ahead.`,
  temperature: (value) =>
    value === 0
      ? "Greedy: always the likeliest token, the same text every time."
      : `Sampled, ${spice(value)}. Exact decoders write what plain decoding writes with the same seed.`,
  seed: (value, decoder, { temperature }) =>
    temperature === 0
      ? "Nothing is drawn at temperature 0: a seed changes nothing."
      : value === null
        ? "A seed is drawn for every answer, the same for both lanes of a race."
        : `Draws as seed ${value} says: the same settings give the same text every time.`,
  max_tokens: (value) => `The answer ends after ${plural(value, "token")} at the latest.`,
};

/** `values`: the values of all dials; `decoder`: the chosen one, as the server describes it. */
export function effect(name, values, decoder) {
  return EFFECTS[name](values[name], decoder, values);
}

/** Why a dial has no effect. */
export function idle(label, decoder) {
  return `${label} means nothing to the decoder ${decoder.name}.`;
}

const capital = (text) => text[0].toUpperCase() + text.slice(1);
const spice = (temperature) =>
  temperature < 0.7 ? "mostly likely tokens" : temperature <= 1.1 ? "as varied as the model is" : "wild";
