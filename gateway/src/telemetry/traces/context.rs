//! The identity of a trace, and what its headers say: W3C Trace Context (<https://www.w3.org/TR/trace-context-2/>).
//! Whatever is malformed is as if it were not there.

use http::{HeaderMap, HeaderName, HeaderValue};
use opentelemetry::trace::{SpanId, TraceId};

use crate::text::header_value;

/// The header that says which trace a request belongs to.
pub static TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// What tracing systems along the way have noted.
pub static TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// Length of a `traceparent` of version 00.
const LENGTH: usize = 55;
/// The flag of a trace that is sampled (section 3.2.2.5.1).
pub const SAMPLED: u8 = 0x01;
/// The flag of a trace whose identity is random (section 3.2.2.5.2).
pub const RANDOM: u8 = 0x02;
/// Most members of `tracestate` (section 3.3.1.1).
pub const MAX_MEMBERS: usize = 32;
/// Longest `tracestate` that is passed on, in bytes; a vendor must pass on 512 (section 3.3.1.5).
const MAX_STATE: usize = 4_096;

/// Whether a header is one of those that say something of a trace, in any format.
#[must_use]
pub fn is_context(name: &HeaderName) -> bool {
    // Hardly any other name begins like one of them, so that this is all that most requests run.
    match name.as_str().as_bytes() {
        name @ ([b't', b'r', ..] | [b'b', ..] | [b'x', b'-', b'b', ..]) => is_context_whole(name),
        _ => false,
    }
}

#[cold]
fn is_context_whole(name: &[u8]) -> bool {
    matches!(name, b"traceparent" | b"tracestate" | b"baggage" | b"b3") || name.starts_with(b"x-b3-")
}

/// What a request upstream carries of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carried {
    /// Whether the chosen version goes into `tracestate`: into that of a trace that somebody will look at.
    pub takes_state: bool,
    /// Whether nothing of the kind came with the request.
    pub bare: bool,
}

impl Carried {
    /// As its headers have it.
    #[must_use]
    pub fn by(headers: &HeaderMap) -> Self {
        Self { takes_state: is_sampled(headers), bare: false }
    }
}

/// Whether a trace is sampled, as its headers have it.
#[must_use]
pub fn is_sampled(headers: &HeaderMap) -> bool {
    extract(headers).is_some_and(|parent| parent.sampled == Some(true))
}

/// What a request says of the span that it comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parent {
    /// The trace.
    pub trace_id: TraceId,
    /// The span.
    pub span_id: SpanId,
    /// Whether it is sampled; `None` leaves that to us (B3).
    pub sampled: Option<bool>,
    /// Whether it is sampled in order to look for a mistake (B3).
    pub debug: bool,
    /// Whether the identity of the trace is said to be random.
    pub random: bool,
}

/// The parent in `traceparent`. More than one such header is none.
#[must_use]
pub fn extract(headers: &HeaderMap) -> Option<Parent> {
    parse(single(headers, &TRACEPARENT)?)
}

/// The value of a header that is there once.
pub(super) fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a [u8]> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?;
    values.next().is_none().then(|| value.as_bytes())
}

/// Parses a `traceparent`. Of a later version, what version 00 knows of it is read (section 3.2.4).
#[must_use]
pub fn parse(text: &[u8]) -> Option<Parent> {
    let (head, rest) = text.split_at_checked(LENGTH)?;
    let dashes = [2, 35, 52].iter().all(|&at| head[at] == b'-');
    let version = byte(&head[..2])?;
    let ends = if version == 0 { rest.is_empty() } else { rest.first().is_none_or(|&next| next == b'-') };
    if !dashes || version == 0xff || !ends {
        return None;
    }
    let flags = byte(&head[53..])?;
    Some(Parent {
        trace_id: trace_id(&head[3..35])?,
        span_id: span_id(&head[36..52])?,
        sampled: Some(flags & SAMPLED != 0),
        debug: false,
        random: flags & RANDOM != 0,
    })
}

/// A `traceparent` of version 00 that goes to the next service. Other formats take their digits from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traceparent([u8; LENGTH]);

impl Traceparent {
    /// Of the flags, those that this version knows are written.
    #[must_use]
    pub fn new(trace: TraceId, span: SpanId, flags: u8) -> Self {
        Self::of(&hex(trace.to_bytes()), &span_digits(span), flags)
    }

