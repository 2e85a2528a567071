//! Who may talk to the admin API: one check around all of it. What is refused is written to the audit log.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::LazyLock;
use std::time::Instant;

use axum::extract::{ConnectInfo, MatchedPath, Request, State as Extract};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header::{AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, HOST, ORIGIN, X_CONTENT_TYPE_OPTIONS};
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};

use super::body::is_json;
use super::problem::{ApiError, Noted};
use super::read::{is_verbose, operator};
use super::{State, console, endpoints};
use crate::admin::token::Holder;
use crate::conf::Role;
use crate::control::change::Actor;
use crate::control::history::Entry;

/// What the document of entries about the API itself is called.
const ADMIN: &str = "admin";

/// Roles of endpoints, by path and method.
static ROLES: LazyLock<HashMap<(&'static str, Method), Role>> = LazyLock::new(|| {
    endpoints().into_iter().map(|endpoint| ((endpoint.path, endpoint.method.clone()), endpoint.role)).collect()
});

/// Lets a request pass if its host, its origin, its token and its role are in order.
pub(super) async fn guard(Extract(state): Extract<State>, mut request: Request, next: Next) -> Response {
    let reads = matches!(*request.method(), Method::GET | Method::HEAD);
    let checked = check(&state, &request);
    let call = (!reads || checked.is_err()).then(|| Call::of(&state, &request));
    let mut response = match checked {
        Ok(holder) => {
            request.extensions_mut().insert(holder);
            next.run(request).await
        }
        Err(error) => error.into_response(),
    };
    let status = response.status();
    if let Some(call) = call.filter(|_| !status.is_success() && response.extensions().get::<Noted>().is_none()) {
        call.refused(state, status);
    }
    let headers = response.headers_mut();
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

fn check(state: &State, request: &Request) -> Result<Holder, ApiError> {
    let (uri, headers) = (request.uri(), request.headers());
    let host = uri.authority().cloned().or_else(|| headers.get(HOST)?.to_str().ok()?.parse().ok());
    check_host(state, host.as_ref(), headers)?;
    // A link on another page may lead to the console, which is no more than files; what it then asks for is asked by
    // its own pages.
    if !(console::is_console(uri.path()) && is_navigation(headers)) {
        check_site(host.as_ref(), headers)?;
    }
    let holder = state.tokens.holder(headers.get(AUTHORIZATION).map(HeaderValue::as_bytes));
    let Some(holder) = holder else {
        // Nobody, who may do what is open to everybody.
        let nobody = Holder { name: None, role: Role::Read };
        return if is_open(uri) { Ok(nobody) } else { Err(ApiError::unauthorized()) };
    };
    let Some(needed) = needed(request) else { return Ok(holder) };
    if holder.role < needed {
        let name = holder.name.as_deref().unwrap_or_default();
        let (has, needs) = (holder.role.as_str(), needed.as_str());
        return Err(ApiError::new(
            StatusCode::FORBIDDEN,
            format!("The token {name:?} has the role `{has}`; this needs `{needs}`."),
        ));
    }
    let reads = matches!(*request.method(), Method::GET | Method::HEAD);
    if reads || is_json(headers.get(CONTENT_TYPE)) { Ok(holder) } else { Err(ApiError::not_json()) }
}

/// The role that an endpoint needs; none for what is no endpoint.
fn needed(request: &Request) -> Option<Role> {
    let path = request.extensions().get::<MatchedPath>()?.as_str();
    let method = if request.method() == Method::HEAD { &Method::GET } else { request.method() };
    let mut known = ROLES.iter().filter(|((known, _), _)| *known == path);
    known.find(|((_, known), _)| known == method).map(|(_, role)| *role)
}

/// Probes need no token, and neither do the files of the console: a constant list, without any data of the gateway.
fn is_open(uri: &Uri) -> bool {
    match uri.path() {
        "/healthz" => true,
        "/readyz" => !is_verbose(uri.query()),
        path => console::is_console(path),
    }
}

/// Whether a browser opens a page, and does not fetch something for one.
fn is_navigation(headers: &HeaderMap) -> bool {
    let says = |name, value| headers.get(name).is_some_and(|said| said == value);
    says("sec-fetch-mode", "navigate") && says("sec-fetch-dest", "document") && !headers.contains_key(ORIGIN)
}

/// On a loopback address only loopback hosts are asked for, and elsewhere only the names that are configured, if any are.
/// Any other name is one that somebody has made resolve to this machine, so that a browser would take his pages and this
/// API for one site (DNS rebinding).
fn check_host(state: &State, host: Option<&Authority>, headers: &HeaderMap) -> Result<(), ApiError> {
    let missing = host.is_none() && !headers.contains_key(HOST);
    let any = !state.loopback && state.hosts.is_empty();
    if missing || any || host.is_some_and(|host| is_own(state, host)) {
        return Ok(());
    }
    let names =
        if state.hosts.is_empty() { "localhost or a loopback address" } else { "an address or a name of its own" };
    Err(ApiError::new(StatusCode::MISDIRECTED_REQUEST, format!("The admin API is only at {names}.")))
}

fn is_own(state: &State, authority: &Authority) -> bool {
    let host = authority.host();
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let address = bare.parse().is_ok_and(|address: IpAddr| address.is_loopback() || !state.loopback);
    address || host.eq_ignore_ascii_case("localhost") || state.hosts.iter().any(|own| host.eq_ignore_ascii_case(own))
}

/// Pages of other sites have no business here.
fn check_site(host: Option<&Authority>, headers: &HeaderMap) -> Result<(), ApiError> {
    let own_origin = |origin: &HeaderValue| {
        let authority = origin.to_str().ok()?.split_once("://")?.1;
        Some(authority.eq_ignore_ascii_case(host?.as_str()))
    };
    let foreign = headers.get_all(ORIGIN).iter().any(|origin| own_origin(origin) != Some(true));
    let fetched_from_elsewhere =
        headers.get("sec-fetch-site").is_some_and(|site| site != "same-origin" && site != "none");
    if foreign || fetched_from_elsewhere {
        return Err(ApiError::new(StatusCode::FORBIDDEN, "Pages of other sites may not use the admin API."));
    }
    Ok(())
}

/// Where a call came from.
pub(super) fn from(request_extensions: &http::Extensions) -> String {
    let peer = request_extensions.get::<ConnectInfo<SocketAddr>>();
    peer.map_or_else(|| "unknown".to_owned(), |peer| peer.0.ip().to_canonical().to_string())
}

/// A call, for the audit log.
struct Call {
    actor: Actor,
    action: String,
}

impl Call {
    fn of(state: &State, request: &Request) -> Self {
        let holder = state.tokens.holder(request.headers().get(AUTHORIZATION).map(HeaderValue::as_bytes));
        let name = holder.and_then(|holder| holder.name);
        Self {
            actor: Actor {
                by: operator(request.headers(), name.as_deref()),
                from: from(request.extensions()),
                token: name.map(|name| name.to_string()),
            },
            action: format!("{} {}", request.method(), request.uri().path()).chars().take(200).collect(),
        }
    }

    fn refused(self, state: State, status: StatusCode) {
        let entry = Entry::refused(ADMIN, &self.actor, &self.action, "", vec![status.to_string()]);
        // The disk may take its time, and nobody waits for it.
        tokio::task::spawn_blocking(move || state.control.audit().refused_call(entry, Instant::now()));
    }
}
