// Rows of bars and stacks, and planes with lines and points. A look is { colour: 0 to 5 or "ink", shape,
// dashed }: everything that colours show, shapes, dashes and words show, too.

import { GAP, canvas, gridRows, line, plain, scale, shorten, textWidth, ticks, words } from "./charts.js";
import { drawing, element } from "./dom.js";

const ROW = 22;
const SHAPES = [
  (r) => `m${-r} 0a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0z`,
  (r) => `m${-r} ${-r}h${2 * r}v${2 * r}h${-2 * r}z`,
  (r) => `m0 ${-1.2 * r}l${1.2 * r} ${2.1 * r}h${-2.4 * r}z`,
  (r) => `m0 ${-1.4 * r}l${1.4 * r} ${1.4 * r}l${-1.4 * r} ${1.4 * r}l${-1.4 * r} ${-1.4 * r}z`,
  (r) => `m0 ${1.2 * r}l${1.2 * r} ${-2.1 * r}h${-2.4 * r}z`,
];
export const INK = { colour: "ink", shape: 0, dashed: false };

/** The look number `place`; after each round of colours, lines change between solid and dashed. */
export const lookAt = (place) => ({
  colour: place % 4,
  shape: place % SHAPES.length,
  dashed: Math.floor(place / 4) % 2 === 1,
});

const kind = (look, more) => `series-${look.colour} ${look.dashed ? "dashed" : ""} ${more}`;
const tip = (text) => (text ? drawing("title", {}, text) : null);
const rectangle = (x, y, width, height, look, more = "") =>
  drawing("rect", { x, y, width, height, class: kind(look, more) });

function marker(x, y, { colour, shape }, note = null) {
  return drawing("path", { d: `M${x} ${y}${SHAPES[shape](4)}`, class: `series-${colour} solid` }, tip(note));
}

