// The race: both lanes come from the engine in one stream, each with its own clock.

import { stream } from "./api.js";
import { dialled } from "./dials.js";
import { byId, element } from "./dom.js";
import { gathered } from "./gathered.js";
import { clearNotice, say, showProblem } from "./notice.js";
import { PRESETS } from "./presets.js";
import { keepRun } from "./runs.js";
import { copyButtons } from "./snippets.js";
import { StrideText } from "./strides.js";

const COUNTERS = ["tokens/s", "tokens per forward", "first token", "forwards", "tokens"];

let model = "";
let underWay = null;

/** `about`: what the server says of itself. */
export function startRace(about) {
  model = about.model;
  byId("presets").replaceChildren(...PRESETS.map(presetButton), element("p", { id: "preset-shows", class: "faint" }));
  if (!byId("race-prompt").value) choose(PRESETS[3]);
  byId("race-copy").replaceChildren(...copyButtons(asChat));
}

/** Once; `startRace` may come again when the server is asked anew. */
export function listenToRace() {
  byId("race-form").addEventListener("submit", (event) => {
    event.preventDefault();
    if (!underWay) run();
  });
  byId("race-prompt").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) byId("race-form").requestSubmit();
  });
  byId("race-stop").addEventListener("click", () => underWay?.abort());
}

function presetButton(preset) {
  return element("button", { type: "button", onclick: () => choose(preset) }, preset.name);
}

function choose(preset) {
  byId("race-prompt").value = preset.prompt;
  byId("preset-shows").textContent = preset.shows;
  say(preset.shows);
}

function request() {
  return { model, messages: [{ role: "user", content: byId("race-prompt").value }], ...dialled() };
}

/** The second lane's request, as anyone would send it. */
function asChat() {
  try {
    return { ...request(), stream: true };
  } catch (problem) {
    showProblem(problem);
    return null;
  }
}

async function run() {
  clearNotice();
  byId("verdict").replaceChildren();
  let lanes = [];
  let drawn = null;
  try {
    const body = request();
    underWay = new AbortController();
    setRunning(true);
    lanes = [
      new Lane("one token at a time", "autoregressive", body),
      new Lane(`several: ${body.stride.decoder}`, body.stride.decoder, body),
    ];
    byId("lanes").replaceChildren(...lanes.map(({ panel }) => panel));
    drawn = gathered((strides) =>
      lanes.forEach((lane, number) => lane.add(strides.filter((each) => each.lane === number))),
    );
    for await (const said of stream("/playground/race", body, underWay.signal)) {
      if (said.lanes) lanes.forEach((lane, number) => (lane.isExact = said.lanes[number].exact));
      else drawn.add(said);
    }
    drawn.flush();
    showVerdict(lanes);
  } catch (problem) {
    drawn?.flush();
    if (problem.name === "AbortError") byId("verdict").textContent = stopped(lanes);
    showProblem(problem);
  } finally {
    underWay = null;
    setRunning(false);
  }
}

function setRunning(isRunning) {
  byId("race-start").disabled = isRunning;
  byId("race-stop").disabled = !isRunning;
  byId("lanes").setAttribute("aria-busy", String(isRunning));
}

/** One decoder's answer, its text and its counters. */
class Lane {
  constructor(title, decoder, body) {
    this.isExact = true;
    this.seconds = 0;
    this.run = { name: `Race, ${title}`, decoder, prompt: body.messages[0].content, forwards: [] };
    this.counters = COUNTERS.map(() => element("dd", {}, "\u2013"));
    const place = element("div", { class: "strides" });
    const names = COUNTERS.map((name, index) => element("div", {}, element("dt", {}, name), this.counters[index]));
    this.panel = element(
      "article",
      { class: "lane panel", "aria-label": title },
      element("h3", {}, title),
      element("dl", { class: "counters" }, names),
      place,
    );
    this.text = new StrideText(place, `The answer, ${title}, as strides`);
  }

  get tokens() {
    return this.text.tokens.length;
  }

  add(strides) {
    if (!strides.length) return;
    this.seconds = strides.at(-1).seconds;
    this.first ??= strides[0].seconds;
    this.run.forwards.push(...strides.map(({ seconds, text, forward }) => ({ seconds, text, forward })));
    this.text.add(strides);
    const shown = [
      (this.tokens / this.seconds).toFixed(1),
      (this.tokens / this.text.count).toFixed(2),
      `${(1000 * this.first).toFixed(0)} ms`,
      this.text.count,
      this.tokens,
    ];
    shown.forEach((value, index) => (this.counters[index].textContent = String(value)));
    keepRun(this.run);
  }
}

function firstDifference(lanes) {
  const [plain, other] = lanes.map(({ text }) => text.tokens);
  for (let index = 0; index < Math.max(plain.length, other.length); index++) {
    if (plain[index]?.token !== other[index]?.token) return index;
  }
  return null;
}

function showVerdict(lanes) {
  const [plain, other] = lanes;
  const difference = firstDifference(lanes);
  const speedUp = other.tokens / other.seconds / (plain.tokens / plain.seconds);
  const speed = element("strong", {}, `${speedUp.toFixed(2)}x the speed`);
  if (difference === null) {
    const words = element("span", { class: "same" }, `\u2713 identical: all ${plain.tokens} tokens are the same`);
    byId("verdict").replaceChildren(speed, " \u00b7 ", words);
    return;
  }
  lanes.forEach(({ text }) => text.markDifference(difference));
  const why = other.isExact
    ? "although this decoder is exact: please report it"
    : "as may be, since this decoder is not exact";
  const words = element("span", { class: "other" }, `\u2260 differs from token ${difference + 1} on, ${why}`);
  byId("verdict").replaceChildren(speed, ", for another text \u00b7 ", words);
}

function stopped(lanes) {
  const shorter = Math.min(...lanes.map(({ tokens }) => tokens));
  const difference = lanes.length ? firstDifference(lanes) : 0;
  const same = difference === null || difference >= shorter ? `; the first ${shorter} tokens of both are the same` : "";
  return `Stopped${shorter ? same : ""}.`;
}
