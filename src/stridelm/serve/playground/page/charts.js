// Charts as SVG, each with a table for screen readers. Here is what all charts share, and the column chart.

import { drawing, element } from "./dom.js";

export const GAP = 8;

/** A figure: caption, legend, the drawings in a box that scrolls if it is too narrow, and the same data as a table,
 *  { head: [text], rows: [[text]] }, which everyone can unfold (`unfolds`) or only screen readers see. */
export function chartFigure({ caption, drawings, table, legend = null, note = null, unfolds = true }) {
  for (const svg of drawings) svg.setAttribute("aria-hidden", "true");
  const figures = dataTable(caption, table);
  const unfolded = () =>
    element("details", {}, element("summary", {}, "As a table"), scrolling(`${caption}, as a table`, figures));
  return element(
    "figure",
    { class: "chart" },
    element("figcaption", {}, caption),
    note && element("p", { class: "faint" }, note),
    legend,
    scrolling(caption, drawings),
    // The wrapper is what is hidden: a table that is clipped to a pixel would still widen its container.
    unfolds ? unfolded() : element("div", { class: "unseen" }, figures),
  );
}

/** A box that scrolls separately, also by keyboard, so that the page does not scroll sideways on a phone. */
export function scrolling(name, inside) {
  return element("div", { class: "chart-scroll", role: "region", "aria-label": name, tabindex: 0 }, inside);
}

/** A table of texts or elements; a row begins with its heading. */
export function dataTable(caption, { head, rows }) {
  const heads = head.map((text) => element("th", { scope: "col" }, text));
  const body = rows.map(([first, ...others]) =>
    element(
      "tr",
      {},
      element("th", { scope: "row" }, first),
      others.map((cell) => element("td", {}, cell)),
    ),
  );
  const parts = [element("thead", {}, element("tr", {}, heads)), element("tbody", {}, body)];
  return element("table", {}, element("caption", { class: "unseen" }, caption), parts);
}

/** An empty drawing of a fixed size in pixels: it is not scaled, so that its text is as large as the page's. */
export function canvas(width, height) {
  return drawing("svg", { width, height, viewBox: `0 0 ${width} ${height}` });
}

/** Round numbers from `low` to `high` or just beyond, about `count` of them. */
export function ticks(low, high, count = 5) {
  const span = high - low > 1e-12 && Number.isFinite(high - low) ? high - low : 1;
  const power = 10 ** Math.floor(Math.log10(span / count));
  const step = [1, 2, 2.5, 5, 10].map((each) => each * power).find((each) => span / each <= count + 1e-9);
  const first = Math.floor(low / step + 1e-9);
  const last = Math.max(Math.ceil(high / step - 1e-9), first + 1);
  return Array.from({ length: last - first + 1 }, (_, at) => Number(((first + at) * step).toPrecision(12)));
}

/** A function from values to pixels. */
export function scale([low, high], [from, to]) {
  return (value) => from + ((value - low) / (high - low || 1)) * (to - from);
}

/** The number of a tick, without insignificant digits. */
export const plain = (value) => String(Number(value.toPrecision(6)));

/** The approximate width of a text: SVG cannot measure it before it is shown. */
export const textWidth = (text) => 6.9 * text.length + 4;

export function shorten(text, most) {
  return text.length > most ? `${text.slice(0, most - 1)}\u2026` : text;
}

export function words(x, y, text, anchor = "start", kind = null) {
  return drawing("text", { x, y, "text-anchor": anchor, class: kind }, text);
}

export function line(x1, y1, x2, y2, kind) {
  return drawing("line", { x1, y1, x2, y2, class: kind });
}

/** Horizontal grid lines with their numbers. */
export function gridRows(values, y, [left, right], format) {
  return values.map((value) => [
    line(left, y(value), right, y(value), "grid"),
    words(left - GAP, y(value) + 4, format(value), "end", "number"),
  ]);
}

/** Columns, each with its value above and its label below. `columns` is [{ label, value, note }]; `format` turns
 *  a value into text; `most` is the top of the axis, if it should not depend on the data. */
export function columnChart({ caption, columns, format = plain, xLabel = "", yLabel = "", most = null }) {
  const highest = most ?? Math.max(0, ...columns.map((each) => each.value));
  const marks = ticks(0, highest || 1, 4);
  const left = Math.max(...marks.map((value) => textWidth(format(value)))) + GAP + 2;
  const widest = Math.max(24, ...columns.flatMap(({ label, value }) => [textWidth(label), textWidth(format(value))]));
  const step = widest + 2 * GAP;
  const [top, bottom] = [34, 180];
  const width = Math.max(left + step * columns.length + GAP, left + textWidth(xLabel) + GAP);
  const svg = canvas(Math.ceil(width), bottom + (xLabel ? 42 : 24));
  const y = scale([0, most ?? marks.at(-1)], [bottom, top]);
  const shown = marks.filter((value) => most === null || value <= most);
  svg.append(drawing("g", {}, gridRows(shown, y, [left, width], format), words(0, 12, yLabel, "start", "axis-title")));
  const thick = Math.min(step * 0.6, 44);
  columns.forEach((each, at) => svg.append(column(each, left + step * (at + 0.5), thick, y, bottom, format)));
  svg.append(line(left, bottom, width, bottom, "axis"));
  if (xLabel) svg.append(words((left + width) / 2, bottom + 36, xLabel, "middle", "axis-title"));
  const rows = columns.map(({ label, value, note }) => [label, format(value), note ?? ""]);
  const table = { head: [xLabel || "Column", yLabel || "Value", "Note"], rows };
  return chartFigure({ caption, drawings: [svg], table, unfolds: false });
}

function column({ label, value, note }, middle, width, y, bottom, format) {
  const high = Math.min(y(value), bottom - 1);
  return drawing(
    "g",
    {},
    drawing("title", {}, note ?? `${label}: ${format(value)}`),
    drawing("rect", { x: middle - width / 2, y: high, width, height: bottom - high, class: "series-0" }),
    words(middle, high - 6, format(value), "middle", "value"),
    words(middle, bottom + 16, label, "middle"),
  );
}
