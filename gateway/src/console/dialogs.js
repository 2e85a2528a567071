// Dialogs: who you are, are you sure, and somebody was faster. Everything that changes the gateway goes through `send`.

import { Refused, ask, forgetToken, hasToken, operator, setOperator, setToken } from "./api.js";
import { diff } from "./diff.js";
import { h, repaint } from "./dom.js";
import { when } from "./format.js";
import { notify, refresh, refreshAll, state } from "./state.js";

let opened = 0;

/** Opens a dialog. `body` draws what is in it, with the means to close it. */
export function open(title, body, { wide = false, onclose } = {}) {
  state.dialog = { key: `dialog${++opened}`, title, body, wide, onclose };
  repaint();
}

/** Closes the dialog that is open; the focus goes back to where it was. */
export function close() {
  document.querySelector("dialog[open]")?.close();
}

/** The dialog that is open. */
export function dialogHost() {
  const dialog = state.dialog;
  if (!dialog) return null;
  const gone = () => {
    if (state.dialog === dialog) state.dialog = null;
    dialog.onclose?.();
    repaint();
  };
  return h(
    "dialog",
    {
      key: dialog.key,
      class: dialog.wide ? "wide" : null,
      "aria-labelledby": `${dialog.key}-title`,
      ref: (element) => element.showModal(),
      onclose: gone,
    },
    h("h2", { id: `${dialog.key}-title` }, dialog.title),
    dialog.body(),
  );
}

/** Single things that were wrong. */
export function problemList(problems) {
  if (!problems?.length) return null;
  const place = (problem) =>
    [problem.file && `${problem.file}:${problem.line}:${problem.column}`, problem.path].filter(Boolean).join(" ");
  const line = (problem) =>
    h(
      "li",
      null,
      place(problem) && h("code", null, place(problem)),
      " ",
      problem.message,
      problem.suggestion && h("span", null, " – did you mean ", h("code", null, problem.suggestion), "?"),
    );
  return h(
    "ul",
    { class: "problems" },
    problems.slice(0, 20).map(line),
    problems.length > 20 && h("li", null, `and ${problems.length - 20} more`),
  );
}

/** Fields for why, kept in `draft.reason`, and for who, kept in the browser. */
export function reasonFields(draft, id) {
  return h(
    "div",
    { class: "who-why" },
    h(
      "label",
      null,
      "Why",
      h("input", {
        id: `${id}-reason`,
        name: "reason",
        maxlength: 1000,
        autocomplete: "off",
        value: draft.reason,
        placeholder: "for the history",
        oninput: (event) => (draft.reason = event.target.value),
      }),
    ),
    h(
      "label",
      { class: "who" },
      "Your name",
      h("input", {
        id: `${id}-who`,
        name: "operator",
        maxlength: 64,
        autocomplete: "off",
        value: operator(),
        placeholder: "unknown",
        onchange: (event) => setOperator(event.target.value),
      }),
    ),
  );
}

/**
 * Changes something, if revision `base` is still in force. If it is not, says what changed and by whom, and offers to
 * apply the change to what is in force now; `applied` is called if that is done. Whether the change was made at once.
 */
export async function send(request, base, applied) {
  try {
    await make(request, base);
    return true;
  } catch (error) {
    if (!(error instanceof Refused && error.status === 412)) throw error;
    await conflict(request, base, applied);
    return false;
  }
}

async function make({ method, path, body }, base) {
  const { value } = await ask(method, path, { body, ifMatch: base === null ? undefined : `"${base}"` });
  if (value?.warning) notify(value.warning, true);
  refresh("traffic", "services", "history", "details", "ramps");
}

/** Asks whether a change is really wanted. `form.request()` is what is sent; `form.extra()` draws fields of its own. */
export function confirm({ title, text, verb, danger = false, wide = false, extra, request }) {
  const draft = { reason: "", refused: null, busy: false, base: state.revision };
  const submit = async (event) => {
    event.preventDefault();
    draft.busy = true;
    repaint();
    try {
      if (await send(request(draft), draft.base)) close();
    } catch (error) {
      draft.refused = error;
    }
    draft.busy = false;
    repaint();
  };
  const body = () =>
    h(
      "form",
      { onsubmit: submit },
      text && h("p", null, text),
      extra?.(draft),
      draft.refused &&
        h(
          "div",
          { class: "note bad", role: "alert" },
          h("p", null, draft.refused.message),
          problemList(draft.refused.problems),
        ),
      reasonFields(draft, "confirm"),
      h(
        "div",
        { class: "actions" },
        h("button", { type: "submit", class: danger ? "danger" : "primary", disabled: draft.busy }, verb),
        h("button", { type: "button", onclick: close }, "Cancel"),
      ),
    );
  open(title, body, { wide });
}

