//! What an attempt says of its instance and its subset: one word per attempt to outlier detection and breaker.

use std::time::{Duration, Instant};

use http::{HeaderMap, HeaderValue, header};
use pingora::http::ResponseHeader;
use pingora::{Error, ErrorSource, ErrorType};
use serin_core::outlier::Outcome;

use super::ctx::{Ctx, Proof, Upstream};
use super::{Edge, trace, with_rng};
use crate::telemetry::metrics::FailureKind;

/// Where gRPC says how a call went: in the trailers, or in the head if there is no body.
const GRPC_STATUS: &str = "grpc-status";

impl Edge {
    /// The head of a response. A good one has yet to be followed by a whole body, or a gRPC call's by good trailers;
    /// streams, which may go on for hours, are judged by their head.
    pub(super) fn judge_head(&self, ctx: &mut Ctx, head: &ResponseHeader, now: Instant) {
        let latency = since_start(ctx, now);
        let status = head.status.as_u16();
        let outcome = match head.headers.get(GRPC_STATUS) {
            Some(grpc) => grpc_outcome(grpc),
            None if status == 200 && is_grpc(head) => return await_proof(ctx, Proof::Trailers, latency),
            None => Outcome::of_status(status),
        };
        let stream = ctx.upstream.as_ref().is_none_or(|upstream| upstream.stream);
        if outcome == Outcome::Success && !stream {
            return await_proof(ctx, Proof::Body, latency);
        }
        judge(ctx, now, outcome, latency);
    }

    /// The trailers of a response.
    pub(super) fn judge_trailers(&self, ctx: &mut Ctx, trailers: &HeaderMap) {
        trace::note_grpc(ctx, trailers);
        let Some(latency) = take_proof(ctx, Proof::Trailers) else { return };
        let outcome = trailers.get(GRPC_STATUS).map_or(Outcome::ServerError, grpc_outcome);
        judge(ctx, Instant::now(), outcome, latency);
    }

    /// The end of a request whose response did not break off.
    pub(super) fn judge_end(&self, ctx: &mut Ctx, now: Instant) {
        if let Some(latency) = take_proof(ctx, Proof::Body) {
            judge(ctx, now, Outcome::Success, latency);
        }
    }

    /// No connection was made.
    pub(super) fn judge_no_connection(&self, ctx: &mut Ctx, now: Instant) {
        judge_failure(ctx, now, FailureKind::Connect);
        let_go(ctx);
    }

    /// The connection broke, before or after the head. Says nothing of the instance if the client broke off, if the time
    /// for the whole request is over, or if it had just closed a connection that was kept (RFC 9112 section 9.3.1).
    pub(super) fn judge_break(&self, ctx: &mut Ctx, error: &Error, reused: bool, now: Instant) {
        let has_head = ctx.upstream.as_ref().is_some_and(|upstream| upstream.status.is_some());
        let answered = matches!(error.etype(), ErrorType::HTTPStatus(_));
        let timeout = matches!(error.etype(), ErrorType::ReadTimedout | ErrorType::WriteTimedout);
        let race = reused && !has_head && !timeout && !matches!(error.etype(), ErrorType::H2Error);
        let out_of_time = timeout && has_head && ctx.time_left(now).is_some_and(|left| left.is_zero());
        let upstream = *error.esource() == ErrorSource::Upstream;
        if let (true, Some(chosen)) = (upstream, &mut ctx.upstream) {
            chosen.proof = None;
        }
        if upstream && !answered && !race && !out_of_time {
            judge_failure(ctx, now, if timeout { FailureKind::Timeout } else { FailureKind::Reset });
        }
        if !has_head || answered {
            let_go(ctx);
        }
    }

    /// Waits before a retry, as long as back-off says and the request's time allows.
    pub(super) async fn back_off(&self, ctx: &mut Ctx) {
        let_go(ctx);
        let Some((_, service)) = ctx.chosen() else { return };
        let failed = ctx.upstream.as_ref().map_or(1, |upstream| upstream.tried.len());
        let Some(backoff) = service.guards.backoff else { return };
        let wait = with_rng(|rng| backoff.draw(failed, rng));
        let wait = ctx.time_left(Instant::now()).map_or(wait, |left| wait.min(left));
        if wait > Duration::ZERO {
            tokio::time::sleep(wait).await;
        }
    }
}

/// An attempt without an answer, or without all of it.
fn judge_failure(ctx: &mut Ctx, now: Instant, kind: FailureKind) {
    count_failure(ctx, kind);
    judge(ctx, now, Outcome::Local, since_start(ctx, now));
}

fn count_failure(ctx: &Ctx, kind: FailureKind) {
    let index = ctx.upstream.as_ref().and_then(|upstream| upstream.tried.last());
    let cells = index.zip(ctx.service_side()).and_then(|(&index, side)| side.metrics.instances.get(index as usize));
    if let Some(instance) = cells {
        instance.failures[kind as usize].inc();
    }
}

fn judge(ctx: &mut Ctx, now: Instant, outcome: Outcome, latency: Duration) {
    let Some((_, service)) = ctx.chosen() else { return };
    let Some(&index) = ctx.upstream.as_ref().and_then(|upstream| upstream.tried.last()) else { return };
    service.observe(index, now, outcome, latency);
    if outcome == Outcome::ServerError {
        count_failure(ctx, FailureKind::Status);
    }
    let Some(upstream) = &mut ctx.upstream else { return };
    upstream.failed = outcome != Outcome::Success;
    if let Some(permit) = &mut upstream.permit {
        permit.record(now, upstream.failed, latency);
    }
}

fn await_proof(ctx: &mut Ctx, proof: Proof, latency: Duration) {
    if let Some(upstream) = &mut ctx.upstream {
        upstream.proof = Some((proof, latency));
    }
}

fn take_proof(ctx: &mut Ctx, wanted: Proof) -> Option<Duration> {
    ctx.upstream.as_mut()?.proof.take_if(|(proof, _)| *proof == wanted).map(|(_, latency)| latency)
}

/// The attempt is over: it takes up no place any more.
fn let_go(ctx: &mut Ctx) {
    if let Some(Upstream { flight, permit, proof, .. }) = &mut ctx.upstream {
        (*flight, *permit, *proof) = (None, None, None);
    }
}

fn since_start(ctx: &Ctx, now: Instant) -> Duration {
    ctx.upstream.as_ref().map_or(Duration::ZERO, |upstream| now.saturating_duration_since(upstream.attempt_start))
}

fn is_grpc(head: &ResponseHeader) -> bool {
    head.headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

fn grpc_outcome(status: &HeaderValue) -> Outcome {
    Outcome::of_grpc(status.to_str().unwrap_or_default())
}
