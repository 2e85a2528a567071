//! What failures mean: whether to retry, what to answer, what to call them.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode, header};
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::proxy::Session;
use pingora::{Error, ErrorSource, ErrorType};
use serin_core::retry::Failure;

use super::ctx::{Answered, Ctx};
use super::reply::{self, Reply};
use crate::connection::BadBody;

/// Most that a failure counts as in latency, unless the first-byte timeout is shorter.
pub const PENALTY: Duration = Duration::from_secs(5);

/// What clients are told when no pool can serve.
pub const UNAVAILABLE: &str = "No instance can take the request.";

/// What clients are told when the connections to every instance that was tried are all in use.
const BUSY: &str = "All connections are in use.";
/// An attempt that found its instance's pool full, as an error and in logs.
pub const OVERFLOW: &str = "overflow";
/// An upload that goes on after its answer, as an error and in logs.
const ANSWERED: &str = "answered_early";
/// How long such an upload is taken in: closing at once would reset the connection, and with it what the client has not
/// read of the answer (RFC 9112 section 9.6).
const LINGER: Duration = Duration::from_millis(500);
/// When a client that was turned away may come back, in seconds.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("1");

/// Whether the request may be tried once more after a failure.
#[must_use]
pub fn retries(session: &Session, ctx: &Ctx, failure: Failure) -> bool {
    let (Some(generation), Some(upstream)) = (&ctx.generation, &ctx.upstream) else { return false };
    let replayable = !session.retry_buffer_truncated() && !upstream.upgrade;
    let now = Instant::now();
    let in_time = ctx.time_left(now).is_none_or(|left| !left.is_zero());
    let policy = &generation.core.services[upstream.service].retry;
    let method = &session.req_header().method;
    in_time && policy.verdict(failure, upstream.tried.len(), method, replayable) && within_budget(ctx, now)
}

/// How long to wait for a response before a second attempt is made beside the first; `None` if none is to be made.
#[must_use]
pub fn hedges_after(session: &Session, ctx: &Ctx) -> Option<Duration> {
    let (_, service) = ctx.chosen()?;
    let after = service.retry.hedge_after?;
    let upstream = ctx.upstream.as_ref()?;
    let more = upstream.tried.len() < service.retry.attempts;
    (more && !upstream.stream && session.req_header().method.is_idempotent()).then_some(after)
}

/// Takes a retry off the service's budget.
pub fn within_budget(ctx: &Ctx, now: Instant) -> bool {
    let Some((_, service)) = ctx.chosen() else { return false };
    let allowed = service.guards.budget.as_ref().is_none_or(|budget| budget.spend(now));
    if let Some(side) = ctx.service_side().filter(|_| !allowed) {
        side.metrics.guard.budget_exhausted.inc();
    }
    allowed
}

/// Whether a response of this status is worth another attempt at all. Almost none is, and this is quick to tell.
#[must_use]
pub fn worth_retrying(ctx: &Ctx, status: StatusCode) -> bool {
    let service = ctx.chosen().map(|(_, service)| service);
    service.is_some_and(|service| service.retry.retries_status(status))
}

/// Whether an attempt that broke after the connection was made may be repeated. Once a response head was relayed,
/// never. This replaces pingora's default rule and keeps what it guards: only idempotent requests with their whole
/// body at hand are sent again.
#[must_use]
pub fn verdict(session: &Session, ctx: &Ctx, error: &Error, reused: bool) -> bool {
    if session.response_written().is_some_and(|response| !response.status.is_informational()) {
        return false;
    }
    if matches!(error.etype(), ErrorType::HTTPStatus(_)) {
        // Decided in the response filter.
        return error.retry();
    }
    if *error.esource() != ErrorSource::Upstream {
        return false;
    }
    let failure = match error.etype() {
        ErrorType::ReadTimedout | ErrorType::WriteTimedout => Failure::Timeout,
        // Nothing was sent to somebody else than who was meant.
        ErrorType::InvalidCert => Failure::Connect,
        _ => Failure::Reset { reused },
    };
    retries(session, ctx, failure)
}

/// Takes in a piece of an upload that goes on after its answer. Unless it is the last one, the upstream gets no more, and
/// so its connection is not used again.
///
/// # Errors
/// When the upload has had its time, or ends without having reached the upstream as a whole.
pub fn discard(body: &mut Option<Bytes>, end_of_stream: bool, answered: &mut Answered) -> pingora::Result<()> {
    if end_of_stream && !answered.lost {
        return Ok(());
    }
    if end_of_stream || answered.at.elapsed() > LINGER {
        return Error::e_explain(ErrorType::Custom(ANSWERED), "the answer came before the end of the request");
    }
    answered.lost = true;
    *body = Some(Bytes::new());
    Ok(())
}

