// One forward in words and tables, and the figures of the whole run.

import { columnChart } from "./charts.js";
import { drawing, element, visible } from "./dom.js";
import { acceptanceByDepth, runFigures, strideLengths } from "./hood_figures.js";
import { readRows } from "./hood_rows.js";
import { NO_ALTERNATIVES, label, namesNone, percent, plural, sourceInWords } from "./words.js";

// Less than this is shown as "0.0 %", which is not worth a bar.
const LEAST_SHARE = 0.0005;

const faint = (...children) => element("span", { class: "faint" }, ...children);

/** The tokens of a forward, each with its alternatives. */
export function emittedTokens(forward) {
  if (!forward.emitted.length) return faint("This forward read text; it emitted nothing.");
  const tokens = element(
    "ol",
    { class: "hood-tokens" },
    forward.emitted.map((token) =>
      element(
        "li",
        {},
        element(
          "p",
          { class: "hood-token" },
          element("code", {}, visible(token.text)),
          faint(`${percent(token.probability)}, ${sourceInWords(token.source)}`),
        ),
        element("ul", { class: "hood-bars", "aria-label": "Likeliest here" }, candidates(token)),
      ),
    ),
  );
  return namesNone(forward.emitted) ? element("div", {}, faint(NO_ALTERNATIVES), tokens) : tokens;
}

/** The alternatives, and always the chosen token. */
function candidates(chosen) {
  const isChosen = (other) => other.token === chosen.token;
  const others = chosen.alternatives.filter((other) => isChosen(other) || other.probability >= LEAST_SHARE);
  return (others.some(isChosen) ? others : [...others, chosen]).map((other) => bar(other, isChosen(other)));
}

function bar({ text, probability }, isChosen) {
  const width = `${Math.min(100, 100 * probability).toFixed(2)}%`;
  return element(
    "li",
    { class: isChosen && "chosen" },
    element("span", { "aria-hidden": "true" }, isChosen ? "\u2713" : ""),
    element("span", { class: "what" }, label(text), element("span", { class: "unseen" }, isChosen ? " (chosen)" : "")),
    drawing("svg", { "aria-hidden": "true" }, drawing("rect", { width, height: "100%", rx: 2 })),
    element("span", { class: "share" }, percent(probability)),
  );
}

const COLUMNS = ["Row", "Kind", "Parent", "Token", "Probability", "Drafter", "What became of it"];

/** All rows of a forward: the content of the drawing as a table. */
export function rowTable(forward) {
  const share = ({ probability, drafter }) => (probability !== null ? percent(probability) : drafter ? "not told" : "");
  const token = ({ text }) => (text === null ? "" : element("code", {}, label(text)));
  const parent = (row) => (row.parent < 0 ? "text" : row.parent);
  const cells = (row) => [row.kind, parent(row), token(row), share(row), row.drafter, row.became];
  const line = (row) =>
    element(
      "tr",
      {},
      element("th", { scope: "row" }, row.row),
      cells(row).map((cell) => element("td", {}, cell)),
    );
  return element(
    "table",
    {},
    element(
      "thead",
      {},
      element(
        "tr",
        {},
        COLUMNS.map((name) => element("th", { scope: "col" }, name)),
      ),
    ),
    element("tbody", {}, readRows(forward).map(line)),
  );
}

/** The text up to a forward, its stride marked; the box is scrolled to it, never the page. */
export function showText(box, run, at) {
  const before = run.forwards
    .slice(0, at)
    .map((step) => step.text)
    .join("");
  const { text } = run.forwards[at];
  const stride = element("mark", {}, visible(text));
  box.replaceChildren(before, stride, text ? "" : faint(" (no text came of this forward)"));
  box.scrollTop = stride.offsetTop - box.clientHeight / 2;
}

/** The figures of the run in one line. */
export function figureLine(run) {
  return [...runFigures(run.forwards), ...(run.path ? [["ran by", run.path]] : [])].map(([name, value]) =>
    element("div", {}, element("dt", {}, name), element("dd", {}, value)),
  );
}

/** Charts of how many drafts were accepted, and of how long the strides were. */
export function runCharts(run) {
  const depths = acceptanceByDepth(run.forwards).map(({ depth, share, accepted, drafted }) => ({
    label: String(depth),
    value: share,
    note: `${accepted} of ${drafted}`,
  }));
  const lengths = strideLengths(run.forwards).map(({ length, forwards }) => ({
    label: String(length),
    value: forwards,
    note: plural(forwards, "forward"),
  }));
  const acceptance = {
    caption: "Acceptance by depth",
    columns: depths,
    format: percent,
    most: 1,
    xLabel: "depth of the draft",
    yLabel: "share of those whose parent stood",
  };
  const strides = { caption: "Tokens per forward", columns: lengths, xLabel: "tokens emitted", yLabel: "forwards" };
  return [depths.length ? columnChart(acceptance) : faint("Nothing was drafted in this run."), columnChart(strides)];
}
