// Kill switches and aborts: of all services, and of single ones.

import { segment } from "./api.js";
import { confirm } from "./dialogs.js";
import { h, repaint } from "./dom.js";
import { state } from "./state.js";

export const KINDS = {
  balancer: {
    name: "Balancer",
    on: "Every chain is plain round robin over the healthy instances of the chosen version.",
    off: "Chains pick as they are configured.",
  },
  canary: {
    name: "Canary",
    on: "All traffic goes to the stable versions.",
    off: "Weights and tags say who goes where.",
  },
  limits: {
    name: "Limits",
    on: "Rate and concurrency limits only count, and refuse nothing.",
    off: "Limits are in force.",
  },
};

let filter = "";

/** Whether a switch is on for all services. */
export function isOnForAll(kind) {
  const setting = state.traffic?.switches?.[kind];
  return typeof setting === "object" && setting !== null ? Boolean(setting.all) : Boolean(setting);
}

/** What is out of the ordinary, for the strip at the top and for lists. */
export function chipsOf(switches) {
  return [
    switches.abort === true && ["bad", "aborted"],
    switches.abort === "weights" && ["bad", "weights aborted"],
    switches.canary && ["bad", "canary switch"],
    switches.balancer && ["warn", "balancer switch"],
    switches.tripped && ["bad", `balancer ${switches.tripped}`],
  ].filter(Boolean);
}

export function chips(switches) {
  return chipsOf(switches).map(([kind, text]) => h("span", { key: text, class: `chip ${kind}` }, text));
}

/** Asks, and flips a switch. */
export function flipSwitch(kind, on, service = null) {
  const whose = service === null ? "for all services" : `for ${service}`;
  confirm({
    title: `${KINDS[kind].name} switch ${on ? "on" : "off"} ${whose}`,
    text: `${on ? KINDS[kind].on : KINDS[kind].off}${service === null && kind !== "limits" ? " Exceptions of single services end." : ""}`,
    verb: on ? "Switch on" : "Switch off",
    danger: on,
    request: (draft) => ({
      method: "PUT",
      path: `/v1/switches/${kind}`,
      body: { on, service, reason: draft.reason },
      title: `${kind} switch ${on ? "on" : "off"} ${whose}`,
    }),
  });
}

/** Asks, and aborts the rollout of a service. */
export function abort(service, stable) {
  const choice = { what: true };
  const option = (value, name, text) =>
    h(
      "label",
      { class: "choice" },
      h("input", {
        type: "radio",
        name: "what",
        checked: choice.what === value,
        onchange: () => ((choice.what = value), repaint()),
      }),
      h("span", null, h("b", null, name), h("span", { class: "quiet" }, text)),
    );
  confirm({
    title: `Abort the rollout of ${service}`,
    text: `Takes hold at once, on connections that are open too. The weights are kept for when you resume.`,
    verb: "Abort",
    danger: true,
    extra: () =>
      h(
        "div",
        { class: "choices", role: "radiogroup", "aria-label": "What to abort" },
        option(true, `Everything to ${stable}`, "tagged requests too"),
        option("weights", `Weighted traffic to ${stable}`, "tags still hold, so that testers go on"),
      ),
    request: (draft) => ({
      method: "PATCH",
      path: `/v1/traffic/services/${segment(service)}`,
      body: { abort: choice.what, reason: draft.reason },
      title: `abort ${service}`,
    }),
  });
}

/** Asks, and lets the rollout of a service go on. */
export function resume(service) {
  const weights = Object.entries(state.traffic?.services?.[service]?.weights ?? {})
    .map(([name, share]) => `${name} ${share}`)
    .join(", ");
  confirm({
    title: `Resume the rollout of ${service}`,
    text: `The weights are in force again at once: ${weights || "everything to the stable version"}.`,
    verb: "Resume",
    request: (draft) => ({
      method: "PATCH",
      path: `/v1/traffic/services/${segment(service)}`,
      body: { abort: false, reason: draft.reason },
      title: `resume ${service}`,
    }),
  });
}

/** Asks, and puts a balancer chain back in force that the gateway took out. */
export function rearm(service) {
  confirm({
    title: `Re-arm the balancer of ${service}`,
    text: "The gateway took the chain out and balances by round robin. Re-arming puts the chain back in force.",
    verb: "Re-arm",
    request: (draft) => ({
      method: "POST",
      path: `/v1/services/${segment(service)}/rearm`,
      body: { reason: draft.reason },
      title: `re-arm ${service}`,
    }),
  });
}

