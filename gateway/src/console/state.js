// What is known of the gateway, and the loop that keeps it up to date.

import { Refused, Unreachable, ask, get, segment } from "./api.js";
import { repaint } from "./dom.js";
import { hundredths } from "./format.js";

const TICK_MS = 100;
/** Seconds that charts show, and those that numbers speak of. */
const CHART_S = 120;
export const NOW_S = 10;
const NOTICES = 3;

export const state = {
  route: { view: "overview", name: null },
  live: null,
  now: null,
  services: [],
  details: {},
  traffic: null,
  revision: null,
  ready: null,
  config: null,
  history: [],
  ramps: [],
  /** Documents by revision, as far as they were seen: what a change is compared with. */
  documents: new Map(),
  /** Since when the gateway does not answer, in milliseconds. */
  lost: null,
  lastAnswer: null,
  needsToken: false,
  dialog: null,
  notices: [],
};

const isAt = (...views) => views.includes(state.route.view);

/** What is asked for, how often in milliseconds, and where it goes. */
const questions = {
  traffic: { every: 1000, ask: readTraffic },
  live: { every: 1000, ask: readLive },
  services: { every: 1000, ask: async () => (state.services = (await get("/v1/services")).services) },
  ready: { every: 2000, ask: async () => (state.ready = await get("/readyz?verbose")) },
  config: { every: 15_000, ask: async () => (state.config = await get("/v1/config")) },
  history: { every: 3000, ask: readHistory },
  ramps: { every: 2000, ask: readRamps },
  details: { every: 1000, ask: readDetails, when: () => isAt("service", "instances") },
};
for (const question of Object.values(questions)) Object.assign(question, { due: 0, busy: false });

/** Asks for these at once, since they have changed. */
export function refresh(...names) {
  for (const name of names) questions[name].due = 0;
}

export function refreshAll() {
  refresh(...Object.keys(questions));
}

export function start() {
  setInterval(tick, TICK_MS);
  tick();
}

function tick() {
  if (document.hidden || state.needsToken) return;
  const now = performance.now();
  for (const question of Object.values(questions)) {
    if (question.busy || question.due > now || question.when?.() === false) continue;
    void keep(question, now);
  }
}

async function keep(question, began) {
  question.busy = true;
  question.due = began + question.every;
  try {
    await question.ask();
    state.lost = null;
    state.lastAnswer = Date.now();
  } catch (error) {
    if (error instanceof Unreachable) state.lost ??= Date.now();
    else if (error instanceof Refused && error.status === 401) state.needsToken = true;
    else if (!(error instanceof Refused)) console.error(error);
  }
  question.busy = false;
  // A slow gateway, or a big answer, is asked less often; what was said to have changed meanwhile, at once.
  if (question.due !== 0) question.due = began + Math.max(question.every, (performance.now() - began) * 4);
  repaint();
}

async function readTraffic() {
  const { value, etag } = await ask("GET", "/v1/traffic");
  const revision = Number((etag ?? "").replaceAll('"', "")) || value.revision;
  const before = state.revision;
  Object.assign(state, { traffic: value, revision });
  remember(revision, value);
  if (before !== null && revision !== before) {
    refresh("services", "details", "ramps");
    await readHistory();
    announceSince(before);
  }
}

async function readLive() {
  const [live, now] = await Promise.all([
    get(`/v1/live?seconds=${CHART_S}&series=true`),
    get(`/v1/live?seconds=${NOW_S}`),
  ]);
  Object.assign(state, { live, now });
}

async function readHistory() {
  const limit = isAt("history") ? 500 : 30;
  state.history = (await get(`/v1/history?limit=${limit}`)).entries;
  for (const entry of state.history) if (entry.after) remember(entry.revision, entry.after);
}

async function readRamps() {
  state.ramps = (await get("/v1/ramps")).ramps;
}

async function readDetails() {
  const names = isAt("service") ? [state.route.name] : shownServices();
  for (const name of names) {
    try {
      state.details[name] = await get(`/v1/services/${segment(name)}`);
    } catch (error) {
      if (!(error instanceof Refused && error.status === 404)) throw error;
      delete state.details[name];
    }
  }
}

/** Services whose instances are listed: the one that was chosen, else the first ones. */
export function shownServices() {
  const names = state.services.map((service) => service.name);
  return state.route.name ? names.filter((name) => name === state.route.name) : names.slice(0, 20);
}

function remember(revision, document) {
  if (revision === null || revision === undefined) return;
  state.documents.set(revision, document);
  if (state.documents.size > 600) state.documents.delete(state.documents.keys().next().value);
}

/** Tells of what others and this page changed since a revision: on the page, and to screen readers. */
function announceSince(revision) {
  const news = state.history.filter((entry) => entry.document === "traffic" && entry.revision > revision);
  for (const entry of news.reverse()) {
    const why = entry.reason ? `: ${entry.reason}` : "";
    notify(`Revision ${entry.revision}: ${entry.action}, by ${entry.by}${why}`);
  }
}

/** Shows a line for a while and has it read out. */
export function notify(text, isBad = false) {
  const notice = { text, isBad, key: `${Date.now()}-${Math.random()}` };
  state.notices = [...state.notices, notice].slice(-NOTICES);
  document.getElementById("live").textContent = text;
  setTimeout(() => {
    state.notices = state.notices.filter((other) => other !== notice);
    repaint();
  }, 8000);
  repaint();
}

/** Subsets of a service in a fixed order, the stable one first, with their weights in force (hundredths of a percent). */
export function versions(name) {
  const service = state.services.find((service) => service.name === name);
  if (!service) return [];
  const all = Object.entries(service.weights).map(([subset, weight]) => ({
    name: subset,
    weight: hundredths(weight),
    isStable: subset === service.stable,
  }));
  return all
    .sort((a, b) => Number(b.isStable) - Number(a.isStable))
    .map((version, at) => ({ ...version, colour: at % 8 }));
}

/** Weights of the traffic document by subset, in hundredths of a percent: what stays when an abort ends. */
export function configuredWeights(name) {
  const weights = state.traffic?.services?.[name]?.weights;
  const list = versions(name);
  if (!weights || Object.keys(weights).length === 0) {
    return Object.fromEntries(list.map((version) => [version.name, version.isStable ? 10_000 : 0]));
  }
  return Object.fromEntries(list.map((version) => [version.name, hundredths(weights[version.name] ?? "0%")]));
}
