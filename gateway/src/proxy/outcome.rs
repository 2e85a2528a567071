//! How attempts and requests ended: latency for the balancers, counters, the access log.

use std::time::{Duration, Instant};

use pingora::http::ResponseHeader;
use pingora::proxy::Session;
use pingora::{Error, ErrorSource, ErrorType, Result};
use serin_core::retry::Failure;

use super::ctx::{Aside, Ctx};
use super::{Edge, failure, head, live, load, trace};
use crate::pool::Lease;
use crate::telemetry::{Finished, names};

impl Edge {
    /// Records how an attempt went: its latency for the balancers, its status for the metrics.
    pub(super) fn end_attempt(&self, ctx: &mut Ctx, status: Option<u16>, now: Instant) {
        let Some(side) = ctx.service_side().cloned() else { return };
        let timeouts = ctx.timeouts();
        let (Some(upstream), Some(generation)) = (&mut ctx.upstream, &ctx.generation) else { return };
        let Some(&index) = upstream.tried.last() else { return };
        side.metrics.instances[index as usize].upstream[names::class(status.unwrap_or(0))].inc();
        upstream.head_at = status.map(|_| now);
        let Some(flight) = &upstream.flight else { return };
        let mut latency = now.saturating_duration_since(upstream.attempt_start);
        if status.is_some() {
            let core = &generation.core;
            let address = core.services[upstream.service].instances[index as usize].address;
            let plain = core.traffic[upstream.service].balancer_switch || side.guard.tripped().is_some();
            side.metrics.time_call(index, address, plain, latency);
        }
        if let Some(concurrency) = &side.concurrency {
            concurrency.limit.sample(now, latency, matches!(status, None | Some(429 | 503 | 504)));
            if upstream.stream && status.is_some() {
                // A stream may last for days, which says nothing of how busy the service is.
                ctx.permit = None;
            }
        }
        if status.is_none_or(|status| status >= 500) {
            let cap = timeouts.map_or(failure::PENALTY, |timeouts| timeouts.first_byte.min(failure::PENALTY));
            latency = flight.vitals().penalty(latency, cap);
        }
        flight.vitals().record_call(now, latency, status.is_some_and(|status| status < 500));
        if status.is_none() {
            upstream.lease = Lease::default();
            upstream.flight = None;
        }
    }

    /// Records an attempt that the instance was given no time to answer: its client left, or the gateway itself failed.
    pub(super) fn abandon_attempt(&self, ctx: &mut Ctx, now: Instant) {
        let Some(side) = ctx.service_side().cloned() else { return };
        let Some(upstream) = &mut ctx.upstream else { return };
        let (Some(&index), Some(flight)) = (upstream.tried.last(), upstream.flight.take()) else { return };
        side.metrics.instances[index as usize].upstream[names::class(0)].inc();
        flight.vitals().record_abandoned(now, now.saturating_duration_since(upstream.attempt_start));
    }

    /// The same of an attempt that was set aside.
    pub(super) fn abandon_aside(&self, ctx: &mut Ctx, aside: &Aside, now: Instant) {
        trace::attempt_abandoned(ctx, aside.index, now);
        let (Some(side), Some(index), Some(flight)) = (ctx.service_side(), aside.index, &aside.flight) else { return };
        side.metrics.instances[index as usize].upstream[names::class(0)].inc();
        flight.vitals().record_abandoned(now, now.saturating_duration_since(aside.attempt_start));
    }

    /// What a response's head says of its attempt, and whether it is good enough for the client.
    ///
    /// # Errors
    /// If there is to be another attempt.
    pub(super) fn judge_response(&self, session: &Session, ctx: &mut Ctx, response: &mut ResponseHeader) -> Result<()> {
        if self.note_report(ctx, &response.headers) {
            load::strip(|name| drop(response.remove_header(name)));
        }
        let status = response.status;
        let retry = failure::worth_retrying(ctx, status) && failure::retries(session, ctx, Failure::Status(status));
        let Some(upstream) = &mut ctx.upstream else { return Ok(()) };
        upstream.status = Some(status.as_u16());
        upstream.stream |= failure::is_event_stream(response);
        let now = Instant::now();
        trace::attempt_answered(ctx, status.as_u16(), &response.headers);
        self.end_attempt(ctx, Some(status.as_u16()), now);
        self.judge_head(ctx, response, now);
        if retry {
            let mut error = Error::explain(ErrorType::HTTPStatus(status.as_u16()), "worth another attempt");
            error.set_retry(true);
            return Err(error.into_up());
        }
        Ok(())
    }

