// From a bench report to figures: what of src/stridelm/bench/measures.py and plots.py the page shows, in the same
// words, so that a test can hold one against the other. No DOM here.

export const PHASES = ["draft", "forward", "head", "verify", "sampling", "steps", "rest"];
const SURE = 0.95;
const CURVE_POINTS = 300;

/** Figures of every suite's subjects: suites in the order of the records, subjects in that of the report. */
export function measure(report) {
  const groups = new Map();
  const plain = new Map();
  for (const record of report.records) {
    gather(groups, JSON.stringify([record.suite, record.subject]), record);
    if (record.subject === report.baseline) plain.set(placeOf(record), record);
  }
  const suites = distinct(report.records.map((record) => record.suite));
  const subjects = distinct([...Object.keys(report.subjects), ...report.records.map((record) => record.subject)]);
  const order = ([{ suite, subject }]) => suites.indexOf(suite) * subjects.length + subjects.indexOf(subject);
  return [...groups.values()]
    .sort((one, other) => order(one) - order(other))
    .map((records) => {
      const paired = records.filter((record) => plain.has(placeOf(record)));
      return figuresOf(
        records,
        paired.map((record) => [plain.get(placeOf(record)), record]),
      );
    });
}

/** The median with its 95 % interval; null of no values. */
export function spread(values) {
  const ordered = sorted(values);
  const count = ordered.length;
  if (!count) return null;
  const [leftOut, coverage] = medianRanks(count);
  return {
    median: percentile(ordered, 0.5),
    low: ordered[leftOut],
    high: ordered[count - 1 - leftOut],
    count,
    coverage,
  };
}

/** How many ordered values may be left out at either end, and how likely the true median lies between the others:
 *  each value is below it or not, as a coin falls. By logarithms, since powers of a half soon are nothing. */
function medianRanks(count) {
  let logarithm = -count * Math.LN2;
  let outside = 2 * Math.exp(logarithm);
  let leftOut = 0;
  while (2 * leftOut + 2 < count) {
    logarithm += Math.log((count - leftOut) / (leftOut + 1));
    const more = outside + 2 * Math.exp(logarithm);
    if (more > 1 - SURE) break;
    [leftOut, outside] = [leftOut + 1, more];
  }
  return [leftOut, Math.max(0, 1 - outside)];
}

/** The value below which so many lie, in between two of them by weight; 0 of no values. */
export function percentile(values, share) {
  const ordered = sorted(values);
  if (!ordered.length) return 0;
  const place = share * (ordered.length - 1);
  const below = Math.floor(place);
  const upper = Math.min(below + 1, ordered.length - 1);
  return ordered[below] + (place - below) * (ordered[upper] - ordered[below]);
}

const tokensOf = (answer) => total(answer.stride_tokens);
const firstOf = (answer) => answer.stride_seconds[0] ?? answer.seconds;

/** Tokens per second. */
export function speed(answer) {
  const count = tokensOf(answer);
  return count && answer.seconds > 0 ? count / answer.seconds : null;
}

/** By how much the subject's answers are faster: the median of ratios, with a word on the text. */
function speedUp(pairs) {
  const both = pairs.map(([plain, other]) => [speed(plain.answer), speed(other.answer), other.quality]);
  const compared = both.filter(([ours, theirs]) => ours && theirs);
  const found = spread(compared.map(([ours, theirs]) => theirs / ours));
  const qualities = compared.map(([, , quality]) => quality);
  return found && { ...found, differs: differs(qualities), loops: qualities.some((quality) => quality.loops) };
}

function figuresOf(records, pairs) {
  const answers = records.map((record) => record.answer);
  const qualities = records.map((record) => record.quality);
  const told = answers.filter((answer) => answer.forwards);
  return {
    suite: records[0].suite,
    subject: records[0].subject,
    answers: records.length,
    first: spread(answers.map(firstOf)),
    speed_up: speedUp(pairs),
    tokens_per_forward: ratio(total(told.map(tokensOf)), forwardsOf(told)),
    acceptance: acceptance(answers),
    identical: mean(qualities.map((quality) => quality.identical)),
    departs_at: median(qualities.filter((quality) => !quality.identical).map((quality) => quality.departs_at)),
    loops: qualities.filter((quality) => quality.loops).length,
    differs: differs(qualities),
    path: pathOf(answers),
  };
}

