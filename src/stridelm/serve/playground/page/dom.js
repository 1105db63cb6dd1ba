// Creates elements without parsing markup: text is always inserted as text.

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element. Attributes: a function is a listener ("onclick"), true is an empty attribute, null and false are
 *  left out. Children: nodes, texts, lists of them; null is left out. */
export function element(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** An SVG element, in the same way. */
export function drawing(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false)
      node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
}

/** The element with this id, which must exist. */
export function byId(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`the page has no #${id}`);
  return found;
}

const SPACES = new Map([
  [" ", "space"],
  ["\t", "tab"],
  ["\n", "newline"],
  ["\r", "return"],
]);
const UNSEEN = /(\s|[\u200b-\u200f\u2060\ufeff])/;

/** A token's text with visible whitespace: a dot for a space, a sign for tabs and line ends, and the code point of
 *  characters without a sign. The text itself is unchanged, so that copying and screen readers work. */
export function visible(text) {
  return text
    .split(UNSEEN)
    .filter((part) => part !== "")
    .map((part) => (UNSEEN.test(part) ? shown(part) : part));
}

function shown(space) {
  const kind = SPACES.get(space);
  if (kind) return element("span", { class: kind }, space);
  const code = `U+${space.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
  return element("span", { class: "rare", "data-code": code }, space);
}
