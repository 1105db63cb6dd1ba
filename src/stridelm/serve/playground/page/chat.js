// A chat with the served model: history, stop, regenerate.

import { stream } from "./api.js";
import { dialled } from "./dials.js";
import { byId, element } from "./dom.js";
import { gathered } from "./gathered.js";
import { clearNotice, moveFocus, showProblem } from "./notice.js";
import { keepRun } from "./runs.js";
import { CHAT_PATH, copyButtons } from "./snippets.js";
import { StrideText } from "./strides.js";

let model = "";
let underWay = null;
/** The messages so far, as they are sent to the server. */
let history = [];
/** The last request, without the trace that only this page needs, and with the seed that was drawn for it. */
let asked = null;

/** `about`: the server's description of itself. */
export function startChat(about) {
  model = about.model;
  byId("chat-copy").replaceChildren(...copyButtons(() => asked ?? request([...history, ...typed()])));
}

export function listenToChat() {
  byId("chat-form").addEventListener("submit", (event) => {
    event.preventDefault();
    if (!underWay) send();
  });
  byId("chat-text").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    byId("chat-form").requestSubmit();
  });
  byId("chat-stop").addEventListener("click", () => underWay?.abort());
  byId("chat-again").addEventListener("click", again);
  byId("chat-new").addEventListener("click", () => {
    history = [];
    asked = null;
    byId("messages").replaceChildren();
    byId("chat-status").textContent = "";
    setRunning(false);
    byId("chat-text").focus();
  });
}

function typed() {
  const content = byId("chat-text").value;
  return content ? [{ role: "user", content }] : [];
}

/** The request for an answer to these messages; null if the dials are not valid, which is then shown. */
function request(messages) {
  try {
    return messages.length ? { model, messages, ...dialled(), stream: true } : null;
  } catch (problem) {
    showProblem(problem);
    return null;
  }
}

async function send() {
  const [message] = typed();
  const body = request([...history, message]);
  if (!body) return;
  byId("chat-text").value = "";
  const item = show("user", message.content);
  if (await answer(body)) return;
  item.remove();
  byId("chat-text").value ||= message.content;
}

/** Replace the last answer by another one. The last one is kept if the new one does not come. */
async function again() {
  const body = request(history.at(-1)?.role === "assistant" ? history.slice(0, -1) : history);
  if (!body) return;
  const before = byId("messages").querySelector("li.assistant:last-child");
  if (before) before.hidden = true;
  if (await answer(body)) before?.remove();
  else if (before) before.hidden = false;
}

/** Request and show an answer. Returns whether there is any text: if so, question and answer join the history. */
async function answer(body) {
  clearNotice();
  const place = element("div", { class: "strides" });
  const item = show("assistant", place);
  const text = new StrideText(place, "The answer, as strides");
  const run = { name: "Chat, last answer", decoder: body.stride.decoder, path: "", forwards: [] };
  const drawn = gathered((strides) => {
    const isFollowed = isAtEnd();
    text.add(strides);
    if (isFollowed) scrollTo({ top: document.documentElement.scrollHeight });
    run.forwards.push(...strides);
    keepRun(run);
  });
  let content = "";
  let how = "stopped";
  underWay = new AbortController();
  setRunning(true);
  asked = body;
  try {
    const traced = { ...body, stride: { ...body.stride, trace: true } };
    for await (const { choices, stride } of stream(CHAT_PATH, traced, underWay.signal)) {
      const [{ delta, finish_reason }] = choices;
      const written = delta.content ?? "";
      content += written;
      for (const forward of stride?.trace ?? []) drawn.add({ text: written, finish_reason, forward });
      if (!finish_reason) continue;
      how = ending(finish_reason, stride);
      run.path = stride.path;
      asked = { ...body, seed: stride.seed };
    }
  } catch (problem) {
    if (problem.name !== "AbortError") how = "cut off";
    showProblem(problem);
  }
  drawn.flush();
  underWay = null;
  if (content) history = [...body.messages, { role: "assistant", content }];
  else item.remove();
  byId("chat-status").textContent = content ? `${text.tokens.length} tokens in ${text.count} forwards; ${how}.` : "";
  setRunning(false);
  return content !== "";
}

function ending(reason, stride) {
  const why = reason === "length" ? "the limit of tokens was reached" : "the model ended";
  return `${why}; seed ${stride.seed}; ${stride.exact ? "exact" : "not exact"}; ran by ${stride.path}`;
}

function show(role, content) {
  const title = element("h3", {}, role === "user" ? "You" : model);
  const item = element("li", { class: role }, title, element("div", { class: "said" }, content));
  byId("messages").append(item);
  item.scrollIntoView({ block: "nearest" });
  return item;
}

const isAtEnd = () => innerHeight + scrollY > document.documentElement.scrollHeight - 60;

function setRunning(isRunning) {
  moveFocus(byId("chat-stop"), byId("chat-text"), () => {
    byId("chat-send").disabled = isRunning;
    byId("chat-stop").disabled = !isRunning;
    byId("chat-again").disabled = isRunning || !history.length;
    byId("chat-new").disabled = isRunning || !history.length;
  });
  byId("messages").setAttribute("aria-busy", String(isRunning));
}
