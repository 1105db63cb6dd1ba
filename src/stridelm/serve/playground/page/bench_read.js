// Reads a bench report from the text of a file, or says in a sentence why it is not one. No DOM here.

export const LARGEST = 64 * 2 ** 20;
export const COMMAND = "stridelm bench --quick --out DIR";
const VERSION = 1;
const HOW = `A report is the file DIR/bench.json of \`${COMMAND}\`.`;
/** Maximum numbers: more could not be drawn, and no bench has as many. */
const [MOST_ROWS, MOST_POINTS] = [800, 500];

export class NotAReport extends Error {}

/** The report as `stridelm bench` wrote it, with defaults for optional fields. Throws NotAReport. */
export function readReport(text) {
  const entry = parsed(text);
  if (!isRecord(entry) || !("version" in entry)) {
    const shown = isRecord(entry) ? Object.keys(entry).slice(0, 4).join(", ").slice(0, 80) : "";
    throw new NotAReport(
      `this is JSON, but not a report of \`stridelm bench\`${shown && ` (it has ${shown})`}. ${HOW}`,
    );
  }
  if (entry.version !== VERSION) {
    const version = JSON.stringify(entry.version).slice(0, 20);
    throw new NotAReport(`this report has version ${version}, and this page reads version ${VERSION}. ${HOW}`);
  }
  if (!isRecord(entry.figures))
    throw new NotAReport(
      "this report has no figures: an older StrideLM wrote it. `stridelm bench --page FILE --out DIR` adds them.",
    );
  const report = REPORT(entry, "report");
  if (report.figures.rows.length > MOST_ROWS)
    throw new NotAReport("it has more suites and subjects than this page can draw.");
  return report;
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    throw new NotAReport(`this is not JSON. ${HOW}`);
  }
}

// A shape is a function that takes a value and its path in the report, and returns the value or throws. Shapes are
// made of smaller ones.

const isRecord = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const simple = (expected, holds) => (value, where) => {
  if (holds(value)) return value;
  const is = value === undefined ? "is missing" : "is not what it should be";
  throw new NotAReport(`${where} ${is}: ${expected} was expected.`);
};
const words = simple("a text", (value) => typeof value === "string");
const text = simple("a name of up to 200 letters", (value) => typeof value === "string" && value.length <= 200);
const flag = simple("true or false", (value) => typeof value === "boolean");
const number = simple("a number", Number.isFinite);
const amount = simple("a number from 0 on", (value) => Number.isFinite(value) && value >= 0);
const record = simple("an object", isRecord);
const list =
  (of, most = Infinity) =>
  (value, where) => {
    const all = simple(
      most < Infinity ? `a list of up to ${most}` : "a list",
      (each) => Array.isArray(each) && each.length <= most,
    )(value, where);
    return all.map((each, at) => of(each, `${where}[${at}]`));
  };
const mapped = (value, change) =>
  Object.fromEntries(Object.entries(value).map(([name, each]) => [name, change(each, name)]));
const named = (of) => (value, where) =>
  mapped(record(value, where), (each, name) => of(each, `${where}.${name.slice(0, 40)}`));
/** An optional value, and its default. */
const or = (fallback, of) => (value, where) => (value === undefined || value === null ? fallback : of(value, where));
const shape = (fields) => (value, where) =>
  mapped(fields, (of, name) => of(record(value, where)[name], `${where}.${name}`));

const points = list(number, MOST_POINTS);
const TABLE = shape({ caption: text, head: list(text), rows: list(list(words)) });
const AXIS = shape({ title: text, scale: text, is_share: flag });
const PANEL = shape({
  title: text,
  x: AXIS,
  y: AXIS,
  bars: list(shape({ subject: text, value: amount, low: amount, high: amount, text, loops: flag })),
  stacks: list(shape({ subject: text, parts: named(amount) })),
  series: list(together(shape({ subject: text, x: points, y: points, names: list(text, MOST_POINTS) }))),
});
const CHART = shape({ name: text, title: text, reading: words, kind: text, panels: list(PANEL), table: TABLE });
const FIGURES = shape({
  summary: words,
  broken_promises: words,
  facts: list(TABLE),
  columns: TABLE,
  rows: list(shape({ suite: text, subject: text, cells: list(words), tone: text })),
  charts: list(CHART),
  scenarios: list(TABLE),
});
const REPORT = shape({
  circumstances: record,
  baseline: text,
  subjects: named(record),
  absent: or({}, named(words)),
  figures: FIGURES,
});

/** A series whose points have an x, a y and, if any has one, a name each. */
function together(series) {
  return (value, where) => {
    const { x, y, names } = series(value, where);
    if (!x.length || x.length !== y.length || (names.length && names.length !== x.length))
      throw new NotAReport(`${where}: x, y and names are not equally long.`);
    return { subject: value.subject, x, y, names };
  };
}
