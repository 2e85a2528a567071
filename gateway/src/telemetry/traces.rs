//! Traces: whether a request is sampled, and what other services are told of it. Unless spans will be sent, nothing is
//! made but the headers that go on; what a span says is put together at the end, from what the request knows of itself.
//! What most requests do not need is marked as cold, and lies apart from what they run.

pub mod b3;
pub mod baggage;
pub mod context;
pub mod queue;
pub mod span;

use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{HeaderMap, HeaderName};
use opentelemetry::trace::{SpanId, TraceId};
use prometheus::IntCounter;
use serin_core::breaker::Phase;
use serin_core::subset::FallbackReason;

use self::b3::Extracted;
use self::context::{Carried, Traceparent};
use self::queue::Queue;
use self::span::Spans;
use crate::conf::{self, Propagation, TrustParent};
use crate::identity::Identity;

/// What signed debug headers hold.
pub const DEBUG_VALUE: &str = "trace";

/// A share of requests, as a bound of 64 random bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share(u64);

impl From<conf::Percent> for Share {
    fn from(percent: conf::Percent) -> Self {
        let hundredths = u128::from(percent.hundredths());
        Self(u64::try_from((hundredths << 64) / 10_000).unwrap_or(u64::MAX))
    }
}

impl Share {
    /// A ratio from 0 to 1.
    #[must_use]
    pub fn of(ratio: f64) -> Self {
        // Casts of numbers that are too large give the largest one.
        Self((ratio * 2_f64.powi(64)) as u64)
    }

    fn takes(self, random: u64) -> bool {
        // All of them means all: the bound itself is one of the values.
        random < self.0 || self.0 == u64::MAX
    }
}

/// Formats of the headers of traces.
#[derive(Clone, Debug)]
pub struct Formats {
    /// In the order of preference.
    order: Vec<Propagation>,
    tracecontext: bool,
    baggage: bool,
    b3: bool,
    b3multi: bool,
}

impl From<Vec<Propagation>> for Formats {
    fn from(order: Vec<Propagation>) -> Self {
        let has = |format| order.contains(&format);
        Self {
            tracecontext: has(Propagation::Tracecontext),
            baggage: has(Propagation::Baggage),
            b3: has(Propagation::B3),
            b3multi: has(Propagation::B3multi),
            order,
        }
    }
}

/// How requests are traced.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Share of the requests without a parent that is obeyed.
    pub sample: Share,
    /// Whose word on sampling is taken.
    pub trust: TrustParent,
    /// In which formats other services are told of it.
    pub formats: Formats,
    /// Whether spans of failed requests are sent in any case.
    pub on_error: bool,
    /// From when on spans of slow requests are sent in any case.
    pub slow_over: Option<Duration>,
    /// The header that has a request sampled.
    pub debug_header: Option<HeaderName>,
}

/// What a decision needs besides the request's headers.
#[derive(Clone, Copy, Debug)]
pub struct Circumstances<'a> {
    /// Whether the peer is a trusted proxy.
    pub trusted_proxy: bool,
    /// Whether a signed debug header asks for it.
    pub debug: bool,
    /// The route's own share.
    pub share: Option<&'a Share>,
    /// The identity of a trace that begins here, and of the span of the request.
    pub identity: &'a Identity,
}

impl Policy {
    /// Whether a request is like most: it brings nothing of a trace, and no spans of it are sent. Other services are told
    /// of the trace that begins with its identity.
    #[must_use]
    pub fn is_plain(&self, headers: &HeaderMap, share: Option<&Share>, identity: &Identity) -> bool {
        !self.takes(share, identity)
            && !self.records(false)
            && !self.debug_header.as_ref().is_some_and(|name| headers.contains_key(name))
            && !headers.keys().any(context::is_context)
    }

