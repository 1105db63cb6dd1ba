// The dials: what a request asks for. One set of them, which moves to the view that is shown.

import { Problem } from "./api.js";
import { effect, idle } from "./dial_words.js";
import { byId, element } from "./dom.js";
import { say } from "./notice.js";

const DIALS = [
  { name: "decoder", label: "Decoder", kind: "select" },
  { name: "tolerance", label: "Exact to fast", kind: "range", min: 0, max: 0.9, step: 0.05, first: 0 },
  { name: "threshold", label: "Threshold", kind: "range", min: 0, max: 1, step: 0.01, first: 0.9 },
  { name: "k", label: "k", kind: "number", min: 1, max: 64, first: "", empty: "its own" },
  { name: "temperature", label: "Temperature", kind: "range", min: 0, max: 2, step: 0.1, first: 0 },
  { name: "seed", label: "Seed", kind: "number", min: 0, max: Number.MAX_SAFE_INTEGER, first: "", empty: "drawn" },
  { name: "max_tokens", label: "Max tokens", kind: "number", min: 1, max: 2 ** 31 - 1, first: 160 },
];

const PLAIN = "autoregressive";

let decoders = [];
let hasPlain = true;

/** `about`: the server's description of its model and decoders. Dials that exist already keep their values. */
export function startDials(about) {
  const before = decoders.length ? values() : {};
  decoders = about.decoders;
  const options = decoders.map(({ name }) => element("option", { value: name }, name));
  byId("dials").replaceChildren(...DIALS.map((dial) => row(dial, options)));
  for (const [name, value] of Object.entries(before)) input(name).value = value ?? "";
  input("k").max = about.largest_k;
  input("max_tokens").max = about.max_model_len;
  offerPlain();
}

/** Put the dials into `place`, in the view that is shown; without a place they are hidden. `isRace`: the other lane is
 *  plain decoding already, so this one cannot be. */
export function placeDials(place, isRace) {
  byId("dials").hidden = !place;
  place?.append(byId("dials"));
  hasPlain = !isRace;
  if (place && decoders.length) offerPlain();
}

function offerPlain() {
  const option = [...input("decoder").options].find(({ value }) => value === PLAIN);
  option.disabled = !hasPlain;
  if (option.selected && !hasPlain) input("decoder").value = decoders.find(({ name }) => name !== PLAIN).name;
  refresh();
}

/** The fields of a request that the dials set. Settings that the decoder does not take are left out. */
export function dialled() {
  for (const { name, label } of DIALS) {
    if (!input(name).disabled && !input(name).checkValidity()) {
      throw new Problem(`${label}: ${input(name).validationMessage}`);
    }
  }
  const { decoder, tolerance, threshold, k, temperature, seed, max_tokens } = values();
  const takes = (name) => chosen().takes.includes(name);
  const stride = { decoder };
  if (takes("tolerance") && tolerance > 0) stride.tolerance = tolerance;
  if (takes("threshold")) stride.threshold = threshold;
  if (k !== null && takesK()) stride[takes("k") ? "k" : "k_max"] = k;
  return { max_tokens, temperature, ...(seed === null ? {} : { seed }), stride };
}

const input = (name) => byId(`dial-${name}`);
const chosen = () => decoders.find(({ name }) => name === input("decoder").value);
const takesK = () => chosen().takes.some((name) => name === "k" || name === "k_max");

function values() {
  const read = ({ name, kind }) => {
    const text = input(name).value;
    return kind === "select" ? text : text === "" ? null : Number(text);
  };
  return Object.fromEntries(DIALS.map((dial) => [dial.name, read(dial)]));
}

function row(dial, options) {
  const id = `dial-${dial.name}`;
  const common = { id, "aria-describedby": `${id}-effect`, onchange: () => say(byId(`${id}-effect`).textContent) };
  const { kind, min, max, step, first, empty } = dial;
  const control =
    kind === "select"
      ? element("select", { ...common, oninput: refresh }, options)
      : element("input", {
          ...common,
          type: kind,
          min,
          max,
          step: step ?? 1,
          value: first,
          placeholder: empty,
          required: !empty,
          oninput: refresh,
        });
  return element(
    "div",
    { class: "dial" },
    element("label", { for: id }, dial.label),
    kind === "range" ? element("output", { id: `${id}-value`, for: id }) : null,
    control,
    element("p", { id: `${id}-effect`, class: "effect" }),
  );
}

/** Let each dial say what it does at its current value, or why it has no effect. */
function refresh() {
  const now = values();
  const decoder = chosen();
  for (const { name, label, kind } of DIALS) {
    const means = name === "k" ? takesK() : !["tolerance", "threshold"].includes(name) || decoder.takes.includes(name);
    input(name).disabled = !means;
    const isValid = !means || input(name).checkValidity();
    const words = !means ? idle(label, decoder) : isValid ? effect(name, now, decoder) : input(name).validationMessage;
    byId(`dial-${name}-effect`).textContent = words;
    input(name).setAttribute("aria-invalid", String(!isValid));
    if (kind === "range") byId(`dial-${name}-value`).textContent = String(now[name]);
  }
}
