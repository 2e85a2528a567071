//! `serin explain`: draws the way of a request.

use clap::Args;
use indexmap::IndexMap;

use super::canary::switches;
use super::client::Client;
use super::text::pairs;
use super::{Failure, Out};
use crate::explain::{
    ConcurrencySeen, Explanation, GuardsSeen, HeaderValues, InstanceSeen, LimitSeen, Matched, Question,
};

/// Show what the running gateway does with a request, and why. Nothing is sent and nothing changes.
#[derive(Debug, Args)]
pub(super) struct Explain {
    /// Method.
    method: String,
    /// URL, or only path and query.
    url: String,
    /// A header field; may be given several times.
    #[arg(short = 'H', long = "header", value_parser = header, value_name = "NAME:VALUE")]
    headers: Vec<(String, String)>,
    /// Address that the request comes from [default: 127.0.0.1].
    #[arg(long, value_name = "ADDRESS")]
    client_ip: Option<String>,
    /// Whether that address counts as a trusted proxy [default: as `trusted_proxies` has it].
    #[arg(long, value_name = "BOOL")]
    trusted: Option<bool>,
    /// Seed of the random numbers, to see the same draw again.
    #[arg(long)]
    seed: Option<u64>,
}

fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(':').ok_or("expected NAME:VALUE such as x-user-id:7")?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

impl Explain {
    pub(super) fn run(&self, client: &Client, out: Out) -> Result<(), Failure> {
        let explanation: Explanation = client.post("/v1/explain", &self.question())?;
        out.write(&explanation, || draw(&explanation))
    }

    fn question(&self) -> Question {
        let mut headers: IndexMap<String, HeaderValues> = IndexMap::new();
        for (name, value) in &self.headers {
            let mut lines = headers.get(name).map(|lines| lines.lines().to_vec()).unwrap_or_default();
            lines.push(value.clone());
            headers.insert(name.clone(), HeaderValues::Several(lines));
        }
        Question {
            method: self.method.to_ascii_uppercase(),
            url: self.url.clone(),
            headers,
            client_ip: self.client_ip.clone(),
            trusted: self.trusted,
            seed: self.seed,
        }
    }
}

/// The steps: what each is called, and what is said of it, line by line.
type Steps = Vec<(String, Vec<String>)>;

fn draw(explanation: &Explanation) -> String {
    let request = &explanation.request;
    let query = request.query.as_ref().map_or(String::new(), |query| format!("?{query}"));
    let proxy = if request.from_trusted_proxy { ", through a trusted proxy" } else { "" };
    let mut text =
        format!("{} {}{}{query} from {}{proxy}\n", request.method, request.host, request.path, request.client_ip);
    let steps = steps(explanation);
    let width = steps.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    for (at, (name, lines)) in steps.iter().enumerate() {
        let last = at + 1 == steps.len();
        for (line_at, line) in lines.iter().enumerate() {
            let (branch, name) = match (line_at, last) {
                (0, false) => ("├─", name.as_str()),
                (0, true) => ("└─", name.as_str()),
                (_, false) => ("│ ", ""),
                (_, true) => ("  ", ""),
            };
            text.push_str(format!("{branch} {name:width$}  {line}").trim_end());
            text.push('\n');
        }
    }
    let revision = explanation.revision;
    let in_force = format!("routing revision {}, traffic revision {}", revision.routing, revision.traffic);
    let of_service = explanation.service.as_ref().map(|_| format!("{}; ", switches(explanation.switches)));
    format!("{text}{}{in_force}; seed {}", of_service.unwrap_or_default(), explanation.seed)
}

fn steps(explanation: &Explanation) -> Steps {
    let mut steps = vec![("route".to_owned(), route(explanation))];
    if let Some(service) = &explanation.service {
        steps.push(("service".to_owned(), vec![service.clone()]));
    }
    steps.extend(subset(explanation));
    steps.extend(limits(explanation));
    steps.extend(explanation.guards.as_ref().map(|guards| ("guards".to_owned(), guards_seen(guards))));
    for narrow in &explanation.narrows {
        let left = if narrow.left.is_empty() { "nothing".to_owned() } else { narrow.left.join(", ") };
        let more = if narrow.count > narrow.left.len() { ", …" } else { "" };
        steps.push((narrow.name.clone(), vec![format!("leaves {}: {left}{more}", narrow.count)]));
    }
    if let Some(pick) = &explanation.pick {
        let zone = pick.zone.as_ref().map_or(String::new(), |zone| format!(", zone {zone}"));
        let mut lines = vec![format!("{}, by {}{zone}", pick.instance, pick.balancer)];
        lines.extend(explanation.upstream_path.iter().map(|path| format!("asked for {path}")));
        steps.push(("instance".to_owned(), lines));
    }
    if let Some(answer) = &explanation.answer {
        let location = answer.location.as_ref().map_or(String::new(), |to| format!(", to {to}"));
        steps.push((
            "answer".to_owned(),
            vec![format!("{} by the gateway: {}{location}", answer.status, answer.reason)],
        ));
    }
    steps
}

