// The same request for a terminal and for a program. A key is never copied: snippets read it from the environment.

import { hasKey } from "./api.js";
import { element } from "./dom.js";
import { say } from "./notice.js";

export const CHAT_PATH = "/v1/chat/completions";

function asCurl(body) {
  const lines = [`curl -sN ${location.origin}${CHAT_PATH}`, "-H 'Content-Type: application/json'"];
  if (hasKey()) lines.push('-H "Authorization: Bearer $STRIDELM_API_KEY"');
  lines.push(`-d ${shell(JSON.stringify(body))}`);
  return lines.join(" \\\n  ");
}

function asPython(body) {
  const { stride, ...known } = body;
  const fields = Object.entries(known).map(([name, value]) => `    ${name}=${python(value)},`);
  const key = hasKey() ? 'os.environ["STRIDELM_API_KEY"]' : '"none"';
  return [
    ...(hasKey() ? ["import os", ""] : []),
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url="${location.origin}/v1", api_key=${key})`,
    "for chunk in client.chat.completions.create(",
    ...fields,
    `    extra_body=${python({ stride })},`,
    "):",
    '    print(chunk.choices[0].delta.content or "", end="", flush=True)',
    "",
  ].join("\n");
}

/** Buttons that copy a request; `body` returns it, or null if there is none. */
export function copyButtons(body) {
  return [
    ["curl", asCurl],
    ["Python", asPython],
  ].map(([name, write]) => {
    const act = ({ target }) => copy(target, name, body, write);
    return element("button", { type: "button", class: "quiet", onclick: act }, `Copy as ${name}`);
  });
}

async function copy(button, name, body, write) {
  const request = body();
  if (!request) return;
  try {
    await navigator.clipboard.writeText(write(request));
    button.textContent = "Copied";
    say(`The request was copied as ${name}.`);
  } catch {
    // Browsers provide no clipboard to pages that were loaded over plain HTTP from another machine.
    button.parentElement.querySelector("textarea")?.remove();
    const area = element("textarea", {
      class: "copied",
      rows: 6,
      readonly: true,
      "aria-label": `The request as ${name}`,
    });
    area.value = write(request);
    button.parentElement.append(area);
    area.select();
    say("The browser does not let this page copy: the request is shown, and selected.");
  }
  setTimeout(() => (button.textContent = `Copy as ${name}`), 1600);
}

const shell = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/** A JSON value as Python writes it. */
function python(value) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (typeof value === "object") {
    return `{${Object.entries(value)
      .map(([name, inner]) => `${JSON.stringify(name)}: ${python(inner)}`)
      .join(", ")}}`;
  }
  return JSON.stringify(value);
}
