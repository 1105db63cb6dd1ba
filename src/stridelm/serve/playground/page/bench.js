// The view of benchmarks: a report of `stridelm bench` is opened in this window and drawn; nothing is sent anywhere.

import { COMMAND, LARGEST, NotAReport, readReport } from "./bench_read.js";
import { distinct, measure } from "./bench_figures.js";
import { brokenPromises, fixed, isAlarming, milliseconds, textVerdict } from "./bench_words.js";
import { plots } from "./bench_plots.js";
import { dataTable, scrolling } from "./charts.js";
import { element } from "./dom.js";

/** Fills the place and waits for a report. */
export function startBench(place) {
  const problem = element("p", { class: "bench-problem", role: "alert" });
  const opened = element("p", { class: "faint", role: "status" });
  const shown = element("div", {}, howTo());
  let latest = 0;

  async function open(file) {
    const own = ++latest;
    problem.textContent = "";
    try {
      const report = await reportOf(file);
      if (own !== latest) return; // another file was opened meanwhile
      const parts = reportParts(report);
      shown.replaceChildren(...parts);
      opened.textContent = `${file.name} is open.`;
    } catch (error) {
      if (own !== latest) return;
      if (!(error instanceof NotAReport)) console.error(error);
      const why = error instanceof NotAReport ? error.message : "it could not be read or drawn.";
      const earlier = opened.textContent ? " The earlier report stays." : "";
      problem.textContent = `${file.name}: ${why}${earlier}`;
    }
  }

  const input = element("input", {
    type: "file",
    id: "bench-file",
    accept: ".json,application/json",
    // So that the same file can be opened again after it changed.
    onclick: () => (input.value = ""),
    onchange: () => input.files.length && open(input.files[0]),
  });
  const chooser = element("div", { class: "bench-open panel" }, [
    element("label", { for: "bench-file" }, "Open a bench report (bench.json)"),
    input,
    element(
      "span",
      { class: "faint" },
      "or drop it anywhere on this view. It is read in this window; nothing is uploaded.",
    ),
  ]);
  acceptDrops(place.closest("section") ?? place, open);
  place.replaceChildren(chooser, problem, opened, shown);
}

async function reportOf(file) {
  if (file.size > LARGEST)
    throw new NotAReport(
      `it has ${fixed(file.size / 2 ** 20, 0)} MB, and this page opens up to ${LARGEST / 2 ** 20} MB.`,
    );
  return readReport(await file.text());
}

function acceptDrops(zone, open) {
  const isFile = (event) => event.dataTransfer?.types.includes("Files");
  const mark = (on) => zone.classList.toggle("bench-dropping", on);
  zone.addEventListener("dragover", (event) => isFile(event) && (event.preventDefault(), mark(true)));
  zone.addEventListener("dragleave", (event) => zone.contains(event.relatedTarget) || mark(false));
  zone.addEventListener("drop", (event) => {
    if (!isFile(event)) return;
    event.preventDefault();
    mark(false);
    if (event.dataTransfer.files.length) open(event.dataTransfer.files[0]);
  });
}

function howTo() {
  return element("div", { class: "bench-empty" }, [
    element("p", {}, "No report is open. This makes one, in some minutes:"),
    element("pre", { tabindex: 0 }, element("code", {}, COMMAND)),
    element(
      "p",
      {},
      "Then open DIR/bench.json here. A checkout of StrideLM has one already: bench/results/bench-quick.json.",
    ),
  ]);
}

function reportParts(report) {
  const figures = measure(report);
  const broken = brokenPromises(report, figures);
  return [
    element("h3", {}, "What was run"),
    facts(report),
    absent(report),
    broken &&
      element(
        "p",
        { class: "bench-broken", role: "note" },
        `Promised the text of plain decoding, and did not keep it: ${broken}.`,
      ),
    element("h3", {}, "What came of it"),
    figures.length ? mainTable(report, figures) : element("p", {}, "The report has no answers."),
    element("div", { class: "bench-plots" }, plots(report, figures)),
  ]
    .flat()
    .filter(Boolean);
}

function facts({ settings, circumstances, baseline, records }) {
  const { machine, versions } = circumstances;
  const questions = new Set(records.map((record) => JSON.stringify([record.suite, record.question]))).size;
  const suites = new Set(records.map((record) => record.suite)).size;
  const lines = {
    Model: circumstances.model ?? settings.model,
    Machine: machine,
    Date: circumstances.date ?? circumstances.time,
    Commit: circumstances.commit,
    Versions: { stridelm: circumstances.stridelm, python: circumstances.python, ...versions },
    Rounds: settings.rounds,
    "Token budget": settings.max_tokens,
    Asked: `${suites} suites, ${questions} questions, ${records.length} answers`,
    Baseline: baseline,
    Command: circumstances.command,
  };
  const known = Object.entries(lines)
    .map(([name, value]) => [name, said(value)])
    .filter(([, value]) => value);
  return element(
    "dl",
    { class: "bench-facts" },
    known.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))),
  );
}

/** A value of the report in a line, whatever it is. */
function said(value) {
  if (value === null || value === undefined) return "";
  if (typeof value !== "object") return String(value).slice(0, 300);
  const entries = Object.entries(value).filter(([, each]) => each !== null && each !== undefined);
  return entries
    .map(([name, each]) => (Array.isArray(value) ? said(each) : `${name} ${said(each)}`))
    .join(", ")
    .slice(0, 600);
}

function absent({ absent: reasons }) {
  const lines = Object.entries(reasons).map(([name, why]) => element("li", {}, `${name}: ${why.slice(0, 300)}`));
  if (!lines.length) return element("p", { class: "faint" }, "Every subject that was asked took part.");
  return [element("h3", {}, "Who took no part"), element("ul", {}, lines)];
}

/** Suites by subjects. A speed-up never stands without a word on the text in its own cell. */
function mainTable({ baseline }, figures) {
  const subjects = distinct(figures.map((each) => each.subject));
  const caption = `By suite and subject; speed-ups are over ${baseline}`;
  const rows = distinct(figures.map((each) => each.suite)).map((suite) => {
    const found = (subject) => figures.find((each) => each.suite === suite && each.subject === subject);
    return [suite, ...subjects.map((subject) => cell(found(subject), baseline))];
  });
  const sure = figures.every((each) => !each.speed_up || each.speed_up.coverage >= 0.95);
  const less = " Of fewer than six answers it reaches from the lowest to the highest, and is less sure than that.";
  const note = "Speed-up: the median of the ratios on the same question in the same round, and its 95 % interval.";
  const table = dataTable(caption, { head: ["Suite", ...subjects], rows });
  table.className = "bench-table";
  return [element("p", { class: "faint" }, note, sure ? "" : less), scrolling(caption, table)];
}

function cell(each, baseline) {
  if (!each) return "not asked";
  const { speed_up: up, subject, first, tokens_per_forward: pace, path } = each;
  const isOver = up && subject !== baseline;
  const range = isOver ? `${fixed(up.low)}-${fixed(up.high)}` : up ? "baseline" : "no speed-up";
  return [
    element(
      "div",
      {},
      isOver ? element("strong", {}, `${fixed(up.median)}x `) : null,
      element("span", { class: "faint" }, range),
    ),
    element("div", { class: isAlarming(each) ? "bench-alarm" : "bench-same" }, `text: ${textVerdict(each)}`),
    element("div", {}, pace === null ? "tokens/forward unknown" : `${fixed(pace)} tokens/forward`),
    element("div", {}, `first after ${milliseconds(first.median)} ms`),
    path && element("div", { class: "faint" }, `ran by ${path}`),
  ];
}
