// The race: both lanes come from the engine in one stream, each with its own clock.

import { stream } from "./api.js";
import { dialled } from "./dials.js";
import { byId, element } from "./dom.js";
import { gathered } from "./gathered.js";
import { stored } from "./kept.js";
import { clearNotice, moveFocus, say, showProblem } from "./notice.js";
import { PRESETS } from "./presets.js";
import { bestPass, firstDifference, verdict } from "./race_verdict.js";
import { keepRun } from "./runs.js";
import { copyButtons } from "./snippets.js";
import { StrideText } from "./strides.js";

const RACED = "stridelm-raced";
const COUNTERS = ["tokens/s", "tokens per forward", "first token", "forwards", "tokens"];

let model = "";
let underWay = null;
/** The last race: its request, its seed, and how many other requests the server had. */
let last = null;

/** `about`: the server's description of itself. A browser's first visit begins with a race. */
export function startRace(about) {
  model = about.model;
  byId("presets").replaceChildren(...PRESETS.map(presetButton));
  if (!byId("race-prompt").value) put(PRESETS[0]);
  byId("race-copy").replaceChildren(...copyButtons(asChat));
  if (!byId("view-race").hidden && isFirstVisit()) run();
}

/** Once per browser: a page that is opened again costs the server nothing. */
function isFirstVisit() {
  return stored((store) => {
    const isFirst = store.getItem(RACED) === null;
    store.setItem(RACED, "yes");
    return isFirst;
  });
}

/** Called only once, `startRace` whenever the server is asked for its description. */
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
  put(preset);
  say(preset.shows);
}

function put(preset) {
  byId("race-prompt").value = preset.prompt;
  byId("preset-shows").textContent = preset.shows;
}

function request() {
  return { model, messages: [{ role: "user", content: byId("race-prompt").value }], ...dialled() };
}

/** The second lane's request, for any client; that of the last race with its seed. */
function asChat() {
  try {
    const body = request();
    const isLast = last && JSON.stringify(body) === JSON.stringify(last.body);
    return { ...body, ...(isLast ? { seed: last.seed } : {}), stream: true };
  } catch (problem) {
    showProblem(problem);
    return null;
  }
}

async function run() {
  clearNotice();
  byId("verdict").replaceChildren();
  byId("race-best").replaceChildren();
  let lanes = [];
  const drawn = gathered((strides) =>
    lanes.forEach((lane, number) => lane.add(strides.filter((each) => each.lane === number))),
  );
  underWay = new AbortController();
  setRunning(true);
  try {
    const body = request();
    for await (const said of stream("/playground/race", body, underWay.signal)) {
      if (!said.lanes) {
        drawn.add(said);
        continue;
      }
      last = { body, seed: said.seed, others: said.others };
      lanes = said.lanes.map(({ decoder, exact }, number) => new Lane(decoder, exact, number, said.backend));
      byId("lanes").replaceChildren(...lanes.map(({ panel }) => panel));
    }
    drawn.flush();
    byId("verdict").replaceChildren(...verdict(lanes, last));
    byId("race-best").replaceChildren(bestPass(lanes[1]));
  } catch (problem) {
    drawn.flush();
    if (problem.name === "AbortError") byId("verdict").textContent = stopped(lanes);
    showProblem(problem);
  } finally {
    underWay = null;
    setRunning(false);
  }
}

function setRunning(isRunning) {
  moveFocus(byId("race-stop"), byId("race-start"), () => {
    byId("race-start").disabled = isRunning;
    byId("race-stop").disabled = !isRunning;
  });
  byId("lanes").setAttribute("aria-busy", String(isRunning));
}

/** One decoder's answer, its text and its counters. */
class Lane {
  constructor(decoder, isExact, number, backend) {
    const title = number ? `several: ${decoder}` : "one token at a time";
    this.isExact = isExact;
    this.seconds = 0;
    this.run = { name: `Race, ${title}`, decoder, path: backend, forwards: [] };
    this.path = element("p", { class: "faint" }, `ran by ${backend}`);
    this.counters = COUNTERS.map(() => element("dd", {}, "\u2013"));
    const place = element("div", { class: "strides" });
    const names = COUNTERS.map((name, index) => element("div", {}, element("dt", {}, name), this.counters[index]));
    this.panel = element(
      "article",
      { class: "lane panel", "aria-label": title },
      element("div", { class: "lane-head" }, element("h3", {}, title), this.path),
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
    this.run.forwards.push(...strides);
    this.run.path = strides.at(-1).path ?? this.run.path;
    this.path.textContent = `ran by ${this.run.path}`;
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

function stopped(lanes) {
  const shorter = lanes.length ? Math.min(...lanes.map(({ tokens }) => tokens)) : 0;
  if (!shorter) return "Stopped.";
  const difference = firstDifference(lanes);
  const isSame = difference === null || difference >= shorter;
  return isSame ? `Stopped; the first ${shorter} tokens of both are the same.` : "Stopped.";
}
