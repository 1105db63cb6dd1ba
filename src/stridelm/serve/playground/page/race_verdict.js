// What came out of a race: the gain in words, whether the texts are the same, and the best pass.

import { element } from "./dom.js";
import { drawTree } from "./tree.js";
import { percent, plural } from "./words.js";

const FRACTIONS = [
  [1 / 4, "a quarter of the"],
  [1 / 3, "a third of the"],
  [1 / 2, "half the"],
  [2 / 3, "two thirds of the"],
  [1, "the same"],
];
const NEAR = 0.07;

/** "about half the time", "58 % of the time". */
function timeInWords(share) {
  const found = FRACTIONS.find(([fraction]) => Math.abs(share / fraction - 1) <= NEAR);
  return found ? `about ${found[1]} time` : `${percent(share)} of the time`;
}

/** `lanes`: plain decoding's and the other; `last`: {body, seed, others}. */
export function verdict(lanes, last) {
  const [plain, other] = lanes;
  const difference = firstDifference(lanes);
  const speedUp = other.tokens / other.seconds / (plain.tokens / plain.seconds);
  const speed = `${speedUp.toFixed(2)}x the speed`;
  const isSame = difference === null;
  const took = timeInWords(other.seconds / plain.seconds);
  const headline = isSame ? `The same text in ${took}` : `Another text, at ${speed}`;
  const facts = [
    `${other.seconds.toFixed(2)} s instead of ${plain.seconds.toFixed(2)} s`,
    isSame ? speed : null,
    identity(lanes, difference),
    `ran by ${other.run.path}`,
    other.run.decoder === "auto" && other.tokens < 1.1 * other.text.count
      ? "few drafts: as measured, they do not pay here"
      : null,
    last.body.temperature > 0 ? `seed ${last.seed}` : null,
    last.others ? `both lanes were slower for ${plural(last.others, "other answer")} beside them` : null,
  ].filter(Boolean);
  return [
    element("strong", {}, headline),
    element(
      "p",
      {},
      facts.flatMap((fact, index) => (index ? [" \u00b7 ", fact] : [fact])),
    ),
  ];
}

export function firstDifference(lanes) {
  const [plain, other] = lanes.map(({ text }) => text.tokens);
  for (let index = 0; index < Math.max(plain.length, other.length); index++) {
    if (plain[index]?.token !== other[index]?.token) return index;
  }
  return null;
}

function identity(lanes, difference) {
  const [plain, other] = lanes;
  if (difference === null) {
    return element("span", { class: "same" }, `\u2713 identical: all ${plain.tokens} tokens are the same`);
  }
  lanes.forEach(({ text }) => text.markDifference(difference));
  const why = other.isExact
    ? "although this decoder is exact: please report it"
    : "as may be, since this decoder is not exact";
  return element("span", { class: "other" }, `\u2260 differs from token ${difference + 1} on, ${why}`);
}

/** The pass that brought the most tokens, as the tree that it was. */
export function bestPass({ run }) {
  const count = ({ forward }) => forward.emitted.length;
  const at = run.forwards.reduce((best, each, place) => (count(each) > count(run.forwards[best]) ? place : best), 0);
  const { forward } = run.forwards[at];
  return element(
    "section",
    { class: "panel" },
    element("h3", {}, `The pass that brought the most: ${plural(count(run.forwards[at]), "token")} at once`),
    element(
      "p",
      { class: "faint" },
      "Check: a draft that is what the model writes. Plus: the model's own token. ",
      element("a", { href: "#hood" }, "All passes, step by step"),
    ),
    element(
      "div",
      { class: "race-tree", tabindex: 0, role: "region", "aria-label": "The tree of this pass" },
      drawTree(forward, at + 1),
    ),
  );
}
