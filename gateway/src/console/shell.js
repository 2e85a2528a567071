// What is around every view: the strip with the state of the gateway, the way about, and what is wrong.

import { hasToken, operator } from "./api.js";
import { dialogHost, login, whoAreYou } from "./dialogs.js";
import { h, repaint } from "./dom.js";
import { clock, words } from "./format.js";
import { refusedDocuments } from "./history.js";
import { state } from "./state.js";
import { KINDS, isOnForAll } from "./switches.js";

const VIEWS = [
  ["overview", "Overview"],
  ["instances", "Instances"],
  ["explain", "Explain"],
  ["history", "History"],
  ["switches", "Switches"],
];
const THEMES = { auto: "light", light: "dark", dark: "auto" };

function theme() {
  return document.documentElement.dataset.theme ?? "auto";
}

function turnTheme() {
  const next = THEMES[theme()];
  if (next === "auto") {
    delete document.documentElement.dataset.theme;
    localStorage.removeItem("serin.theme");
  } else {
    document.documentElement.dataset.theme = next;
    localStorage.setItem("serin.theme", next);
  }
  repaint();
}

function bird() {
  return h(
    "svg",
    { class: "bird", viewBox: "0 0 32 32", "aria-hidden": "true" },
    h("path", {
      class: "bird-body",
      d: "M6 19c0-7 5-12 11-12 3.5 0 6 1.7 7.200 4.300L29 13l-4.300 2.400C24.300 22 19.5 26 13.500 26H4l4-3.200C6.700 21.800 6 20.500 6 19z",
    }),
    h("path", { class: "bird-wing", d: "M10 19c3.800.8 7.600-.4 9.600-3.400.6 4.600-3 7.600-7.600 7.400z" }),
    h("circle", { class: "bird-eye", cx: 20.5, cy: 11.8, r: 1.3 }),
  );
}

function fact(label, value, kind) {
  return h(
    "span",
    { class: kind ? `fact ${kind}` : "fact", key: label },
    h("span", { class: "fact-label" }, label),
    h("span", { class: "fact-value" }, value),
  );
}

function switchesInForce() {
  const global = Object.keys(KINDS)
    .filter(isOnForAll)
    .map((kind) => `${kind} switch`);
  const single = state.services.filter(
    ({ switches }) =>
      switches.abort ||
      switches.tripped ||
      (switches.canary && !isOnForAll("canary")) ||
      (switches.balancer && !isOnForAll("balancer")),
  ).length;
  return [...global, single > 0 && `${single} of ${state.services.length} services`].filter(Boolean);
}

function sources() {
  const documents = state.ready?.documents;
  if (!documents) return ["–", null];
  const refused = ["routing", "traffic"].filter((name) => documents[name]?.refused);
  return refused.length > 0 ? [`${refused.map(words).join(", ")} refused`, "bad"] : ["in order", "ok"];
}

function strip() {
  const node = state.config?.node;
  const held = switchesInForce();
  const [health, kind] = sources();
  const shed = (state.ready?.overload ?? [])
    .filter((resource) => resource.shedding)
    .map((resource) => words(resource.resource));
  const isLost = state.lost !== null;
  const link = isLost ? ["lost", "bad"] : state.lastAnswer ? ["live", "ok"] : ["…", null];
  return h(
    "div",
    { class: "strip", role: "group", "aria-label": "State of the gateway" },
    fact("node", [node?.id, node?.zone].filter(Boolean).join(" · ") || "–"),
    fact("traffic", state.revision === null ? "–" : `#${state.revision}`),
    fact(
      "routing",
      state.config ? `#${state.ready?.documents?.routing.revision ?? state.config.revision.routing}` : "–",
    ),
    fact("switches", held.length > 0 ? held.join(", ") : "none", held.length > 0 ? "bad" : null),
    fact("documents", health, kind),
    state.ready?.ready === false && fact("state", "draining", "warn"),
    shed.length > 0 && fact("shedding", shed.join(", "), "bad"),
    h(
      "span",
      { key: "link", class: `fact link ${link[1] ?? ""}` },
      h("span", { class: "pulse", "aria-hidden": "true" }),
      h("span", { class: "fact-value" }, link[0]),
    ),
  );
}

function header() {
  const link = ([view, name]) => {
    const isHere = state.route.view === view || (view === "overview" && state.route.view === "service");
    return h("a", { key: view, href: `#/${view}`, "aria-current": isHere ? "page" : null }, name);
  };
  return h(
    "header",
    { class: "top" },
    h(
      "div",
      { class: "top-row" },
      h("a", { class: "brand", href: "#/overview" }, bird(), "Serin"),
      h("nav", { "aria-label": "Views" }, VIEWS.map(link)),
      h(
        "div",
        { class: "top-right" },
        h(
          "button",
          { type: "button", class: "plain", onclick: whoAreYou, title: "Your name in the history" },
          operator() || "Who are you?",
        ),
        h(
          "button",
          {
            type: "button",
            class: "plain theme",
            onclick: turnTheme,
            "aria-label": `Theme: ${theme()}`,
            title: `Theme: ${theme()}`,
          },
          { auto: "◐", light: "☀", dark: "☾" }[theme()],
        ),
      ),
    ),
    strip(),
  );
}

function lostBanner() {
  if (state.lost === null) return null;
  const last = state.lastAnswer ? ` What you see is from ${clock(state.lastAnswer)}.` : "";
  return h(
    "p",
    { class: "banner bad", role: "alert", key: "lost" },
    h("b", null, "The gateway does not answer"),
    ` since ${clock(state.lost)}.${last} Trying again every second.`,
  );
}

function killBanner() {
  const on = Object.keys(KINDS).filter(isOnForAll);
  if (on.length === 0) return null;
  return h(
    "p",
    { class: "banner warn", key: "kill" },
    on.map((kind) => h("span", { key: kind }, h("b", null, `${KINDS[kind].name} switch is on. `), KINDS[kind].on, " ")),
    h("a", { href: "#/switches" }, "Switches"),
  );
}

/** The page around what a view draws. */
export function shell(view) {
  const isLocked = state.needsToken;
  return [
    header(),
    h(
      "main",
      { id: "main", tabindex: "-1", class: state.lost === null ? null : "stale" },
      lostBanner(),
      isLocked
        ? locked()
        : [
            killBanner(),
            state.route.view !== "history" && refusedDocuments(true),
            h("div", { class: "view", key: `${state.route.view} ${state.route.name ?? ""}` }, view),
          ],
    ),
    h(
      "footer",
      null,
      h("span", null, `Serin ${state.config?.node?.version ?? ""}`),
      !hasToken() && h("a", { href: "/v1/openapi.json" }, "API"),
      !hasToken() && h("a", { href: "/metrics" }, "Metrics"),
    ),
    h(
      "div",
      { class: "notices" },
      state.notices.map((notice) =>
        h("p", { key: notice.key, class: notice.isBad ? "notice bad" : "notice" }, notice.text),
      ),
    ),
    dialogHost(),
  ];
}

function locked() {
  return h(
    "section",
    { class: "card empty", key: "locked" },
    h(
      "p",
      null,
      hasToken()
        ? "The gateway does not take the token of this tab."
        : "The admin API of this gateway asks for a token.",
    ),
    h("button", { type: "button", class: "primary", onclick: login }, "Sign in"),
  );
}
