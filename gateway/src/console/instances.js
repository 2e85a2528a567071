// Instances: state, the weight in force and why, and what they do.

import { segment } from "./api.js";
import { h, repaint } from "./dom.js";
import { millis, number, plural, rate, words } from "./format.js";
import { shownServices, state, versions } from "./state.js";

const HEALTH = { healthy: "ok", unhealthy: "bad", ejected: "bad" };
const ROWS = 300;
const ui = { text: "", onlyIll: false, sort: "address" };

const SORTS = {
  address: ["Address", (instance) => instance.address],
  health: ["State", (instance) => (instance.health === "healthy" ? 1 : 0) + instance.weight_in_force / 1e9],
  in_flight: ["In flight", (instance) => -instance.in_flight],
  ewma_ms: ["EWMA", (instance) => -instance.ewma_ms],
  success: ["Success", (instance) => instance.success_rate ?? 2],
};

function isIll(instance) {
  return instance.health !== "healthy" || instance.why.length > 0;
}

function matches(instance) {
  if (ui.onlyIll && !isIll(instance)) return false;
  const text = [instance.address, instance.zone, ...instance.subsets, ...Object.entries(instance.labels).flat()].join(
    " ",
  );
  return text.toLowerCase().includes(ui.text.trim().toLowerCase());
}

function ordered(instances) {
  const key = SORTS[ui.sort][1];
  if (ui.sort === "address") return instances;
  return [...instances].sort((a, b) => key(a) - key(b));
}

function weight(instance) {
  const share = instance.weight > 0 ? instance.weight_in_force / instance.weight : 0;
  return h(
    "div",
    { class: "weight-cell" },
    h(
      "span",
      { class: "num" },
      number(Math.round(instance.weight_in_force * 10) / 10),
      h("span", { class: "quiet" }, ` / ${instance.weight}`),
    ),
    h(
      "span",
      { class: "meter", "aria-hidden": "true" },
      h("span", { class: isIll(instance) ? "fill ill" : "fill", style: { width: `${Math.min(100, share * 100)}%` } }),
    ),
    instance.why.length > 0 &&
      h(
        "ul",
        { class: "why" },
        instance.why.map((reason) => h("li", null, reason)),
      ),
  );
}

function check(last) {
  if (!last) return h("span", { class: "quiet" }, "none");
  const text = `${last.outcome === "pass" ? "passed" : "failed"} ${last.in_a_row} in a row`;
  return h(
    "span",
    { class: last.outcome === "pass" ? "" : "bad-text", title: last.reason },
    text,
    last.reason && h("span", { class: "small" }, last.reason),
  );
}

function row(service, instance) {
  const colours = new Map(versions(service).map((version) => [version.name, version.colour]));
  const labels = Object.entries(instance.labels)
    .map(([name, value]) => `${name}=${value}`)
    .join(" ");
  const { open, in_use: used, max } = instance.connections;
  const cell = (label, ...content) => h("td", { "data-label": label }, ...content);
  const figure = (label, text) => h("td", { "data-label": label, class: "num" }, text);
  return h(
    "tr",
    { key: `${service} ${instance.address}`, class: isIll(instance) ? "ill" : null },
    cell(
      "Instance",
      h(
        "div",
        null,
        h("code", null, instance.address),
        h("span", { class: "small", title: labels }, [instance.zone, labels].filter(Boolean).join(" · ")),
      ),
    ),
    cell(
      "Version",
      h(
        "span",
        { class: "inline" },
        instance.subsets.map((name) => h("span", { key: name, class: `version c${colours.get(name) ?? 7}` }, name)),
      ),
    ),
    cell("State", h("span", { class: `chip ${HEALTH[instance.health] ?? "warn"}` }, words(instance.health))),
    cell("Weight in force", weight(instance)),
    figure("In flight", number(instance.in_flight)),
    figure("EWMA", millis(instance.ewma_ms)),
    figure("Success", rate(instance.success_rate)),
    figure("Ejections", number(instance.ejections)),
    figure("Picks", number(instance.picks)),
    figure("Connections", `${used} of ${open}${max ? `, max ${max}` : ""}`),
    cell("Check", check(instance.last_check)),
  );
}

