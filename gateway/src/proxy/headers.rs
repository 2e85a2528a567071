//! Header fields that the gateway sets, removes and edits. They are set after pingora stripped what `Connection`
//! names, so that a client cannot have them stripped.

use std::fmt::Write as _;

use http::header::{COOKIE, HOST, HeaderMap, HeaderName, HeaderValue, SET_COOKIE};
use http::request::Parts;
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::{ErrorType, OrErr, Result};
use serin_core::path::{self, PathPolicy};
use serin_core::snapshot::Service;
use serin_core::strict::Refusal;
use serin_core::tag::Anonymous;
use smallvec::SmallVec;

use super::ctx::{Ctx, Upstream};
use crate::conf::{Forwarding, TrustRequestId};
use crate::control::generation::Propagate;
use crate::identity::RequestId;
use crate::telemetry::traces::baggage::{self, BAGGAGE};
use crate::telemetry::traces::context::{self, Carried, TRACESTATE};
use crate::text;

type Line = SmallVec<[u8; 128]>;

/// Key of the subset in `baggage`.
pub const BAGGAGE_KEY: &str = "serin.subset";
/// And in `tracestate`.
pub const TRACESTATE_KEY: &str = "serin";

static X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
static X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
static X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
static FORWARDED: HeaderName = HeaderName::from_static("forwarded");

/// Edits a request's head as plain `http` types. pingora keeps a second map with the spelling of every name, which
/// doubles the cost of each change; names leave in lower case here, as they do in HTTP/2.
///
/// # Errors
/// What `edit` returns. The head is of no use then.
pub fn edit_request(head: &mut RequestHeader, edit: impl FnOnce(&mut Parts) -> Result<()>) -> Result<()> {
    let empty = RequestHeader::from(http::Request::new(()).into_parts().0);
    let mut parts = Parts::from(std::mem::replace(head, empty));
    edit(&mut parts)?;
    *head = parts.into();
    Ok(())
}

/// Like [`edit_request`] for a response. A reason phrase of the upstream's own stays.
///
/// # Errors
/// What `edit` returns. The head is of no use then.
pub fn edit_response(head: &mut ResponseHeader, edit: impl FnOnce(&mut HeaderMap) -> Result<()>) -> Result<()> {
    let reason = head.get_reason_phrase().filter(|reason| Some(*reason) != head.status.canonical_reason());
    let reason = reason.map(ToOwned::to_owned);
    let empty = ResponseHeader::from(http::Response::new(()).into_parts().0);
    let mut parts = http::response::Parts::from(std::mem::replace(head, empty));
    edit(&mut parts.headers)?;
    *head = parts.into();
    head.set_reason_phrase(reason.as_deref())
}

/// Which forwarding headers are set, and under which names.
#[derive(Clone, Debug)]
pub struct ForwardingHeaders {
    x_forwarded: bool,
    forwarded: bool,
    /// Header that carries the identity of a request, both ways.
    pub request_id: Option<HeaderName>,
    trust_request_id: TrustRequestId,
}

impl From<&Forwarding> for ForwardingHeaders {
    fn from(conf: &Forwarding) -> Self {
        Self {
            x_forwarded: conf.x_forwarded,
            forwarded: conf.forwarded,
            request_id: conf.request_id.as_option().map(|name| name.0.clone()),
            trust_request_id: conf.trust_request_id,
        }
    }
}

impl ForwardingHeaders {
    /// The identity of a request: that of a trusted sender, or a random one.
    #[must_use]
    pub fn identify(&self, head: &http::HeaderMap, trusted: bool, random: [u64; 2]) -> RequestId {
        let believed = match self.trust_request_id {
            TrustRequestId::Any => true,
            TrustRequestId::TrustedProxies => trusted,
            TrustRequestId::None => false,
        };
        let name = self.request_id.as_ref().filter(|_| believed);
        let given = name.and_then(|name| head.get(name)).and_then(|value| RequestId::given(value.as_bytes()));
        given.unwrap_or_else(|| RequestId::random(random))
    }

    /// Tells the upstream where the request came from. What an untrusted client said of itself is replaced.
    ///
    /// # Errors
    /// Only if a value is no header value, which the types rule out.
    pub fn set(&self, head: &mut Parts, peer: std::net::IpAddr, tls: bool, ctx: &Ctx) -> Result<()> {
        if self.x_forwarded {
            set_x_forwarded(head, peer, tls, ctx.trusted)?;
        } else {
            remove_unless_trusted(head, ctx.trusted, &[&X_FORWARDED_FOR, &X_FORWARDED_PROTO, &X_FORWARDED_HOST]);
        }
        if self.forwarded {
            let line = forwarded_element(head, peer, tls);
            append_or_replace(&mut head.headers, &FORWARDED, &line, ctx.trusted)?;
        } else {
            remove_unless_trusted(head, ctx.trusted, &[&FORWARDED]);
        }
        if let Some(name) = &self.request_id {
            head.headers.insert(name, value(ctx.request_id.as_str().as_bytes())?);
        }
        Ok(())
    }
}

