// The way of one request as a drawing: a station for each decision, and what each narrow left.

import { h } from "./dom.js";
import { hundredths, plain, plural, words } from "./format.js";
import { versions } from "./state.js";

/** One station of the way. */
function station(kind, title, value, ...more) {
  return h(
    "li",
    { class: `station ${kind}`, key: title },
    h(
      "div",
      { class: "station-head" },
      h("span", { class: "station-title" }, title),
      h("span", { class: "station-value" }, value),
    ),
    ...more,
  );
}

function request({ request }) {
  const target = `${request.host}${request.path}${request.query ? `?${request.query}` : ""}`;
  return station(
    "",
    "Request",
    h("code", null, `${request.method} ${target}`),
    h("p", { class: "quiet" }, `from ${request.client_ip}${request.from_trusted_proxy ? ", a trusted proxy" : ""}`),
  );
}

function route({ route }) {
  const miss = (miss) =>
    h(
      "li",
      { key: miss.name },
      h("b", null, miss.name),
      h(
        "span",
        { class: "quiet" },
        miss.failed.length > 0 ? ` does not hold: ${miss.failed.join(", ")}` : " was outranked",
      ),
    );
  const misses =
    route.near_misses.length > 0 &&
    h(
      "details",
      null,
      h("summary", null, plural(route.near_misses.length, "route") + " nearly"),
      h("ul", null, route.near_misses.map(miss)),
    );
  if (!route.name) return station("stop", "Route", "none matches", misses);
  return station(
    "",
    "Route",
    h("b", null, route.name),
    h("p", { class: "quiet" }, `host ${words(route.why.host)}, ${route.why.conditions.join(", ")}`),
    misses,
  );
}

const VERDICTS = { accepted: "ok", untrusted: "warn", no_match: "" };

function tag(answer) {
  if (!answer.tag) return null;
  const rule = (seen) =>
    h(
      "li",
      { key: seen.name },
      h("span", { class: `chip ${VERDICTS[seen.verdict] ?? ""}` }, words(seen.verdict)),
      seen.name,
    );
  return station(
    "",
    "Tag",
    answer.tag.rule ? h("b", null, answer.tag.rule) : `none, decided by ${words(answer.tag.reason)}`,
    answer.tag.rules.length > 0 && h("ul", { class: "rules" }, answer.tag.rules.map(rule)),
  );
}

function bucket(answer) {
  if (!answer.bucket) return null;
  const key = answer.user_key;
  const list = versions(answer.service);
  const part = (version) =>
    h("span", {
      key: version.name,
      class: `c${version.colour}${version.name === answer.subset ? " chosen" : ""}`,
      style: { "flex-grow": String(hundredths(answer.weights[version.name] ?? "0%") || 0) },
    });
  const shares = list
    .map((version) => `${version.name} ${plain(hundredths(answer.weights[version.name] ?? "0%"))} %`)
    .join(" · ");
  return station(
    "",
    "Bucket",
    h("code", null, answer.bucket),
    h(
      "p",
      { class: "quiet" },
      key ? `the user “${key.value}” (${key.source})` : "no user key: a random number stands for it",
    ),
    h("div", { class: "bar", role: "img", "aria-label": shares }, list.map(part)),
    h("p", { class: "quiet" }, shares),
  );
}

function subset(answer) {
  if (!answer.service) return null;
  const list = versions(answer.service);
  const wanted = answer.fallback?.wanted ?? answer.subset;
  const chip = (name) =>
    h("span", { class: `version c${list.find((version) => version.name === name)?.colour ?? 7}` }, name);
  return station(
    "",
    "Version",
    wanted ? chip(wanted) : "any",
    h("p", { class: "quiet" }, `of service ${answer.service}`),
  );
}

function fallback(answer) {
  const seen = answer.fallback;
  if (!seen) return null;
  const unusable = Object.entries(seen.unusable).map(([name, reason]) =>
    h("li", { key: name }, h("b", null, name), h("span", { class: "quiet" }, ` ${words(reason)}`)),
  );
  return station(
    "warn",
    "Fallback",
    answer.subset
      ? h("span", null, seen.wanted, h("span", { class: "arrow" }, " → "), h("b", null, answer.subset))
      : words(seen.reason),
    h("p", { class: "quiet" }, `${seen.wanted} cannot serve: ${words(seen.reason)}`),
    unusable.length > 1 && h("ul", null, unusable),
  );
}

