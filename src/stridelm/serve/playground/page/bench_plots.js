// The plots of a bench report: which figures stand in which chart. Null where the report has nothing to draw.

import { INK, bar, legend, linearAxis, logAxis, lookAt, plane, rowsPanel, stack } from "./charts_more.js";
import {
  PHASES,
  distinct,
  largest,
  latencies,
  percentile,
  phaseCosts,
  range,
  shares,
  smallest,
} from "./bench_figures.js";
import { adaptation, frontier, theory } from "./bench_extra.js";
import { chartFigure } from "./charts.js";
import { fixed, interval, share, textVerdict } from "./bench_words.js";

/** All plots that the report has something for. */
export function plots(report, figures) {
  const look = looks(report);
  const all = [speedUps, acceptance, latency, phases, theory, frontier, adaptation];
  return all.map((draw) => draw(report, figures, look)).filter((figure) => figure !== null);
}

/** The baseline is in ink, since others are held against it. */
function looks({ subjects, records, extra, baseline }) {
  const named = [...records, ...extra.theory].map((each) => each.subject);
  const others = distinct([...Object.keys(subjects), ...named]).filter((name) => name !== baseline);
  return new Map([...others.map((name, place) => [name, lookAt(place)]), [baseline, INK]]);
}

const bySuite = (figures, draw) =>
  distinct(figures.map((each) => each.suite)).map((suite) =>
    draw(
      suite,
      figures.filter((each) => each.suite === suite),
    ),
  );
const subjectsOf = (figures) => distinct(figures.map((each) => each.subject));
const linesLegend = (names, look) => legend(names.map((label) => ({ label, look: look.get(label), as: "both" })));
const percents = linearAxis(0, 1, { format: share });

function speedUps({ baseline }, figures, look) {
  const shown = figures.filter((each) => each.speed_up && each.subject !== baseline);
  if (!shown.length) return null;
  const axis = linearAxis(0, Math.max(1, largest(shown.map((each) => each.speed_up.high))), { count: 3 });
  const cells = (each) => [each.suite, each.subject, interval(each.speed_up), textVerdict(each)];
  const row = (each) => {
    const { median: value, low, high } = each.speed_up;
    const text = each.identical === null ? " ?" : each.differs ? " differs" : "";
    const said = `${fixed(value)}x${text}${each.loops ? " loops" : ""}`;
    const bars = { value, low, high, look: look.get(each.subject), other: each.differs };
    return { label: each.subject, said, note: cells(each).join(", "), ...bars };
  };
  const grey = { look: { colour: 4 }, as: "bar" };
  return chartFigure({
    caption: "Speed-up by suite",
    note:
      `How many times as fast as ${baseline} on the same question in the same round: bars are medians, thin lines ` +
      "their intervals, the line at 1 is the baseline. Another text is other work, and a loop is easy to draft.",
    legend: legend([
      { label: "the text of plain decoding", ...grey },
      { label: "another text, or (?) not compared", ...grey, hollow: true },
    ]),
    drawings: bySuite(shown, (title, own) =>
      rowsPanel({ title, rows: own.map(row), axis, draw: bar, across: 90, letters: 15, reference: 1 }),
    ),
    table: { head: ["Suite", "Subject", "Speed-up", "Text"], rows: shown.map(cells) },
  });
}

function acceptance(report, figures, look) {
  const shown = figures.filter((each) => each.acceptance.length);
  if (!shown.length) return null;
  const depths = range(largest(shown.map((each) => each.acceptance.length))).map((at) => at + 1);
  const every = Math.ceil(depths.length / 10);
  const marks = depths.filter((depth) => (depth - 1) % every === 0);
  const x = { low: 0.7, high: depths.length + 0.3, marks, format: String };
  const series = ({ subject, acceptance: rates }) => {
    const points = rates.map((y, at) => ({ x: at + 1, y, note: `${subject}, depth ${at + 1}: ${share(y)}` }));
    return { look: look.get(subject), points, as: "both" };
  };
  return chartFigure({
    caption: "Acceptance by depth",
    note:
      "How often a drafted token stands, of those whose predecessor stood: the higher and the flatter, the more " +
      "tokens a pass brings.",
    legend: linesLegend(subjectsOf(shown), look),
    drawings: bySuite(shown, (title, own) =>
      plane({ title, x, y: percents, xTitle: "depth of the draft", width: 270, height: 190, series: own.map(series) }),
    ),
    table: {
      head: ["Suite", "Subject", ...depths.map((depth) => `Depth ${depth}`)],
      rows: shown.map((each) => [each.suite, each.subject, ...each.acceptance.map(share)]),
    },
  });
}

