// One service: what comes through, who gets what, and everything that an operator can do about it.

import { h } from "./dom.js";
import { plural, words } from "./format.js";
import { briefEntry } from "./history.js";
import { instanceTable } from "./instances.js";
import { errorsChart, latencyChart, requestsChart } from "./live.js";
import { versionTable } from "./overview.js";
import { rampChip, rampPanel } from "./ramps.js";
import { state } from "./state.js";
import { chips, serviceActions } from "./switches.js";
import { weightEditor } from "./weights.js";

function guards(view) {
  const subset = (subset) => {
    const { breaker } = subset;
    const open = breaker && breaker.state !== "closed";
    return h(
      "li",
      { key: subset.name },
      h("b", null, subset.name),
      h("span", { class: "quiet" }, `${subset.healthy} of ${plural(subset.instances, "instance")} healthy`),
      subset.unusable && h("span", { class: "chip bad" }, words(subset.unusable)),
      subset.panic && h("span", { class: "chip bad" }, "panic: health ignored"),
      breaker &&
        h(
          "span",
          { class: open ? "chip bad" : "chip ok" },
          `breaker ${words(breaker.state)}${breaker.open_for > 0 ? `, ${breaker.open_for.toFixed(0)} s yet` : ""}`,
        ),
      breaker &&
        h(
          "span",
          { class: "quiet" },
          `${breaker.failed} of ${plural(breaker.calls, "call")} failed, ${breaker.connections} connected`,
        ),
    );
  };
  const limit = (limit) =>
    h(
      "li",
      { key: `limit ${limit.rule}` },
      h("b", null, limit.rule),
      h("span", { class: "quiet" }, `rate limit, ${limit.keys} of ${limit.max_keys} keys`),
      limit.dry_run && h("span", { class: "chip warn" }, "only counts"),
    );
  return h(
    "ul",
    { class: "facts" },
    h("li", { key: "pick" }, h("b", null, "balancer"), h("span", { class: "quiet" }, words(view.balancer))),
    view.subsets.map(subset),
    view.concurrency &&
      h(
        "li",
        { key: "concurrency" },
        h("b", null, "concurrency"),
        h("span", { class: "quiet" }, `${view.concurrency.in_flight} of ${view.concurrency.limit} in flight`),
      ),
    view.rate_limits.map(limit),
  );
}

/** Whether a change concerns a service: it names it, or its part of the document is another one after it. */
function concerns(entry, service) {
  const part = (document) => JSON.stringify([document?.services?.[service], document?.switches]);
  return (
    entry.action.split(/\s+/).includes(service) ||
    Boolean(entry.before && entry.after && part(entry.before) !== part(entry.after))
  );
}

export function serviceView(name) {
  const service = state.services.find((service) => service.name === name);
  if (!service) {
    return state.services.length === 0
      ? h("p", { class: "quiet" }, "Loading …")
      : [
          h("h1", null, name),
          h("p", null, "There is no such service. ", h("a", { href: "#/overview" }, "All services")),
        ];
  }
  const view = state.details[name];
  const changes = state.history.filter((entry) => concerns(entry, name)).slice(0, 8);
  const panel = (key, title, ...content) =>
    h("section", { class: "card", key, "aria-label": title }, h("header", null, h("h2", null, title)), ...content);
  return [
    h(
      "div",
      { class: "title-row" },
      h("h1", null, name),
      h("span", { class: "chips" }, chips(service.switches), rampChip(name)),
      serviceActions(service),
    ),
    h(
      "div",
      { class: "grid service-grid" },
      h(
        "div",
        { class: "column" },
        h(
          "section",
          { class: "card", "aria-label": "Traffic" },
          h("header", null, h("h2", null, "Traffic"), h("span", { class: "quiet" }, "two minutes, by version")),
          requestsChart(name),
          errorsChart(name, { height: 110 }),
          latencyChart(name),
          versionTable(name),
        ),
      ),
      h(
        "div",
        { class: "column" },
        panel("weights", "Weights", weightEditor(name)),
        panel("ramp", "Ramp", rampPanel(name)),
        view && panel("guards", "What keeps it up", guards(view)),
      ),
    ),
    panel("instances", "Instances", instanceTable(name)),
    panel(
      "changes",
      "Changes",
      changes.length > 0
        ? h("ol", { class: "brief" }, changes.map(briefEntry))
        : h("p", { class: "quiet" }, "Nothing was changed yet."),
    ),
  ];
}