/** What ran: the backend and whose steps, in the words of src/stridelm/stats.py; null where nobody tells. */
function pathOf(answers) {
  const paths = distinct(answers.map((answer) => answer.backend)).flatMap((backend) => {
    const told = answers.filter((answer) => answer.backend === backend);
    const [forwards, own] = [forwardsOf(told), total(told.map((answer) => answer.own_forwards ?? 0))];
    const mixed = `own steps for ${own} of ${forwards} forwards`;
    const steps = !own ? "host's steps" : forwards - own <= told.length ? "own steps" : mixed;
    return backend === null ? [] : [`${backend}, ${steps}`];
  });
  return paths.join("; ") || null;
}

/** By depth, from 1: the share of drafts that stood, of those looked at. */
function acceptance(answers) {
  const depths = largest(answers.map((answer) => answer.drafted_by_depth.length));
  const sum = (name, depth) => total(answers.map((answer) => answer[name][depth] ?? 0));
  return range(depths).map((depth) => ratio(sum("accepted_by_depth", depth), sum("drafted_by_depth", depth)) ?? 0);
}

/** What a token costs by phase, in milliseconds over all suites: [{ subject, parts: [a number a phase] }]. */
export function phaseCosts(report, subjects) {
  return subjects.flatMap((subject) => {
    const own = report.records.filter((record) => record.subject === subject).map((record) => record.answer);
    const told = own.filter((answer) => Object.keys(answer.phases).length);
    const tokens = total(told.map(tokensOf));
    const part = (name) => (1e3 * total(told.map((answer) => answer.phases[name] ?? 0))) / tokens;
    return tokens ? [{ subject, parts: PHASES.map(part) }] : [];
  });
}

/** Milliseconds between strides and to the first token, seconds of whole answers, of a subject over all suites. */
export function latencies(report, subject) {
  const own = report.records.filter((record) => record.subject === subject).map((record) => record.answer);
  const waits = own.flatMap(({ stride_seconds: at }) => at.slice(1).map((moment, place) => 1e3 * (moment - at[place])));
  return { waits, firsts: own.map((answer) => 1e3 * firstOf(answer)), wholes: own.map((answer) => answer.seconds) };
}

/** Points of a cumulative curve: [value, share that is no longer]; some hundreds say the same as all of a long run. */
export function shares(values) {
  const ordered = sorted(values);
  const last = ordered.length - 1;
  const ranks = distinct(range(CURVE_POINTS + 1).map((step) => evenly((step * last) / CURVE_POINTS)));
  return [[ordered[0], 0], ...ranks.map((rank) => [ordered[rank], (rank + 1) / ordered.length])];
}

export const distinct = (values) => [...new Set(values)];
export const range = (count) => Array.from({ length: count }, (_, at) => at);
/** Without spreading: a long list is more than a call may have of arguments. */
export const largest = (values) => values.reduce((most, value) => Math.max(most, value), -Infinity);
export const smallest = (values) => values.reduce((least, value) => Math.min(least, value), Infinity);
const placeOf = (record) => JSON.stringify([record.suite, record.question, record.round]);
/** Nothing that could not be compared passes for the same. */
const differs = (qualities) => !qualities.every((quality) => quality.identical);
const forwardsOf = (answers) => total(answers.map((answer) => answer.forwards ?? 0));
const total = (values) => values.reduce((sum, value) => sum + value, 0);
const sorted = (values) => [...values].sort((one, other) => one - other);
const ratio = (part, whole) => (whole ? part / whole : null);
const without = (values) => values.filter((value) => value !== null).map(Number);
const mean = (values) => ratio(total(without(values)), without(values).length);
const median = (values) => (without(values).length ? percentile(without(values), 0.5) : null);

function gather(groups, key, value) {
  if (groups.has(key)) groups.get(key).push(value);
  else groups.set(key, [value]);
}

/** Rounded as Python does: a half goes to the even neighbour. */
export function evenly(value) {
  const below = Math.floor(value);
  return value - below === 0.5 ? below + (below % 2) : Math.round(value);
}