/** Somebody else was faster. */
async function conflict(request, base, applied) {
  const [traffic, history] = await Promise.all([
    ask("GET", "/v1/traffic"),
    ask("GET", "/v1/history?limit=200&document=traffic"),
  ]);
  const seen = {
    now: traffic.value.revision,
    document: traffic.value,
    since: history.value.entries.filter((entry) => entry.revision > base),
    refused: null,
  };
  const reload = () => {
    applied?.();
    refreshAll();
    close();
  };
  const again = async () => {
    try {
      await make(request, seen.now);
      applied?.();
      close();
    } catch (error) {
      if (error instanceof Refused && error.status === 412) await conflict(request, seen.now, applied);
      else seen.refused = error;
      repaint();
    }
  };
  close();
  open("Somebody else was faster", () => conflictBody(request, base, seen, reload, again), { wide: true });
}

function conflictBody(request, base, seen, reload, again) {
  const entry = (entry) =>
    h(
      "li",
      { key: entry.revision },
      h("b", null, `Revision ${entry.revision}`),
      ` by ${entry.by} from ${entry.from}, ${when(entry.at)}: `,
      h("code", null, entry.action),
      entry.reason && h("span", null, ` – ${entry.reason}`),
    );
  return h(
    "div",
    { class: "conflict" },
    h(
      "p",
      null,
      `Your change was meant for revision ${base}, but revision ${seen.now} is in force. Nothing was changed.`,
    ),
    h("ul", { class: "since" }, seen.since.map(entry)),
    diff(state.documents.get(base), seen.document, [`revision ${base}`, `revision ${seen.now}`]),
    h("p", null, "Yours: ", h("code", null, request.title)),
    seen.refused &&
      h(
        "div",
        { class: "note bad", role: "alert" },
        h("p", null, seen.refused.message),
        problemList(seen.refused.problems),
      ),
    h(
      "div",
      { class: "actions" },
      h("button", { type: "button", class: "primary", onclick: reload }, "Reload, drop mine"),
      h("button", { type: "button", onclick: again }, `Apply mine to revision ${seen.now}`),
    ),
  );
}

/** Asks for the token. */
export function login() {
  const draft = { token: "", error: hasToken() ? "The gateway does not take this token." : null };
  const submit = (event) => {
    event.preventDefault();
    if (!setToken(draft.token.trim())) {
      draft.error = "A token is one word of visible ASCII characters.";
      return repaint();
    }
    state.needsToken = false;
    close();
    refreshAll();
  };
  const body = () =>
    h(
      "form",
      { onsubmit: submit },
      h("p", null, "This gateway's admin API asks for a token. It is kept for this tab only, until you close it."),
      draft.error && h("p", { class: "note bad", role: "alert" }, draft.error),
      h(
        "label",
        null,
        "Token",
        h("input", {
          type: "password",
          name: "token",
          autocomplete: "off",
          value: draft.token,
          oninput: (event) => (draft.token = event.target.value),
        }),
      ),
      h("div", { class: "actions" }, h("button", { type: "submit", class: "primary" }, "Sign in")),
    );
  open("Sign in", body);
}

/** Forgets the token and all that was seen with it. */
export function logout() {
  forgetToken();
  location.reload();
}

/** Asks who the operator is. */
export function whoAreYou() {
  const draft = { name: operator() };
  const submit = (event) => {
    event.preventDefault();
    setOperator(draft.name);
    close();
  };
  const body = () =>
    h(
      "form",
      { onsubmit: submit },
      h("p", null, "Your name stands beside what you change, in the history. It is kept in this browser."),
      h(
        "label",
        null,
        "Your name",
        h("input", {
          name: "name",
          maxlength: 64,
          autocomplete: "off",
          value: draft.name,
          oninput: (event) => (draft.name = event.target.value),
        }),
      ),
      h(
        "div",
        { class: "actions" },
        h("button", { type: "submit", class: "primary" }, "Keep"),
        hasToken() && h("button", { type: "button", onclick: logout }, "Sign out"),
      ),
    );
  open("Who are you?", body);
}
