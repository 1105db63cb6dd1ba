// What was generated in this window, for "Under the hood" to step through.
//
//   run       {name, decoder, path, forwards}; path: what ran, "gpu, own steps"; name: "Race, several: auto", "Chat, last answer"
//   forwards  [{text, forward}], in their order
//   forward   as the server traces it: {is_own, rows, accepted, rejected, emitted}
//     is_own    whether the backend ran it by itself: on a GPU, drafts have no probability (null) then, tokens no alternatives
//     rows      [{kind: "pending" | "draft" | "mask", parent, token, text, probability, drafter}]; parent: a row, or -1
//     accepted, rejected   numbers of draft rows
//     emitted   [{token, text, source, probability, alternatives: [{token, text, probability}]}]

const runs = new Map();
const listeners = new Set();

/** Keep a run, and drop an earlier one of the same name. May be called again while the run grows. */
export function keepRun(run) {
  runs.set(run.name, run);
  for (const listener of listeners) listener(run);
}

export const keptRuns = () => [...runs.values()];

/** Call `listener` for every run that is kept. */
export function onRun(listener) {
  listeners.add(listener);
}
