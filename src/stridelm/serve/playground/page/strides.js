// An answer as strides: the tokens of one forward pass stand together, in one colour, and tell of themselves.

import { hideCard, showCard } from "./card.js";
import { element, visible } from "./dom.js";

const COLOURS = 4;
const BROKEN = "\ufffd";

/** The text of one answer. Strides are walked with the arrow keys; pointing at one, or being there, shows its card. */
export class StrideText {
  /** `place`: an empty element; `label`: what those who cannot see it are told that it is. */
  constructor(place, label) {
    this.place = place;
    this.tokens = [];
    this.count = 0;
    place.setAttribute("role", "list");
    place.setAttribute("aria-label", label);
    place.addEventListener("keydown", (event) => this.#walk(event));
    place.addEventListener("focusout", hideCard);
  }

  /** Forward passes, each {text, finish_reason, forward}. */
  add(passes) {
    const isAtEnd = this.place.scrollHeight - this.place.scrollTop - this.place.clientHeight < 48;
    // A space without width: where a line may break between strides.
    const strides = passes
      .filter(({ forward }) => forward.emitted.length)
      .flatMap((each) => [this.#stride(each), "\u200b"]);
    this.place.append(...strides);
    if (isAtEnd) this.place.scrollTop = this.place.scrollHeight;
  }

  #stride({ text, finish_reason: ending, forward }) {
    const number = ++this.count;
    const stride = element("span", {
      class: `stride new c${number % COLOURS}`,
      role: "listitem",
      tabindex: number === 1 ? 0 : -1,
      "aria-describedby": "card",
      onpointerenter: () => showCard(stride, number, forward),
      onpointerleave: hideCard,
      onfocus: () => showCard(stride, number, forward),
      onclick: () => this.#select(stride),
    });
    stride.append(...parts(forward.emitted, text, ending));
    this.tokens.push(...forward.emitted.map(({ token }) => ({ token, stride })));
    return stride;
  }

  /** Mark the stride that holds a token, because the other answer has another one there. */
  markDifference(index) {
    const stride = this.tokens[index]?.stride;
    if (!stride) return;
    stride.classList.add("differs");
    stride.prepend(element("span", { class: "sign" }, "differs here: "));
    this.place.scrollTop = stride.offsetTop - this.place.offsetTop - 40;
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
    if (event.key === "Escape") return hideCard();
    const target = strides[targets[event.key]];
    if (here < 0 || !target) return;
    event.preventDefault();
    this.#select(target);
  }
}

/** A stride's tokens. Where a character lies in several tokens none of them can be shown by itself. */
function parts(emitted, text, ending) {
  if (emitted.some((each) => each.text.includes(BROKEN))) {
    return [element("span", { class: "token" }, visible(text || "\u2026"))];
  }
  return emitted.map((each, index) => {
    const isEnding = ending === "stop" && index === emitted.length - 1 && !text.endsWith(each.text);
    return element("span", { class: isEnding ? "token ending" : "token" }, visible(each.text));
  });
}
