//! Traces on pingora's session: how a request is traced, what its attempts note on their way, and that its spans are sent
//! at its end. Everything here begins with a look at whether there is one.

mod spans;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use http::{HeaderMap, HeaderName, HeaderValue};
use opentelemetry::trace::SpanId;
use pingora::proxy::Session;
use pingora::{Error, ErrorType};
use rand::Rng;

use self::spans::Telling;
use super::ctx::Ctx;
use super::{Edge, failure, with_rng};
use crate::control::generation::Generation;
use crate::identity::Identity;
use crate::telemetry::exemplars::Exemplar;
use crate::telemetry::otlp::unix_nanos;
use crate::telemetry::traces::context::Carried;
use crate::telemetry::traces::{Attempt, Circumstances, DEBUG_VALUE, SpanContext, Trace, Tracer};

static GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
/// Those that are the server's fault: UNKNOWN, DEADLINE_EXCEEDED, UNIMPLEMENTED, INTERNAL, UNAVAILABLE, DATA_LOSS.
const SERVER_FAULTS: [u8; 6] = [2, 4, 12, 13, 14, 15];

impl Edge {
    /// Decides how the request is traced, once its route is known.
    pub(super) fn begin_trace(&self, session: &Session, ctx: &mut Ctx) {
        let Some(tracer) = &self.tracer else { return };
        let share = ctx.route_side().and_then(|route| route.sample.as_ref());
        let headers = &session.req_header().headers;
        match ctx.request_id.identity() {
            Some(identity) if tracer.policy.is_plain(headers, share, identity) => {
                ctx.span_context = Some(SpanContext::PLAIN);
            }
            _ => begin(tracer, headers, ctx),
        }
    }

    /// Tells the upstream of the trace.
    pub(super) fn propagate_trace(&self, headers: &mut HeaderMap, ctx: &Ctx) -> Carried {
        let (Some(tracer), Some(context)) = (&self.tracer, &ctx.span_context) else {
            if let Some(name) = &self.debug_header {
                headers.remove(name);
            }
            return Carried::by(headers);
        };
        let own = ctx.request_id.identity();
        tracer.policy.inject(headers, context, own, ctx.trace.as_ref().and_then(|trace| attempt_span(trace, ctx)))
    }

    /// Sends the spans of a request that has ended, if it was sampled or is one of those whose spans are always sent.
    pub(super) fn finish_trace(&self, session: &Session, ctx: &mut Ctx, status: u16, now: Instant) {
        let Some(tracer) = &self.tracer else { return };
        if ctx.span_context.is_none() {
            // Refused before a route was looked for.
            self.begin_trace(session, ctx);
        }
        let Some(trace) = &ctx.trace else { return };
        let duration = now.saturating_duration_since(ctx.start);
        let failed = has_failed(ctx, trace, status);
        let slow = tracer.policy.slow_over.is_some_and(|limit| duration > limit);
        if trace.is_sampled() || slow || (tracer.policy.on_error && failed) {
            let at = SystemTime::now();
            let end = unix_nanos(at);
            tracer.send(|spans| Telling { session, ctx, trace, status, failed, now, end }.tell(spans));
            note_exemplar(ctx, trace, duration, at);
            if let Some(trace) = &mut ctx.trace {
                trace.sent = true;
            }
        }
    }
}

#[cold]
fn begin(tracer: &Tracer, headers: &HeaderMap, ctx: &mut Ctx) {
    let signed = tracer.policy.debug_header.as_ref().and_then(|name| headers.get(name));
    let fresh = || Identity::new(with_rng(|rng| [rng.next_u64(), rng.next_u64()]));
    let circumstances = Circumstances {
        trusted_proxy: ctx.trusted,
        debug: signed.is_some_and(|token| is_signed(ctx, token)),
        share: ctx.route_side().and_then(|route| route.sample.as_ref()),
        identity: &ctx.request_id.identity().copied().unwrap_or_else(fresh),
    };
    let (context, trace) = tracer.policy.begin(headers, &circumstances);
    (ctx.span_context, ctx.trace) = (Some(context), trace);
}

/// The span of the attempt under way.
#[cold]
fn attempt_span(trace: &Trace, ctx: &Ctx) -> Option<SpanId> {
    let instance = *ctx.upstream.as_ref()?.tried.last()?;
    Some(trace.attempt(instance)?.span_id)
}

