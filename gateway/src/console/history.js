// The audit trail: who changed what, from where, why, what it was before and after, and what was refused.

import { confirm, problemList } from "./dialogs.js";
import { diff } from "./diff.js";
import { h, repaint } from "./dom.js";
import { ago, when } from "./format.js";
import { state } from "./state.js";

const ui = { text: "", document: "", outcome: "", open: new Set(), shown: 50 };

const keyOf = (entry) => `${entry.at} ${entry.document} ${entry.revision} ${entry.action}`;

function badge(entry) {
  return entry.outcome === "refused"
    ? h("span", { class: "chip bad" }, "refused")
    : h("span", { class: "revision" }, entry.revision === null ? "–" : `#${entry.revision}`);
}

/** An entry on one line. */
export function briefEntry(entry) {
  return h(
    "li",
    { key: keyOf(entry), class: entry.outcome === "refused" ? "refused" : null },
    badge(entry),
    h(
      "span",
      { class: "brief-what" },
      h("code", null, entry.action),
      entry.document === "routing" && h("span", { class: "quiet" }, " routing"),
      entry.reason && h("span", null, ` ${entry.reason}`),
      entry.problems?.length > 0 && h("span", { class: "bad-text small one-line" }, entry.problems[0]),
    ),
    h("span", { class: "quiet brief-who" }, `${entry.by}, ${ago(Date.parse(entry.at))}`),
  );
}

/** Asks, and goes back to an earlier document, with what that changes. */
export function rollback(revision) {
  confirm({
    title: `Roll back to revision ${revision}`,
    text: "What it said comes into force under a new revision. This is what changes:",
    verb: "Roll back",
    danger: true,
    wide: true,
    extra: (draft) =>
      diff(state.documents.get(draft.base), state.documents.get(revision), [
        `in force, revision ${draft.base}`,
        `revision ${revision}`,
      ]),
    request: (draft) => ({
      method: "POST",
      path: "/v1/rollback",
      body: { revision, reason: draft.reason },
      title: `rollback to revision ${revision}`,
    }),
  });
}

function matches(entry) {
  if (ui.document && entry.document !== ui.document) return false;
  if (ui.outcome && entry.outcome !== ui.outcome) return false;
  const text = [entry.by, entry.from, entry.action, entry.reason, entry.revision, ...(entry.problems ?? [])].join(" ");
  return text.toLowerCase().includes(ui.text.trim().toLowerCase());
}

function hasMore(entry) {
  return Boolean(entry.before || entry.problems?.length || entry.after);
}

function more(entry) {
  if (entry.outcome === "refused")
    return h(
      "ul",
      { class: "problems" },
      entry.problems.map((problem) => h("li", null, problem)),
    );
  if (entry.before)
    return diff(entry.before, entry.after, [`revision ${entry.before.revision}`, `revision ${entry.revision}`]);
  return h("p", { class: "quiet" }, "This is the first document that the history has.");
}

function row(entry) {
  const key = keyOf(entry);
  const isOpen = ui.open.has(key);
  const flip = () => (isOpen ? ui.open.delete(key) : ui.open.add(key), repaint());
  const canReturn =
    entry.document === "traffic" &&
    entry.outcome === "applied" &&
    entry.revision !== null &&
    entry.after &&
    entry.revision !== state.revision;
  const isCurrent = entry.document === "traffic" && entry.revision !== null && entry.revision === state.revision;
  return h(
    "li",
    { key, class: entry.outcome === "refused" ? "entry refused" : "entry" },
    h(
      "div",
      { class: "entry-head" },
      badge(entry),
      h(
        "div",
        { class: "entry-what" },
        h(
          "div",
          null,
          h("code", null, entry.action),
          h("span", { class: "tag" }, entry.document),
          isCurrent && h("span", { class: "chip ok" }, "in force"),
        ),
        entry.reason && h("p", { class: "entry-why" }, entry.reason),
        entry.outcome === "refused" && !isOpen && h("p", { class: "bad-text small one-line" }, entry.problems?.[0]),
      ),
      h(
        "div",
        { class: "entry-who" },
        h("b", null, entry.by),
        h("span", { class: "quiet" }, entry.from === entry.by ? when(entry.at) : `${entry.from} · ${when(entry.at)}`),
      ),
      h(
        "div",
        { class: "entry-acts" },
        hasMore(entry) &&
          h(
            "button",
            { type: "button", "aria-expanded": String(isOpen), onclick: flip },
            isOpen ? "Less" : entry.outcome === "refused" ? "Problems" : "Diff",
          ),
        canReturn && h("button", { type: "button", onclick: () => rollback(entry.revision) }, "Roll back to this…"),
      ),
    ),
    isOpen && h("div", { class: "entry-more" }, more(entry)),
  );
}

function choice(label, field, options) {
  return h(
    "label",
    { class: "inline" },
    label,
    h(
      "select",
      { value: ui[field], onchange: (event) => ((ui[field] = event.target.value), repaint()) },
      options.map(([value, name]) => h("option", { value }, name)),
    ),
  );
}

export function historyView() {
  const found = state.history.filter(matches);
  return [
    h("h1", null, "History"),
    h(
      "p",
      { class: "lead" },
      "Every change and every refusal: who, from where, why, and the documents before and after.",
    ),
    refusedDocuments(),
    h(
      "div",
      { class: "filters" },
      h("input", {
        type: "search",
        placeholder: "Filter by name, reason, action",
        "aria-label": "Filter the history",
        value: ui.text,
        oninput: (event) => ((ui.text = event.target.value), repaint()),
      }),
      choice("Document", "document", [
        ["", "all"],
        ["traffic", "traffic"],
        ["routing", "routing"],
      ]),
      choice("Outcome", "outcome", [
        ["", "all"],
        ["applied", "applied"],
        ["refused", "refused"],
      ]),
    ),
    found.length === 0 && h("p", { class: "quiet" }, "Nothing in the history is like that."),
    h("ol", { class: "entries card" }, found.slice(0, ui.shown).map(row)),
    found.length > ui.shown &&
      h("button", { type: "button", onclick: () => ((ui.shown += 100), repaint()) }, `Show more of ${found.length}`),
  ];
}

/** A problem whose list of what was expected is left out where one of them was probably meant. */
function short(problem) {
  const message = problem.suggestion ? problem.message.split(", expected one of")[0] : problem.message;
  return { ...problem, message, file: problem.file.split("/").at(-1) };
}

/** Documents that were refused and are still there: all that is wrong with them, or the first two things. */
export function refusedDocuments(isBrief = false) {
  const documents = state.ready?.documents ?? {};
  return ["routing", "traffic"]
    .filter((name) => documents[name]?.refused)
    .map((name) => {
      const { refused, revision, file } = documents[name];
      const shown = (isBrief ? refused.problems.slice(0, 2) : refused.problems).map(short);
      return h(
        "section",
        { class: "refused-document", key: `refused ${name}`, "aria-label": `Refused ${name} document` },
        h(
          "p",
          null,
          h("b", null, `The ${name} document was refused`),
          ` at ${when(refused.at)}. Revision ${revision} stays in force.`,
          !isBrief && h("span", { class: "small" }, file),
        ),
        problemList(shown),
        shown.length < refused.problems.length &&
          h(
            "p",
            { class: "small" },
            `and ${refused.problems.length - shown.length} more: `,
            h("a", { href: "#/history" }, "History"),
          ),
      );
    });
}