fn limits(explanation: &Explanation) -> Steps {
    let mut steps = Vec::new();
    let line = |limit: &LimitSeen| {
        let part = |(name, value): &(String, Option<String>)| match value {
            Some(value) => format!("{name} = {value}"),
            None => format!("no {name}"),
        };
        let key = limit.key.iter().map(part).collect::<Vec<_>>().join(", ");
        let key = if key.is_empty() { "everybody".to_owned() } else { key };
        let full = if limit.store_full { ", in a shared bucket as the store is full" } else { "" };
        let (rule, verdict) = (&limit.rule, limit.verdict.replace('_', " "));
        let fleet = match limit.fleet.as_deref() {
            None => "",
            Some("redis") => " in the fleet",
            Some(_) => " of this gateway's share, as Redis does not answer",
        };
        format!("{rule} of the {}: {verdict}, {} left{fleet}{full} ({key})", limit.scope, limit.remaining)
    };
    if !explanation.rate_limits.is_empty() {
        steps.push(("rate limits".to_owned(), explanation.rate_limits.iter().map(line).collect()));
    }
    if let Some(ConcurrencySeen { limit, in_flight }) = explanation.concurrency {
        steps.push(("concurrency".to_owned(), vec![format!("{in_flight} of {limit}")]));
    }
    steps
}

fn guards_seen(guards: &GuardsSeen) -> Vec<String> {
    let breakers =
        guards.breakers.iter().map(|(subset, state)| format!("breaker of {subset} {}", state.replace('_', " ")));
    let panic = guards.panic.then(|| "panic: too few are healthy, health is ignored".to_owned());
    let instance = |seen: &InstanceSeen| {
        format!("{} {}, weight {} in force: {}", seen.address, seen.health, seen.weight_in_force, seen.why.join("; "))
    };
    breakers.chain(panic).chain(guards.instances.iter().map(instance)).collect()
}

fn route(explanation: &Explanation) -> Vec<String> {
    let mut lines = Vec::new();
    let how = |why: &Matched| format!("host {}, path {}: {}", why.host, why.path, why.conditions.join(", "));
    match (&explanation.route.name, &explanation.route.why) {
        (Some(name), Some(why)) => lines.push(format!("{name} ({})", how(why))),
        _ => lines.push("none".to_owned()),
    }
    for miss in &explanation.route.near_misses {
        lines.push(match miss.failed.is_empty() {
            true => format!("not {}: it matches as well, but is less specific or comes later", miss.name),
            false => format!("not {}: it needs that {}", miss.name, miss.failed.join(" and ")),
        });
    }
    lines
}

fn subset(explanation: &Explanation) -> Steps {
    let Some(tag) = &explanation.tag else { return Vec::new() };
    let mut steps = Vec::new();
    if !tag.rules.is_empty() {
        let rules = tag.rules.iter().map(|rule| format!("{}: {}", rule.name, rule.verdict.replace('_', " ")));
        steps.push(("tag rules".to_owned(), rules.collect()));
    }
    let bucket = explanation.bucket.as_deref().unwrap_or_default();
    let key = match &explanation.user_key {
        Some(key) => format!("{} = {}, bucket {bucket}", key.source, key.value),
        None => format!("none, random number {bucket}"),
    };
    steps.push(("user key".to_owned(), vec![key]));
    steps.push(("weights".to_owned(), vec![pairs(explanation.weights.iter())]));
    let by = match &tag.rule {
        Some(rule) => format!("tag rule {rule}"),
        None => tag.reason.replace('_', " "),
    };
    let subset = explanation.subset.as_deref();
    let mut lines = Vec::new();
    match (&explanation.fallback, subset) {
        (None, subset) => lines.push(format!("{}, by {by}", subset.unwrap_or("any"))),
        (Some(fallback), subset) => {
            lines.push(format!("{}, by {by}", fallback.wanted));
            let unusable = pairs(fallback.unusable.iter().map(|(name, why)| (format!("{name}:"), why)));
            let served =
                if explanation.pick.is_some() { subset.unwrap_or("instances of any subset") } else { "nothing" };
            lines.push(format!("falls back to {served} ({})", unusable.replace('_', " ")));
        }
    }
    steps.push(("subset".to_owned(), lines));
    steps
}
