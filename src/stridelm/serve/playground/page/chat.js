// A chat with the served model: history, stop, regenerate.

import { stream } from "./api.js";
import { dialled } from "./dials.js";
import { byId, element } from "./dom.js";
import { gathered } from "./gathered.js";
import { clearNotice, showProblem } from "./notice.js";
import { keepRun } from "./runs.js";
import { copyButtons } from "./snippets.js";
import { StrideText } from "./strides.js";

const PATH = "/v1/chat/completions";

let model = "";
let underWay = null;
/** What was said, as the server is told it. */
let history = [];
/** The last request, without the trace that only this page wants. */
let asked = null;

/** `about`: what the server says of itself. */
export function startChat(about) {
  model = about.model;
  byId("chat-copy").replaceChildren(...copyButtons(() => asked ?? next()));
}

export function listenToChat() {
  byId("chat-form").addEventListener("submit", (event) => {
    event.preventDefault();
    if (underWay) return;
    show("user", byId("chat-text").value);
    history.push({ role: "user", content: byId("chat-text").value });
    byId("chat-text").value = "";
    answer();
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

function again() {
  if (history.at(-1)?.role === "assistant") history.pop();
  if (byId("messages").lastElementChild?.classList.contains("assistant")) byId("messages").lastElementChild.remove();
  answer();
}

/** The request that would be sent now. */
function next() {
  const typed = byId("chat-text").value;
  const messages = history.length || !typed ? [...history] : [{ role: "user", content: typed }];
  try {
    return messages.length ? { model, messages, ...dialled(), stream: true } : null;
  } catch (problem) {
    showProblem(problem);
    return null;
  }
}

async function answer() {
  clearNotice();
  const body = next();
  if (!body) return setRunning(false);
  asked = body;
  const place = element("div", { class: "strides" });
  show("assistant", place);
  const text = new StrideText(place, "The answer, as strides");
  const run = {
    name: "Chat, last answer",
    decoder: body.stride.decoder,
    prompt: body.messages.at(-1).content,
    forwards: [],
  };
  const start = performance.now();
  const drawn = gathered((strides) => {
    text.add(strides);
    run.forwards.push(...strides);
    keepRun(run);
  });
  let content = "";
  let how = "stopped";
  underWay = new AbortController();
  setRunning(true);
  try {
    for await (const said of stream(PATH, { ...body, stride: { ...body.stride, trace: true } }, underWay.signal)) {
      const [choice] = said.choices;
      const { content: written = "" } = choice.delta;
      const { finish_reason } = choice;
      const seconds = (performance.now() - start) / 1000;
      content += written;
      for (const forward of said.stride?.trace ?? []) drawn.add({ seconds, text: written, finish_reason, forward });
      if (finish_reason) how = ending(finish_reason, said.stride);
    }
  } catch (problem) {
    if (problem.name !== "AbortError") how = "cut off";
    showProblem(problem);
  }
  drawn.flush();
  underWay = null;
  if (content) history.push({ role: "assistant", content });
  else if (!text.count) place.closest("li").remove();
  byId("chat-status").textContent = `${text.tokens.length} tokens in ${text.count} forwards; ${how}.`;
  setRunning(false);
}

function ending(reason, stride) {
  const why = reason === "length" ? "the limit of tokens was reached" : "the model ended";
  return stride ? `${why}; seed ${stride.seed}; ${stride.exact ? "exact" : "not exact"}` : why;
}

function show(role, content) {
  const item = element(
    "li",
    { class: role },
    element("h3", {}, role === "user" ? "You" : model),
    element("div", { class: "said" }, content),
  );
  byId("messages").append(item);
  item.scrollIntoView({ block: "nearest" });
}

function setRunning(isRunning) {
  byId("chat-send").disabled = isRunning;
  byId("chat-stop").disabled = !isRunning;
  byId("chat-again").disabled = isRunning || !history.length;
  byId("chat-new").disabled = isRunning || !history.length;
  byId("messages").setAttribute("aria-busy", String(isRunning));
}
