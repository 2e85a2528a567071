//! Who may talk to the admin API: one check around all of it.

use std::net::IpAddr;

use axum::extract::{Request, State as Extract};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header::{AUTHORIZATION, CACHE_CONTROL, HOST, ORIGIN, X_CONTENT_TYPE_OPTIONS};
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, StatusCode, Uri};

use super::State;
use super::console;
use super::problem::ApiError;
use super::read::is_verbose;

/// Lets a request pass if its host, its origin and its token are in order.
pub(super) async fn guard(Extract(state): Extract<State>, request: Request, next: Next) -> Response {
    let mut response = match check(&state, request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    };
    let headers = response.headers_mut();
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

fn check(state: &State, uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
    let host = uri.authority().cloned().or_else(|| headers.get(HOST)?.to_str().ok()?.parse().ok());
    check_host(state.loopback, host.as_ref(), headers)?;
    // A link on another page may lead to the console, which is no more than files; what it then asks for is asked by
    // its own pages.
    if !(console::is_console(uri.path()) && is_navigation(headers)) {
        check_site(host.as_ref(), headers)?;
    }
    let Some(token) = &state.token else { return Ok(()) };
    let shown = headers.get(AUTHORIZATION).is_some_and(|shown| token.is_shown_by(shown.as_bytes()));
    if shown || is_open(uri) { Ok(()) } else { Err(ApiError::unauthorized()) }
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

/// On a loopback address only loopback hosts are asked for. Any other name is one that somebody has made resolve to
/// this machine, so that a browser would take his pages and this API for one site (DNS rebinding).
fn check_host(loopback: bool, host: Option<&Authority>, headers: &HeaderMap) -> Result<(), ApiError> {
    if !loopback || (host.is_none() && !headers.contains_key(HOST)) || host.is_some_and(is_loopback) {
        return Ok(());
    }
    Err(ApiError::new(StatusCode::MISDIRECTED_REQUEST, "The admin API is only at localhost or a loopback address."))
}

fn is_loopback(authority: &Authority) -> bool {
    let host = authority.host();
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    host.eq_ignore_ascii_case("localhost") || address.parse().is_ok_and(|address: IpAddr| address.is_loopback())
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
