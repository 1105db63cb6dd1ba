// What went wrong, in words, at the top of the page; for a missing key, a field for it.

import { useKey } from "./api.js";
import { byId, element } from "./dom.js";

let whenKeyGiven = () => {};

/** `retry` is called once a key was given. */
export function startNotices(retry) {
  whenKeyGiven = retry;
  byId("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    useKey(byId("key").value);
    byId("key").value = "";
    clearNotice();
    whenKeyGiven();
  });
}

/** Show a problem; `action` is an optional {label, run}. What a person asked to be stopped is none. */
export function showProblem(problem, action = null) {
  if (problem.name === "AbortError") return;
  if (problem.name !== "Error" && !("status" in problem)) console.error(problem);
  const act =
    action && element("button", { type: "button", onclick: () => (clearNotice(), action.run()) }, action.label);
  const close = element("button", { type: "button", class: "quiet", onclick: clearNotice }, "Dismiss");
  byId("notice").replaceChildren(...[element("span", {}, problem.message), act, close].filter(Boolean));
  byId("notice").hidden = false;
  byId("key-form").hidden = problem.status !== 401;
  if (problem.status === 401) byId("key").focus();
}

export function clearNotice() {
  byId("notice").hidden = true;
  byId("key-form").hidden = true;
}

/** Say something to those who listen to the page instead of looking at it. */
export function say(text) {
  byId("said").textContent = text;
}
