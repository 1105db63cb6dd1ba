// The view of benchmarks: a report of `stridelm bench` is opened in this window and drawn; nothing is sent anywhere.

import { COMMAND, LARGEST, NotAReport, readReport } from "./bench_read.js";
import { dataTable, scrolling } from "./charts.js";
import { drawCharts } from "./bench_charts.js";
import { element } from "./dom.js";

/** Fill `place` and wait for a report. */
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
      if (own !== latest) return; // another file was opened in the meantime
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
    // Reset, so that the same file can be opened again after it changed.
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
      `it has ${(file.size / 2 ** 20).toFixed(0)} MB, and this page opens up to ${LARGEST / 2 ** 20} MB.`,
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
  const { summary, broken_promises: broken, facts, columns, rows, scenarios } = report.figures;
  return [
    element("p", {}, summary),
    broken && element("p", { class: "bench-broken", role: "note" }, broken),
    element("h3", {}, "What was run"),
    element("div", { class: "bench-facts" }, facts.map(factsTable)),
    command(report),
    absent(report),
    element("h3", {}, "What came of it"),
    rows.length ? mainTable(report) : element("p", {}, "The report has no answers."),
    element("details", {}, element("summary", {}, "What the columns say"), textTable(columns)),
    element("div", { class: "bench-plots" }, drawCharts(report)),
    scenarios.length ? element("h3", {}, "An agent and a voice") : null,
    scenarios.map((each) => [element("p", { class: "faint" }, each.caption), textTable(each)]),
  ]
    .flat(Infinity)
    .filter(Boolean);
}

/** Tables of words and numbers as the report has them. */
function textTable({ caption, head, rows }) {
  const table = dataTable(caption, { head, rows });
  table.className = "bench-table";
  return scrolling(caption, table);
}

function factsTable(table) {
  return element(
    "details",
    { open: table.caption !== "Subjects" },
    element("summary", {}, table.caption),
    element(
      "dl",
      {},
      table.rows.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))),
    ),
  );
}

function command({ circumstances: { command: asked } }) {
  return typeof asked === "string" ? element("p", {}, "To repeat it: ", element("code", {}, asked)) : null;
}

function absent({ absent: reasons }) {
  const lines = Object.entries(reasons).map(([name, why]) => element("li", {}, `${name}: ${why.slice(0, 300)}`));
  if (!lines.length) return element("p", { class: "faint" }, "Every subject that was asked took part.");
  return [element("h3", {}, "Who took no part"), element("ul", {}, lines)];
}

/** A row for each subject on each suite. Beside a speed-up, it always says whether the text is the same. */
function mainTable({ baseline, figures: { columns, rows } }) {
  const titles = columns.rows.map(([title]) => title);
  const caption = `By suite and subject; speed-ups are over ${baseline}`;
  const text = titles.indexOf("text");
  const cells = ({ suite, subject, cells: words, tone }) => [
    [element("span", { class: "bench-suite" }, suite), " ", subject],
    ...words.map((word, at) => (at === text ? element("span", { class: `bench-${tone}` }, word) : word)),
  ];
  return textTable({ caption, head: ["Suite and subject", ...titles], rows: rows.map(cells) });
}
