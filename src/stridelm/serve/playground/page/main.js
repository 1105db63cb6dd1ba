// The page: which view is shown, in which colours, and the server's description of itself.

import { getJson } from "./api.js";
import { startBench } from "./bench.js";
import { startCard } from "./card.js";
import { listenToChat, startChat } from "./chat.js";
import { placeDials, startDials } from "./dials.js";
import { byId } from "./dom.js";
import { startHood } from "./hood.js";
import { stored } from "./kept.js";
import { showProblem, startNotices } from "./notice.js";
import { listenToRace, startRace } from "./race.js";

const VIEWS = ["race", "hood", "chat", "bench"];
const THEME = "stridelm-theme";

function showView() {
  const asked = location.hash.slice(1);
  const view = VIEWS.includes(asked) ? asked : VIEWS[0];
  for (const each of VIEWS) byId(`view-${each}`).hidden = each !== view;
  for (const link of document.querySelectorAll(".top nav a")) {
    if (link.hash === `#${view}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  placeDials(document.getElementById(`${view}-dials`), view === "race");
  document.title = `${document.querySelector(`#view-${view} h2`).textContent} \u2013 StrideLM playground`;
}

function startTheme() {
  const root = document.documentElement;
  const preferred = () => (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  const isDark = () => (root.dataset.theme ?? preferred()) === "dark";
  const name = () => (byId("theme").textContent = isDark() ? "Light colours" : "Dark colours");
  const kept = stored((store) => store.getItem(THEME));
  if (kept === "dark" || kept === "light") root.dataset.theme = kept;
  byId("theme").addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    stored((store) => store.setItem(THEME, root.dataset.theme));
    name();
  });
  name();
}

async function meetServer() {
  try {
    const about = await getJson("/playground/about");
    byId("served").textContent = `${about.model} \u00b7 StrideLM ${about.version}`;
    byId("exact-to").textContent = `Answers are exact with respect to ${about.exact_to}.`;
    startDials(about);
    startRace(about);
    startChat(about);
    document.body.dataset.ready = "";
  } catch (problem) {
    showProblem(problem, problem.status === 401 ? null : { label: "Try again", run: meetServer });
  }
}

startTheme();
startNotices(meetServer);
startCard();
listenToRace();
listenToChat();
startHood(byId("hood"));
startBench(byId("bench"));
// Not by a link to its id, which would replace the view's name in the page's address.
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  byId("main").focus();
});
// Otherwise, a file that is dropped beside the benchmarks' view would replace the page.
for (const kind of ["dragover", "drop"]) addEventListener(kind, (event) => event.preventDefault());
addEventListener("hashchange", showView);
showView();
meetServer();
