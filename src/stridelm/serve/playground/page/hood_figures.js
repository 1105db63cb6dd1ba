// Figures of a whole run, from its forwards [{forward}]. No DOM.

import { readRows } from "./hood_rows.js";

/** By depth, from 1: the drafts that were checked (their parent was accepted), those accepted, and their share.
 *  Counted as the benchmarks count, `by_depth` in bench/subjects/ours.py. */
export function acceptanceByDepth(forwards) {
  const counts = [];
  for (const { forward } of forwards) {
    const depths = [];
    for (const { row, kind, parent, fate } of readRows(forward)) {
      if (kind !== "draft") continue;
      depths[row] = (depths[parent] ?? 0) + 1;
      if (fate === "unreached") continue;
      const count = (counts[depths[row] - 1] ??= { depth: depths[row], drafted: 0, accepted: 0 });
      count.drafted += 1;
      if (fate === "accepted") count.accepted += 1;
    }
  }
  return counts.map((count) => ({ ...count, share: count.accepted / count.drafted }));
}

/** How many forwards emitted 1, 2, 3, ... tokens. 0 tokens are listed only if that happened. */
export function strideLengths(forwards) {
  const counts = new Map();
  for (const { forward } of forwards) counts.set(forward.emitted.length, (counts.get(forward.emitted.length) ?? 0) + 1);
  const lengths = Array.from({ length: Math.max(0, ...counts.keys()) + 1 }, (_, length) => length);
  return lengths.slice(counts.has(0) ? 0 : 1).map((length) => ({ length, forwards: counts.get(length) ?? 0 }));
}

/** The run in one line: [what, how much]. */
export function runFigures(forwards) {
  const total = (measure) => forwards.reduce((sum, { forward }) => sum + measure(forward), 0);
  const each = (measure) => (forwards.length ? (total(measure) / forwards.length).toFixed(2) : "0");
  const accepted = total((forward) => forward.accepted.length);
  const drafted = accepted + total((forward) => forward.rejected.length);
  return [
    ["forwards", forwards.length],
    ["tokens", total((forward) => forward.emitted.length)],
    ["tokens per forward", each((forward) => forward.emitted.length)],
    ["rows per forward", each((forward) => forward.rows.length)],
    ["drafts accepted", `${accepted} of ${drafted}`],
  ];
}
