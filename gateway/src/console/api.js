// The admin API. The token is kept for this tab only; who the operator is, for this browser.

const PATIENCE_MS = 4_000;
const TOKEN = "serin.token";
const OPERATOR = "serin.operator";

/** The gateway could not be reached. */
export class Unreachable extends Error {}

/** The gateway said no. */
export class Refused extends Error {
  constructor(status, document) {
    super(document?.detail ?? `The gateway answered ${status}.`);
    this.status = status;
    this.problems = document?.problems ?? [];
  }
}

export function operator() {
  return localStorage.getItem(OPERATOR) ?? "";
}

/** Header fields hold plain ASCII, and the history keeps 64 characters. */
export function setOperator(name) {
  const bare = name
    .normalize("NFKD")
    .replace(/[^\x20-\x7e]/g, "")
    .trim()
    .slice(0, 64);
  localStorage.setItem(OPERATOR, bare);
}

export function hasToken() {
  return sessionStorage.getItem(TOKEN) !== null;
}

/** Keeps a token; whether it can be one. */
export function setToken(token) {
  const isSound = /^[\x21-\x7e]{1,4096}$/.test(token);
  if (isSound) sessionStorage.setItem(TOKEN, token);
  return isSound;
}

export function forgetToken() {
  sessionStorage.removeItem(TOKEN);
}

function headers(body, ifMatch) {
  const fields = { accept: "application/json" };
  if (body !== undefined) fields["content-type"] = "application/json";
  if (ifMatch !== undefined) fields["if-match"] = ifMatch;
  if (hasToken()) fields.authorization = `Bearer ${sessionStorage.getItem(TOKEN)}`;
  if (operator()) fields["x-serin-operator"] = operator();
  return fields;
}

/** Asks, and gives the JSON of the answer with its status and ETag. */
export async function ask(method, path, { body, ifMatch } = {}) {
  let response;
  let text;
  try {
    response = await fetch(path, {
      method,
      headers: headers(body, ifMatch),
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: AbortSignal.timeout(PATIENCE_MS),
      cache: "no-store",
      credentials: "omit",
      redirect: "error",
    });
    text = await response.text();
  } catch (error) {
    throw new Unreachable(String(error?.message ?? error));
  }
  const value = parse(text);
  // A gateway that drains answers 503 to /readyz, and with the same document.
  const isState = response.status === 503 && value && "ready" in value;
  if (!response.ok && !isState) throw new Refused(response.status, value);
  return { value, status: response.status, etag: response.headers.get("etag") };
}

function parse(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

export const get = async (path) => (await ask("GET", path)).value;
export const post = async (path, body) => (await ask("POST", path, { body })).value;
export const segment = encodeURIComponent;