const HEADS = [
  "Instance",
  "Version",
  "State",
  "Weight in force",
  "In flight",
  "EWMA",
  "Success",
  "Ejections",
  "Picks",
  "Connections",
  "Check",
];
const FIGURES = new Set(["In flight", "EWMA", "Success", "Ejections", "Picks", "Connections"]);

/** The instances of a service as a table. */
export function instanceTable(service) {
  const view = state.details[service];
  if (!view) return h("p", { class: "quiet" }, "Loading …");
  const found = ordered(view.instances.filter(matches));
  if (view.instances.length === 0) return h("p", { class: "quiet" }, "This service has no instances.");
  if (found.length === 0) return h("p", { class: "quiet" }, "No instance is like that.");
  return [
    h(
      "div",
      { class: "scroll" },
      h(
        "table",
        { class: "stack dense" },
        h(
          "thead",
          null,
          h(
            "tr",
            null,
            HEADS.map((head) => h("th", { scope: "col", class: FIGURES.has(head) ? "num" : null }, head)),
          ),
        ),
        h(
          "tbody",
          null,
          found.slice(0, ROWS).map((instance) => row(service, instance)),
        ),
      ),
    ),
    found.length > ROWS &&
      h("p", { class: "quiet" }, `The first ${ROWS} of ${plural(found.length, "instance")}; filter to see others.`),
  ];
}

/** What the tables are filtered and ordered by. */
export function instanceFilter() {
  return h(
    "div",
    { class: "filters" },
    h("input", {
      type: "search",
      placeholder: "Filter by address, version, zone, label",
      "aria-label": "Filter instances",
      value: ui.text,
      oninput: (event) => ((ui.text = event.target.value), repaint()),
    }),
    h(
      "label",
      { class: "inline" },
      "Order",
      h(
        "select",
        { value: ui.sort, onchange: (event) => ((ui.sort = event.target.value), repaint()) },
        Object.entries(SORTS).map(([key, [name]]) => h("option", { value: key }, name)),
      ),
    ),
    h(
      "label",
      { class: "inline" },
      h("input", {
        type: "checkbox",
        checked: ui.onlyIll,
        onchange: (event) => ((ui.onlyIll = event.target.checked), repaint()),
      }),
      "only those with a reason",
    ),
  );
}

export function instancesView() {
  const names = shownServices();
  const section = (name) => {
    const view = state.details[name];
    const ill = view?.instances.filter((instance) => instance.health !== "healthy").length ?? 0;
    return h(
      "section",
      { class: "card", key: name },
      h(
        "header",
        null,
        h("h2", null, h("a", { href: `#/service/${segment(name)}` }, name)),
        view && h("span", { class: "quiet" }, `${plural(view.instances.length, "instance")}, ${view.balancer}`),
        ill > 0 && h("span", { class: "chip bad" }, `${ill} out`),
      ),
      instanceTable(name),
    );
  };
  return [
    h("h1", null, "Instances"),
    state.services.length > 1 && serviceChoice(),
    instanceFilter(),
    names.map(section),
    names.length === 0 && h("p", { class: "quiet" }, "There are no services."),
  ];
}

function serviceChoice() {
  const go = (event) =>
    (location.hash = event.target.value ? `#/instances/${segment(event.target.value)}` : "#/instances");
  return h(
    "label",
    { class: "inline" },
    "Service",
    h(
      "select",
      { value: state.route.name ?? "", onchange: go },
      h("option", { value: "" }, state.services.length > 20 ? "the first 20" : "all"),
      state.services.map(({ name }) => h("option", { key: name, value: name }, name)),
    ),
  );
}
