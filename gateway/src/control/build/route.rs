//! A route of the routing document, built.

use std::collections::HashMap;

use serin_core::matcher::{Condition, PathMatch, ValueMatch};
use serin_core::route::{
    Action, HeaderEdits, HostMatch, PathRewrite, Redirect, RedirectStatus, Respond, Rewrite, Route,
};

use super::service;
use crate::conf;
use crate::control::generation::Timeouts;

/// Builds a route. `positions` are those of the services.
///
/// # Errors
/// A sentence about what a check should have found before.
pub(super) fn build(conf: &conf::Route, positions: &HashMap<&str, usize>) -> Result<Route, String> {
    build_parts(conf, positions).map_err(|problem| format!("route {}: {problem}", conf.name))
}

fn build_parts(conf: &conf::Route, positions: &HashMap<&str, usize>) -> Result<Route, String> {
    let path = path_match(conf.r#match.path.as_ref())?;
    Ok(Route {
        name: conf.name.shared(),
        hosts: conf.r#match.hosts.iter().map(|host| HostMatch::parse(host).map_err(text)).collect::<Result<_, _>>()?,
        conditions: conditions(&conf.r#match)?,
        action: action(&conf.action, &path, positions)?,
        rewrite: rewrite(conf.rewrite.as_ref(), &path)?,
        request_headers: edits(&conf.request_headers)?,
        response_headers: edits(&conf.response_headers)?,
        path,
    })
}

/// Position of the service that a route sends requests to.
#[must_use]
pub(super) fn service(route: &Route) -> Option<usize> {
    match route.action {
        Action::Service(at) => Some(at),
        Action::Redirect(_) | Action::Respond(_) => None,
    }
}

/// The timeouts of a route, if it has any of its own.
#[must_use]
pub(super) fn timeouts(conf: &conf::Route, routing: &conf::Routing) -> Option<Timeouts> {
    let conf::Action::Service(name) = &conf.action else { return None };
    let service = routing.services.get(name)?;
    (!conf.timeouts.is_empty()).then(|| service::timeouts(conf.timeouts.over(service.timeouts)))
}

/// The path of a route as spans have it; none if it is any.
#[must_use]
pub(super) fn pattern(conf: &conf::Route) -> Option<Box<str>> {
    Some(match conf.r#match.path.as_ref()? {
        conf::PathMatch::Exact(path) | conf::PathMatch::Template(path) | conf::PathMatch::Regex(path) => {
            path.as_str().into()
        }
        conf::PathMatch::Prefix(path) => format!("{}/*", path.trim_end_matches('/')).into(),
    })
}

/// A condition on a value.
///
/// # Errors
/// A regular expression that is none.
pub(super) fn condition(value: &conf::ValueMatch) -> Result<ValueMatch, String> {
    Ok(match value {
        conf::ValueMatch::Exact(text) => ValueMatch::Exact((**text).into()),
        conf::ValueMatch::Prefix(text) => ValueMatch::Prefix((**text).into()),
        conf::ValueMatch::Regex(pattern) => ValueMatch::regex(pattern).map_err(text)?,
        conf::ValueMatch::In(texts) => ValueMatch::any_of(texts.iter().map(String::as_str)),
        conf::ValueMatch::Present(there) => ValueMatch::Present(*there),
    })
}

/// A condition on the path.
///
/// # Errors
/// A path, template or regular expression that is none.
pub(super) fn path_match(conf: Option<&conf::PathMatch>) -> Result<PathMatch, String> {
    match conf {
        None => Ok(PathMatch::Any),
        Some(conf::PathMatch::Exact(path)) => PathMatch::exact(path),
        Some(conf::PathMatch::Prefix(path)) => PathMatch::prefix(path),
        Some(conf::PathMatch::Template(path)) => PathMatch::template(path),
        Some(conf::PathMatch::Regex(pattern)) => PathMatch::regex(pattern),
    }
    .map_err(text)
}

fn conditions(conf: &conf::Match) -> Result<Vec<Condition>, String> {
    let mut conditions = Vec::new();
    if !conf.methods.is_empty() {
        conditions.push(Condition::Method(conf.methods.iter().map(|method| method.0.clone()).collect()));
    }
    for (name, value) in conf.headers.iter().flatten() {
        conditions.push(Condition::Header(name.0.clone(), condition(value)?));
    }
    for (name, value) in conf.query.iter().flatten() {
        conditions.push(Condition::Query((**name).into(), condition(value)?));
    }
    Ok(conditions)
}

fn action(conf: &conf::Action, path: &PathMatch, positions: &HashMap<&str, usize>) -> Result<Action, String> {
    match conf {
        conf::Action::Service(name) => {
            let position = positions.get(name.as_str()).copied();
            position.map(Action::Service).ok_or_else(|| format!("there is no service {name}"))
        }
        conf::Action::Redirect(conf) => redirect(conf, path).map(Action::Redirect),
        conf::Action::Respond(conf) => Ok(Action::Respond(Respond {
            status: http::StatusCode::from_u16(conf.status).map_err(text)?,
            body: conf.body.as_str().into(),
            content_type: conf.content_type.parse().map_err(text)?,
        })),
    }
}

fn redirect(conf: &conf::Redirect, on: &PathMatch) -> Result<Redirect, String> {
    let status = RedirectStatus::new(conf.status.code()).map_err(text)?;
    let mut redirect = Redirect::new(status, path_rewrite(conf.prefix.as_deref(), conf.path.as_deref(), on)?);
    if let Some(scheme) = conf.scheme {
        redirect = redirect.with_scheme(if scheme == conf::Scheme::Https { "https" } else { "http" }).map_err(text)?;
    }
    if let Some(host) = &conf.host {
        redirect = redirect.with_host(host).map_err(text)?;
    }
    Ok(conf.port.map_or(redirect.clone(), |port| redirect.with_port(port.get())))
}

fn rewrite(conf: Option<&conf::Rewrite>, on: &PathMatch) -> Result<Rewrite, String> {
    let Some(conf) = conf else { return Ok(Rewrite::default()) };
    let rewrite = Rewrite::path(path_rewrite(conf.prefix.as_deref(), conf.path.as_deref(), on)?);
    match &conf.host {
        None => Ok(rewrite),
        Some(host) => rewrite.with_host(host).map_err(text),
    }
}

fn path_rewrite(prefix: Option<&str>, path: Option<&str>, on: &PathMatch) -> Result<PathRewrite, String> {
    match (prefix, path) {
        (Some(prefix), _) => PathRewrite::prefix(on, prefix).map_err(text),
        (None, Some(path)) => PathRewrite::path(on, path).map_err(text),
        (None, None) => Ok(PathRewrite::Keep),
    }
}

fn edits(conf: &conf::HeaderEdits) -> Result<HeaderEdits, String> {
    let mut edits = HeaderEdits::default();
    for (name, value) in &conf.set {
        edits.set(name.0.as_str(), value).map_err(text)?;
    }
    for (name, value) in &conf.add {
        edits.add(name.0.as_str(), value).map_err(text)?;
    }
    for name in &conf.remove {
        edits.remove(name.0.as_str()).map_err(text)?;
    }
    Ok(edits)
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
