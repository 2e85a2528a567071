// Weights of a service: sliders and exact inputs that always make 100 %, the preview of who moves, and the flip.

import { Refused, post, segment } from "./api.js";
import { problemList, reasonFields, send } from "./dialogs.js";
import { h, repaint } from "./dom.js";
import { hundredths, percent, plain } from "./format.js";
import { configuredWeights, state, versions } from "./state.js";

const ALL = 10_000;
const PREVIEW_AFTER_MS = 120;

/** What is being edited, by service. */
const drafts = new Map();

/**
 * Weights (hundredths of a percent) after one of them is set. What it gains or loses, the stable version gives or takes,
 * as far as it can; then the others in proportion. The stable version's own change goes to the others in proportion.
 * The sum stays exactly 100 %.
 */
export function rebalance(weights, stable, changed, value) {
  const next = { ...weights, [changed]: Math.min(ALL, Math.max(0, Math.round(value))) };
  const others = Object.keys(next).filter((name) => name !== changed);
  let missing = ALL - Object.values(next).reduce((sum, weight) => sum + weight, 0);
  if (changed !== stable && stable in next) {
    const given = Math.max(-next[stable], missing);
    next[stable] += given;
    missing -= given;
  }
  const pool = others.filter((name) => name !== stable || changed === stable);
  if (missing !== 0) spread(next, pool.length > 0 ? pool : others, missing);
  return next;
}

/** Adds an amount to some of the weights, in proportion to what they are; equally if they are nothing. */
function spread(weights, names, amount) {
  const sum = names.reduce((total, name) => total + weights[name], 0);
  let left = amount;
  names.forEach((name, at) => {
    const share = sum > 0 ? weights[name] / sum : 1 / names.length;
    const part = at === names.length - 1 ? left : Math.trunc(amount * share);
    const taken = Math.max(part, -weights[name]);
    weights[name] += taken;
    left -= taken;
  });
  // What rounding left goes to the first one that can bear it.
  for (const name of names) {
    const taken = Math.max(left, -weights[name]);
    weights[name] += taken;
    left -= taken;
  }
}

/** Whether these weights are being edited, so that the caller can warn. */
export function isEdited(service) {
  return drafts.has(service);
}

export function dropDraft(service) {
  drafts.delete(service);
  repaint();
}

function draftOf(service) {
  let draft = drafts.get(service);
  if (!draft) {
    draft = {
      weights: configuredWeights(service),
      base: state.revision,
      typed: {},
      before: null,
      preview: null,
      refused: null,
      reason: "",
      timer: 0,
      busy: false,
    };
    drafts.set(service, draft);
  }
  return draft;
}

/** What was typed that is no share, if anything. */
function wrongText(draft) {
  return Object.values(draft?.typed ?? {}).find((text) => Number.isNaN(hundredths(text)));
}

/** Takes what is typed. While it is no share the weights are what they were before, whatever its first digits would be. */
function type(service, stable, name, text) {
  const draft = draftOf(service);
  if (!(name in draft.typed)) draft.before = draft.weights;
  const value = hundredths(text);
  draft.weights = draft.before;
  if (!Number.isNaN(value)) return change(service, stable, name, value, text);
  clearTimeout(draft.timer);
  draft.typed = { [name]: text };
  repaint();
}

function change(service, stable, name, value, typed) {
  const draft = draftOf(service);
  draft.weights = rebalance(draft.weights, stable, name, value);
  draft.typed = typed === undefined ? {} : { [name]: typed };
  draft.refused = null;
  clearTimeout(draft.timer);
  draft.timer = setTimeout(() => void preview(service, draft), PREVIEW_AFTER_MS);
  repaint();
}

function asked(weights) {
  return Object.fromEntries(Object.entries(weights).map(([name, weight]) => [name, percent(weight)]));
}

async function preview(service, draft) {
  const weights = asked(draft.weights);
  try {
    draft.preview = { weights, ...(await post("/v1/preview", { service, weights })) };
  } catch (error) {
    draft.refused = error;
  }
  repaint();
}