    /// Decides how a request is traced: what other services are told, and its trace, if spans are sent or may be.
    #[must_use]
    #[inline(never)]
    pub fn begin(&self, headers: &HeaderMap, circumstances: &Circumstances<'_>) -> (SpanContext, Option<Trace>) {
        let trusted = match self.trust {
            TrustParent::Any => true,
            TrustParent::TrustedProxies => circumstances.trusted_proxy,
            TrustParent::Never => false,
        };
        let bare = !headers.keys().any(context::is_context);
        let (origin, format) = if bare { None } else { self.extract(headers) }.unzip();
        let parent = origin.and_then(|origin| origin.parent());
        let said = origin.and_then(|origin| origin.sampled());
        let identity = circumstances.identity;
        let drawn = || self.takes(circumstances.share, identity);
        let sampled = circumstances.debug || said.filter(|_| trusted).unwrap_or_else(drawn);
        let random = parent.is_none_or(|parent| parent.random);
        let trace_id = parent.map_or(identity.trace_id(), |parent| parent.trace_id);
        let flags = (u8::from(sampled) * context::SAMPLED) | (u8::from(random) * context::RANDOM);
        let context = SpanContext {
            traceparent: Some(match parent {
                Some(_) => Traceparent::new(trace_id, identity.span_id(), flags),
                None if sampled => identity.traceparent().sampled(),
                None => *identity.traceparent(),
            }),
            sampled,
            debug: sampled && trusted && parent.is_some_and(|parent| parent.debug),
            // Whoever said that it is not sampled is right, and may be passed on as it is.
            untouched: !sampled && said == Some(false),
            bare,
            keeps_state: format == Some(Propagation::Tracecontext) && context::is_sound_state(headers),
        };
        let trace = self.records(sampled).then(|| Trace {
            trace_id,
            span_id: identity.span_id(),
            flags,
            parent: parent.map(|parent| parent.span_id),
            keeps_state: context.keeps_state,
            attempts: Vec::new(),
            grpc_status: None,
            sent: false,
        });
        (context, trace)
    }

    /// Whether spans are sent, or may yet be.
    fn records(&self, sampled: bool) -> bool {
        sampled || self.on_error || self.slow_over.is_some()
    }

    /// Whether the share has a request sampled: by the lower half of the trace's identity, as samplers of OpenTelemetry
    /// (TraceIdRatioBased) do further on. What is sampled here is sampled by each of them whose share is as large.
    fn takes(&self, share: Option<&Share>, identity: &Identity) -> bool {
        share.unwrap_or(&self.sample).takes(identity.draw())
    }

    /// What the first format that is sound says.
    fn extract(&self, headers: &HeaderMap) -> Option<(Extracted, Propagation)> {
        self.formats.order.iter().find_map(|&format| Some((said(format, headers)?, format)))
    }

    /// What a request that is not sampled says in other formats goes on only if it agrees: otherwise its client would have
    /// it sampled further on.
    #[cold]
    fn silence(&self, headers: &mut HeaderMap) {
        for &format in &self.formats.order {
            if said(format, headers).and_then(|said| said.sampled()) == Some(false) {
                continue;
            }
            match format {
                Propagation::Tracecontext => {
                    headers.remove(&context::TRACEPARENT);
                    headers.remove(&context::TRACESTATE);
                }
                Propagation::B3 => drop(headers.remove(&b3::B3)),
                Propagation::B3multi => b3::forget_multi(headers),
                Propagation::Baggage => {}
            }
        }
    }

    /// Tells the next service of the trace that begins with the request's own identity, or of another one, and of the
    /// span of an attempt, if it has one.
    pub fn inject(
        &self,
        headers: &mut HeaderMap,
        context: &SpanContext,
        own: Option<&Identity>,
        attempt: Option<SpanId>,
    ) -> Carried {
        if let Some(name) = &self.debug_header {
            forget(headers, name);
        }
        let formats = &self.formats;
        if formats.baggage && !context.bare {
            baggage::clean(headers);
        }
        if context.untouched {
            self.silence(headers);
        }
        let span = context.traceparent.as_ref().or(own.map(Identity::traceparent));
        if let Some(span) = span.filter(|_| !context.untouched) {
            let of_attempt = attempt.map(|attempt| span.with_span(attempt));
            let span = of_attempt.as_ref().unwrap_or(span);
            if formats.tracecontext {
                headers.insert(&context::TRACEPARENT, span.to_value());
                if !context.keeps_state && !context.bare {
                    forget(headers, &context::TRACESTATE);
                }
            }
            if formats.b3 {
                b3::inject(headers, span, context.sampled, context.debug);
            }
            if formats.b3multi {
                b3::inject_multi(headers, span, context.sampled, context.debug);
            }
        }
        let told_so = || formats.tracecontext || context::is_sampled(headers);
        Carried { takes_state: context.sampled && told_so(), bare: context.bare }
    }
}

