// Messages about failures, at the top of the page, with a field for a missing API key; messages for screen readers; and
// where the focus goes when the element that has it disappears.

import { useKey } from "./api.js";
import { byId, element } from "./dom.js";

/** `retry` is called when the user has entered a key. */
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

/** Show a problem; `action` is an optional {label, run}. A request that the user stopped is not a problem. */
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

/** Announce a text to screen readers. */
export function say(text) {
  byId("said").textContent = text;
}

/** Run `change`, which hides or disables elements. If one of them had the focus, it moves to the first (or else the
 *  second) element. */
export function moveFocus(first, second, change) {
  const holder = document.activeElement;
  change();
  const isLost = holder.disabled || !holder.getClientRects().length;
  if (holder !== document.body && isLost) (first.disabled ? second : first).focus();
}