fn set_x_forwarded(head: &mut Parts, peer: std::net::IpAddr, tls: bool, trusted: bool) -> Result<()> {
    let line = Line::from_slice(text::ip(peer.to_canonical()).as_bytes());
    append_or_replace(&mut head.headers, &X_FORWARDED_FOR, &line, trusted)?;
    if !(trusted && head.headers.contains_key(&X_FORWARDED_PROTO)) {
        let proto = HeaderValue::from_static(if tls { "https" } else { "http" });
        head.headers.insert(&X_FORWARDED_PROTO, proto);
    }
    if !(trusted && head.headers.contains_key(&X_FORWARDED_HOST)) {
        match asked_host(head) {
            Some(host) => head.headers.insert(&X_FORWARDED_HOST, host),
            None => head.headers.remove(&X_FORWARDED_HOST),
        };
    }
    Ok(())
}

fn remove_unless_trusted(head: &mut Parts, trusted: bool, names: &[&HeaderName]) {
    if !trusted {
        for name in names {
            head.headers.remove(*name);
        }
    }
}

/// The authority that the client asked for, port and all.
fn asked_host(head: &Parts) -> Option<HeaderValue> {
    match head.uri.authority() {
        Some(authority) => authority.as_str().parse().ok(),
        None => head.headers.get(HOST).cloned(),
    }
}

/// An element of `Forwarded` (RFC 7239 section 4).
fn forwarded_element(head: &Parts, peer: std::net::IpAddr, tls: bool) -> Line {
    let mut line = Line::new();
    match peer.to_canonical() {
        std::net::IpAddr::V4(v4) => write_line(&mut line, format_args!("for={v4}")),
        std::net::IpAddr::V6(v6) => write_line(&mut line, format_args!("for=\"[{v6}]\"")),
    }
    write_line(&mut line, format_args!(";proto={}", if tls { "https" } else { "http" }));
    if let Some(host) = asked_host(head).as_ref().and_then(|host| host.to_str().ok())
        && !host.contains(['"', '\\'])
    {
        write_line(&mut line, format_args!(";host=\"{host}\""));
    }
    line
}

fn append_or_replace(headers: &mut HeaderMap, name: &HeaderName, line: &Line, trusted: bool) -> Result<()> {
    let mut all = Line::new();
    if trusted {
        // Several lines of a list are one list (RFC 9110 section 5.3).
        for before in headers.get_all(name) {
            all.extend_from_slice(before.as_bytes());
            all.extend_from_slice(b", ");
        }
    }
    all.extend_from_slice(line);
    headers.insert(name, value(&all)?);
    Ok(())
}

fn write_line(line: &mut Line, text: std::fmt::Arguments<'_>) {
    struct Writer<'a>(&'a mut Line);
    impl std::fmt::Write for Writer<'_> {
        fn write_str(&mut self, text: &str) -> std::fmt::Result {
            self.0.extend_from_slice(text.as_bytes());
            Ok(())
        }
    }
    // Writing to memory cannot fail.
    let _ = Writer(line).write_fmt(text);
}

fn value(bytes: &[u8]) -> Result<HeaderValue> {
    text::header_value(bytes).or_err(ErrorType::InvalidHTTPHeader, "while forwarding")
}

/// Removes tag headers and cookies that only a trusted peer may set, unless the tag was accepted.
pub fn strip_guarded(headers: &mut HeaderMap, service: &Service, accepted: bool) {
    if accepted {
        return;
    }
    for name in &service.guarded_headers {
        headers.remove(name);
    }
    if !service.guarded_cookies.is_empty() && headers.contains_key(COOKIE) {
        strip_cookies(headers, &service.guarded_cookies);
    }
}

fn strip_cookies(headers: &mut HeaderMap, names: &[Box<str>]) {
    let guarded = |pair: &str| pair.split_once('=').is_some_and(|(key, _)| names.iter().any(|n| **n == *key.trim()));
    let lines: Vec<String> = headers
        .get_all(COOKIE)
        .iter()
        .filter_map(|line| line.to_str().ok())
        .map(|line| line.split(';').map(str::trim).filter(|pair| !guarded(pair)).collect::<Vec<_>>().join("; "))
        .filter(|line| !line.is_empty())
        .collect();
    headers.remove(COOKIE);
    // The parts were header values before, so what is joined is one.
    if let Some(joined) = (!lines.is_empty()).then(|| HeaderValue::from_str(&lines.join("; ")).ok()).flatten() {
        headers.insert(COOKIE, joined);
    }
}

/// Tells the upstream the subset that was chosen, and replaces what a client may have sent under those names.
///
/// # Errors
/// Only if a value is no header value, which the types rule out.
pub fn propagate(
    headers: &mut HeaderMap,
    how: &Propagate,
    service: &Service,
    chosen: &Upstream,
    carried: Carried,
) -> Result<()> {
    let position = chosen.subset.unwrap_or(chosen.assignment.subset);
    let subset = &service.subsets[position];
    if let Some(name) = &how.header {
        headers.insert(name, subset.header.clone());
    }
    if let Some(member) = how.baggage.get(position) {
        put_first(headers, (&BAGGAGE, baggage::MAX_MEMBERS), BAGGAGE_KEY, member, carried)?;
    }
    if let Some(member) = how.tracestate.get(position).filter(|_| carried.takes_state) {
        put_first(headers, (&TRACESTATE, context::MAX_MEMBERS), TRACESTATE_KEY, member, carried)?;
    }
    Ok(())
}