#[cold]
fn forget(headers: &mut HeaderMap, name: &HeaderName) {
    headers.remove(name);
}

/// What the headers of a format say of where a request comes from.
fn said(format: Propagation, headers: &HeaderMap) -> Option<Extracted> {
    match format {
        Propagation::Tracecontext => context::extract(headers).map(Extracted::Parent),
        Propagation::B3 => b3::extract(headers),
        Propagation::B3multi => b3::extract_multi(headers),
        Propagation::Baggage => None,
    }
}

/// What other services are told of the trace of a request.
#[derive(Clone, Copy, Debug)]
pub struct SpanContext {
    /// `None` is that of the request's own identity.
    traceparent: Option<Traceparent>,
    sampled: bool,
    debug: bool,
    /// Whether it was not sampled by whom it comes from, whose word is passed on as it is.
    untouched: bool,
    /// Whether the request came without any headers of a trace.
    bare: bool,
    keeps_state: bool,
}

impl SpanContext {
    /// That of a request that is like most.
    pub const PLAIN: Self =
        Self { traceparent: None, sampled: false, debug: false, untouched: false, bare: true, keeps_state: false };
}

/// The trace of a request whose spans are sent, or may be.
#[derive(Debug)]
pub struct Trace {
    /// Its identity.
    pub trace_id: TraceId,
    /// The span of the request.
    pub span_id: SpanId,
    /// The flags of Trace Context.
    pub flags: u8,
    /// The span that it comes from.
    pub parent: Option<SpanId>,
    /// Whether the `tracestate` that came with the request belongs to it.
    pub keeps_state: bool,
    /// Its attempts so far, in the order in which they began.
    pub attempts: Vec<Attempt>,
    /// The status of a gRPC call.
    pub grpc_status: Option<u8>,
    /// Whether its spans were sent.
    pub sent: bool,
}

impl Trace {
    /// Whether its spans are sent however the request ends.
    #[must_use]
    pub fn is_sampled(&self) -> bool {
        self.flags & context::SAMPLED != 0
    }

    /// The latest attempt at an instance.
    #[must_use]
    pub fn attempt(&self, instance: u32) -> Option<&Attempt> {
        self.attempts.iter().rev().find(|attempt| attempt.instance == instance)
    }

    /// Changes the latest attempt at an instance, if it is still under way.
    pub fn note(&mut self, instance: u32, note: impl FnOnce(&mut Attempt)) {
        let latest = self.attempts.iter_mut().rev().find(|attempt| attempt.instance == instance);
        latest.filter(|attempt| attempt.end.is_none()).map(note);
    }
}

/// One attempt of a request that is recorded.
#[derive(Debug)]
pub struct Attempt {
    /// Its span.
    pub span_id: SpanId,
    /// Position of the instance.
    pub instance: u32,
    /// Position of the subset; `None` is any.
    pub subset: Option<usize>,
    /// Why it is another one than was meant.
    pub fallback: Option<FallbackReason>,
    /// State of the subset's breaker, if it has one.
    pub breaker: Option<Phase>,
    /// Whether round robin picked, in place of the service's chain.
    pub plain: bool,
    /// When it began.
    pub start: Instant,
    /// When it ended; `None` while it is under way.
    pub end: Option<Instant>,
    /// Status of its response.
    pub status: Option<u16>,
    /// What went wrong.
    pub error: Option<&'static str>,
}

/// Makes traces, and hands over what is to be sent.
pub struct Tracer {
    /// How requests are traced.
    pub policy: Policy,
    queue: Arc<Queue>,
    dropped: IntCounter,
}

thread_local! {
    /// Where spans are written: memory that is at hand.
    static SPANS: RefCell<Spans> = RefCell::default();
}

impl Tracer {
    /// A tracer whose spans go into a queue; `dropped` counts those that find no room there.
    #[must_use]
    pub fn new(policy: Policy, queue: Arc<Queue>, dropped: IntCounter) -> Self {
        Self { policy, queue, dropped }
    }

    /// Hands over the spans of a request, or drops and counts them: nobody ever waits for a receiver.
    pub fn send(&self, tell: impl FnOnce(&mut Spans)) {
        SPANS.with_borrow_mut(|spans| {
            spans.clear();
            tell(spans);
            if !self.queue.push(spans) {
                self.dropped.inc_by(u64::from(spans.count()));
            }
        });
    }
}

#[cfg(test)]
mod tests;
