// Requests to the server that the page came from, and to no other. Failures are thrown as Problems for people to read.

/** An error whose message is shown to the user. */
export class Problem extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

const GONE = "The server does not answer. Is `stridelm serve` still running? Start it again, then try once more.";
const CUT = "The server went away in the middle of the answer. What it had written by then is shown.";

let key = "";

/** The key is kept in memory only: closing or reloading the window forgets it. */
export function useKey(given) {
  if (!/^[\x20-\x7e]+$/.test(given.trim())) {
    throw new Problem("This cannot be an API key: those have no letters beyond ASCII.", 401);
  }
  key = given.trim();
}

export const hasKey = () => key !== "";

export async function getJson(path) {
  return (await ask(path, {})).json();
}

/** Post a request and yield the objects of its event stream. Aborting `signal` ends it with an AbortError. */
export async function* stream(path, body, signal) {
  const response = await ask(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
  for await (const { event, data } of events(response.body)) {
    if (data === "[DONE]") return;
    const said = JSON.parse(data);
    if (event === "error" || said.error) throw new Problem(sentence(said.error.message));
    yield said;
  }
  throw new Problem(CUT);
}

async function ask(path, options) {
  const headers = { ...options.headers, ...(key ? { Authorization: `Bearer ${key}` } : {}) };
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: "no-store" });
  } catch (error) {
    throw error.name === "AbortError" ? error : new Problem(GONE);
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

async function refusal(response) {
  const told = await response.json().then(
    (body) => body.error?.message,
    () => "",
  );
  const wait = response.headers.get("Retry-After");
  switch (response.status) {
    case 401:
      return new Problem(key ? "The server does not take this API key." : "This server wants an API key.", 401);
    case 429:
      return new Problem(
        `The server has too many requests waiting. Try again${wait ? ` in ${wait} s` : " soon"}.`,
        429,
      );
    case 503:
      return new Problem(`The server takes no requests now: ${told || "it is shutting down"}.`, 503);
    default:
      return new Problem(sentence(told) || `The server answered with status ${response.status}.`, response.status);
  }
}

const sentence = (text) => (text ? `The server says: ${text}${/[.!?]$/.test(text) ? "" : "."}` : "");

/** Server-sent events of a body. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const parts = (rest + value).split(/\r?\n\r?\n/);
      rest = parts.pop();
      for (const part of parts) {
        const found = { event: "message", data: [] };
        for (const line of part.split(/\r?\n/)) {
          if (line.startsWith("data:")) found.data.push(line.slice(5).trimStart());
          else if (line.startsWith("event:")) found.event = line.slice(6).trim();
        }
        if (found.data.length) yield { event: found.event, data: found.data.join("\n") };
      }
    }
  } catch (error) {
    throw error.name === "AbortError" ? error : new Problem(CUT);
  } finally {
    reader.cancel().catch(() => {});
  }
}
