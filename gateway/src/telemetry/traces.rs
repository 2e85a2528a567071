//! Traces: whether a request is sampled, and what other services are told of it. Unless spans will be sent, nothing is
//! made but an identity of 24 bytes; what a span says is put together at the end, from what the request knows of itself.

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

use self::context::{Carried, Parent};
use self::queue::Queue;
use self::span::Spans;
use crate::conf::{self, Propagation, TrustParent};

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

/// How requests are traced.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Share of the requests without a parent that is obeyed.
    pub sample: Share,
    /// Whose word on sampling is taken.
    pub trust: TrustParent,
    /// Formats, in the order of preference.
    pub formats: Vec<Propagation>,
    /// Whether spans of failed requests are sent in any case.
    pub on_error: bool,
    /// From when on spans of slow requests are sent in any case.
    pub slow_over: Option<Duration>,
    /// The header that has a request sampled.
    pub debug_header: Option<HeaderName>,
}

/// What a decision needs besides the request's headers.
#[derive(Clone, Copy, Debug)]
pub struct Circumstances {
    /// Whether the peer is a trusted proxy.
    pub trusted_proxy: bool,
    /// Whether a signed debug header asks for it.
    pub debug: bool,
    /// The route's own share.
    pub sample: Option<Share>,
    /// Random bits.
    pub random: [u64; 3],
}

impl Policy {
    /// Decides how a request is traced.
    #[must_use]
    #[inline(never)] // Inlined, the route's share was once taken apart bit by bit: a thousand instructions.
    pub fn begin(&self, headers: &HeaderMap, circumstances: &Circumstances) -> Trace {
        // Most requests bring nothing of the kind, and one look at the names is quicker than one for each of them.
        if headers.keys().any(context::is_context) {
            self.go_on(headers, circumstances)
        } else {
            self.start(circumstances.debug || self.takes(circumstances), circumstances.random)
        }
    }

    /// A trace of our own.
    fn start(&self, sampled: bool, random: [u64; 3]) -> Trace {
        Trace {
            trace_id: TraceId::from(nonzero(wide(random[0], random[1]))),
            span_id: new_span_id(random[2]),
            parent: None,
            sampled,
            recorded: sampled || self.on_error || self.slow_over.is_some(),
            debug: false,
            random: true,
            untouched: false,
            bare: true,
            keeps_state: false,
            attempts: Vec::new(),
            grpc_status: None,
            sent: false,
        }
    }

    /// The trace of a request whose headers say something of one.
    #[cold]
    fn go_on(&self, headers: &HeaderMap, circumstances: &Circumstances) -> Trace {
        let trusted = match self.trust {
            TrustParent::Any => true,
            TrustParent::TrustedProxies => circumstances.trusted_proxy,
            TrustParent::Never => false,
        };
        let (origin, format) = self.extract(headers);
        let (parent, said) = match origin {
            Origin::Parent(parent) => (Some(parent), parent.sampled),
            Origin::Decision(sampled) => (None, Some(sampled)),
            Origin::Nothing => (None, None),
        };
        let obeyed = said.filter(|_| trusted);
        let sampled = circumstances.debug || obeyed.unwrap_or_else(|| self.takes(circumstances));
        let ours = self.start(sampled, circumstances.random);
        Trace {
            trace_id: parent.map_or(ours.trace_id, |parent| parent.trace_id),
            parent: parent.map(|parent| parent.span_id),
            debug: sampled && trusted && parent.is_some_and(|parent| parent.debug),
            random: parent.is_none_or(|parent| parent.random),
            // Whoever said that it is not sampled is right, and may be passed on as it is.
            untouched: !sampled && said == Some(false),
            bare: false,
            keeps_state: format == Some(Propagation::Tracecontext) && context::is_sound_state(headers),
            ..ours
        }
    }

    /// Whether the share has a request sampled: by the lower half of the trace's identity, as samplers of OpenTelemetry
    /// (TraceIdRatioBased) do further on. What is sampled here is sampled by each of them whose share is as large.
    fn takes(&self, circumstances: &Circumstances) -> bool {
        circumstances.sample.unwrap_or(self.sample).takes(circumstances.random[1])
    }