function curve(points, look) {
  const pairs = points.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`);
  return drawing("polyline", { points: pairs.join(" "), class: kind(look, "curve") });
}

/** What each look means: [{ label, look, as: "bar", "mark" or "both", hollow }]. */
export function legend(entries) {
  const sample = ({ look, as, hollow }) => [
    as === "bar" && rectangle(2, 2, 22, 10, look, hollow ? "other" : ""),
    as === "both" &&
      curve(
        [
          [1, 7],
          [25, 7],
        ],
        look,
      ),
    (as === "mark" || as === "both") && marker(13, 7, look),
  ];
  const picture = (entry) =>
    drawing("svg", { width: 26, height: 14, "aria-hidden": "true" }, sample(entry).filter(Boolean));
  return element(
    "ul",
    { class: "legend" },
    entries.map((entry) => element("li", {}, picture(entry), entry.label)),
  );
}

/** Rows with a name on the left and words on the right: [{ label, said, note, ...what `draw` needs }]. The axis is
 *  `across` pixels wide, a name has at most `letters` letters. */
export function rowsPanel({ title = "", rows, axis, draw, across, letters = 24, reference = null, xTitle = "" }) {
  const names = rows.map((row) => shorten(row.label, letters));
  const left = Math.max(...names.map(textWidth)) + GAP;
  const aside = Math.max(...rows.map((row) => 1.1 * textWidth(row.said))) + GAP;
  const top = title ? 24 : 4;
  const bottom = top + rows.length * ROW + 4;
  const svg = canvas(Math.ceil(left + across + aside), bottom + (xTitle ? 34 : 18));
  const x = scale([axis.low, axis.high], [left, left + across]);
  const upright = (value, name) => line(x(value), top, x(value), bottom, name);
  const grid = axis.marks.map((value) => [
    upright(value, "grid"),
    words(x(value), bottom + 14, axis.format(value), "middle", "number"),
  ]);
  const drawn = rows.map((row, at) => {
    const y = top + ROW * (at + 0.5) + 2;
    const said = words(left + across + GAP, y + 4, row.said, "start", "value");
    return drawing("g", {}, tip(row.note), words(0, y + 4, names[at]), draw(row, x, y), said);
  });
  svg.append(words(0, 14, title, "start", "panel-title"), drawing("g", {}, grid, drawn));
  if (reference !== null) svg.append(upright(reference, "reference"));
  svg.append(words(left, bottom + 30, xTitle, "start", "axis-title"));
  return svg;
}

/** A bar from 0 with its interval; `other` marks one whose text differs or was not compared. */
export function bar({ value, low, high, look, other }, x, y) {
  const ends = [low, high].map((end) => line(x(end), y - 3, x(end), y + 3, "whisker"));
  const width = Math.max(x(value) - x(0), 1);
  return [rectangle(x(0), y - 6, width, 12, look, other ? "other" : ""), line(x(low), y, x(high), y, "whisker"), ends];
}

/** Parts one after the other, each with the first of its labels (`offers`) that fits: [{ value, look, offers }]. */
export function stack({ parts }, x, y) {
  let start = 0;
  return parts.map(({ value, look, offers }) => {
    const [from, width] = [x(start), x(start + value) - x(start)];
    start += value;
    const fits = offers.find((text) => textWidth(text) + 4 < width) ?? "";
    return [rectangle(from, y - 9, width, 18, look), words(from + width / 2, y + 4, fits, "middle")];
  });
}

/** With `tight` the axis ends at the values, otherwise at the next round number. */
export function linearAxis(low, high, { count = 4, format = plain, tight = false } = {}) {
  const marks = ticks(low, high, count);
  if (!tight) return { low: marks[0], high: marks.at(-1), marks, format };
  return { low, high, marks: marks.filter((value) => value >= low && value <= high), format };
}

/** With numbers at 1, 2 and 5 times the powers of ten; if there are many powers, only at these. */
export function logAxis(low, high) {
  const [first, last] = [low, high].map((value) => Math.floor(Math.log10(value)));
  const factors = last - first < 2 ? [1, 2, 5] : [1];
  const powers = Array.from({ length: last - first + 1 }, (_, at) => 10 ** (first + at));
  const marks = powers.flatMap((power) => factors.map((factor) => factor * power));
  return { low, high, marks: marks.filter((value) => value >= low && value <= high), format: plain, log: true };
}

/** Two axes with series between them: [{ look, points: [{ x, y, name, note }], as: "mark",
 *  "both" or "steps" (with a mark in the middle) }], and reference lines: [[x, y, x, y]]. */
export function plane({ title = "", x, y, xTitle, yTitle = "", width, height, series, references = [] }) {
  const svg = canvas(width, height);
  const left = Math.max(0, ...y.marks.map((value) => textWidth(y.format(value)))) + GAP;
  const [top, bottom, right] = [title && yTitle ? 42 : 26, height - 38, width - 14];
  const [along, up] = [scaled(x, [left, right]), scaled(y, [bottom, top])];
  const grid = x.marks.map((value) => [
    line(along(value), bottom, along(value), bottom + 4, "axis"),
    words(along(value), bottom + 18, x.format(value), "middle", "number"),
  ]);
  const straight = references.map(([x1, y1, x2, y2]) => line(along(x1), up(y1), along(x2), up(y2), "reference"));
  const axis = line(left, bottom, right, bottom, "axis");
  svg.append(
    words(0, 14, title, "start", "panel-title"),
    words(0, title ? 30 : 14, yTitle, "start", "axis-title"),
    drawing("g", {}, gridRows(y.marks, up, [left, right], y.format), grid, axis, straight),
    words(right, bottom + 33, xTitle, "end", "axis-title"),
    drawing(
      "g",
      {},
      series.map((each) => seriesMarks(each, along, up)),
    ),
    drawing(
      "g",
      {},
      pointNames(
        series.flatMap((each) => each.points),
        along,
        up,
        [left, top - 8, width, bottom],
      ),
    ),
  );
  return svg;
}

function seriesMarks({ look, points, as }, along, up) {
  const places = points.map((point) => [along(point.x), up(point.y)]);
  if (as === "steps") {
    const steps = places.flatMap(([x, y], at) => [
      [x, places[Math.max(at - 1, 0)][1]],
      [x, y],
    ]);
    return [curve(steps, look), marker(...places[Math.floor(places.length / 2)], look)];
  }
  return [
    as === "mark" ? [] : curve(places, look),
    points.map((point, at) => marker(...places[at], look, point.note)),
  ];
}

function scaled(axis, pixels) {
  if (!axis.log) return scale([axis.low, axis.high], pixels);
  const logarithmic = scale([Math.log(axis.low), Math.log(axis.high)], pixels);
  return (value) => logarithmic(Math.log(Math.max(value, axis.low)));
}

/** Names beside points, if there is room. A name without room is still in the point's note and in the table. */
function pointNames(points, along, up, [left, top, right, bottom]) {
  const taken = points.map((point) => [along(point.x) - 5, up(point.y) - 5, along(point.x) + 5, up(point.y) + 5]);
  const isFree = (box) =>
    box[0] > left && box[2] < right && box[1] > top && box[3] < bottom && !taken.some((other) => overlap(box, other));
  return points
    .filter((point) => point.name)
    .flatMap(({ x, y, name }) => {
      const width = textWidth(name);
      const sides = [8, -8 - width, -width / 2];
      const places = [4, -9, 17].flatMap((down) => sides.map((aside) => [along(x) + aside, up(y) + down]));
      const free = places.map(([from, base]) => [from, base - 11, from + width, base + 2]).find(isFree);
      if (!free) return [];
      taken.push(free);
      return [words(free[0], free[3] - 2, name, "start", "point-name")];
    });
}

const overlap = (one, other) => one[0] < other[2] && other[0] < one[2] && one[1] < other[3] && other[1] < one[3];
