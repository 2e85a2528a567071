//! Checks of the routing document and its routes.

use serin_core::matcher::PathMatch;
use serin_core::plugin::{Catalogue, Node};
use serin_core::route::{self, HostMatch, PathRewrite, RedirectStatus};

use super::super::problem::At;
use super::super::routing::{Action, HeaderEdits, Redirect, Respond, Rewrite, Route, Routing};
use super::super::scalar::{HeaderName, Name, OrNone};
use super::service::{path_match, positive, service, values};
use super::{Report, limit};
use crate::ease;

/// Checks a routing document.
pub(in super::super) fn routing(document: &Routing, catalogue: &Catalogue, node: &Node, report: &mut Report<'_>) {
    let services = At::ROOT.key("services");
    for (name, each) in &document.services {
        service(each, catalogue, node, &services.key(name), report);
    }
    let routes = At::ROOT.key("routes");
    report
        .unique(&routes, "name", document.routes.iter().map(|route| &route.name), |name| format!("the route `{name}`"));
    for (index, each) in document.routes.iter().enumerate() {
        route(each, document, &routes.index(index), report);
        ease::breathe();
    }
}

fn route(route: &Route, document: &Routing, at: &At<'_>, report: &mut Report<'_>) {
    let matched = conditions(route, &at.key("match"), report);
    match &route.action {
        Action::Service(name) => {
            if !document.services.contains_key(name) {
                report.unknown(&at.key("service"), "service", name, document.services.keys().map(Name::as_str));
            }
            let has_jwt = document.services.get(name).is_none_or(|service| service.jwt.is_some());
            limit::limits(&route.rate_limits, has_jwt, &at.key("rate_limits"), report);
        }
        Action::Redirect(to) => redirect(to, matched.as_ref(), &at.key("redirect"), report),
        Action::Respond(Respond { content_type, .. }) => {
            if http::HeaderValue::from_str(content_type).is_err() {
                report.say(&at.key("respond").key("content_type"), "is no value of a header");
            }
        }
    }
    if let Some(change) = &route.rewrite {
        rewrite(change, matched.as_ref(), &at.key("rewrite"), report);
    }
    idle_keys(route, at, report);
    edits(&route.request_headers, &at.key("request_headers"), report);
    edits(&route.response_headers, &at.key("response_headers"), report);
    let (times, at) = (&route.timeouts, at.key("timeouts"));
    let request = times.request.as_ref().and_then(OrNone::as_option).copied();
    for (name, span) in
        [("connect", times.connect), ("first_byte", times.first_byte), ("idle", times.idle), ("request", request)]
    {
        positive(span, &at.key(name), report);
    }
}

/// What only matters to a service has no effect on a request that none gets.
fn idle_keys(route: &Route, at: &At<'_>, report: &mut Report<'_>) {
    if matches!(route.action, Action::Service(_)) {
        return;
    }
    let set = [
        ("rewrite", route.rewrite.is_some()),
        ("request_headers", !route.request_headers.is_empty()),
        ("timeouts", !route.timeouts.is_empty()),
        ("rate_limits", !route.rate_limits.is_empty()),
        ("max_body", route.max_body.is_some()),
    ];
    for (name, _) in set.into_iter().filter(|(_, is_set)| *is_set) {
        report.say(&at.key(name), format!("`{name}` has no effect without `service`"));
    }
}

/// Gives the path that is matched, if it is a sound one.
fn conditions(route: &Route, at: &At<'_>, report: &mut Report<'_>) -> Option<PathMatch> {
    let wanted = &route.r#match;
    let hosts = at.key("hosts");
    for (index, host) in wanted.hosts.iter().enumerate() {
        match host.split_once("://") {
            Some((_, rest)) => {
                let meant = rest.split(['/', ':']).next();
                report.suggest(&hosts.index(index), format!("{host:?} is a URL: expected only its host"), meant);
            }
            None => drop(report.told(&hosts.index(index), HostMatch::parse(host))),
        }
    }
    let headers = at.key("headers");
    for (index, each) in wanted.headers.iter().enumerate() {
        values(each.iter().map(|(name, value)| (name.as_str(), value)), &headers.index(index), report);
    }
    let query = at.key("query");
    for (index, each) in wanted.query.iter().enumerate() {
        values(each.iter().map(|(name, value)| (name.as_str(), value)), &query.index(index), report);
    }
    match &wanted.path {
        None => Some(PathMatch::Any),
        Some(path) => path_match(path, &at.key("path"), report),
    }
}

fn redirect(redirect: &Redirect, on: Option<&PathMatch>, at: &At<'_>, report: &mut Report<'_>) {
    if let (Some(host), Ok(status)) = (&redirect.host, RedirectStatus::new(redirect.status.code())) {
        let built = route::Redirect::new(status, PathRewrite::Keep).with_host(host);
        report.told(&at.key("host"), built);
    }
    target(redirect.path.as_deref(), redirect.prefix.as_deref(), on, at, report);
    let changes = redirect.scheme.is_some() || redirect.host.is_some() || redirect.port.is_some();
    if !changes && redirect.path.is_none() && redirect.prefix.is_none() {
        report.say(at, "leads to the same URL again: expected `scheme`, `host`, `port`, `path` or `prefix`");
    }
}

fn rewrite(rewrite: &Rewrite, on: Option<&PathMatch>, at: &At<'_>, report: &mut Report<'_>) {
    if let Some(host) = &rewrite.host {
        report.told(&at.key("host"), route::Rewrite::path(PathRewrite::Keep).with_host(host));
    }
    target(rewrite.path.as_deref(), rewrite.prefix.as_deref(), on, at, report);
}

/// The new path must fit what is matched; nothing is said of it if that is not sound itself.
fn target(path: Option<&str>, prefix: Option<&str>, on: Option<&PathMatch>, at: &At<'_>, report: &mut Report<'_>) {
    if path.is_some() && prefix.is_some() {
        report.say(&at.key("prefix"), "`prefix` and `path` exclude each other");
        return;
    }
    let Some(on) = on else { return };
    if let Some(path) = path {
        report.told(&at.key("path"), PathRewrite::path(on, path));
    }
    if let Some(prefix) = prefix {
        report.told(&at.key("prefix"), PathRewrite::prefix(on, prefix));
    }
}

fn edits(edits: &HeaderEdits, at: &At<'_>, report: &mut Report<'_>) {
    let mut built = route::HeaderEdits::default();
    let (set, add, remove) = (at.key("set"), at.key("add"), at.key("remove"));
    for (header, value) in &edits.set {
        report.told(&set.key(header.as_str()), built.set(header.as_str(), value));
    }
    for (header, value) in &edits.add {
        report.told(&add.key(header.as_str()), built.add(header.as_str(), value));
    }
    for (index, header) in edits.remove.iter().enumerate() {
        report.told(&remove.index(index), built.remove(header.as_str()));
    }
}

/// A header that the gateway may set to a text of its own.
pub(super) fn editable(header: &HeaderName, at: &At<'_>, report: &mut Report<'_>) {
    report.told(at, route::HeaderEdits::default().set(header.as_str(), "text"));
}
