// The rows of one forward, drawn as the tree they are: a row sees its ancestors.
//
//   pending  +1      +2      +3        a column is a position in the text; the accepted path is the top line, from
//   [row]---[v d1]--[v d2]--(+ own)    left to right; rejected drafts and masks are below their parents
//      +----[x d1']-[x d2']

import { drawing } from "./dom.js";
import { ownToken, readRows, summary, tipOf } from "./hood_rows.js";
import { label, percent } from "./words.js";

const NODE = { width: 124, height: 30, across: 160, down: 58, left: 12, top: 36 };
const SHOWN_PENDING = 4;
const ORDER = { pending: 0, accepted: 0, own: 0, rejected: 1, mask: 2 };

/** The positions of all nodes. Nodes: {kind, row, text, note, facts, parent, children, column, lane, x, y}. */
function layOut(forward) {
  const rows = readRows(forward);
  const pending = foldPending(rows.filter((row) => row.kind === "pending"));
  const nodes = [...pending, ...rows.filter((row) => row.kind !== "pending").map(nodeOfRow), ...nodesOfOwn(forward)];
  link(nodes);
  const free = [];
  for (const node of nodes) if (!node.parent) settle(node, free);
  const [columns, lanes] = [free.length, Math.max(0, ...free)];
  const width = 2 * NODE.left + (columns - 1) * NODE.across + NODE.width;
  return { nodes, pendingColumns: pending.length, columns, lanes, width, height: NODE.top + lanes * NODE.down };
}

/** A whole prompt would push the tree out of view, so its first rows become one node. */
function foldPending(pending) {
  if (pending.length <= SHOWN_PENDING) return pending.map(nodeOfRow);
  const folded = pending.slice(0, 1 - SHOWN_PENDING);
  const last = folded.at(-1).row;
  const facts = `Rows 0 to ${last}, pending:\n${folded
    .map((row) => row.text)
    .join("")
    .slice(-400)}`;
  const words = { text: `\u2026 ${folded.length} more`, note: "rows of the text", facts };
  return [{ kind: "pending", row: last, above: -1, ...words }, ...pending.slice(folded.length).map(nodeOfRow)];
}

function nodeOfRow({ row, kind, fate, became, parent, token, text, probability, drafter, wrote }) {
  const facts = [`Row ${row}, ${kind}: ${became}`, `parent: ${parent < 0 ? "the text before" : `row ${parent}`}`];
  let note = "";
  if (kind !== "mask") facts.push(`token ${token}: ${label(text)}`);
  if (wrote !== null) facts.push((note = `wrote ${cut(label(wrote))}`));
  if (drafter) facts.push((note = probability === null ? drafter : `${percent(probability)}  ${drafter}`));
  const words = { text: kind === "mask" ? "mask" : cut(label(text)), note, facts: facts.join("\n") };
  return { kind: fate === "unreached" ? "rejected" : fate, row, above: parent, weight: probability ?? 0, ...words };
}

/** The token that the model itself added is not a row, but it shows why the drafts beside it were rejected. */
function nodesOfOwn(forward) {
  const [own, tip] = [ownToken(forward), tipOf(forward)];
  if (!own) return [];
  const [text, note] = [label(own.text), `${percent(own.probability)}  model`];
  const facts = `Not a row: what row ${tip} put out\ntoken ${own.token}: ${text}\n${note}`;
  return [{ kind: "own", row: null, above: tip, text: cut(text), note, facts }];
}

function link(nodes) {
  const byRow = new Map(nodes.map((node) => [node.row, node]));
  const topFirst = (one, other) => ORDER[one.kind] - ORDER[other.kind] || other.weight - one.weight;
  for (const node of nodes) Object.assign(node, { parent: byRow.get(node.above) ?? null, children: [] });
  for (const node of nodes) node.parent?.children.push(node);
  for (const node of nodes) node.children.sort(topFirst);
}

