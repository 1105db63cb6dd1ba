// Small pieces of wording that several views share. Pure functions.

export const percent = (share) => `${(100 * share).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;

export const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

/** Who proposed a token. */
export const sourceInWords = (source) => ({ model: "the model itself", mask: "a mask" })[source] ?? source;

/** Shown for a forward that the backend ran by itself, if it does not report them. */
export const NO_ALTERNATIVES = "Steps that the backend runs by itself do not name alternatives.";

/** Whether a step says nothing of what else these tokens could have been. */
export const namesNone = (emitted) => emitted.every(({ alternatives }) => !alternatives.length);

/** A token's text as a label of one line, for example in SVG: whitespace becomes signs. */
export function label(text) {
  const signs = { " ": "\u00b7", "\n": "\u21b5", "\t": "\u21e5", "\r": "\u240d" };
  return text.replace(/\s/g, (space) => signs[space] ?? "\u2423") || "\u2205";
}
