// The card of a stride: the model's probabilities, who proposed each token, its alternatives, and rejected drafts.

import { byId, element } from "./dom.js";
import { NO_ALTERNATIVES, label, namesNone, percent, plural, sourceInWords } from "./words.js";

const ALTERNATIVES = 4;
const REJECTED = 8;
const GAP = 8;

let leaving = 0;
/** The stride whose card is shown. */
let described = null;

/** Show a stride's card beside it. */
export function showCard(stride, number, forward) {
  hideNow();
  const card = byId("card");
  card.replaceChildren(...content(number, forward));
  card.hidden = false;
  described = stride;
  stride.setAttribute("aria-describedby", "card");
  placeCard();
}

function placeCard() {
  const card = byId("card");
  const stride = described;
  const place = stride.getClientRects()[0] ?? stride.getBoundingClientRect();
  const own = card.getBoundingClientRect();
  const below = place.bottom + GAP;
  const top = below + own.height < innerHeight ? below : Math.max(GAP, place.top - GAP - own.height);
  card.style.left = `${Math.max(GAP, Math.min(place.left, innerWidth - own.width - GAP))}px`;
  card.style.top = `${top}px`;
}

/** Hide the card a moment later, so that the pointer can move onto it. */
export function hideCard() {
  clearTimeout(leaving);
  leaving = setTimeout(hideNow, 150);
}

/** Scroll a card that is longer than the window. It is scrolled by keys here, since it cannot have the focus. */
export function scrollCard(pages) {
  byId("card").scrollBy(0, pages * 0.8 * byId("card").clientHeight);
}

export function startCard() {
  byId("card").addEventListener("pointerenter", () => clearTimeout(leaving));
  byId("card").addEventListener("pointerleave", hideCard);
  // Moving through strides with the keys scrolls, too: then the card moves along.
  const moved = () => (described && described === document.activeElement ? placeCard() : hideNow());
  addEventListener("scroll", moved, { passive: true });
  addEventListener("keydown", (event) => event.key === "Escape" && hideNow());
}

function hideNow() {
  clearTimeout(leaving);
  byId("card").hidden = true;
  described?.removeAttribute("aria-describedby");
  described = null;
}

function content(number, forward) {
  const { emitted, accepted, rejected, rows } = forward;
  const drafted = accepted.length + rejected.length;
  const head = ["token", "confidence", "proposed by", "instead of"].map((text) =>
    element("th", { scope: "col" }, text),
  );
  return [
    element("strong", {}, `Pass ${number}: ${plural(emitted.length, "token")}`),
    element(
      "span",
      { class: "faint" },
      ` from ${rows.length} rows; ${drafted ? `${accepted.length} of ${drafted} drafts accepted` : "no drafts"}`,
    ),
    element("table", {}, element("thead", {}, element("tr", {}, head)), element("tbody", {}, emitted.map(tokenRow))),
    namesNone(emitted) ? element("p", { class: "faint" }, NO_ALTERNATIVES) : null,
    rejected.length ? rejectedLine(rejected.map((row) => rows[row])) : null,
  ].filter(Boolean);
}

function tokenRow({ token, text, source, probability, alternatives }) {
  const others = alternatives.filter((other) => other.token !== token).slice(0, ALTERNATIVES);
  return element(
    "tr",
    {},
    element("td", { class: "mono" }, label(text)),
    element("td", {}, percent(probability)),
    element("td", {}, sourceInWords(source)),
    element(
      "td",
      { class: "mono" },
      others.map((other) => `${label(other.text)} ${percent(other.probability)}`).join("  "),
    ),
  );
}

function rejectedLine(drafts) {
  const shown = drafts
    .slice(0, REJECTED)
    .map(({ text, drafter }) => element("span", { class: "rejected" }, `${label(text)} (${drafter})`));
  const rest = drafts.length > REJECTED ? ` and ${drafts.length - REJECTED} more` : "";
  return element(
    "p",
    {},
    "Rejected: ",
    shown.flatMap((each, index) => (index ? [", ", each] : [each])),
    rest,
  );
}
