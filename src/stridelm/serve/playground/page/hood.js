// "Under the hood": a run, forward by forward. The data is what runs.js keeps.

import { element } from "./dom.js";
import { emittedTokens, figureLine, rowTable, runCharts, showText } from "./hood_parts.js";
import { summary } from "./hood_rows.js";
import { stepper } from "./hood_stepper.js";
import { say } from "./notice.js";
import { keptRuns, onRun } from "./runs.js";
import { drawTree, legend } from "./tree.js";

const CHART_MILLISECONDS = 1000;

/** Fill `place` with the view, which then follows the runs by itself. */
export function startHood(place) {
  const frame = buildFrame();
  const lengths = new WeakMap();
  // The chosen run and forward, which of them are drawn, and whether drawing is scheduled.
  const state = { name: null, at: 0, forward: null, last: null, waiting: false, shown: -Infinity, timer: 0 };
  const controls = stepper({ go, choose });
  const inSight = () => place.getClientRects().length > 0;
  const chosenRun = () => keptRuns().find((run) => run.name === state.name && run.forwards.length);

  function go(to) {
    state.at = to;
    show();
    if (!controls.isPlaying()) say(frame.summary.textContent);
  }

  function choose(name) {
    state.name = name;
    go(0);
  }

  function heard(run) {
    const known = lengths.get(run) ?? 0;
    const length = run.forwards.length;
    lengths.set(run, length);
    if (!known && length && turnsTo(run)) Object.assign(state, { name: run.name, at: 0 });
    // If the last forward is shown, the view follows the run as it grows; otherwise it stays where it is.
    else if (run.name === state.name && inSight() && state.at === known - 1) state.at = Math.max(0, length - 1);
    controls.list(
      keptRuns()
        .filter((kept) => kept.forwards.length)
        .map((kept) => kept.name),
      state.name,
    );
    soon();
  }

  /** Whether to show a run that begins: unless the user is looking at another one, or the run has no drafts. */
  function turnsTo(run) {
    return !chosenRun() || run.name === state.name || (!inSight() && run.decoder !== "autoregressive");
  }

  /** Draw once per frame at most: strides come faster than frames. */
  function soon() {
    if (state.waiting || !inSight()) return;
    state.waiting = true;
    requestAnimationFrame(show);
  }

  function show() {
    state.waiting = false;
    const run = chosenRun();
    frame.empty.hidden = Boolean(run);
    frame.full.hidden = !run;
    if (!run) return;
    state.at = Math.min(state.at, run.forwards.length - 1);
    controls.show(state.at, run.forwards.length);
    const [{ forward }, last] = [run.forwards[state.at], run.forwards.at(-1)];
    if (state.forward !== forward) showForward(frame, run, state.at);
    if (state.last !== last) showRunSoon();
    Object.assign(state, { forward, last });
  }

  /** The charts cover all forwards: while a run grows, they are drawn once a second. */
  function showRunSoon() {
    const wait = Math.max(0, state.shown + CHART_MILLISECONDS - performance.now());
    clearTimeout(state.timer);
    state.timer = setTimeout(() => {
      state.shown = performance.now();
      const run = chosenRun();
      if (run) showRun(frame, run);
    }, wait);
  }

  frame.full.prepend(controls.node);
  place.replaceChildren(frame.empty, frame.full);
  keptRuns().forEach(heard);
  onRun(heard);
  // Nothing is drawn while the view is hidden, and everything when it is opened.
  new IntersectionObserver(() => (inSight() ? soon() : controls.pause())).observe(place);
}

function showForward(frame, run, at) {
  const { forward } = run.forwards[at];
  frame.summary.textContent = `Forward ${at + 1}: ${summary(forward)}.`;
  frame.tree.replaceChildren(drawTree(forward, at + 1));
  frame.tree.scrollTo(0, 0);
  frame.emitted.replaceChildren(emittedTokens(forward));
  frame.rows.replaceChildren(rowTable(forward));
  showText(frame.text, run, at);
}

function showRun({ figures, charts }, run) {
  figures.replaceChildren(...figureLine(run));
  charts.replaceChildren(...runCharts(run));
}

/** The elements that stay while their contents change. */
function buildFrame() {
  const scrolling = (kind, name) => element("div", { class: kind, tabindex: 0, role: "region", "aria-label": name });
  const parts = {
    empty: element(
      "p",
      { class: "panel" },
      "Run a ",
      element("a", { href: "#race" }, "race"),
      " or ",
      element("a", { href: "#chat" }, "chat"),
      " first: then each of its forward passes can be looked into here.",
    ),
    summary: element("p", { class: "faint" }),
    tree: scrolling("hood-tree", "The tree of rows"),
    emitted: element("div"),
    text: scrolling("hood-text", "The text so far"),
    rows: scrolling("hood-rows", "All rows"),
    figures: element("dl", { class: "hood-figures" }),
    charts: element("div", { class: "hood-charts" }),
  };
  const panel = (title, ...children) => element("section", { class: "panel" }, element("h3", {}, title), ...children);
  parts.full = element(
    "div",
    { class: "hood", hidden: true },
    panel(
      "The rows that ran",
      parts.summary,
      parts.tree,
      legendList(),
      element("details", {}, element("summary", {}, "All rows as a table"), parts.rows),
    ),
    element("div", { class: "hood-pair" }, panel("Emitted", parts.emitted), panel("The text so far", parts.text)),
    panel("Over the whole run", parts.figures, parts.charts),
  );
  return parts;
}

function legendList() {
  return [
    element(
      "p",
      { class: "faint" },
      "A row sees the text and its ancestors, nothing else. ",
      "+1, +2: so many tokens ahead. Below a draft: how sure its drafter was, and which one; ",
      "a GPU that drafts in its own steps does not say how sure.",
    ),
    element(
      "ul",
      { class: "hood-legend" },
      legend().map(([sign, words]) => element("li", {}, sign, words)),
    ),
  ];
}