/// The name of an error in logs and metrics: one of a closed list.
#[must_use]
pub fn name(error: &Error) -> &'static str {
    use ErrorType as E;
    let upstream = *error.esource() == ErrorSource::Upstream;
    if let Some(refusal) = BadBody::of(error) {
        return refusal.as_str();
    }
    match error.etype() {
        E::HTTPStatus(400) => "bad_request",
        E::HTTPStatus(413) => "body_too_long",
        E::HTTPStatus(414) => "target_too_long",
        E::HTTPStatus(431) => "head_too_large",
        E::HTTPStatus(503) => "unavailable",
        E::Custom(OVERFLOW) => OVERFLOW,
        E::Custom(ANSWERED) => ANSWERED,
        E::HTTPStatus(_) => "refused",
        E::ConnectTimedout | E::TLSHandshakeTimedout => "connect_timeout",
        E::ConnectRefused | E::ConnectNoRoute | E::ConnectError | E::ConnectProxyFailure | E::BindError => {
            "connect_failure"
        }
        E::TLSHandshakeFailure | E::InvalidCert | E::HandshakeError => "tls_failure",
        E::ReadTimedout | E::WriteTimedout if upstream => "upstream_timeout",
        E::ReadTimedout | E::WriteTimedout => "client_timeout",
        E::ReadError | E::WriteError | E::ConnectionClosed | E::H2Error if upstream => "upstream_reset",
        E::ReadError | E::WriteError | E::ConnectionClosed | E::H2Error => "client_reset",
        E::InvalidHTTPHeader | E::H1Error | E::InvalidH2 if upstream => "upstream_protocol",
        E::InvalidHTTPHeader | E::H1Error | E::InvalidH2 => "bad_request",
        _ if upstream => "upstream_error",
        _ if *error.esource() == ErrorSource::Downstream => "client_error",
        _ => "internal",
    }
}

/// Answers a failed request, unless the client is gone, has part of a response already, or speaks another protocol since
/// an upgrade. Returns the status, 0 if there was no answer. `id` is the header that says which request it was.
pub async fn answer(session: &mut Session, ctx: &Ctx, error: &Error, id: Option<&HeaderName>) -> u16 {
    let over =
        |head: &ResponseHeader| !head.status.is_informational() || head.status == StatusCode::SWITCHING_PROTOCOLS;
    if session.response_written().is_some_and(over) {
        return 0;
    }
    if let Some(refusal) = BadBody::of(error) {
        let _ = Reply::refusal(refusal).with_request_id(id, &ctx.request_id).send(session).await;
        return refusal.status().as_u16();
    }
    let late = ctx.time_left(Instant::now()).is_some_and(|left| left.is_zero());
    let (status, detail) = match name(error) {
        // gRPC has words for the two: the client's deadline passed, or another instance may be reached.
        "connect_timeout" | "upstream_timeout" if !late && reply::is_grpc(session) => {
            (StatusCode::SERVICE_UNAVAILABLE, UNAVAILABLE)
        }
        "bad_request" => (StatusCode::BAD_REQUEST, "The request is malformed."),
        "body_too_long" => (StatusCode::PAYLOAD_TOO_LARGE, "The body is too long."),
        "target_too_long" => (StatusCode::URI_TOO_LONG, "The target is too long."),
        "head_too_large" => (StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "The head is too large."),
        "unavailable" => (StatusCode::SERVICE_UNAVAILABLE, UNAVAILABLE),
        OVERFLOW => (StatusCode::SERVICE_UNAVAILABLE, BUSY),
        "connect_timeout" | "upstream_timeout" => (StatusCode::GATEWAY_TIMEOUT, "The upstream did not answer in time."),
        "client_timeout" => (StatusCode::REQUEST_TIMEOUT, "The request did not arrive in time."),
        "client_reset" | "client_error" => return 0,
        "internal" | "refused" => (StatusCode::INTERNAL_SERVER_ERROR, "The gateway failed."),
        _ => (StatusCode::BAD_GATEWAY, "The upstream could not be reached or broke off."),
    };
    let mut reply = Reply::problem(status, detail).with_request_id(id, &ctx.request_id);
    if detail == BUSY {
        reply.headers.push((header::RETRY_AFTER, RETRY_AFTER));
    }
    // A client that is gone by now needs no answer.
    let _ = reply.with_retry_after(ctx.retry_after).send(session).await;
    status.as_u16()
}

/// Takes in some more of an upload that was refused, so that its client can read why. The connection is then closed.
pub async fn linger(session: &mut Session) {
    let downstream = session.as_downstream_mut();
    downstream.set_total_drain_timeout(Some(LINGER));
    // There may be more than that, or less.
    let _ = downstream.drain_request_body().await;
}

/// Whether a response has no body.
#[must_use]
pub fn ends_with_its_head(head: &ResponseHeader) -> bool {
    let empty = head.headers.get(header::CONTENT_LENGTH).is_some_and(|length| length == "0");
    empty || matches!(head.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
}

/// Whether a client asks for server-sent events, which are a stream.
#[must_use]
pub fn wants_event_stream(head: &RequestHeader) -> bool {
    head.headers.get(header::ACCEPT).is_some_and(|accept| accept.as_bytes().starts_with(b"text/event-stream"))
}

/// Whether a response is a stream of server-sent events.
#[must_use]
pub fn is_event_stream(head: &ResponseHeader) -> bool {
    head.headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"))
}
