// What the charts draw and the numbers say, by service and version.

import { timeChart } from "./chart.js";
import { millis, number, rate } from "./format.js";
import { state, versions } from "./state.js";

/** Requests that had no version, because they were answered before one was chosen. */
const NOBODY = "";
const NO_VERSION = "no version";

/** Numbers of the last seconds of a service, or of one of its versions. */
export function now(service, version) {
  const found = state.now?.services?.[service];
  return version === undefined ? found : found?.subsets?.[version];
}

/** Series of a service: its versions in their order, then what had none. */
function series(service) {
  const known = state.live?.series?.services?.[service] ?? {};
  const list = versions(service).map((version) => ({ ...version, series: known[version.name] }));
  if (known[NOBODY]?.requests.some((count) => count > 0))
    list.push({ name: NO_VERSION, colour: 7, series: known[NOBODY] });
  return list.filter((version) => version.series);
}

/** When the last second of the series ended, in milliseconds: the running one is left out. */
function end() {
  return Math.floor((state.live?.at ?? Date.now()) / 1000) * 1000;
}

const step = () => state.live?.series?.step_seconds ?? 1;

export function requestsChart(service, { id, height } = {}) {
  const seconds = step();
  const lines = series(service).map((version) => ({
    name: version.name,
    colour: version.colour,
    values: version.series.requests.map((count) => count / seconds),
  }));
  return timeChart({
    id: id ?? `requests ${service}`,
    group: service,
    title: "Requests",
    unit: "per second",
    lines,
    end: end(),
    step: seconds,
    height,
    format: number,
    least: 4,
    stacked: true,
    total: true,
  });
}

export function errorsChart(service, { height } = {}) {
  const shares = ({ requests, errors }) => requests.map((count, at) => (count > 0 ? errors[at] / count : null));
  const lines = series(service).map((version) => ({
    name: version.name,
    colour: version.colour,
    values: shares(version.series),
  }));
  return timeChart({
    id: `errors ${service}`,
    group: service,
    title: "Errors",
    unit: "share of requests",
    lines,
    end: end(),
    step: step(),
    height,
    format: rate,
    least: 0.01,
  });
}

export function latencyChart(service, { height } = {}) {
  const lines = series(service).flatMap((version) => [
    { name: `${version.name} p99`, colour: version.colour, values: version.series.p99_ms },
    { name: `${version.name} p50`, colour: version.colour, values: version.series.p50_ms, dashed: true },
  ]);
  return timeChart({
    id: `latency ${service}`,
    group: service,
    title: "Latency",
    unit: "p99 and p50 (dashed)",
    lines,
    end: end(),
    step: step(),
    height,
    format: millis,
    least: 1,
  });
}
