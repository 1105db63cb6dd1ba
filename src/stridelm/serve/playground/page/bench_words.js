// How figures are said: the words of src/stridelm/bench/wording.py. No DOM here.

import { evenly } from "./bench_figures.js";

/** With so many digits; where a half is exact it goes to the even neighbour, as in Python. */
export function fixed(value, digits = 2) {
  const isHalf = Number.isInteger(value * 2 ** (digits + 1)) && (value * 10 ** digits) % 1 === 0.5;
  return isHalf ? (evenly(value * 10 ** digits) / 10 ** digits).toFixed(digits) : value.toFixed(digits);
}

export const share = (value) => `${fixed(100 * value, 0)}%`;
export const milliseconds = (seconds) => fixed(1e3 * seconds, seconds < 0.01 ? 1 : 0);

export const interval = (spread) => `${fixed(spread.median)}x (${fixed(spread.low)}-${fixed(spread.high)})`;

/** What became of the text. It stands right beside the speed-up, which is worth little without it. */
export function textVerdict({ differs, identical, departs_at: departs, loops, answers }) {
  const where = departs === null ? "" : ` at token ${fixed(departs, 0)}`;
  const same = identical ? ` (${share(identical)} same)` : "";
  const verdict = identical === null ? "not compared" : differs ? `differs${where}${same}` : "same";
  return loops ? `${verdict}, ${loops} of ${answers} loop` : verdict;
}

/** Whether the speed of this text must not be taken at its face value. */
export const isAlarming = (figures) => figures.differs || figures.loops > 0;

/** Exact decoders whose text differs: a fault, not a trade. */
export function brokenPromises(report, figures) {
  const promised = (name) => Object.hasOwn(report.subjects, name) && report.subjects[name].exact === true;
  const broken = figures.filter((each) => each.identical !== null && each.differs && promised(each.subject));
  return broken.map((each) => `${each.subject} on ${each.suite} (${textVerdict(each)})`).join("; ");
}
