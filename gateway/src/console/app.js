// The console of Serin: starts everything, and finds the view that the address names.

import { login } from "./dialogs.js";
import { onPaint, patch, repaint } from "./dom.js";
import { explainView } from "./explain.js";
import { historyView } from "./history.js";
import { instancesView } from "./instances.js";
import { overviewView } from "./overview.js";
import { serviceView } from "./service.js";
import { shell } from "./shell.js";
import { refresh, start, state } from "./state.js";
import { switchesView } from "./switches.js";

const VIEWS = {
  overview: overviewView,
  service: () => serviceView(state.route.name),
  instances: instancesView,
  explain: explainView,
  history: historyView,
  switches: switchesView,
};

function readRoute() {
  const [, view, name] = location.hash.split("/");
  let decoded = null;
  try {
    decoded = name ? decodeURIComponent(name) : null;
  } catch {
    // Not an address that this page made.
  }
  const isKnown = Object.hasOwn(VIEWS, view ?? "") && (view !== "service" || decoded);
  state.route = isKnown ? { view, name: decoded } : { view: "overview", name: null };
}

function go() {
  readRoute();
  refresh("details", "history");
  document.title = `${state.route.name ?? state.route.view} · Serin`;
  scrollTo(0, 0);
  repaint();
}

function paint() {
  patch(document.getElementById("app"), shell(VIEWS[state.route.view]()));
  if (state.needsToken && !state.dialog && !state.asked) {
    state.asked = true;
    login();
  }
  if (!state.needsToken) state.asked = false;
}

// The skip link moves the focus, and not the address, which says what is shown.
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  document.getElementById("main").focus();
});
addEventListener("hashchange", go);
document.addEventListener("visibilitychange", () => !document.hidden && repaint());
onPaint(paint);
go();
start();
