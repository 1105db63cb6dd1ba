// The controls: which run, which forward.

import { element } from "./dom.js";

const PLAY_MILLISECONDS = 800;

/** `go(to)` is called when the user chooses a forward, by number from 0; `choose(name)` when they choose a run. */
export function stepper({ go, choose }) {
  let [at, count, timer] = [0, 0, null];

  const chosen = element("select", {
    onchange: () => {
      pause();
      choose(chosen.value);
    },
  });
  const slide = () => step(range.value - 1);
  const range = element("input", { type: "range", min: 1, "aria-label": "Forward", oninput: slide });
  const position = element("p", { class: "hood-position" });
  const button = (name, onclick) => element("button", { type: "button", onclick }, name);
  const first = button("First", () => step(0));
  const previous = button("Previous", () => step(at - 1));
  const play = button("Play", () => (timer === null ? start() : pause()));
  const next = button("Next", () => step(at + 1));
  const last = button("Last", () => step(count - 1));

  function step(to) {
    pause();
    if (to >= 0 && to < count && to !== at) go(to);
  }

  function start() {
    timer = setInterval(() => (at + 1 < count ? go(at + 1) : pause()), PLAY_MILLISECONDS);
    play.textContent = "Pause";
    go(at + 1 < count ? at + 1 : 0);
  }

  function pause() {
    clearInterval(timer);
    timer = null;
    play.textContent = "Play";
  }

  function walk(event) {
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: count - 1 }[event.key];
    // Form fields handle these keys themselves; the range field does the same with them.
    const isOthers = event.target.matches("input, select") || event.altKey || event.ctrlKey || event.metaKey;
    if (to === undefined || isOthers) return;
    event.preventDefault();
    step(to);
  }

  /** The list is not touched while the names stay the same: it would close if it is open. */
  function list(names, name) {
    const listed = [...chosen.options].map((option) => option.value);
    if (names.join("\n") !== listed.join("\n")) {
      chosen.replaceChildren(...names.map((each) => element("option", { value: each }, each)));
    }
    if (chosen.value !== name) chosen.value = name;
  }

  function show(newAt, newCount) {
    [at, count] = [newAt, newCount];
    range.max = count;
    range.value = at + 1;
    range.ariaValueText = `${at + 1} of ${count}`;
    position.replaceChildren("forward ", element("strong", {}, at + 1), ` of ${count}`);
    // Not `disabled`: a button would lose the focus, and the arrow keys with it.
    for (const each of [first, previous]) each.ariaDisabled = at === 0;
    for (const each of [next, last]) each.ariaDisabled = at + 1 === count;
    if (at + 1 === count) pause();
  }

  const group = { class: "panel hood-stepper", role: "group", "aria-label": "Step through the run", onkeydown: walk };
  const node = element(
    "div",
    group,
    element("label", {}, "Run", chosen),
    element("div", { class: "hood-buttons" }, first, previous, play, next, last),
    position,
    range,
  );
  return { node, list, show, pause, isPlaying: () => timer !== null };
}