    /// What the first format that is sound says.
    fn extract(&self, headers: &HeaderMap) -> (Origin, Option<Propagation>) {
        for &format in &self.formats {
            let b3 = match format {
                Propagation::Tracecontext => match context::extract(headers) {
                    Some(parent) => return (Origin::Parent(parent), Some(format)),
                    None => continue,
                },
                Propagation::B3 => b3::extract(headers),
                Propagation::B3multi => b3::extract_multi(headers),
                Propagation::Baggage => None,
            };
            match b3 {
                Some(b3::Extracted::Parent(parent)) => return (Origin::Parent(parent), Some(format)),
                Some(b3::Extracted::Decision(sampled)) => return (Origin::Decision(sampled), Some(format)),
                None => {}
            }
        }
        (Origin::Nothing, None)
    }

    /// Tells the next service of the trace. An attempt has a span of its own only if it is recorded.
    pub fn inject(&self, headers: &mut HeaderMap, trace: &Trace, instance: Option<u32>) -> Carried {
        if let Some(name) = &self.debug_header {
            headers.remove(name);
        }
        let attempt = instance.and_then(|instance| trace.attempt(instance));
        let span = attempt.map_or(trace.span_id, |attempt| attempt.span_id);
        for &format in &self.formats {
            match format {
                Propagation::Baggage if trace.bare => {}
                Propagation::Baggage => baggage::clean(headers),
                _ if trace.untouched => {}
                Propagation::Tracecontext => {
                    headers.insert(&context::TRACEPARENT, context::traceparent(trace.trace_id, span, trace.flags()));
                    if !trace.keeps_state && !trace.bare {
                        headers.remove(&context::TRACESTATE);
                    }
                }
                Propagation::B3 => b3::inject(headers, trace.trace_id, span, trace.sampled, trace.debug),
                Propagation::B3multi => b3::inject_multi(headers, trace.trace_id, span, trace.sampled, trace.debug),
            }
        }
        let told_so = || self.formats.contains(&Propagation::Tracecontext) || context::is_sampled(headers);
        Carried { takes_state: trace.sampled && told_so(), bare: trace.bare }
    }
}

/// What headers say of where a request comes from.
enum Origin {
    Parent(Parent),
    Decision(bool),
    Nothing,
}

/// The trace of one request.
#[derive(Debug)]
pub struct Trace {
    /// Its identity.
    pub trace_id: TraceId,
    /// The span of the request.
    pub span_id: SpanId,
    /// The span that it comes from.
    pub parent: Option<SpanId>,
    /// Whether it is sampled.
    pub sampled: bool,
    /// Whether its attempts are noted: its spans are sent, or may be.
    pub recorded: bool,
    debug: bool,
    random: bool,
    /// Whether it was not sampled by whom it comes from, whose word is passed on as it is.
    untouched: bool,
    /// Whether it came without any headers of a trace.
    bare: bool,
    keeps_state: bool,
    /// Its attempts so far, in the order in which they began.
    pub attempts: Vec<Attempt>,
    /// The status of a gRPC call.
    pub grpc_status: Option<u8>,
    /// Whether its spans were sent.
    pub sent: bool,
}

impl Trace {
    /// The flags of Trace Context.
    #[must_use]
    pub fn flags(&self) -> u8 {
        (u8::from(self.sampled) * context::SAMPLED) | (u8::from(self.random) * context::RANDOM)
    }

    /// Whether the `tracestate` that came with the request belongs to it.
    #[must_use]
    pub fn keeps_state(&self) -> bool {
        self.keeps_state
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

fn wide(high: u64, low: u64) -> u128 {
    u128::from(high) << 64 | u128::from(low)
}

/// Identities must not be 0.
fn nonzero<T: Default + PartialEq + From<u8>>(random: T) -> T {
    if random == T::default() { T::from(1) } else { random }
}

/// The identity of a span from random bits.
#[must_use]
pub fn new_span_id(random: u64) -> SpanId {
    SpanId::from(nonzero(random))
}

#[cfg(test)]
mod tests;