function limits(answer) {
  if (answer.rate_limits.length === 0 && !answer.concurrency) return null;
  const kinds = { admitted: "ok", limited: "bad", dry_run: "warn" };
  const limit = (limit) =>
    h(
      "li",
      { key: `${limit.scope} ${limit.rule}` },
      h("span", { class: `chip ${kinds[limit.verdict] ?? ""}` }, words(limit.verdict)),
      limit.rule,
      h(
        "span",
        { class: "quiet" },
        ` ${limit.remaining} of ${limit.burst} left, ${limit.limit} per ${limit.per_seconds} s`,
      ),
    );
  const isLimited = answer.rate_limits.some((limit) => limit.verdict === "limited");
  return station(
    isLimited ? "stop" : "",
    "Limits",
    plural(answer.rate_limits.length, "rule"),
    h("ul", { class: "rules" }, answer.rate_limits.map(limit)),
    answer.concurrency &&
      h("p", { class: "quiet" }, `${answer.concurrency.in_flight} of ${answer.concurrency.limit} in flight`),
  );
}

function narrows(answer, pool) {
  if (answer.narrows.length === 0) return null;
  const all = [pool, ...answer.narrows];
  const most = Math.max(1, ...all.map((narrow) => narrow.count));
  const ill = new Map((answer.guards?.instances ?? []).map((instance) => [instance.address, instance]));
  const narrow = (narrow, at) =>
    h(
      "li",
      { key: at },
      h("span", { class: "narrow-name" }, words(narrow.name)),
      h(
        "span",
        { class: "narrow-track", "aria-hidden": "true" },
        h("span", { class: "narrow-bar", style: { width: `${(narrow.count / most) * 100}%` } }),
      ),
      h("span", { class: "num" }, narrow.count),
      h(
        "span",
        { class: "narrow-left" },
        narrow.left.map((address) => h("code", { key: address, class: ill.has(address) ? "ill" : null }, address)),
      ),
    );
  const out = [...ill.values()].filter((instance) => instance.health !== "healthy" || instance.why.length > 0);
  return station(
    answer.narrows.at(-1).count === 0 ? "stop" : "",
    "Narrows",
    `${plural(answer.narrows.at(-1).count, "instance")} left`,
    h("ol", { class: "narrows" }, all.map(narrow)),
    out.length > 0 &&
      h(
        "ul",
        { class: "rules" },
        out.map((instance) =>
          h(
            "li",
            { key: instance.address },
            h("span", { class: `chip ${instance.health === "healthy" ? "warn" : "bad"}` }, words(instance.health)),
            h("code", null, instance.address),
            h("span", { class: "quiet" }, ` ${instance.why.join(", ")}`),
          ),
        ),
      ),
    answer.guards?.panic && h("p", { class: "note warn" }, "So few are healthy that health is ignored."),
  );
}

function end(answer) {
  if (answer.answer) {
    const { status, reason, location } = answer.answer;
    return station(
      status >= 400 ? "stop" : "goal",
      "Answer",
      h("b", null, status),
      h("p", { class: "quiet" }, `by the gateway itself: ${reason}`),
      location && h("p", null, h("code", null, location)),
    );
  }
  if (!answer.pick) return null;
  const { balancer, instance, zone, labels } = answer.pick;
  const more = [zone && `zone ${zone}`, ...Object.entries(labels).map(([name, value]) => `${name}=${value}`)]
    .filter(Boolean)
    .join(" · ");
  return station(
    "goal",
    "Pick",
    h("b", null, h("code", null, instance)),
    h("p", { class: "quiet" }, `by ${words(balancer)}${more ? ` · ${more}` : ""}`),
    h("p", { class: "quiet" }, "asks for ", h("code", null, answer.upstream_path)),
  );
}

/** Draws an answer. `pool` is what its chain began with; `again` is called to ask with the same random numbers. */
export function way(answer, pool, again) {
  const { revision, seed } = answer;
  return h(
    "section",
    { class: "card", "aria-label": "The way of the request" },
    h(
      "header",
      null,
      h("h2", null, "The way of the request"),
      h("span", { class: "quiet" }, `routing ${revision.routing}, traffic ${revision.traffic}`),
      h(
        "button",
        { type: "button", class: "plain", title: "The same random numbers again", onclick: again },
        `seed ${seed}`,
      ),
    ),
    h(
      "ol",
      { class: "way" },
      [request, route, tag, bucket, subset, fallback, limits, narrows, end].map((part) => part(answer, pool)),
    ),
  );
}