/** The editor. */
export function weightEditor(service) {
  const list = versions(service);
  const draft = drafts.get(service);
  const current = configuredWeights(service);
  const weights = draft?.weights ?? current;
  const stable = list.find((version) => version.isStable)?.name;
  const wrong = wrongText(draft);
  const isChanged = draft && wrong === undefined && list.some((version) => weights[version.name] !== current[version.name]);
  if (list.length < 2) return h("p", { class: "quiet" }, "This service has one version: there is nothing to weigh.");
  const submit = (event) => {
    event.preventDefault();
    if (isChanged) void apply(service, draft);
  };
  return h(
    "form",
    { class: "weights", onsubmit: submit, "aria-label": `Weights of ${service}` },
    list.length === 2
      ? pair(service, list, weights, draft)
      : list.map((version) => row(service, version, stable, weights, draft)),
    list.length === 2 && steps(service, stable, list[1].name, weights),
    h(
      "div",
      { class: "bars" },
      bar("in force", list, Object.fromEntries(list.map((v) => [v.name, v.weight]))),
      isChanged && bar("new", list, weights),
    ),
    wrong !== undefined && refusedText(service, wrong),
    isChanged && outcome(service, draft, list),
    wrong === undefined &&
      !isChanged &&
      h("p", { class: "quiet" }, "Move a slider or type a share to see who would move."),
  );
}

/** Two versions share one slider: what is left of the thumb is the canary's. */
function pair(service, list, weights, draft) {
  const [stable, canary] = list;
  return h(
    "div",
    { class: "pair" },
    h(
      "div",
      { class: "pair-ends" },
      [canary, stable].map((version) =>
        h("div", { key: version.name }, exact(service, version, stable.name, weights, draft)),
      ),
    ),
    slider(service, canary, stable.name, weights),
  );
}

function row(service, version, stable, weights, draft) {
  const [name, field] = exact(service, version, stable, weights, draft);
  return h("div", { class: "weight-row", key: version.name }, name, slider(service, version, stable, weights), field);
}

function slider(service, version, stable, weights) {
  return h("input", {
    type: "range",
    min: 0,
    max: 100,
    step: 1,
    class: `c${version.colour}`,
    value: Math.round(weights[version.name] / 100),
    "aria-label": `Share of ${version.name}`,
    "aria-valuetext": `${plain(weights[version.name])} percent`,
    style: { "--at": `${weights[version.name] / 100}%` },
    oninput: (event) => change(service, stable, version.name, Number(event.target.value) * 100),
  });
}

