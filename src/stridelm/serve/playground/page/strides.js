// An answer as strides: the tokens of one forward pass are together, in one colour, and have a card with details.

import { hideCard, scrollCard, showCard } from "./card.js";
import { element, visible } from "./dom.js";

const COLOURS = 4;
/** Number of strides after which a block ends, at the next line end. */
const FULL = 64;
const BROKEN = "\ufffd";
/** A zero-width space between strides, where a line may break. */
const BREAK = "\u200b";

/** The text of one answer. The arrow keys move between strides; the card of a stride is shown on hover or focus. */
export class StrideText {
  /** `place`: an empty element; `label`: its name for screen readers. */
  constructor(place, label) {
    this.place = place;
    this.tokens = [];
    this.count = 0;
    place.setAttribute("role", "list");
    place.setAttribute("aria-label", label);
    place.addEventListener("keydown", (event) => this.#walk(event));
    place.addEventListener("focusout", hideCard);
  }

  /** Add forward passes, each {text, finish_reason, forward}. */
  add(passes) {
    const isAtEnd = this.place.scrollHeight - this.place.scrollTop - this.place.clientHeight < 48;
    for (const each of passes.filter(({ forward }) => forward.emitted.length)) {
      this.#block().append(this.#stride(each), BREAK);
    }
    if (isAtEnd) this.place.scrollTop = this.place.scrollHeight;
  }

  /** The block for the next stride. Answers are laid out in blocks, so that a stride does not move all earlier ones. */
  #block() {
    const last = this.place.lastElementChild;
    const isFull = last?.childElementCount >= FULL && last.textContent.endsWith(`\n${BREAK}`);
    return last && !isFull ? last : this.place.appendChild(element("div", { class: "block", role: "presentation" }));
  }

  #stride({ text, finish_reason: ending, forward }) {
    const number = ++this.count;
    const stride = element("span", {
      class: `stride new c${number % COLOURS}`,
      role: "listitem",
      tabindex: number === 1 ? 0 : -1,
      onpointerenter: () => showCard(stride, number, forward),
      onpointerleave: hideCard,
      onfocus: () => showCard(stride, number, forward),
      onclick: () => this.#select(stride),
    });
    const spans = parts(forward.emitted, text, ending);
    stride.append(...spans);
    forward.emitted.forEach(({ token }, index) => this.tokens.push({ token, span: spans[index] ?? spans.at(-1) }));
    return stride;
  }

  /** Mark a token, because the other answer has a different one there, or none. */
  markDifference(index) {
    const { span } = this.tokens[index] ?? {};
    span?.classList.add("differs");
    span?.before(element("span", { class: "sign" }, "differs here: "));
    const mark = span ?? this.place.appendChild(element("span", { class: "sign differs" }, "ends here"));
    this.place.scrollTop += mark.getBoundingClientRect().top - this.place.getBoundingClientRect().top - 40;
  }

  #strides() {
    return [...this.place.querySelectorAll(".stride")];
  }

  #select(stride) {
    for (const each of this.#strides()) each.tabIndex = each === stride ? 0 : -1;
    stride.focus();
  }

  #walk(event) {
    const strides = this.#strides();
    const here = strides.indexOf(document.activeElement);
    const targets = { ArrowRight: here + 1, ArrowLeft: here - 1, Home: 0, End: strides.length - 1 };
    const pages = { PageDown: 1, PageUp: -1 }[event.key];
    const target = strides[targets[event.key]];
    if (here < 0 || !(target || pages)) return;
    event.preventDefault();
    if (target) this.#select(target);
    else scrollCard(pages);
  }
}

/** A stride's tokens. If a character is spread over several tokens, they cannot be shown one by one. */
function parts(emitted, text, ending) {
  if (emitted.some((each) => each.text.includes(BROKEN))) {
    return [element("span", { class: "token" }, visible(text || "\u2026"))];
  }
  return emitted.map((each, index) => {
    const isEnding = ending === "stop" && index === emitted.length - 1 && !text.endsWith(each.text);
    return element("span", { class: isEnding ? "token ending" : "token" }, visible(each.text));
  });
}
