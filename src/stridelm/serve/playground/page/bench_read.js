// A bench report from the text of a file, or a sentence that says why it is none. No DOM here.

export const LARGEST = 64 * 2 ** 20;
export const COMMAND = "stridelm bench --quick --out DIR";
const VERSION = 1;
const HOW = `A report is the file DIR/bench.json of \`${COMMAND}\`.`;
/** More could not be drawn, and no bench has as many. */
const [MOST_GROUPS, MOST_DEPTHS, MOST_POINTS] = [800, 64, 500];

export class NotAReport extends Error {}

/** The report as `stridelm bench` wrote it, with what may be left out in its place. Throws NotAReport. */
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
  const report = REPORT(entry, "report");
  const groups = new Set(report.records.map((record) => JSON.stringify([record.suite, record.subject]))).size;
  if (groups > MOST_GROUPS) throw new NotAReport("it has more suites and subjects than this page can draw.");
  return report;
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    throw new NotAReport(`this is not JSON. ${HOW}`);
  }
}

// A shape takes a value and where it stands, and returns the value or throws. Each is made of smaller ones.

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
/** What may be left out, and what stands for it then. */
const or = (fallback, of) => (value, where) => (value === undefined || value === null ? fallback : of(value, where));
const shape = (fields) => (value, where) =>
  mapped(fields, (of, name) => of(record(value, where)[name], `${where}.${name}`));

const ANSWER = shape({
  stride_tokens: list(amount),
  stride_seconds: list(amount),
  seconds: amount,
  forwards: or(null, amount),
  own_forwards: or(null, amount),
  backend: or(null, text),
  drafted_by_depth: or([], list(amount, MOST_DEPTHS)),
  accepted_by_depth: or([], list(amount, MOST_DEPTHS)),
  phases: or({}, named(amount)),
});
const QUALITY = shape({
  identical: or(null, flag),
  departs_at: or(null, number),
  loops: or(false, flag),
});
const POINT = {
  conversion: text,
  decoder: text,
  setting: (value) => String(value ?? ""),
  exact: flag,
  accuracy: amount,
  low: amount,
  high: amount,
  tokens_per_forward: amount,
};
const points = (fields) => or([], list(shape(fields), MOST_POINTS));
/** An object that may be left out as a whole. */
const part = (fields) => (value, where) => shape(fields)(value ?? {}, where);
const EXTRA = part({
  theory: points({ suite: text, subject: text, expected: amount, measured: amount }),
  frontier: part({
    points: points(POINT),
    published: points({ name: text, accuracy_change: number, tokens_per_forward: amount }),
    baseline: part({ accuracy: or(null, amount) }),
  }),
  adaptation: part({ domains: points({ domain: text, before: amount, after: amount, trained_on: flag }) }),
});
const RECORD = shape({ suite: text, question: text, subject: text, round: number, answer: together, quality: QUALITY });
const REPORT = shape({
  settings: record,
  circumstances: record,
  baseline: text,
  subjects: named(record),
  records: list(RECORD),
  absent: or({}, named(words)),
  extra: EXTRA,
});

/** An answer whose strides have a moment each. */
function together(value, where) {
  const answer = ANSWER(value, where);
  if (answer.stride_tokens.length !== answer.stride_seconds.length)
    throw new NotAReport(`${where}: stride_tokens and stride_seconds are not equally long.`);
  return answer;
}
