// The charts of a bench report, drawn from its figures. Only positions on the screen are computed here.

import { INK, bar, legend, linearAxis, logAxis, lookAt, plane, rowsPanel, stack } from "./charts_more.js";
import { chartFigure, plain } from "./charts.js";
import { percent } from "./words.js";

/** A figure for each chart of the report. */
export function drawCharts({ subjects, baseline, figures: { charts } }) {
  const named = charts.flatMap(({ panels }) => panels.flatMap(({ bars, series }) => [...bars, ...series]));
  const others = distinct([...Object.keys(subjects), ...named.map((each) => each.subject)]);
  const looks = others.filter((name) => name !== baseline).map((name, place) => [name, lookAt(place)]);
  // The baseline has the text's colour, since the others are compared with it.
  const look = new Map([...looks, [baseline, INK]]);
  return charts
    .filter(({ kind }) => Object.hasOwn(KINDS, kind))
    .map((chart) => {
      const { title: caption, reading: note, table } = chart;
      return chartFigure({ caption, note, table, ...KINDS[chart.kind](chart, look) });
    });
}

const KINDS = { bars, stacks, lines: curves, steps: curves, points };

const distinct = (values) => [...new Set(values)];
/** Without spreading: a long list has more values than a call may have arguments. */
const largest = (values) => values.reduce((most, value) => Math.max(most, value), -Infinity);
const smallest = (values) => values.reduce((least, value) => Math.min(least, value), Infinity);

function bars({ panels }, look) {
  const all = panels.flatMap((panel) => panel.bars);
  const axis = linearAxis(0, Math.max(1, largest(all.map((each) => each.high))), { count: 3 });
  const row = (each) => {
    const text = { same: "", differs: " differs" }[each.text] ?? " ?";
    const said = `${each.value.toFixed(2)}x${text}${each.loops ? " loops" : ""}`;
    const note = `${each.subject}: ${each.value.toFixed(2)}x (${each.low.toFixed(2)}-${each.high.toFixed(2)}), ${each.text}`;
    return { ...each, label: each.subject, said, note, look: look.get(each.subject), other: each.text !== "same" };
  };
  const grey = { look: { colour: 4 }, as: "bar" };
  return {
    legend: legend([
      { label: "the text of plain decoding", ...grey },
      { label: "another text, or (?) not compared", ...grey, hollow: true },
    ]),
    drawings: panels.map(({ title, bars: own }) =>
      rowsPanel({ title, rows: own.map(row), axis, draw: bar, across: 90, letters: 15, reference: 1 }),
    ),
  };
}

function stacks({ panels }) {
  const names = distinct(panels.flatMap((panel) => panel.stacks.flatMap((each) => Object.keys(each.parts))));
  const row = ({ subject, parts }) => {
    const whole = Object.values(parts).reduce((sum, value) => sum + value, 0);
    const drawn = Object.entries(parts).map(([name, value]) => {
      const said = percent(value / (whole || 1));
      return { value, look: { colour: names.indexOf(name) % 7 }, offers: [`${name} ${said}`, said] };
    });
    return { label: subject, whole, said: `${whole.toFixed(1)} ms`, parts: drawn };
  };
  return {
    legend: legend(names.map((label, at) => ({ label, look: { colour: at % 7 }, as: "bar" }))),
    drawings: panels.map(({ x, stacks: own }) => {
      const rows = own.map(row);
      const axis = linearAxis(0, largest(rows.map((each) => each.whole)), { count: 6, tight: true });
      return rowsPanel({ rows, axis, draw: stack, across: 620, xTitle: x.title });
    }),
  };
}

/** Lines or step curves, with one look per subject. */
function curves({ kind, panels }, look) {
  const names = distinct(panels.flatMap(({ series }) => series.map((each) => each.subject)));
  const [width, height] = panels.length > 3 ? [270, 190] : [330, 250];
  const drawn = ({ subject, x, y }) => ({
    look: look.get(subject),
    points: x.map((value, at) => ({ x: value, y: y[at], note: `${subject}: ${plain(value)}, ${plain(y[at])}` })),
    as: kind === "steps" ? "steps" : "both",
  });
  return {
    legend: legend(names.map((label) => ({ label, look: look.get(label), as: "both" }))),
    drawings: panels.map(({ title, x, y, series }) => {
      const [across, up] = ["x", "y"].map((name) => series.flatMap((each) => each[name]));
      const axes = { x: along(x, across), y: y.is_share ? SHARES : linearAxis(0, largest(up)) };
      const titles = { title, xTitle: x.title, yTitle: panels.length > 3 ? "" : y.title };
      return plane({ ...titles, ...axes, width, height, series: series.map(drawn) });
    }),
  };
}

const SHARES = linearAxis(0, 1, { format: percent });

function along({ scale }, values) {
  const [low, high] = [smallest(values), largest(values)];
  if (scale === "log" && low > 0) return logAxis(0.9 * low, 1.1 * high);
  if (scale !== "whole") return linearAxis(0, high);
  const every = Math.ceil((high - low + 1) / 10);
  const whole = Array.from({ length: Math.floor((high - low) / every) + 1 }, (_, at) => low + at * every);
  return { low: low - 0.3, high: high + 0.3, marks: whole, format: String };
}

/** Points with names, and the line on which x and y are equal. */
function points({ panels }, look) {
  const drawn = ({ subject, x, y, names }) => {
    const note = (at) => [names[at], subject, `${plain(x[at])}x`, `${plain(y[at])}x`].join(", ");
    const all = x.map((value, at) => ({ x: value, y: y[at], name: names[at], note: note(at) }));
    return { look: look.get(subject), points: all, as: "mark" };
  };
  const names = distinct(panels.flatMap(({ series }) => series.map((each) => each.subject)));
  return {
    legend: legend(names.map((label) => ({ label, look: look.get(label), as: "mark" }))),
    drawings: panels.map(({ x, y, series }) => {
      const ends = series.flatMap((each) => [...each.x, ...each.y]);
      const [low, high] = [smallest(ends), largest(ends)];
      const margin = 0.06 * (high - low) || 0.1;
      const axis = linearAxis(low - margin, high + margin, { tight: true });
      const references = [[axis.low, axis.low, axis.high, axis.high]];
      const titles = { xTitle: x.title, yTitle: y.title };
      return plane({ x: axis, y: axis, ...titles, width: 480, height: 470, series: series.map(drawn), references });
    }),
  };
}