function exact(service, version, stable, weights, draft) {
  const shown = draft?.typed[version.name] ?? plain(weights[version.name]);
  const isWrong = Number.isNaN(hundredths(shown));
  const id = `share-${service}-${version.name}`;
  const nudge = (event) => {
    const by = { ArrowUp: 1, ArrowDown: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    change(
      service,
      stable,
      version.name,
      weights[version.name] + by * (event.shiftKey ? 1000 : event.altKey ? 1 : 100),
    );
  };
  return [
    h(
      "label",
      { key: "name", class: `exact-name c${version.colour}`, for: id },
      h("span", { class: "swatch" }),
      version.name,
      version.isStable && h("span", { class: "tag" }, "stable"),
    ),
    h(
      "span",
      { key: "field", class: "unit-field" },
      h("input", {
        id,
        inputmode: "decimal",
        autocomplete: "off",
        value: shown,
        "aria-invalid": isWrong && "true",
        title: "0 to 100, at most two decimals",
        oninput: (event) => type(service, stable, version.name, event.target.value),
        onkeydown: nudge,
        onblur: () => settle(service),
      }),
      h("span", { "aria-hidden": "true" }, "%"),
    ),
  ];
}

/** When a field is left, it shows what is meant; what is no share stays, so that it is seen to be refused. */
function settle(service) {
  const draft = drafts.get(service);
  if (draft && wrongText(draft) === undefined) draft.typed = {};
  repaint();
}

function refusedText(service, text) {
  const shown = text.length > 20 ? `${text.slice(0, 20)}…` : text;
  const what = text.trim() === "" ? "A share is missing" : `“${shown}” is no share`;
  return h(
    "div",
    { class: "outcome" },
    h(
      "div",
      { class: "note bad", role: "alert" },
      h("p", null, `${what}: write 0 to 100, with at most two decimals. Nothing is changed.`),
    ),
    h(
      "div",
      { class: "actions" },
      h("button", { type: "submit", class: "primary", disabled: true }, "Apply"),
      h("button", { type: "button", onclick: () => dropDraft(service) }, "Discard"),
    ),
  );
}

function steps(service, stable, canary, weights) {
  const step = (share) =>
    h(
      "button",
      {
        type: "button",
        class: "step",
        "aria-pressed": String(weights[canary] === share),
        onclick: () => change(service, stable, canary, share),
      },
      `${plain(share)} %`,
    );
  return h(
    "div",
    { class: "steps", role: "group", "aria-label": `Usual shares of ${canary}` },
    h("span", { class: "quiet" }, canary),
    [0, 100, 500, 1000, 2500, 5000, 10_000].map(step),
  );
}

function bar(label, list, weights) {
  const part = (version) =>
    h("span", {
      key: version.name,
      class: `c${version.colour}`,
      style: { "flex-grow": String(weights[version.name] ?? 0) },
    });
  return h(
    "div",
    { class: "bar-row" },
    h("span", { class: "bar-label" }, label),
    h(
      "span",
      {
        class: "bar",
        role: "img",
        "aria-label": list.map((v) => `${v.name} ${plain(weights[v.name] ?? 0)} %`).join(", "),
      },
      list.map(part),
    ),
  );
}

function outcome(service, draft, list) {
  const isFresh =
    draft.preview &&
    list.every((version) => draft.preview.weights[version.name] === percent(draft.weights[version.name]));
  return h(
    "div",
    { class: "outcome" },
    draft.refused ? refusal(draft.refused) : moves(draft, isFresh),
    draft.base !== state.revision &&
      h(
        "p",
        { class: "note warn" },
        `Revision ${draft.base} was in force when you began, now it is ${state.revision}. Applying will say what changed.`,
      ),
    reasonFields(draft, `weights-${service}`),
    h(
      "div",
      { class: "actions" },
      h("button", { type: "submit", class: "primary", disabled: draft.busy || !isFresh }, "Apply"),
      h("button", { type: "button", onclick: () => dropDraft(service) }, "Discard"),
    ),
  );
}

function moves(draft, isFresh) {
  const seen = draft.preview;
  if (!seen) return h("p", { class: "quiet" }, "Working out who moves …");
  const line = (move) =>
    h(
      "li",
      { key: `${move.from} ${move.to}` },
      h("span", null, move.from),
      h("span", { class: "arrow", "aria-label": "to" }, "→"),
      h("span", null, move.to),
      h("b", null, move.share),
    );
  return h(
    "div",
    { class: isFresh ? "moves" : "moves dim" },
    h("p", null, h("b", { class: "moved" }, seen.moved), " of users move"),
    seen.moves.length > 0 && h("ul", null, seen.moves.map(line)),
    seen.held && h("p", { class: "note warn" }, `Not in force at once: ${seen.held}.`),
  );
}

function refusal(error) {
  return h(
    "div",
    { class: "note bad", role: "alert" },
    h("p", null, error.message),
    error instanceof Refused && problemList(error.problems),
  );
}

async function apply(service, draft) {
  draft.busy = true;
  repaint();
  const request = {
    method: "PATCH",
    path: `/v1/traffic/services/${segment(service)}`,
    body: { weights: asked(draft.weights), reason: draft.reason },
    title: `weights of ${service}: ${Object.entries(asked(draft.weights))
      .map(([name, share]) => `${name} ${share}`)
      .join(", ")}`,
  };
  try {
    const isDone = await send(request, draft.base, () => dropDraft(service));
    if (isDone) dropDraft(service);
  } catch (error) {
    draft.refused = error;
  }
  draft.busy = false;
  repaint();
}
