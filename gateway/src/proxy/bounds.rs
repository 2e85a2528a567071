//! Bounds of a single request: its head, its body, and how fast the body comes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{StatusCode, header};
use pingora::protocols::http::ServerSession;
use pingora::proxy::Session;
use pingora::{Error, ErrorType, Result};

use super::Edge;
use super::ctx::Ctx;
use super::reply::Reply;
use crate::connection::limits::{Limit, Limits};

/// How long a body may be slow beside what its pace allows: what Kestrel gives it.
const GRACE: Duration = Duration::from_secs(5);
/// The longest pause of a body that was fast before.
const PAUSE: Duration = Duration::from_secs(60);
/// How long a response on an HTTP/2 stream waits for room in its window. (In HTTP/1 the connection knows its pace.)
const WINDOW_WAIT: Duration = Duration::from_secs(60);

/// How much of a body came.
pub struct Body {
    /// When its first piece did.
    since: Instant,
    /// Bytes of it.
    bytes: u64,
}

impl Edge {
    /// The limits of the listener that a request came in at.
    pub(super) fn limits(&self, session: &Session) -> &Arc<Limits> {
        self.limits.at(|| session.server_addr().and_then(|address| address.as_inet()).copied())
    }

    /// Refuses a head of HTTP/2 with too much in it. Those of HTTP/1 were checked before pingora read them.
    ///
    /// # Errors
    /// The status to answer with.
    pub(super) fn check_head(&self, session: &mut Session, limits: &Limits) -> Result<()> {
        let ServerSession::H2(stream) = session.as_downstream_mut() else { return Ok(()) };
        stream.set_write_timeout(Some(WINDOW_WAIT));
        let head = session.req_header();
        if head.raw_path().len() > limits.target_bytes {
            return self.over(Limit::TargetBytes, StatusCode::URI_TOO_LONG);
        }
        if head.headers.len() > limits.header_count {
            return self.over(Limit::HeaderCount, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
        }
        Ok(())
    }

    /// Refuses a body that is said to be too long for its route.
    pub(super) fn check_length(&self, session: &Session, ctx: &mut Ctx) -> Option<Reply> {
        let most = ctx.route_side()?.max_body?;
        let length = session.req_header().headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse::<u64>();
        // A length that is no number is more than any.
        if length.is_ok_and(|length| length <= most) {
            return None;
        }
        self.refusals.count(Limit::MaxBody);
        ctx.error = Some("body_too_long");
        Some(Reply::problem(StatusCode::PAYLOAD_TOO_LARGE, "The body is too long."))
    }

    /// Sets how long the gateway waits for the first piece of a body. Streams are as slow as they like.
    pub(super) fn await_body(&self, session: &mut Session, ctx: &Ctx) {
        let stream = ctx.upstream.as_ref().is_none_or(|upstream| upstream.stream);
        if !stream && self.limits(session).min_body_rate.is_some() {
            session.as_downstream_mut().set_read_timeout(Some(GRACE * 2));
        }
    }

    /// Takes note of a piece of a body.
    ///
    /// # Errors
    /// If the body is too long, or too slow.
    pub(super) fn check_body(&self, session: &mut Session, ctx: &mut Ctx, piece: usize, end: bool) -> Result<()> {
        let most = ctx.route_side().and_then(|route| route.max_body);
        let stream = ctx.upstream.as_ref().is_none_or(|upstream| upstream.stream);
        let rate = self.limits(session).min_body_rate.filter(|_| !stream && !end);
        if most.is_none() && rate.is_none() {
            return Ok(());
        }
        let body = ctx.body.get_or_insert_with(|| Body { since: Instant::now(), bytes: 0 });
        body.bytes += piece as u64;
        if most.is_some_and(|most| body.bytes > most) {
            return self.over(Limit::MaxBody, StatusCode::PAYLOAD_TOO_LARGE);
        }
        let Some(rate) = rate else { return Ok(()) };
        let allowed = GRACE + Duration::from_millis(body.bytes.saturating_mul(1_000) / rate);
        match allowed.checked_sub(body.since.elapsed()) {
            Some(left) => {
                session.as_downstream_mut().set_read_timeout(Some(left.min(PAUSE)));
                Ok(())
            }
            None => Error::e_explain(ErrorType::ReadTimedout, "the body is too slow").map_err(Error::into_down),
        }
    }

    fn over(&self, limit: Limit, status: StatusCode) -> Result<()> {
        self.refusals.count(limit);
        Error::e_explain(ErrorType::HTTPStatus(status.as_u16()), limit.as_str()).map_err(Error::into_down)
    }
}