    pub(crate) fn of(trace: &[u8; 32], span: &[u8; 16], flags: u8) -> Self {
        let mut text = *b"00-00000000000000000000000000000000-0000000000000000-00";
        text[3..35].copy_from_slice(trace);
        text[36..52].copy_from_slice(span);
        text[54] |= flags & (SAMPLED | RANDOM);
        Self(text)
    }

    /// The same for another span of the trace.
    #[must_use]
    #[cold]
    pub fn with_span(mut self, span: SpanId) -> Self {
        self.0[36..52].copy_from_slice(&span_digits(span));
        self
    }

    /// The same for a trace that is sampled.
    #[must_use]
    pub fn sampled(mut self) -> Self {
        self.0[54] |= SAMPLED;
        self
    }

    /// The digits of the trace.
    #[must_use]
    pub fn trace(&self) -> &[u8] {
        &self.0[3..35]
    }

    /// The digits of the span.
    #[must_use]
    pub fn span(&self) -> &[u8] {
        &self.0[36..52]
    }

    /// As a header has it.
    #[must_use]
    pub fn to_value(&self) -> HeaderValue {
        visible(&self.0)
    }
}

/// Whether every `tracestate` is sound (section 3.3.1): otherwise none of it is passed on.
#[must_use]
pub fn is_sound_state(headers: &HeaderMap) -> bool {
    let (mut length, mut members) = (0, 0);
    headers.get_all(&TRACESTATE).iter().all(|line| {
        length += line.len();
        line.as_bytes().split(|&byte| byte == b',').map(|member| member.trim_ascii()).all(|member| {
            members += usize::from(!member.is_empty());
            member.is_empty() || is_member(member)
        }) && length <= MAX_STATE
            && members <= MAX_MEMBERS
    })
}

/// A member of `tracestate`: `key=value`.
fn is_member(member: &[u8]) -> bool {
    let Some(at) = member.iter().position(|&byte| byte == b'=') else { return false };
    let (key, value) = (&member[..at], &member[at + 1..]);
    let plain = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-*/@".contains(byte);
    let begins = key.first().is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    let fine = |byte: &u8| matches!(byte, 0x20..=0x7e) && !b",=".contains(byte);
    begins && key.len() <= 256 && key.iter().all(plain) && (1..=256).contains(&value.len()) && value.iter().all(fine)
}

/// The identity of a trace: 32 digits of lower-case hexadecimal, not all of them 0.
pub(super) fn trace_id(digits: &[u8]) -> Option<TraceId> {
    let id = TraceId::from_bytes(unhex(digits)?);
    (id != TraceId::INVALID).then_some(id)
}

/// The identity of a span: 16 digits of lower-case hexadecimal, not all of them 0.
pub(super) fn span_id(digits: &[u8]) -> Option<SpanId> {
    let id = SpanId::from_bytes(unhex(digits)?);
    (id != SpanId::INVALID).then_some(id)
}

fn byte(digits: &[u8]) -> Option<u8> {
    unhex::<1>(digits).map(|[byte]| byte)
}

fn unhex<const N: usize>(digits: &[u8]) -> Option<[u8; N]> {
    let digit = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    (digits.len() == 2 * N).then_some(bytes)
}

/// Lower-case hexadecimal, worked out for all bytes at once: without a table, and without a loop that is unrolled into
/// kilobytes, which every request would have to fetch.
#[inline(never)]
#[must_use]
pub fn hex(bytes: [u8; 16]) -> [u8; 32] {
    let digit = |nibble: u8| nibble + if nibble < 10 { b'0' } else { b'a' - 10 };
    let mut digits = [0; 32];
    for (pair, byte) in digits.as_chunks_mut().0.iter_mut().zip(bytes) {
        *pair = [digit(byte >> 4), digit(byte & 15)];
    }
    digits
}

fn span_digits(span: SpanId) -> [u8; 16] {
    hex(u128::from(u64::from_be_bytes(span.to_bytes())).to_be_bytes()).as_chunks().0[1]
}

