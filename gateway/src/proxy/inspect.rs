//! What is refused of a request before it is routed. The bytes of HTTP/1 were checked before pingora read them
//! (`crate::connection`); this is the rest, and HTTP/2, whose bytes are not ours to see.

use http::header;
use pingora::http::RequestHeader;
use pingora::proxy::Session;
use pingora::{ErrorType, Result};
use serin_core::strict::websocket::{self, Upgrade};
use serin_core::strict::{Fields, OddNames, Policy, Refusal, is_odd_name};

use super::Edge;
use super::ctx::Ctx;
use super::reply::Reply;
use super::{head, headers};
use crate::connection::{Client, PLACEHOLDER};
use crate::listen::Served;

impl Edge {
    /// Checks a request's head and brings it to the form that is routed.
    ///
    /// # Errors
    /// Why it is refused.
    pub(super) fn inspect(&self, session: &mut Session, ctx: &Ctx) -> Result<(), Refusal> {
        if session.is_http2() {
            check_h2(session.req_header(), &self.policy)?;
        }
        check_host(session)?;
        let head = session.req_header_mut();
        if self.policy.odd_names == OddNames::Drop {
            drop_odd_names(head);
        }
        if !ctx.trusted {
            for name in &self.guarded {
                // To look is cheaper than to remove nothing.
                if head.headers.contains_key(name) {
                    head.remove_header(name);
                }
            }
        }
        let paths = ctx.generation.as_ref().map(|generation| generation.paths).unwrap_or_default();
        headers::normalise(head, &paths)?;
        if head.headers.contains_key(header::UPGRADE) {
            inspect_upgrade(session)?;
        }
        Ok(())
    }

    /// The answer to a refused request, whose connection is of no use any more.
    pub(super) fn refuse(&self, session: &mut Session, ctx: &mut Ctx, refusal: Refusal) -> Reply {
        self.metrics.count_refusal(refusal);
        ctx.error = Some(refusal.as_str());
        session.set_keepalive(None);
        Reply::refusal(refusal)
    }
}

/// The fields of a request over HTTP/2, and its pseudo fields, as far as the h2 crate leaves them open.
fn check_h2(head: &RequestHeader, policy: &Policy) -> Result<(), Refusal> {
    let authority = head.uri.authority().map(|authority| authority.as_str().as_bytes());
    let mut fields = Fields::new(policy);
    for (name, value) in &head.headers {
        fields.add(name.as_str().as_bytes(), value.as_bytes())?;
    }
    fields.finish_h2(head.method.as_str().as_bytes(), authority)
}

/// That a request belongs on its connection, as far as that is known: listeners that do not check it note nothing.
fn check_host(session: &Session) -> Result<(), Refusal> {
    let tls = session.digest().and_then(|digest| digest.ssl_digest.as_ref());
    let Some(served) = tls.and_then(|tls| tls.extension.get::<Served>()) else { return Ok(()) };
    if served.fits(&head::host(session.req_header())) { Ok(()) } else { Err(Refusal::OtherHost) }
}

/// Leaves `Upgrade` only where it opens a WebSocket.
fn inspect_upgrade(session: &mut Session) -> Result<(), Refusal> {
    let head = session.req_header_mut();
    match websocket::asked(&head.method, &head.headers)? {
        Upgrade::None => drop(head.remove_header(&header::UPGRADE)),
        Upgrade::WebSocket => {
            let placed = head.insert_header(header::CONTENT_LENGTH, PLACEHOLDER);
            placed.map_err(|_| Refusal::WebSocket)?;
            Client::expect_switch(session.as_downstream());
        }
    }
    Ok(())
}

fn drop_odd_names(head: &mut RequestHeader) {
    let odd = |head: &RequestHeader| head.headers.keys().find(|name| is_odd_name(name.as_str().as_bytes())).cloned();
    while let Some(name) = odd(head) {
        head.remove_header(&name);
    }
}

/// A response that switches protocols, checked: only to a WebSocket, and only as an answer to this very request.
///
/// # Errors
/// If it is none. The client is told of a bad gateway.
pub(super) fn check_switch(session: &Session, response: &pingora::http::ResponseHeader) -> Result<()> {
    let request = session.req_header();
    if request.headers.contains_key(header::UPGRADE) && websocket::is_accepted(&request.headers, &response.headers) {
        return Ok(());
    }
    let error = pingora::Error::explain(ErrorType::InvalidHTTPHeader, "the upstream switched protocols unasked");
    Err(error.into_up())
}
