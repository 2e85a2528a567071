// Ramps: a canary that grows step by step, while guards hold.

import { segment } from "./api.js";
import { confirm } from "./dialogs.js";
import { h, repaint } from "./dom.js";
import { number } from "./format.js";
import { state, versions } from "./state.js";

const drafts = new Map();
const KINDS = { running: "info", paused: "warn", held: "warn", done: "ok", aborted: "bad" };

/** The ramp of a service, under way or ended, and how it stands; undefined if it has had none. */
function rampOf(service) {
  return state.ramps.find((view) => view.service === service);
}

/** What a list of services says of a ramp that is under way. */
export function rampChip(service) {
  const ramp = rampOf(service)?.ramp;
  if (!ramp || isOver(ramp)) return null;
  return h(
    "span",
    { key: "ramp", class: `chip ${KINDS[ramp.state]}` },
    `ramp ${ramp.state} at ${ramp.steps[ramp.step]}`,
  );
}

function isOver(ramp) {
  return ramp.state === "done" || ramp.state === "aborted";
}

function post(service, verb, body) {
  return (draft) => ({
    method: "POST",
    path: `/v1/ramps/${segment(service)}${verb ? `/${verb}` : ""}`,
    body: { ...body, reason: draft.reason },
    title: `${verb || "start"} the ramp of ${service}`,
  });
}

const VERBS = {
  pause: { verb: "Pause", text: "The weights stay where they are until it is resumed." },
  resume: { verb: "Resume", text: "It goes on from the step it is at, whose time begins anew." },
  abort: { verb: "Abort", text: "All traffic goes to the stable version at once.", danger: true },
};

function act(service, name) {
  const { verb, text, danger } = VERBS[name];
  confirm({ title: `${verb} the ramp of ${service}`, text, verb, danger, request: post(service, name, {}) });
}

export function rampPanel(service) {
  const view = rampOf(service);
  return h("div", { class: "ramp" }, view && progress(service, view), (!view || isOver(view.ramp)) && starter(service));
}

function progress(service, view) {
  const { ramp } = view;
  const step = (share, index) => {
    const place =
      ramp.state === "done" || index < ramp.step
        ? "past"
        : index > ramp.step || ramp.state === "aborted"
          ? "ahead"
          : "here";
    return h("li", { key: index, class: place, "aria-current": place === "here" ? "step" : null }, share);
  };
  const buttons =
    { running: ["pause", "abort"], paused: ["resume", "abort"], held: ["pause", "abort"] }[ramp.state] ?? [];
  return h(
    "div",
    { class: "ramp-now" },
    h(
      "p",
      null,
      h("span", { class: `chip ${KINDS[ramp.state]}` }, ramp.state),
      ` to ${ramp.to}, a step every ${ramp.every}`,
    ),
    h("ol", { class: "ramp-steps", "aria-label": "Steps" }, ramp.steps.map(step)),
    standing(view),
    ramp.reason && h("p", { class: ramp.state === "aborted" ? "note bad" : "note warn" }, ramp.reason),
    !isOver(ramp) && view.guards.length > 0 && h("ul", { class: "guards" }, view.guards.map(guard)),
    buttons.length > 0 &&
      h(
        "div",
        { class: "actions" },
        buttons.map((name) =>
          h(
            "button",
            { type: "button", key: name, class: name === "abort" ? "danger" : null, onclick: () => act(service, name) },
            `${VERBS[name].verb}…`,
          ),
        ),
      ),
  );
}

/** How far the step is, while there is one. */
function standing({ ramp, elapsed_seconds: elapsed, left_seconds: left, requests, stable_requests: others, missing }) {
  if (elapsed === null || elapsed === undefined) return null;
  const share = elapsed + left > 0 ? elapsed / (elapsed + left) : 1;
  return h(
    "div",
    { class: "ramp-step" },
    h(
      "span",
      { class: "meter", role: "img", "aria-label": `${Math.round(share * 100)} % of the step's time` },
      h("span", { class: "fill", style: { width: `${share * 100}%` } }),
    ),
    h(
      "p",
      { class: "quiet" },
      `${left > 0 ? `${Math.ceil(left)} s left` : "time is up"} · ${number(requests)} requests to ${ramp.to}, ${number(others)} to stable${missing ? ` · ${missing}` : ""}`,
    ),
  );
}

function guard({ guard, good, value, bound }, at) {
  const [kind, word] = good === true ? ["ok", "holds"] : good === false ? ["bad", "broken"] : ["", "too few"];
  return h(
    "li",
    { key: at },
    h("span", { class: `chip ${kind}` }, word),
    h("code", null, guard),
    value && h("span", { class: "quiet" }, ` ${value}${bound ? `, bound ${bound}` : ""}`),
  );
}

function draftOf(service) {
  const canary = versions(service).find((version) => !version.isStable)?.name ?? "";
  if (!drafts.has(service))
    drafts.set(service, {
      to: canary,
      steps: "1%, 5%, 25%, 50%, 100%",
      every: "5m",
      guards: "success_rate >= 99%\np99 <= 1.2 x stable",
      min: "200",
    });
  return drafts.get(service);
}

const list = (text, separator) =>
  text
    .split(separator)
    .map((part) => part.trim())
    .filter(Boolean);

function starter(service) {
  const canaries = versions(service).filter((version) => !version.isStable);
  if (canaries.length === 0) return h("p", { class: "quiet" }, "There is no version to ramp up to.");
  const draft = draftOf(service);
  const field = (name, label, props) =>
    h(
      "label",
      null,
      label,
      h("input", {
        name,
        autocomplete: "off",
        value: draft[name],
        oninput: (event) => (draft[name] = event.target.value),
        ...props,
      }),
    );
  const submit = (event) => {
    event.preventDefault();
    const body = {
      to: draft.to,
      steps: list(draft.steps, ","),
      every: draft.every.trim(),
      guards: list(draft.guards, "\n"),
      min_requests: Number(draft.min) || 1,
    };
    confirm({
      title: `Start a ramp of ${service} to ${draft.to}`,
      text: `${body.steps.join(", ")}, a step every ${body.every}. A guard that is broken sends everything to the stable version.`,
      verb: "Start",
      request: post(service, "", body),
    });
  };
  return h(
    "details",
    { class: "ramp-new" },
    h("summary", null, "Start a ramp"),
    h(
      "form",
      { onsubmit: submit, "aria-label": `New ramp of ${service}` },
      h(
        "label",
        null,
        "To",
        h(
          "select",
          { value: draft.to, onchange: (event) => ((draft.to = event.target.value), repaint()) },
          canaries.map((version) => h("option", { key: version.name, value: version.name }, version.name)),
        ),
      ),
      field("steps", "Steps"),
      field("every", "A step every"),
      field("min", "Requests a step needs", { type: "number", min: 1 }),
      h(
        "label",
        { class: "whole" },
        "Guards, one a line",
        h("textarea", { rows: 2, value: draft.guards, oninput: (event) => (draft.guards = event.target.value) }),
      ),
      h("div", { class: "actions" }, h("button", { type: "submit" }, "Start…")),
    ),
  );
}