const WAITS = [
  { kind: "waits", title: "Waits between pieces of text", unit: "milliseconds", digits: 1 },
  { kind: "firsts", title: "Time to the first token", unit: "milliseconds", digits: 0 },
  { kind: "wholes", title: "Whole answers", unit: "seconds", digits: 2 },
];

function latency(report, figures, look) {
  const found = subjectsOf(figures).map((name) => ({ name, ...latencies(report, name) }));
  if (!found.length) return null;
  const panel = ({ kind, title, unit }) => {
    const drawn = found.filter((each) => each[kind].length);
    const all = drawn.flatMap((each) => each[kind]).filter((value) => value > 0);
    if (!all.length) return [];
    const x = kind === "wholes" ? linearAxis(0, largest(all)) : logAxis(0.9 * smallest(all), 1.1 * largest(all));
    const points = (values) => shares(values).map(([value, part]) => ({ x: value, y: part }));
    const series = drawn.map((each) => ({ look: look.get(each.name), points: points(each[kind]), as: "steps" }));
    const titles = { title, xTitle: unit, yTitle: "share no longer than this" };
    return [plane({ ...titles, x, y: percents, width: 330, height: 250, series })];
  };
  const said = (values, digits) =>
    values.length ? `${fixed(percentile(values, 0.5), digits)} / ${fixed(percentile(values, 0.95), digits)}` : "-";
  return chartFigure({
    caption: "Latencies",
    note:
      "Over all suites: a curve further to the left is quicker, a long tail to the right is felt as stutter. Several " +
      "tokens that come together wait longer but less often.",
    legend: linesLegend(
      found.map((each) => each.name),
      look,
    ),
    drawings: WAITS.flatMap(panel),
    table: {
      head: ["Median / 95th percentile", ...WAITS.map(({ title, unit }) => `${title}, ${unit}`)],
      rows: found.map((each) => [each.name, ...WAITS.map(({ kind, digits }) => said(each[kind], digits))]),
    },
  });
}

function phases(report, figures) {
  const costs = phaseCosts(report, subjectsOf(figures));
  if (!costs.length) return null;
  const rows = costs.map(({ subject, parts }) => {
    const whole = parts.reduce((sum, value) => sum + value, 0);
    const part = (value, at) => {
      const said = share(value / (whole || 1));
      return { value, look: { colour: at }, offers: [`${PHASES[at]} ${said}`, said] };
    };
    return { label: subject, whole, said: `${fixed(whole, 1)} ms`, parts: parts.map(part) };
  });
  const axis = linearAxis(0, largest(rows.map((row) => row.whole)), { count: 6, tight: true });
  const shown = range(PHASES.length).filter((at) => costs.some(({ parts }) => parts[at]));
  return chartFigure({
    caption: "Where the time goes",
    note: "What a token costs, by phase, over all suites: shorter is faster, and the widest part is what to work on.",
    legend: legend(shown.map((at) => ({ label: PHASES[at], look: { colour: at }, as: "bar" }))),
    drawings: [rowsPanel({ rows, axis, draw: stack, across: 620, xTitle: "milliseconds a token" })],
    table: {
      head: ["Milliseconds a token", ...shown.map((at) => PHASES[at]), "whole"],
      rows: costs.map(({ subject, parts }, at) => [subject, ...shown.map((one) => fixed(parts[one])), rows[at].said]),
    },
  });
}
