// The plots of what other parts of a bench found: theory, the frontier of accuracy and pace, adaptation.

import { CROSS, INK, change, legend, linearAxis, lookAt, plane, rowsPanel } from "./charts_more.js";
import { chartFigure } from "./charts.js";
import { distinct, largest, smallest } from "./bench_figures.js";
import { fixed, share } from "./bench_words.js";

/** A little wider than the values, so that no point lies on the edge. */
function around(values, more) {
  const [low, high] = [smallest(values), largest(values)];
  const margin = 0.06 * (high - low) || 0.1;
  return linearAxis(low - margin, high + margin, { tight: true, ...more });
}

/** Measured over expected: a look a subject, with the suite's name where there is room. */
export function theory({ extra: { theory: found } }, figures, look) {
  if (!found.length) return null;
  const subjects = distinct(found.map((each) => each.subject));
  const axis = around(found.flatMap((each) => [each.expected, each.measured]));
  const cells = ({ suite, subject, expected, measured }) => [
    suite,
    subject,
    `${fixed(expected)}x`,
    `${fixed(measured)}x`,
  ];
  const point = (each) => ({ x: each.expected, y: each.measured, name: each.suite, note: cells(each).join(", ") });
  const series = subjects.map((subject) => {
    const points = found.filter((each) => each.subject === subject).map(point);
    return { look: look.get(subject), points, as: "mark" };
  });
  const titles = { xTitle: "speed-up that theory expects", yTitle: "speed-up as measured" };
  const references = [[axis.low, axis.low, axis.high, axis.high]];
  return chartFigure({
    caption: "Measured against theory",
    note: "Each point is a subject on a suite: on the line it does what theory says, under it something is lost.",
    legend: legend(subjects.map((label) => ({ label, look: look.get(label), as: "mark" }))),
    drawings: [plane({ x: axis, y: axis, ...titles, width: 480, height: 470, series, references })],
    table: { head: ["Suite", "Subject", "Expected", "Measured"], rows: found.map(cells) },
  });
}

/** Accuracy against tokens per forward: a colour a conversion, a shape a decoder, full where it is exact. */
export function frontier({
  extra: {
    frontier: { points, published, baseline },
  },
}) {
  if (!points.length) return null;
  const plain = baseline.accuracy;
  const conversions = distinct(points.map((each) => each.conversion));
  const decoders = distinct(points.map((each) => each.decoder));
  const cells = (each) => [
    each.conversion,
    `${each.decoder} ${each.setting}`,
    `${fixed(100 * each.accuracy, 1)}% (${fixed(100 * each.low, 1)}-${fixed(100 * each.high, 1)})`,
    `${fixed(each.tokens_per_forward)} tokens per forward`,
    each.exact ? "exact" : "not exact",
  ];
  const lineOf = (place) => ({ ...lookAt(place), dashed: place % 2 === 1 });
  const named = new Set();
  const pointOf = (each) => {
    const place = [each.tokens_per_forward, each.accuracy].join();
    // Where a dial changes nothing its points lie on one another: one name is enough.
    const name = named.has(place) ? "" : each.setting || each.decoder;
    named.add(place);
    const { tokens_per_forward: x, accuracy: y, low, high, exact } = each;
    return { x, y, low, high, hollow: !exact, name, note: cells(each).join(", ") };
  };
  const lines = conversions.flatMap((conversion, place) =>
    decoders.map((decoder) => {
      const own = points.filter((each) => each.conversion === conversion && each.decoder === decoder);
      // Of points at one place the exact one is drawn last, on top.
      const paced = own.map(pointOf).sort((one, other) => one.x - other.x || other.hollow - one.hollow);
      return { look: { ...lineOf(place), shape: decoders.indexOf(decoder) % CROSS }, points: paced, as: "both" };
    }),
  );
  const theirs =
    plain === null
      ? []
      : published.map(({ name, tokens_per_forward: x, accuracy_change: lost }) => ({ x, y: plain + lost, name }));
  const series = [...lines, { look: { ...INK, shape: CROSS }, points: theirs, as: "mark" }];
  const every = series.flatMap((each) => each.points);
  const x = around([1, ...every.map((each) => each.x)], { count: 10 });
  const y = around(
    every.flatMap((each) => [each.y, each.low ?? each.y, each.high ?? each.y]),
    { count: 6, format: share },
  );
  const references = plain === null ? [] : [[x.low, plain, x.high, plain]];
  const titles = { xTitle: "tokens per forward", yTitle: "accuracy" };
  return chartFigure({
    caption: "Accuracy against tokens per forward",
    note:
      "Up is more accurate, right is more tokens a pass: best is the upper right corner. Exact decoders keep the " +
      "baseline's accuracy, which is the horizontal line, by construction. Crosses: published changes, from ours.",
    legend: legend([
      ...conversions.map((label, place) => ({ label, look: lineOf(place), as: "line" })),
      ...decoders.map((label, place) => ({ label, look: { colour: 4, shape: place % CROSS }, as: "mark" })),
      { label: "hollow: not exact", look: { colour: 4, shape: 0 }, as: "mark", hollow: true },
    ]),
    drawings: [plane({ x, y, ...titles, width: 760, height: 420, series, references })],
    table: { head: ["Conversion", "Decoder", "Accuracy (95 %)", "Pace", "Text"], rows: points.map(cells) },
  });
}

/** Tokens per forward before and after training on a domain's own text, a row a domain. */
export function adaptation({
  extra: {
    adaptation: { domains },
  },
}) {
  if (!domains.length) return null;
  const trained = (each) => (each.trained_on ? "trained on" : "not trained on");
  const row = (each) => {
    const said = `${fixed(each.before)} to ${fixed(each.after)}, ${trained(each)}`;
    return { ...each, label: each.domain, said, look: lookAt(each.trained_on ? 0 : 1) };
  };
  const axis = linearAxis(0, largest(domains.flatMap((each) => [each.before, each.after])));
  return chartFigure({
    caption: "Before and after adaptation",
    note: "Before (hollow) and after (full) training on a domain's own text; others show what that costs elsewhere.",
    drawings: [rowsPanel({ rows: domains.map(row), axis, draw: change, across: 320, xTitle: "tokens per forward" })],
    table: {
      head: ["Domain", "Before", "After", "Text"],
      rows: domains.map((each) => [each.domain, fixed(each.before), fixed(each.after), trained(each)]),
    },
  });
}