    /// An attempt for which no connection was made. The error says whether there is to be another.
    pub(super) fn not_connected(&self, session: &Session, ctx: &mut Ctx, mut error: Box<Error>) -> Box<Error> {
        let now = Instant::now();
        trace::attempt_failed(ctx, &error, now);
        self.end_attempt(ctx, None, now);
        self.judge_no_connection(ctx, now);
        error.set_retry(failure::retries(session, ctx, Failure::Connect));
        error
    }

    /// An attempt that broke off. The error says whether there is to be another.
    pub(super) fn broke(&self, session: &Session, ctx: &mut Ctx, mut error: Box<Error>, reused: bool) -> Box<Error> {
        self.note_break(ctx, &error, reused);
        let retry = failure::verdict(session, ctx, &error, reused);
        error.set_retry(retry);
        error
    }

    /// Records an attempt that broke off.
    pub(super) fn note_break(&self, ctx: &mut Ctx, error: &Error, reused: bool) {
        let now = Instant::now();
        trace::attempt_failed(ctx, error, now);
        if ctx.upstream.as_ref().is_some_and(|upstream| upstream.status.is_none()) {
            if *error.esource() == ErrorSource::Upstream {
                self.end_attempt(ctx, None, now);
            } else {
                // A client that hangs up says nothing bad of the instance.
                self.abandon_attempt(ctx, now);
            }
        }
        self.judge_break(ctx, error, reused, now);
    }

    /// One event of it all.
    pub(super) fn finish(&self, session: &mut Session, ctx: &mut Ctx) {
        let status = session.response_written().map_or(ctx.replied.unwrap_or(0), |response| response.status.as_u16());
        let now = Instant::now();
        let duration = now.saturating_duration_since(ctx.start);
        ctx.permit = None;
        self.judge_end(ctx, now);
        let served = ctx.upstream.as_mut().map(|upstream| {
            upstream.lease = Lease::default();
            (upstream.flight, upstream.permit) = (None, None);
            upstream.subset
        });
        let judged = ctx.judged(status);
        if let Some(route) = ctx.route_side() {
            route.metrics.count(served.flatten(), judged);
        } else {
            self.metrics.count_unrouted(judged);
        }
        if let (Some(side), Some(subset)) = (ctx.service_side(), served) {
            let seconds = &side.metrics.request_seconds;
            seconds[subset.unwrap_or(seconds.len() - 1)].observe(duration.as_secs_f64());
            side.metrics.decision_seconds.observe(ctx.decision.as_secs_f64());
            live::count(&side.metrics.live, ctx, judged, duration);
        }
        self.finish_trace(session, ctx, status, now);
        if self.access_log.is_some() || !self.metrics.tail.is_idle() {
            tell(self, session, ctx, status, duration);
        }
    }
}

/// Tells the access log and whoever listens.
fn tell(edge: &Edge, session: &Session, ctx: &Ctx, status: u16, duration: Duration) {
    let Some(generation) = &ctx.generation else { return };
    let head = session.req_header();
    let host = head::host(head);
    let route = ctx.route.map(|route| &*generation.core.routes.routes()[route].name);
    let service = ctx.upstream.as_ref().map(|upstream| &generation.core.services[upstream.service]);
    let upstream = ctx.upstream.as_ref();
    let finished = Finished {
        method: head.method.as_str(),
        host: &host,
        path: head.uri.path(),
        status,
        route,
        service: service.map(|service| &*service.name),
        subset: service.zip(upstream).and_then(|(s, u)| Some(&*s.subsets[u.subset?].name)),
        why: upstream.map(|upstream| upstream.assignment.why),
        bucket: upstream.filter(|upstream| upstream.is_keyed()).map(|upstream| upstream.assignment.bucket),
        tag: service.zip(upstream).and_then(|(s, u)| Some(&*s.tags[u.assignment.rule?].name)),
        instance: service.zip(upstream).and_then(|(s, u)| Some(s.instances[*u.tried.last()? as usize].address)),
        fallback: upstream.and_then(|upstream| upstream.fallback),
        duration,
        decision: ctx.decision,
        request_id: ctx.request_id.as_str(),
        client_ip: ctx.client_ip,
        bytes_in: session.body_bytes_read() as u64,
        bytes_out: session.body_bytes_sent() as u64,
        attempts: upstream.map_or(0, |upstream| upstream.tried.len()),
        error: ctx.error,
        limit: ctx.limited_by.as_deref(),
        revision: (generation.routing_revision, generation.traffic_revision),
        trace_id: ctx.trace.as_ref().filter(|trace| trace.sent).map(|trace| trace.trace_id),
    };
    if let Some(log) = &edge.access_log {
        log.write(&finished);
    }
    if !edge.metrics.tail.is_idle() {
        edge.metrics.tail.tell(&finished, service.map(|service| &service.bucketing));
    }
}