/// A header value of what is visible ASCII.
pub(super) fn visible(text: &[u8]) -> HeaderValue {
    header_value(text).unwrap_or_else(|_| HeaderValue::from_static(""))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn what_is_a_traceparent_and_what_is_none() {
        let cases = [
            (GOOD.to_owned(), Some(Some(true))),
            (GOOD.replace("-01", "-00"), Some(Some(false))),
            (GOOD.replace("-01", "-fe"), Some(Some(false))),
            (GOOD.replace("-01", "-03"), Some(Some(true))),
            (GOOD.replacen("00-", "cc-", 1), Some(Some(true))),
            (GOOD.replacen("00-", "cc-", 1) + "-what-comes", Some(Some(true))),
            (GOOD.replacen("00-", "cc-", 1) + ".what", None),
            (GOOD.to_owned() + "-more", None),
            (GOOD.to_owned() + "-", None),
            (GOOD.to_owned() + " ", None),
            (GOOD.replacen("00-", "ff-", 1), None),
            (GOOD.replacen("00-", "0-", 1), None),
            (GOOD.to_uppercase(), None),
            (GOOD.replace("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32)), None),
            (GOOD.replace("b7ad6b7169203331", &"0".repeat(16)), None),
            (GOOD.replace("b7ad6b7169203331", "b7ad6b716920333g"), None),
            (GOOD.replace("-b7", "_b7"), None),
            (GOOD[..54].to_owned(), None),
            (GOOD.replace("-01", "-0"), None),
            ("\u{e4}".repeat(40), None),
            (String::new(), None),
        ];
        for (text, sampled) in cases {
            assert_eq!(parse(text.as_bytes()).map(|parent| parent.sampled), sampled, "{text}");
        }
    }

    #[test]
    fn headers_of_a_trace_are_known_by_their_names() {
        for name in ["traceparent", "tracestate", "baggage", "b3", "x-b3-traceid", "x-b3-flags"] {
            assert!(is_context(&HeaderName::from_static(name)), "{name}");
        }
        for name in ["host", "trace", "x-b4-traceid", "b33", "x-request-id"] {
            assert!(!is_context(&HeaderName::from_static(name)), "{name}");
        }
    }

    #[test]
    fn two_traceparents_are_none() {
        let mut headers = HeaderMap::new();
        headers.append(&TRACEPARENT, HeaderValue::from_static(GOOD));
        assert!(extract(&headers).is_some());
        headers.append(&TRACEPARENT, HeaderValue::from_static(GOOD));
        assert_eq!(extract(&headers), None);
    }

    #[test]
    fn what_is_a_sound_tracestate() {
        let long = "v".repeat(257);
        let many = (0..33).map(|key| format!("k{key}=v")).collect::<Vec<_>>().join(",");
        let cases = [
            ("", true),
            ("rojo=00f067aa0ba902b7,congo=t61rcWkgMzE", true),
            ("a@b=1 , c=2,,", true),
            ("1a-_*/=~", true),
            ("a", false),
            ("a=", false),
            ("=a", false),
            ("A=a", false),
            ("a=b=c", false),
            ("_a=b", false),
            (&format!("a={long}"), false),
            (&format!("a={}", &long[1..]), true),
            (&format!("{long}=a"), false),
            (&many, false),
            (many.rsplit_once(',').unwrap().0, true),
        ];
        for (text, sound) in cases {
            let mut headers = HeaderMap::new();
            headers.append(&TRACESTATE, HeaderValue::from_str(text).unwrap());
            assert_eq!(is_sound_state(&headers), sound, "{text}");
        }
        assert!(is_sound_state(&HeaderMap::new()));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn what_is_written_is_read_again(trace: [u8; 16], span: [u8; 8], flags: u8) {
            let (trace, span) = (TraceId::from_bytes(trace), SpanId::from_bytes(span));
            let written = Traceparent::new(trace, span, flags);
            prop_assert_eq!(Traceparent::new(trace, SpanId::from(1), flags).with_span(span), written);
            let read = parse(written.to_value().as_bytes());
            if trace == TraceId::INVALID || span == SpanId::INVALID {
                prop_assert_eq!(read, None);
            } else {
                let sampled = Some(flags & SAMPLED != 0);
                let random = flags & RANDOM != 0;
                prop_assert_eq!(read, Some(Parent { trace_id: trace, span_id: span, sampled, debug: false, random }));
            }
        }

        #[test]
        fn nothing_makes_it_panic(text in prop::collection::vec(any::<u8>(), 0..80), at in 0..55_usize, byte: u8) {
            let _ = parse(&text);
            let mut near = GOOD.as_bytes().to_vec();
            near[at] = byte;
            if let Some(parent) = parse(&near) {
                prop_assert!(parent.trace_id != TraceId::INVALID && parent.span_id != SpanId::INVALID);
            }
        }
    }
}
