//! Checks of the services of the routing document.

use rustls::pki_types::ServerName;
use serin_core::matcher::{self, Pattern};
use serin_core::plugin::{Catalogue, Node};

use super::super::problem::{At, listed, shown};
use super::super::routing::{
    FallbackTo, Jwt, JwtKey, PathMatch, Service, TagRule, UpstreamProtocol, UserKey, ValueMatch, When,
};
use super::super::scalar::{Name, OrNone, Span};
use super::{Report, chain, guard, limit, route, upkeep};

/// Checks one service.
pub(super) fn service(service: &Service, catalogue: &Catalogue, node: &Node, at: &At<'_>, report: &mut Report<'_>) {
    instances(service, at, report);
    protocol(service, at, report);
    subsets(service, at, report);
    let rules = at.key("tags");
    report.unique(&rules, "name", service.tags.iter().map(|rule| &rule.name), |name| format!("the rule `{name}`"));
    for (index, rule) in service.tags.iter().enumerate() {
        tag_rule(rule, service, &rules.index(index), report);
    }
    let keys = at.key("user_key");
    for (index, key) in service.user_key.iter().enumerate() {
        if matches!(key, UserKey::Claim(_)) && service.jwt.is_none() {
            report.say(&keys.index(index), NO_JWT);
        }
    }
    if let Some(token) = &service.jwt {
        jwt(token, &at.key("jwt"), report);
    }
    let times = &service.timeouts;
    let request = times.request.as_option().copied();
    let at_times = at.key("timeouts");
    let all = [("connect", Some(times.connect)), ("first_byte", Some(times.first_byte)), ("idle", Some(times.idle))];
    for (name, span) in all.into_iter().chain([("request", request)]) {
        positive(span, &at_times.key(name), report);
    }
    if let OrNone::Some(header) = &service.propagate.header {
        route::editable(header, &at.key("propagate").key("header"), report);
    }
    limit::limits(&service.rate_limits, service.jwt.is_some(), &at.key("rate_limits"), report);
    if let Some(concurrency) = service.concurrency {
        limit::concurrency(concurrency, &at.key("concurrency"), report);
    }
    let self_guard = at.key("self_guard");
    positive(Some(service.self_guard.decision_p99), &self_guard.key("decision_p99"), report);
    positive(Some(service.self_guard.sustained), &self_guard.key("sustained"), report);
    if let Some(reports) = &service.load_reports {
        let at = at.key("load_reports");
        positive(Some(reports.expire_after), &at.key("expire_after"), report);
        positive(Some(reports.update_every), &at.key("update_every"), report);
    }
    guard::guards(service, at, report);
    chain::chain(&service.balancer, catalogue, node, &at.key("balancer"), report);
    upkeep::health_check(service, at, report);
    upkeep::pool(service, at, report);
}

pub(super) const NO_JWT: &str = "a claim needs a verified token, and this service has no `jwt`";

/// A time that is 0 would end everything at once.
pub(super) fn positive(span: Option<Span>, at: &At<'_>, report: &mut Report<'_>) {
    if span.is_some_and(|span| span.duration().is_zero()) {
        report.say(at, "must be more than 0");
    }
}

fn instances(service: &Service, at: &At<'_>, report: &mut Report<'_>) {
    let list = at.key("instances");
    match (&service.registry, service.instances.is_empty()) {
        (Some(_), true) => return,
        (Some(_), false) => report.say(&at.key("registry"), "stands in place of `instances`: expected one of them"),
        (None, true) => report.say(at, "the key `instances` is missing, or `registry` in its place"),
        (None, false) => {}
    }
    report.unique(&list, "address", service.instances.iter().map(|instance| instance.address.0), |address| {
        format!("the instance `{address}`")
    });
    for (index, instance) in service.instances.iter().enumerate() {
        if instance.address.port() == 0 {
            report.say(&list.index(index).key("address"), "nothing can be reached on port 0");
        }
    }
    if !service.instances.is_empty() && service.instances.iter().all(|instance| instance.weight == 0) {
        report.say(&list, "every instance has the weight 0, so that none takes traffic");
    }
}

fn protocol(service: &Service, at: &At<'_>, report: &mut Report<'_>) {
    match (service.protocol, &service.tls) {
        (UpstreamProtocol::H2, None) => {
            report.suggest(&at.key("protocol"), "`h2` is HTTP/2 over TLS, and this service has no `tls`", Some("h2c"));
        }
        (UpstreamProtocol::H2c, Some(_)) => {
            report.suggest(
                &at.key("protocol"),
                "`h2c` is HTTP/2 over clear text, and this service has `tls`",
                Some("h2"),
            );
        }
        _ => {}
    }
    let Some(tls) = &service.tls else { return };
    let at = at.key("tls");
    match tls.asked_name() {
        Some("") | None if tls.verify => {
            let message = "without `sni` no certificate can be verified: name the host that the certificate bears, or set `verify: false`";
            report.say(&if tls.sni.is_some() { at.key("sni") } else { at }, message);
        }
        Some(name) if !name.is_empty() && ServerName::try_from(name).is_err() => {
            let (key, more) = if tls.sni.is_some() { ("sni", "") } else { ("san", ", to be asked for: set `sni`") };
            report.say(&at.key(key), format!("{name:?} is no host name such as `users.internal`{more}"));
        }
        _ => {}
    }
    if tls.client_cert.is_some() != tls.client_key.is_some() {
        let (has, lacks) =
            if tls.client_cert.is_some() { ("client_cert", "client_key") } else { ("client_key", "client_cert") };
        report.say(&at.key(has), format!("a certificate and its key belong together: `{lacks}` is missing"));
    }
    if !tls.san.is_empty() && !tls.verify {
        report.say(&at.key("san"), "has no effect with `verify: false`");
    } else if !tls.san.is_empty() && tls.ca.is_none() {
        let message = "ids are worth what the authorities of their trust domain are: name those in `ca`";
        report.say(&at.key("san"), message);
    }
    if tls.ca.is_some() && !tls.verify {
        report.say(&at.key("ca"), "has no effect with `verify: false`");
    }
}

