// All services at a glance.

import { segment } from "./api.js";
import { h, repaint } from "./dom.js";
import { millis, number, plain, plural, rate } from "./format.js";
import { briefEntry } from "./history.js";
import { now, requestsChart } from "./live.js";
import { rampChip } from "./ramps.js";
import { NOW_S, state, versions } from "./state.js";
import { chips } from "./switches.js";

const SHOWN = 40;
const ui = { filter: "", all: false };

function sum(field) {
  return Object.values(state.now?.services ?? {}).reduce((total, service) => total + (service[field] ?? 0), 0);
}

function tile(label, value, note, kind) {
  return h(
    "div",
    { class: kind ? `tile ${kind}` : "tile", key: label },
    h("span", { class: "tile-label" }, label),
    h("span", { class: "tile-value" }, value),
    note && h("span", { class: "tile-note" }, note),
  );
}

function tiles() {
  const requests = sum("requests_per_second");
  const failed = Object.values(state.now?.services ?? {}).reduce(
    (total, s) => total + s.requests_per_second * (s.error_rate ?? 0),
    0,
  );
  const errors = requests > 0 ? failed / requests : null;
  const slowest = Object.entries(state.now?.services ?? {})
    .filter(([, s]) => s.p99_ms !== null)
    .sort((a, b) => b[1].p99_ms - a[1].p99_ms)[0];
  const canaries = state.services.filter(
    (service) => Object.values(service.weights).filter((weight) => weight !== "0%").length > 1,
  );
  return h(
    "div",
    { class: "tiles", role: "group", "aria-label": `The last ${NOW_S} seconds` },
    tile("Requests", `${number(requests)} /s`, `over ${NOW_S} s`),
    tile("Errors", rate(errors), `${number(failed)} /s`, errors > 0.05 ? "bad" : errors > 0.01 ? "warn" : null),
    tile("Slowest p99", slowest ? millis(slowest[1].p99_ms) : "–", slowest?.[0] ?? "no traffic"),
    tile("In flight", number(sum("in_flight"))),
    tile("Canaries", number(canaries.length), `of ${plural(state.services.length, "service")}`),
  );
}

/** Versions of a service with their shares and numbers. */
export function versionTable(service) {
  const row = (version) => {
    const seen = now(service, version.name);
    return h(
      "tr",
      { key: version.name },
      h(
        "th",
        { scope: "row" },
        h("span", { class: `version c${version.colour}` }, version.name),
        version.isStable && h("span", { class: "tag" }, "stable"),
      ),
      h("td", { class: "num", "data-name": "weight" }, `${plain(version.weight)} %`),
      h("td", { class: "num", "data-name": "share" }, seen?.requests_per_second > 0 ? rate(seen.share) : "–"),
      h("td", { class: "num", "data-name": "requests" }, number(seen?.requests_per_second ?? 0)),
      h(
        "td",
        { class: seen?.error_rate > 0.01 ? "num bad-text" : "num", "data-name": "errors" },
        seen?.requests_per_second > 0 ? rate(seen.error_rate) : "–",
      ),
      h("td", { class: "num", "data-name": "p50" }, millis(seen?.p50_ms)),
      h("td", { class: "num", "data-name": "p99" }, millis(seen?.p99_ms)),
    );
  };
  const heads = [
    ["Version"],
    ["Weight"],
    ["Share", "of the requests that came"],
    ["Req/s"],
    ["Errors"],
    ["p50"],
    ["p99"],
  ];
  const head = ([text, title], at) =>
    h("th", { scope: "col", class: at ? "num" : null, title, "data-name": text }, text);
  return h(
    "table",
    { class: "versions", "data-service": service },
    h("thead", null, h("tr", null, heads.map(head))),
    h("tbody", null, versions(service).map(row)),
  );
}

function card(service) {
  return h(
    "section",
    { class: "card service", key: service.name, "aria-label": service.name },
    h(
      "header",
      null,
      h("h2", null, h("a", { href: `#/service/${segment(service.name)}` }, service.name)),
      h("span", { class: "quiet" }, plural(service.instances, "instance")),
      h("span", { class: "chips" }, chips(service.switches), rampChip(service.name)),
    ),
    requestsChart(service.name, { id: `card ${service.name}`, height: 104 }),
    versionTable(service.name),
  );
}

export function overviewView() {
  const found = state.services.filter((service) => service.name.includes(ui.filter.trim()));
  const shown = ui.all ? found : found.slice(0, SHOWN);
  return [
    h("h1", { class: "unseen" }, "Overview"),
    tiles(),
    state.services.length > 8 &&
      h(
        "div",
        { class: "filters" },
        h("input", {
          type: "search",
          placeholder: "Filter services",
          "aria-label": "Filter services",
          value: ui.filter,
          oninput: (event) => ((ui.filter = event.target.value), repaint()),
        }),
      ),
    h("div", { class: "grid cards" }, shown.map(card)),
    state.services.length === 0 &&
      h(
        "section",
        { class: "card empty" },
        h(
          "p",
          null,
          "The routing document has no services yet. Routes that redirect or answer by themselves need none.",
        ),
      ),
    found.length > shown.length &&
      h("button", { type: "button", onclick: () => ((ui.all = true), repaint()) }, `Show all ${found.length}`),
    h(
      "section",
      { class: "card" },
      h("header", null, h("h2", null, "Latest changes"), h("a", { href: "#/history" }, "History")),
      h("ol", { class: "brief" }, state.history.slice(0, 6).map(briefEntry)),
    ),
  ];
}