/** A button that is on or off. */
export function toggle(label, isOn, act, text = isOn ? "on" : "off") {
  return h(
    "button",
    {
      type: "button",
      role: "switch",
      class: "toggle",
      "aria-checked": String(isOn),
      "aria-label": label,
      onclick: act,
    },
    h("span", { class: "toggle-knob", "aria-hidden": "true" }),
    text,
  );
}

/** The buttons of one service. */
export function serviceActions(service) {
  const { name, stable, switches } = service;
  return h(
    "div",
    { class: "service-actions" },
    switches.abort
      ? h("button", { type: "button", key: "resume", class: "primary", onclick: () => resume(name) }, "Resume…")
      : h("button", { type: "button", key: "abort", class: "danger", onclick: () => abort(name, stable) }, "Abort…"),
    switches.tripped && h("button", { type: "button", key: "rearm", onclick: () => rearm(name) }, "Re-arm…"),
    h(
      "span",
      { class: "switch-of" },
      "canary switch",
      toggle(`Canary switch of ${name}`, switches.canary, () => flipSwitch("canary", !switches.canary, name)),
    ),
    h(
      "span",
      { class: "switch-of" },
      "balancer switch",
      toggle(`Balancer switch of ${name}`, switches.balancer, () => flipSwitch("balancer", !switches.balancer, name)),
    ),
  );
}

function globalSwitch(kind) {
  const isOn = isOnForAll(kind);
  const { name, on, off } = KINDS[kind];
  const except = Object.entries(state.traffic?.switches?.[kind]?.services ?? {}).map(
    ([service, is]) => `${service} ${is ? "on" : "off"}`,
  );
  return h(
    "section",
    { class: isOn ? "card kill on" : "card kill", key: kind, "aria-label": `${name} switch` },
    h(
      "header",
      null,
      h("h3", null, name),
      toggle(`${name} switch for all services`, isOn, () => flipSwitch(kind, !isOn)),
    ),
    h("p", null, isOn ? on : off),
    except.length > 0 && h("p", { class: "quiet" }, `Except: ${except.join(", ")}`),
  );
}

export function switchesView() {
  const found = state.services.filter((service) => service.name.includes(filter.trim()));
  const row = (service) => {
    const { name, stable, switches } = service;
    return h(
      "tr",
      { key: name },
      h("td", { "data-label": "Service" }, h("a", { href: `#/service/${segment(name)}` }, name)),
      h(
        "td",
        { "data-label": "Canary" },
        toggle(`Canary switch of ${name}`, switches.canary, () => flipSwitch("canary", !switches.canary, name)),
      ),
      h(
        "td",
        { "data-label": "Balancer" },
        h(
          "span",
          { class: "inline" },
          toggle(`Balancer switch of ${name}`, switches.balancer, () =>
            flipSwitch("balancer", !switches.balancer, name),
          ),
          switches.tripped && h("button", { type: "button", onclick: () => rearm(name) }, "Re-arm…"),
        ),
      ),
      h(
        "td",
        { "data-label": "Rollout" },
        switches.abort
          ? h("button", { type: "button", class: "primary", onclick: () => resume(name) }, "Resume…")
          : h("button", { type: "button", class: "danger", onclick: () => abort(name, stable) }, "Abort…"),
      ),
      h(
        "td",
        { "data-label": "State" },
        h(
          "span",
          { class: "inline" },
          chips(switches).length > 0 ? chips(switches) : h("span", { class: "chip ok" }, "as configured"),
        ),
      ),
    );
  };
  return [
    h("h1", null, "Switches"),
    h(
      "p",
      { class: "lead" },
      "Kill switches take hold within a moment, on open connections too. Every flip is kept in the history, with who and why.",
    ),
    h("div", { class: "grid thirds" }, Object.keys(KINDS).map(globalSwitch)),
    h(
      "section",
      { class: "card" },
      h(
        "header",
        null,
        h("h2", null, "By service"),
        state.services.length > 8 &&
          h("input", {
            type: "search",
            placeholder: "Filter",
            "aria-label": "Filter services",
            value: filter,
            oninput: (event) => ((filter = event.target.value), repaint()),
          }),
      ),
      h(
        "div",
        { class: "scroll" },
        h(
          "table",
          { class: "stack" },
          h(
            "thead",
            null,
            h(
              "tr",
              null,
              ["Service", "Canary", "Balancer", "Rollout", "State"].map((head) => h("th", { scope: "col" }, head)),
            ),
          ),
          h("tbody", null, found.slice(0, 200).map(row)),
        ),
      ),
    ),
  ];
}