fn subsets(service: &Service, at: &At<'_>, report: &mut Report<'_>) {
    match &service.stable {
        Some(stable) => subset(stable, service, &at.key("stable"), report),
        None if service.subsets.len() > 1 => {
            let names = listed(service.subsets.keys().map(Name::as_str));
            report.say(at, format!("the key `stable` is missing: which of {names} is known to be good?"));
        }
        None => {}
    }
    if let FallbackTo::Subsets(names) = &service.fallback.to {
        let (fallback, key) = (at.key("fallback"), "to");
        let list = fallback.key(key);
        for (index, name) in names.iter().enumerate() {
            subset(name, service, &list.index(index), report);
        }
    }
}

/// A name that must be one of the service's subsets.
fn subset(name: &Name, service: &Service, at: &At<'_>, report: &mut Report<'_>) {
    let implied = service.subsets.is_empty().then_some(Service::ALL);
    let known = service.subsets.keys().map(Name::as_str).chain(implied);
    if !known.clone().any(|known| known == name.as_str()) {
        report.unknown(at, "subset", name, known);
    }
}

fn tag_rule(rule: &TagRule, service: &Service, at: &At<'_>, report: &mut Report<'_>) {
    subset(&rule.subset, service, &at.key("subset"), report);
    let When { header, cookie, query, claim, method, path } = &rule.when;
    let at = at.key("when");
    let conditions =
        header.len() + cookie.len() + query.len() + claim.len() + method.len() + usize::from(path.is_some());
    if conditions == 0 {
        report.say(&at, "has no condition, so that the rule would hold for every request");
    }
    if !claim.is_empty() && service.jwt.is_none() {
        report.say(&at.key("claim"), NO_JWT);
    }
    values(header.iter().map(|(name, value)| (name.as_str(), value)), &at.key("header"), report);
    values(cookie.iter().map(|(name, value)| (name.as_str(), value)), &at.key("cookie"), report);
    values(query.iter().map(|(name, value)| (name.as_str(), value)), &at.key("query"), report);
    values(claim.iter().map(|(name, value)| (name.as_str(), value)), &at.key("claim"), report);
    if let Some(path) = path {
        let _ = path_match(path, &at.key("path"), report);
    }
}

/// Checks what values must be like.
pub(super) fn values<'v>(
    values: impl Iterator<Item = (&'v str, &'v ValueMatch)>,
    at: &At<'_>,
    report: &mut Report<'_>,
) {
    for (name, value) in values {
        if let ValueMatch::Regex(pattern) = value {
            report.told(&at.key(name).key("regex"), Pattern::new(pattern));
        }
    }
}

/// Checks what a path must be like, and gives it as the core has it.
pub(super) fn path_match(path: &PathMatch, at: &At<'_>, report: &mut Report<'_>) -> Option<matcher::PathMatch> {
    let (key, text, built) = match path {
        PathMatch::Exact(path) => ("exact", path, matcher::PathMatch::exact(path)),
        PathMatch::Prefix(path) => ("prefix", path, matcher::PathMatch::prefix(path)),
        PathMatch::Regex(pattern) => ("regex", pattern, matcher::PathMatch::regex(pattern)),
        PathMatch::Template(template) => ("template", template, matcher::PathMatch::template(template)),
    };
    if key != "regex" && !text.starts_with('/') {
        let meant = format!("/{}", shown(text));
        report.suggest(&at.key(key), format!("the path {text:?} does not begin with `/`"), Some(&meant));
        return None;
    }
    report.told(&at.key(key), built)
}

fn jwt(jwt: &Jwt, at: &At<'_>, report: &mut Report<'_>) {
    let list = at.key("algorithms");
    let shared = matches!(jwt.key, JwtKey::SecretFile(_));
    for (index, algorithm) in jwt.algorithms.iter().enumerate() {
        match (algorithm.is_symmetric(), shared) {
            (true, false) if !matches!(jwt.key, JwtKey::JwksFile(_)) => {
                report.say(
                    &list.index(index),
                    "the `HS` algorithms need a shared secret (`secret_file`), not a public key",
                );
            }
            (false, true) => report.say(&list.index(index), "needs a public key, not a shared secret (`secret_file`)"),
            _ => {}
        }
    }
}
