// What happened to the rows of one forward, in words. No DOM.

import { plural } from "./words.js";

const FATES = {
  pending: "read into the cache",
  accepted: "accepted",
  rejected: "rejected",
  unreached: "not reached: its parent was rejected",
  mask: "asked for a draft",
};

/** The rows of a forward, each with its number, `row`; its `fate`, a key of FATES; that in words, `became`; and what
 *  a mask `wrote` if the decoder keeps the tokens of masks without verifying them, else null. */
export function readRows(forward) {
  const accepted = new Set(forward.accepted);
  const stands = (row) => row < 0 || forward.rows[row].kind === "pending" || accepted.has(row);
  const ofDraft = (row, parent) => (accepted.has(row) ? "accepted" : stands(parent) ? "rejected" : "unreached");
  const written = writtenByMasks(forward);
  return forward.rows.map((facts, row) => {
    const fate = facts.kind === "draft" ? ofDraft(row, facts.parent) : facts.kind;
    const wrote = written.get(row) ?? null;
    return { ...facts, row, fate, became: wrote === null ? FATES[fate] : "wrote a token of the text", wrote };
  });
}

/** The last row that is kept: its output is the token that the model itself adds. */
export function tipOf(forward) {
  return forward.accepted.at(-1) ?? forward.rows.findLastIndex((row) => row.kind === "pending");
}

/** The token that the model added after the accepted drafts; null if the text ended before it. */
export function ownToken(forward) {
  const token = forward.emitted[forward.accepted.length];
  return token?.source === "model" ? token : null;
}

/** The tokens after the model's own are those of the masks at the tip. */
function writtenByMasks(forward) {
  const written = new Map();
  let parent = tipOf(forward);
  for (const token of forward.emitted.slice(forward.accepted.length + 1)) {
    const mask = forward.rows.findIndex((row) => row.kind === "mask" && row.parent === parent);
    if (mask < 0) break;
    written.set(mask, token.text);
    parent = mask;
  }
  return written;
}

/** One line: what ran, and the result. */
export function summary(forward) {
  const count = (kind) => forward.rows.filter((row) => row.kind === kind).length;
  const drafts = count("draft");
  const drafted = drafts ? `${plural(drafts, "draft")} of which ${forward.accepted.length} accepted` : "no drafts";
  const ran = `${plural(count("pending"), "pending row")}, ${drafted}, ${plural(count("mask"), "mask")}`;
  const by = forward.is_own ? ", by a step of the backend's own" : "";
  return `${ran}; ${plural(forward.emitted.length, "token")} emitted${by}`;
}
