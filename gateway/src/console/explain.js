// Explain as a form: the way of one request through route, tag, bucket, version, limits, narrows and pick. It is asked
// of the running gateway, and nothing is counted or moved by asking.

import { get, post, Refused, segment } from "./api.js";
import { problemList } from "./dialogs.js";
import { h, repaint } from "./dom.js";
import { way } from "./way.js";

const ui = {
  method: "GET",
  url: "http://api.example.com/",
  headers: "x-user-id: anna",
  client: "",
  trusted: "",
  seed: "",
  answer: null,
  pool: null,
  error: null,
  busy: false,
};
const METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"];

/** Header lines as the API takes them; several lines of a name are a list. */
export function parseHeaders(text) {
  const found = Object.create(null);
  for (const line of text
    .split("\n")
    .map((line) => line.trim())
    .filter(Boolean)) {
    const at = line.indexOf(":", 1);
    const [name, value] = at < 0 ? [line, ""] : [line.slice(0, at).trim(), line.slice(at + 1).trim()];
    if (!(name in found)) found[name] = value;
    else found[name] = [found[name], value].flat();
  }
  return found;
}

async function ask(event) {
  event.preventDefault();
  ui.busy = true;
  repaint();
  const question = { method: ui.method, url: ui.url.trim(), headers: parseHeaders(ui.headers) };
  if (ui.client.trim()) question.client_ip = ui.client.trim();
  if (ui.trusted) question.trusted = ui.trusted === "yes";
  if (/^\d+$/.test(ui.seed.trim())) question.seed = Number(ui.seed);
  try {
    const answer = await post("/v1/explain", question);
    const view = answer.service ? await get(`/v1/services/${segment(answer.service)}`) : null;
    Object.assign(ui, { answer, pool: poolOf(answer, view), error: null });
  } catch (error) {
    Object.assign(ui, { answer: null, error });
  }
  ui.busy = false;
  repaint();
}

/** Instances that a chain began with: those of the version, or all if any may serve. */
function poolOf(answer, view) {
  const chosen = view?.subsets.find((subset) => subset.name === answer.subset);
  return {
    name: chosen ? `all of ${chosen.name}` : "all",
    count: chosen?.instances ?? view?.instances.length ?? 0,
    left: [],
  };
}

function form() {
  const set = (name) => (event) => (ui[name] = event.target.value);
  const input = (name, props) =>
    h("input", { name, autocomplete: "off", spellcheck: "false", value: ui[name], oninput: set(name), ...props });
  return h(
    "form",
    { class: "card explain-form", onsubmit: ask, "aria-label": "Request to explain" },
    h(
      "label",
      null,
      "Method",
      h(
        "select",
        { name: "method", value: ui.method, onchange: set("method") },
        METHODS.map((method) => h("option", { value: method }, method)),
      ),
    ),
    h(
      "label",
      null,
      "Trusted proxy",
      h(
        "select",
        { name: "trusted", value: ui.trusted, onchange: set("trusted") },
        [
          ["", "as configured"],
          ["yes", "yes"],
          ["no", "no"],
        ].map(([value, text]) => h("option", { value }, text)),
      ),
    ),
    h("label", { class: "whole" }, "URL or path", input("url", { required: true })),
    h(
      "label",
      { class: "whole" },
      "Header fields, one a line",
      h("textarea", { name: "headers", rows: 4, spellcheck: "false", value: ui.headers, oninput: set("headers") }),
    ),
    h("label", null, "Client address", input("client", { placeholder: "127.0.0.1" })),
    h("label", null, "Seed", input("seed", { inputmode: "numeric", placeholder: "random" })),
    h("div", { class: "actions" }, h("button", { type: "submit", class: "primary", disabled: ui.busy }, "Explain")),
    h("p", { class: "quiet whole" }, "Asked of the running gateway. Nothing is sent upstream, counted or moved."),
  );
}

/** Takes over the seed of the answer, for asking again. */
function keepSeed() {
  ui.seed = String(ui.answer.seed);
  repaint();
}

export function explainView() {
  return [
    h("h1", null, "Explain"),
    h(
      "div",
      { class: "grid explain-grid" },
      form(),
      ui.error &&
        h(
          "div",
          { class: "note bad", role: "alert" },
          h("p", null, ui.error.message),
          ui.error instanceof Refused && problemList(ui.error.problems),
        ),
      ui.answer
        ? way(ui.answer, ui.pool, keepSeed)
        : !ui.error &&
            h(
              "section",
              { class: "card empty" },
              h(
                "p",
                null,
                "Describe a request to see the route it takes, the version it gets and why, what each narrow leaves, and the instance that is picked.",
              ),
            ),
    ),
  ];
}