/** A node is in the same lane as its first child; the others take the next lanes that are free in their column. */
function settle(node, free, column = 0, least = 0) {
  const [first, ...others] = node.children;
  const highest = Math.max(least, free[column] ?? 0);
  const lane = first ? settle(first, free, column + 1, highest) : highest;
  Object.assign(node, { column, lane, x: NODE.left + column * NODE.across, y: NODE.top + lane * NODE.down });
  free[column] = lane + 1;
  for (const child of others) settle(child, free, column + 1, lane);
  return lane;
}

/** As much of a text as fits into a node; wide letters (East Asian, emoji) count as two. */
function cut(text) {
  let room = 12;
  const letters = [...text];
  const end = letters.findIndex((letter) => (room -= letter.codePointAt(0) > 0x2e7f ? 2 : 1) < 0);
  return end < 0 ? text : `${letters.slice(0, end - 1).join("")}\u2026`;
}

/** The tree as an SVG that is not scaled. */
export function drawTree(forward, number = "") {
  const layout = layOut(forward);
  const { width, height, nodes } = layout;
  const name = `forward ${number}: ${summary(forward)}`;
  // If lines overlap, the accepted path must be on top.
  const edges = nodes.filter((node) => node.parent).sort((one, other) => ORDER[other.kind] - ORDER[one.kind]);
  const viewBox = `0 0 ${width} ${height}`;
  return drawing(
    "svg",
    { class: "tree", role: "img", "aria-label": name, width, height, viewBox },
    drawColumns(layout),
    edges.map(drawEdge),
    nodes.map(drawNode),
  );
}

function drawColumns({ columns, pendingColumns }) {
  return Array.from({ length: columns }, (_, column) => {
    const ahead = column - pendingColumns + 1;
    const name = ahead > 0 ? `+${ahead}` : column ? "" : "pending";
    return drawing("text", { class: "note", x: NODE.left + 2 + column * NODE.across, y: 20 }, name);
  });
}

function drawEdge({ parent, kind, x, y }) {
  const [startX, startY, endY] = [parent.x + NODE.width, parent.y + NODE.height / 2, y + NODE.height / 2];
  const bend = startX + (NODE.across - NODE.width) / 2;
  const down = `H${bend - 7}Q${bend} ${startY} ${bend} ${startY + 7}V${endY - 7}Q${bend} ${endY} ${bend + 7} ${endY}`;
  return drawing("path", { class: `edge is-${kind}`, d: `M${startX} ${startY}${startY === endY ? "" : down}H${x}` });
}

// Signs are drawn as lines, not as letters, which a font may lack.
const SIGNS = { accepted: "M11 15.5l3.5 4L20 11", rejected: "M11.5 11l8 8m0-8l-8 8", own: "M10.5 15h10m-5-5v10" };

function drawNode({ kind, text, note, facts, x, y, width = NODE.width }) {
  const { height } = NODE;
  const sign = SIGNS[kind];
  return drawing(
    "g",
    { class: `is-${kind}`, transform: `translate(${x} ${y})` },
    drawing("title", {}, facts),
    drawing("rect", { width, height, rx: { own: 15, pending: 2 }[kind] ?? 7 }),
    sign ? drawing("path", { class: "glyph", d: sign }) : null,
    drawing("text", { class: "word", x: sign ? 27 : 10, y: 19.5 }, text),
    drawing("text", { class: "note", x: 2, y: height + 14 }, note),
  );
}

const LEGEND = [
  ["pending", "pending text, not yet in the cache"],
  ["accepted", "accepted draft: filled, check, thick line"],
  ["own", "added by the model itself: round, plus"],
  ["rejected", "rejected draft: struck out, cross"],
  ["mask", "mask, which asks what comes next: dashed"],
];

/** What the shapes mean: [drawing, words]. */
export function legend() {
  const frame = { class: "tree", "aria-hidden": "true", width: 36, height: 24, viewBox: "-1 -1 48 32" };
  return LEGEND.map(([kind, words]) => [
    drawing("svg", frame, drawNode({ kind, text: "", note: "", facts: words, x: 0, y: 0, width: 46 })),
    words,
  ]);
}