/// Whether a debug header holds what it must, with a signature that is right and has not expired.
#[cold]
fn is_signed(ctx: &Ctx, token: &HeaderValue) -> bool {
    let key = ctx.generation.as_ref().and_then(|generation| generation.core.signing_key.as_ref());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let value = key.zip(token.to_str().ok()).and_then(|(key, token)| key.verify(token, now));
    value == Some(DEBUG_VALUE)
}

/// An attempt begins at the instance that was picked.
pub(super) fn attempt_began(ctx: &mut Ctx, generation: &Generation) {
    let Ctx { trace: Some(trace), upstream: Some(upstream), .. } = ctx else { return };
    let Some(&instance) = upstream.tried.last() else { return };
    let (service, side) = (&generation.core.services[upstream.service], &generation.services[upstream.service]);
    let breaker = upstream.subset.and_then(|subset| service.subsets[subset].breaker.as_ref());
    trace.attempts.push(Attempt {
        span_id: SpanId::from(with_rng(|rng| rng.next_u64()).max(1)),
        instance,
        subset: upstream.subset,
        fallback: upstream.fallback,
        breaker: breaker.map(|breaker| breaker.phase()),
        plain: generation.core.traffic[upstream.service].balancer_switch || side.guard.tripped().is_some(),
        start: upstream.attempt_start,
        end: None,
        status: None,
        error: None,
    });
}

/// The attempt under way has a response.
pub(super) fn attempt_answered(ctx: &mut Ctx, status: u16, headers: &HeaderMap) {
    note_grpc(ctx, headers);
    note(ctx, None, |attempt| attempt.status = Some(status));
}

/// The attempt under way ended without a response that is good enough.
pub(super) fn attempt_failed(ctx: &mut Ctx, error: &Error, now: Instant) {
    let by_status = matches!(error.etype(), ErrorType::HTTPStatus(_));
    note(ctx, None, |attempt| {
        attempt.end = Some(now);
        // A status says it better than the error that was made of it.
        attempt.error = (!by_status || attempt.status.is_none()).then(|| failure::name(error));
    });
}

/// An attempt lost a race.
pub(super) fn attempt_abandoned(ctx: &mut Ctx, instance: Option<u32>, now: Instant) {
    note(ctx, instance, |attempt| {
        attempt.end = Some(now);
        attempt.error = Some("abandoned");
    });
}

/// The attempt that just began is not made after all.
pub(super) fn attempt_unmade(ctx: &mut Ctx) {
    if let Some(trace) = &mut ctx.trace {
        trace.attempts.pop();
    }
}

/// The head or the trailers of a gRPC call say how it went.
pub(super) fn note_grpc(ctx: &mut Ctx, headers: &HeaderMap) {
    let Some(trace) = &mut ctx.trace else { return };
    if let Some(code) = headers.get(&GRPC_STATUS).and_then(|code| code.to_str().ok()?.parse().ok()) {
        trace.grpc_status = Some(code);
    }
}

/// Notes something of an attempt: of the one under way, or of the latest at an instance.
fn note(ctx: &mut Ctx, instance: Option<u32>, note: impl FnOnce(&mut Attempt)) {
    let Ctx { trace: Some(trace), upstream: Some(upstream), .. } = ctx else { return };
    if let Some(instance) = instance.or(upstream.tried.last().copied()) {
        trace.note(instance, note);
    }
}

/// Whether a request failed for a reason that is not its client's.
fn has_failed(ctx: &Ctx, trace: &Trace, status: u16) -> bool {
    let broken = ctx.error.is_some_and(|error| !error.starts_with("client_"));
    status >= 500 || (status < 400 && broken) || trace.grpc_status.is_some_and(|code| SERVER_FAULTS.contains(&code))
}

/// Leads from the bucket that the request went into to its trace.
fn note_exemplar(ctx: &Ctx, trace: &Trace, duration: Duration, at: SystemTime) {
    let (Some(side), Some(upstream)) = (ctx.service_side(), &ctx.upstream) else { return };
    let slots = &side.metrics.exemplars;
    let (trace_id, span_id) = (trace.trace_id, trace.span_id);
    let value = duration.as_secs_f64();
    slots[upstream.subset.unwrap_or(slots.len() - 1)].note(Exemplar { trace_id, span_id, value, at });
}
