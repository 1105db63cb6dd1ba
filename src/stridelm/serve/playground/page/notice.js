// What went wrong, in words, at the top of the page; for a missing key, a field for it. And where the focus goes when
// what had it goes.

import { useKey } from "./api.js";
import { byId, element } from "./dom.js";

/** `retry` is called once a key was given. */
export function startNotices(retry) {
  byId("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const given = byId("key").value;
    byId("key").value = "";
    try {
      useKey(given);
      clearNotice();
      retry();
    } catch (problem) {
      showProblem(problem);
    }
  });
}

/** Show a problem; `action` is an optional {label, run}. What a person asked to be stopped is none. */
export function showProblem(problem, action = null) {
  if (problem.name === "AbortError") return;
  if (!("status" in problem)) console.error(problem);
  const act = (run) => () => {
    clearNotice();
    run();
  };
  const button = (label, kind, run) => element("button", { type: "button", class: kind, onclick: act(run) }, label);
  byId("notice").replaceChildren(
    element("span", {}, problem.message),
    ...(action ? [button(action.label, null, action.run)] : []),
    button("Dismiss", "quiet", () => {}),
  );
  byId("notice").hidden = false;
  byId("key-form").hidden = problem.status !== 401;
  if (problem.status === 401) byId("key").focus();
}

export function clearNotice() {
  moveFocus(byId("main"), byId("main"), () => {
    byId("notice").hidden = true;
    byId("key-form").hidden = true;
  });
}

/** Say something to those who listen to the page instead of looking at it. */
export function say(text) {
  byId("said").textContent = text;
}

/** Do what hides or disables elements. If one of them had the focus, it goes to the first place that can have it. */
export function moveFocus(first, second, change) {
  const holder = document.activeElement;
  change();
  const isLost = holder.disabled || !holder.getClientRects().length;
  if (holder !== document.body && isLost) (first.disabled ? second : first).focus();
}
