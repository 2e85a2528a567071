//! Identities of requests, and of the traces that begin with them.

use opentelemetry::trace::{SpanId, TraceId};

use crate::telemetry::traces::context::{self, Traceparent, hex};

/// 128 random bits, as they are and in hexadecimal. A request and the trace that begins with it share one, so that each
/// leads to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    halves: [u64; 2],
    /// All digits that headers need.
    traceparent: Traceparent,
}

impl Identity {
    /// Makes one from random bits. No half is 0, which is no identity of a trace or of a span.
    #[must_use]
    pub fn new(random: [u64; 2]) -> Self {
        let halves = random.map(|half| half.max(1));
        let digits = hex(wide(halves).to_be_bytes());
        Self { halves, traceparent: Traceparent::of(&digits, &digits.as_chunks().0[1], context::RANDOM) }
    }

    /// The half that samplers draw on: the lower one, as `TraceIdRatioBased` of OpenTelemetry does.
    #[must_use]
    pub fn draw(&self) -> u64 {
        self.halves[1]
    }

    /// As that of a trace.
    #[must_use]
    pub fn trace_id(&self) -> TraceId {
        TraceId::from(wide(self.halves))
    }

    /// As that of the first span of the trace: the lower half, as Zipkin and Jaeger have it.
    #[must_use]
    pub fn span_id(&self) -> SpanId {
        SpanId::from(self.halves[1])
    }

    /// What other services are told of such a trace, unless it is sampled.
    #[must_use]
    pub fn traceparent(&self) -> &Traceparent {
        &self.traceparent
    }
}

fn wide([upper, lower]: [u64; 2]) -> u128 {
    u128::from(upper) << 64 | u128::from(lower)
}

/// Identity of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestId {
    /// A random one.
    Random(Identity),
    /// One that a trusted peer sent: short, visible ASCII.
    Given(Box<str>),
}

impl RequestId {
    /// Longest identity that is taken over.
    pub const MAX: usize = 128;

    /// A random identity.
    #[must_use]
    pub fn random(random: [u64; 2]) -> Self {
        Self::Random(Identity::new(random))
    }

    /// An identity that somebody else chose, if it is short, visible ASCII.
    #[must_use]
    pub fn given(text: &[u8]) -> Option<Self> {
        let fine = !text.is_empty() && text.len() <= Self::MAX && text.iter().all(u8::is_ascii_graphic);
        fine.then(|| std::str::from_utf8(text).ok().map(|text| Self::Given(text.into())))?
    }

    /// The bits of a random one.
    #[must_use]
    pub fn identity(&self) -> Option<&Identity> {
        if let Self::Random(identity) = self { Some(identity) } else { None }
    }

    /// As text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            // Hexadecimal digits are always UTF-8.
            Self::Random(identity) => std::str::from_utf8(identity.traceparent.trace()).unwrap_or_default(),
            Self::Given(text) => text,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn digits_say_what_the_bits_are(random: [u64; 2]) {
            let identity = Identity::new(random);
            let (trace, span) = (identity.trace_id(), identity.span_id());
            let id = RequestId::random(random);
            prop_assert_eq!(trace.to_string(), id.as_str());
            prop_assert_eq!(identity.traceparent(), &Traceparent::new(trace, span, context::RANDOM));
            prop_assert_eq!(identity.draw().to_be_bytes(), span.to_bytes());
            prop_assert_eq!(&trace.to_bytes()[8..], span.to_bytes());
        }
    }

    #[test]
    fn nothing_is_identified_by_zeros() {
        let identity = Identity::new([0, 0]);
        assert!(identity.trace_id() != TraceId::INVALID && identity.span_id() != SpanId::INVALID);
    }

    #[test]
    fn a_peer_gives_short_visible_text() {
        for (text, fine) in
            [("a", true), (&*"x".repeat(128), true), (&"x".repeat(129), false), ("", false), ("a b", false)]
        {
            assert_eq!(RequestId::given(text.as_bytes()).is_some(), fine, "{text}");
        }
    }
}