/// Puts a member first in a list header that has so many at most, and removes others of its key.
fn put_first(
    headers: &mut HeaderMap,
    (header, most): (&HeaderName, usize),
    key: &str,
    member: &HeaderValue,
    carried: Carried,
) -> Result<()> {
    if carried.bare || !headers.contains_key(header) {
        headers.insert(header, member.clone());
        return Ok(());
    }
    let mut line = Line::from_slice(member.as_bytes());
    let ours = |other: &str| other.split(['=', ';']).next().is_some_and(|name| name.trim() == key);
    let lines = headers.get_all(header).iter().filter_map(|line| line.to_str().ok());
    let others =
        lines.flat_map(|line| line.split(',')).map(str::trim).filter(|other| !other.is_empty() && !ours(other));
    // The last of them make room.
    for other in others.take(most - 1) {
        write_line(&mut line, format_args!(",{other}"));
    }
    headers.insert(header, value(&line)?);
    Ok(())
}

/// The cookie that gives an anonymous client an identity.
///
/// # Errors
/// Only if a value is no header value, which the types rule out.
pub fn issue_cookie(headers: &mut HeaderMap, service: &Service, id: u64, tls: bool) -> Result<()> {
    let Anonymous::Cookie { name, max_age } = &service.anonymous else { return Ok(()) };
    let secure = if tls { "; Secure" } else { "" };
    let id = serin_core::decide::issued_cookie(id);
    let cookie = format!("{name}={id}; Path=/; Max-Age={max_age}; HttpOnly; SameSite=Lax{secure}");
    headers.append(SET_COOKIE, value(cookie.as_bytes())?);
    Ok(())
}

/// Tells the client the identity of its request.
///
/// # Errors
/// Only if the identity is no header value, which its type rules out.
pub fn set_request_id(headers: &mut HeaderMap, name: &HeaderName, id: &RequestId) -> Result<()> {
    headers.insert(name, value(id.as_str().as_bytes())?);
    Ok(())
}

/// Joins the `Cookie` fields that HTTP/2 splits (RFC 9113 section 8.2.3).
///
/// # Errors
/// Only if the joined fields are no header value, which the single ones rule out.
pub fn join_cookies(headers: &mut HeaderMap) -> Result<()> {
    let lines = headers.get_all(COOKIE);
    if lines.iter().nth(1).is_none() {
        return Ok(());
    }
    let joined: Vec<&[u8]> = lines.iter().map(HeaderValue::as_bytes).collect();
    let joined = value(&joined.join(&b"; "[..]))?;
    headers.insert(COOKIE, joined);
    Ok(())
}

/// Gives the request another host.
///
/// # Errors
/// If the host is no authority, which a check ruled out.
pub fn set_host(head: &mut Parts, host: &HeaderValue) -> Result<()> {
    head.headers.insert(HOST, host.clone());
    if head.uri.authority().is_some() {
        let mut parts = std::mem::take(&mut head.uri).into_parts();
        let authority = http::uri::Authority::try_from(host.as_bytes());
        parts.authority = Some(authority.or_err(ErrorType::InvalidHTTPHeader, "while rewriting the host")?);
        head.uri = http::Uri::from_parts(parts).or_err(ErrorType::InvalidHTTPHeader, "while rewriting the host")?;
    }
    Ok(())
}

/// The request target with another path and the same query.
///
/// # Errors
/// If the path is no request target.
pub fn with_path(uri: &http::Uri, path: String) -> Result<http::Uri> {
    let mut target = path;
    if let Some(query) = uri.query() {
        target.reserve_exact(query.len() + 1);
        target.push('?');
        target.push_str(query);
    }
    let what = "while rewriting the path";
    let target = http::uri::PathAndQuery::try_from(target).or_err(ErrorType::InvalidHTTPHeader, what)?;
    if uri.authority().is_none() {
        return Ok(target.into());
    }
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(target);
    http::Uri::from_parts(parts).or_err(ErrorType::InvalidHTTPHeader, what)
}

/// Normalises the path in place (see [`path::normal`]).
///
/// # Errors
/// If the path has no normal form.
pub fn normalise(request: &mut RequestHeader, policy: &PathPolicy) -> Result<(), Refusal> {
    let normal = match path::normal(request.uri.path(), policy) {
        Ok(std::borrow::Cow::Borrowed(_)) => return Ok(()),
        Ok(std::borrow::Cow::Owned(normal)) => normal,
        Err(_) => return Err(Refusal::Path),
    };
    let uri = with_path(&request.uri, normal).map_err(|_| Refusal::Target)?;
    request.set_uri(uri);
    Ok(())
}
