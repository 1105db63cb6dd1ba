// The page: which view is shown, in which colours, and what the server says of itself.

import { getJson } from "./api.js";
import { startBench } from "./bench.js";
import { startCard } from "./card.js";
import { listenToChat, startChat } from "./chat.js";
import { placeDials, startDials } from "./dials.js";
import { byId } from "./dom.js";
import { startHood } from "./hood.js";
import { showProblem, startNotices } from "./notice.js";
import { listenToRace, startRace } from "./race.js";

const VIEWS = ["race", "hood", "chat", "bench"];
const THEME = "stridelm-theme";

function showView() {
  const asked = location.hash.slice(1);
  if (asked === "main") return; // the link that skips to the content
  const view = VIEWS.includes(asked) ? asked : VIEWS[0];
  for (const each of VIEWS) byId(`view-${each}`).hidden = each !== view;
  for (const link of document.querySelectorAll(".top nav a")) {
    if (link.hash === `#${view}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  placeDials(document.getElementById(`${view}-dials`));
  document.title = `${document.querySelector(`#view-${view} h2`).textContent} \u2013 StrideLM playground`;
}

function startTheme() {
  const root = document.documentElement;
  const isDark = () =>
    (root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const name = () => (byId("theme").textContent = isDark() ? "Light" : "Dark");
  const kept = localStorage.getItem(THEME);
  if (kept === "dark" || kept === "light") root.dataset.theme = kept;
  byId("theme").addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    localStorage.setItem(THEME, root.dataset.theme);
    name();
  });
  name();
}

async function meetServer() {
  try {
    const about = await getJson("/playground/about");
    byId("served").textContent = `${about.model} \u00b7 StrideLM ${about.version}`;
    byId("served").title = about.exact_to;
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
addEventListener("hashchange", showView);
showView();
meetServer();
