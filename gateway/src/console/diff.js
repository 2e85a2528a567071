// Differences of two traffic documents, line by line.

import { h } from "./dom.js";

const CONTEXT = 2;
/** More lines than this on both sides are compared as a whole: the table of the comparison would be too big. */
const MOST_CELLS = 4_000_000;

/** A document as lines, in the way the files are written. */
export function lines(value, indent = "") {
  if (value === null || typeof value !== "object") return [];
  return Object.entries(value).flatMap(([key, child]) => {
    if (child === null || typeof child !== "object") return [`${indent}${key}: ${scalar(child)}`];
    if (Array.isArray(child)) return [`${indent}${key}: [${child.map(flat).join(", ")}]`];
    if (Object.keys(child).length === 0) return [`${indent}${key}: {}`];
    return [`${indent}${key}:`, ...lines(child, `${indent}  `)];
  });
}

function scalar(value) {
  return typeof value === "string" ? value : JSON.stringify(value);
}

function flat(value) {
  return value !== null && typeof value === "object" ? JSON.stringify(value) : scalar(value);
}

/** Edits that make `b` of `a`: { sign: " ", "-" or "+", text }. */
export function edits(a, b) {
  if (a.length * b.length > MOST_CELLS) {
    return [...a.map((text) => ({ sign: "-", text })), ...b.map((text) => ({ sign: "+", text }))];
  }
  const width = b.length + 1;
  const common = new Uint32Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      common[i * width + j] =
        a[i] === b[j]
          ? common[(i + 1) * width + j + 1] + 1
          : Math.max(common[(i + 1) * width + j], common[i * width + j + 1]);
    }
  }
  const found = [];
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) {
      found.push({ sign: " ", text: a[i] });
      i++;
      j++;
    } else if (j >= b.length || (i < a.length && common[(i + 1) * width + j] >= common[i * width + j + 1])) {
      found.push({ sign: "-", text: a[i++] });
    } else {
      found.push({ sign: "+", text: b[j++] });
    }
  }
  return found;
}

/** The edits with what surrounds them, and the keys that they are inside of. */
function hunks(all) {
  const keep = new Set();
  all.forEach((edit, at) => {
    if (edit.sign === " ") return;
    for (let near = at - CONTEXT; near <= at + CONTEXT; near++) keep.add(near);
    let depth = indentation(edit.text);
    for (let above = at - 1; above >= 0 && depth > 0; above--) {
      if (indentation(all[above].text) >= depth) continue;
      depth = indentation(all[above].text);
      keep.add(above);
    }
  });
  const shown = [];
  all.forEach((edit, at) => {
    if (keep.has(at)) shown.push(edit);
    else if (shown.at(-1)?.sign !== "…") shown.push({ sign: "…", text: "" });
  });
  return shown;
}

function indentation(text) {
  return text.length - text.trimStart().length;
}

const KINDS = { "+": "added", "-": "removed", " ": "same", "…": "skipped" };

/** Shows what is different between two traffic documents; their own revision numbers are of no account. */
export function diff(before, after, labels = ["before", "after"]) {
  if (!before || !after) return h("p", { class: "quiet" }, "The document is not in the history any more.");
  const bare = ({ revision, ...rest }) => lines(rest);
  const all = edits(bare(before), bare(after));
  if (all.every((edit) => edit.sign === " ")) return h("p", { class: "quiet" }, "The two documents say the same.");
  const spoken = { "+": "added: ", "-": "removed: " };
  const line = (edit) =>
    h(
      "div",
      { class: `diff-line ${KINDS[edit.sign]}` },
      h("span", { class: "diff-sign", "aria-hidden": "true" }, edit.sign),
      h("span", { class: "unseen" }, spoken[edit.sign] ?? ""),
      h("code", null, edit.text),
    );
  return h(
    "div",
    { class: "diff", role: "group", "aria-label": `Differences between ${labels[0]} and ${labels[1]}` },
    h(
      "div",
      { class: "diff-head" },
      h("span", { class: "removed" }, `− ${labels[0]}`),
      h("span", { class: "added" }, `+ ${labels[1]}`),
    ),
    hunks(all).map(line),
  );
}
