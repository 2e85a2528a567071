// Numbers, times and shares as text, and back.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const tenths = new Intl.NumberFormat("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 });

export const NONE = "–";

/** A count or a rate: `0`, `4.2`, `318`, `12,400`. */
export function number(value) {
  if (value === null || value === undefined) return NONE;
  if (value > 0 && value < 0.05) return "<0.1";
  return value > 0 && value < 10 && !Number.isInteger(value) ? tenths.format(value) : whole.format(value);
}

/** Milliseconds: `0.42 ms`, `7.3 ms`, `184 ms`, `2.10 s`. */
export function millis(value) {
  if (value === null || value === undefined) return NONE;
  if (value === 0) return "0 ms";
  if (value >= 1000) return `${(value / 1000).toFixed(2)} s`;
  return `${value.toFixed(value < 1 ? 2 : value < 10 ? 1 : 0)} ms`;
}

/** A share from 0 to 1: `0 %`, `0.04 %`, `3.2 %`, `45.1 %`, `50 %`. */
export function rate(value) {
  if (value === null || value === undefined) return NONE;
  const percent = value * 100;
  if (percent > 0 && percent < 0.005) return "<0.01 %";
  if (Number.isInteger(percent) || percent >= 99.95) return `${Math.round(percent)} %`;
  return `${percent.toFixed(percent < 1 ? 2 : 1)} %`;
}

/** Hundredths of a percent of `90%` or `12.34%`, and NaN for anything else. */
export function hundredths(text) {
  const found = /^\s*(\d{1,3})(?:[.,](\d{0,2}))?\s*%?\s*$/.exec(String(text));
  if (!found) return NaN;
  const value = Number(found[1]) * 100 + Number((found[2] ?? "").padEnd(2, "0"));
  return value <= 10_000 ? value : NaN;
}

/** Hundredths of a percent as the documents write them: `12.34%`. */
export function percent(value) {
  return `${plain(value)}%`;
}

/** Hundredths of a percent as a number for people: `12.34`, `90`. */
export function plain(value) {
  return String(value / 100);
}

const pad = (value) => String(value).padStart(2, "0");

/** Time of day of a moment in milliseconds. */
export function clock(at) {
  const date = new Date(at);
  return `${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}`;
}

/** Date and time; only the time if it is today. */
export function when(text) {
  const date = new Date(text);
  if (Number.isNaN(date.getTime())) return String(text);
  if (date.toDateString() === new Date().toDateString()) return clock(date);
  return `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())} ${clock(date)}`;
}

/** How long ago, in words. */
export function ago(at, now = Date.now()) {
  const seconds = Math.max(0, Math.round((now - at) / 1000));
  if (seconds < 90) return `${seconds} s ago`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min ago`;
  return seconds < 129_600 ? `${Math.round(seconds / 3600)} h ago` : `${Math.round(seconds / 86_400)} d ago`;
}

/** `1 instance`, `2 instances`. */
export function plural(count, word) {
  return `${whole.format(count)} ${word}${count === 1 ? "" : "s"}`;
}

/** `breaker_open` as words. */
export function words(name) {
  return String(name).replaceAll("_", " ");
}
