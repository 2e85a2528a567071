//! The headers of Zipkin, B3 (<https://github.com/openzipkin/b3-propagation>): all in one, or one for each part.

use http::{HeaderMap, HeaderName, HeaderValue};
use opentelemetry::trace::{SpanId, TraceId};

use super::context::{Parent, Traceparent, single, span_id, trace_id, visible};

/// All in one.
pub static B3: HeaderName = HeaderName::from_static("b3");
/// The trace.
pub static TRACE_ID: HeaderName = HeaderName::from_static("x-b3-traceid");
/// The span.
pub static SPAN_ID: HeaderName = HeaderName::from_static("x-b3-spanid");
/// The span before it.
pub static PARENT_ID: HeaderName = HeaderName::from_static("x-b3-parentspanid");
/// Whether it is sampled.
pub static SAMPLED: HeaderName = HeaderName::from_static("x-b3-sampled");
/// `1` for a trace that looks for a mistake.
pub static FLAGS: HeaderName = HeaderName::from_static("x-b3-flags");

/// What headers say of where a request comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extracted {
    /// A parent.
    Parent(Parent),
    /// No parent, but whether to sample.
    Decision(bool),
}

impl Extracted {
    /// The parent, if there is one.
    #[must_use]
    pub fn parent(self) -> Option<Parent> {
        if let Self::Parent(parent) = self { Some(parent) } else { None }
    }

    /// Whether the request is said to be sampled; `None` leaves that to us.
    #[must_use]
    pub fn sampled(self) -> Option<bool> {
        match self {
            Self::Parent(parent) => parent.sampled,
            Self::Decision(sampled) => Some(sampled),
        }
    }
}

/// How a trace is said to be sampled.
#[derive(Clone, Copy)]
struct State {
    sampled: Option<bool>,
    debug: bool,
}

impl State {
    fn parse(text: &[u8]) -> Option<Self> {
        match text {
            b"1" => Some(Self { sampled: Some(true), debug: false }),
            b"0" => Some(Self { sampled: Some(false), debug: false }),
            b"d" => Some(Self { sampled: Some(true), debug: true }),
            _ => None,
        }
    }

    fn text(sampled: bool, debug: bool) -> u8 {
        match (sampled, debug) {
            (true, true) => b'd',
            (true, false) => b'1',
            (false, _) => b'0',
        }
    }
}

/// What the header `b3` says: `{trace}-{span}[-{sampled}[-{parent}]]`, or `{sampled}` alone.
#[must_use]
pub fn extract(headers: &HeaderMap) -> Option<Extracted> {
    let text = single(headers, &B3)?;
    if let Some(state) = State::parse(text) {
        return state.sampled.map(Extracted::Decision);
    }
    let mut parts = text.split(|&byte| byte == b'-');
    let (trace, span) = (trace(parts.next()?)?, span_id(parts.next()?)?);
    let state = parts.next().map_or(Some(State { sampled: None, debug: false }), State::parse)?;
    if let Some(parent) = parts.next() {
        span_id(parent)?;
    }
    parts.next().is_none().then_some(Extracted::Parent(parent(trace, span, state)))
}

/// What the `X-B3-*` headers say.
#[must_use]
pub fn extract_multi(headers: &HeaderMap) -> Option<Extracted> {
    let debug = match single(headers, &FLAGS) {
        None if headers.contains_key(&FLAGS) => return None,
        flags => flags == Some(b"1"),
    };
    let sampled = match single(headers, &SAMPLED) {
        None if headers.contains_key(&SAMPLED) => return None,
        None => None,
        // Early tracers wrote words.
        Some(b"1" | b"true" | b"True") => Some(true),
        Some(b"0" | b"false" | b"False") => Some(false),
        Some(_) => return None,
    };
    let state = State { sampled: if debug { Some(true) } else { sampled }, debug };
    if !headers.contains_key(&TRACE_ID) && !headers.contains_key(&SPAN_ID) {
        return state.sampled.map(Extracted::Decision);
    }
    let (trace, span) = (trace(single(headers, &TRACE_ID)?)?, span_id(single(headers, &SPAN_ID)?)?);
    Some(Extracted::Parent(parent(trace, span, state)))
}

fn parent(trace_id: TraceId, span_id: SpanId, state: State) -> Parent {
    Parent { trace_id, span_id, sampled: state.sampled, debug: state.debug, random: false }
}

/// The identity of a trace; one of 64 bits has zeros before it.
fn trace(digits: &[u8]) -> Option<TraceId> {
    if digits.len() != 16 {
        return trace_id(digits);
    }
    let half = span_id(digits)?.to_bytes();
    Some(TraceId::from(u128::from(u64::from_be_bytes(half))))
}

/// Removes what an `X-B3-*` header says.
#[cold]
pub fn forget_multi(headers: &mut HeaderMap) {
    for name in [&TRACE_ID, &SPAN_ID, &PARENT_ID, &SAMPLED, &FLAGS] {
        headers.remove(name);
    }
}

/// Writes the header `b3`.
#[cold]
pub fn inject(headers: &mut HeaderMap, span: &Traceparent, sampled: bool, debug: bool) {
    let mut text = *b"00000000000000000000000000000000-0000000000000000-0";
    text[..32].copy_from_slice(span.trace());
    text[33..49].copy_from_slice(span.span());
    text[50] = State::text(sampled, debug);
    headers.insert(&B3, visible(&text));
}

/// Writes the `X-B3-*` headers.
#[cold]
pub fn inject_multi(headers: &mut HeaderMap, span: &Traceparent, sampled: bool, debug: bool) {
    headers.insert(&TRACE_ID, visible(span.trace()));
    headers.insert(&SPAN_ID, visible(span.span()));
    headers.remove(&PARENT_ID);
    if sampled && debug {
        headers.insert(&FLAGS, HeaderValue::from_static("1"));
        headers.remove(&SAMPLED);
    } else {
        headers.remove(&FLAGS);
        headers.insert(&SAMPLED, HeaderValue::from_static(if sampled { "1" } else { "0" }));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const T: &str = "80f198ee56343ba864fe8b2a57d3eff7";
    const S: &str = "e457b5a2e4d86bd1";

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &str)| {
            (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
        };
        let mut all = HeaderMap::new();
        for (name, value) in pairs.iter().map(pair) {
            all.append(name, value);
        }
        all
    }

    /// The span if there is a parent, how it is sampled, whether it looks for a mistake.
    type Seen = Option<(bool, Option<bool>, bool)>;

    fn seen(extracted: Option<Extracted>) -> Seen {
        extracted.map(|extracted| match extracted {
            Extracted::Parent(parent) => (true, parent.sampled, parent.debug),
            Extracted::Decision(sampled) => (false, Some(sampled), false),
        })
    }

    #[test]
    fn what_one_header_says() {
        let cases: [(String, Seen); 17] = [
            (format!("{T}-{S}-1-05e3ac9a4f6e3b90"), Some((true, Some(true), false))),
            (format!("{T}-{S}-1"), Some((true, Some(true), false))),
            (format!("{T}-{S}-0"), Some((true, Some(false), false))),
            (format!("{T}-{S}-d"), Some((true, Some(true), true))),
            (format!("{T}-{S}"), Some((true, None, false))),
            (format!("{}-{S}", &T[16..]), Some((true, None, false))),
            ("0".to_owned(), Some((false, Some(false), false))),
            ("1".to_owned(), Some((false, Some(true), false))),
            ("d".to_owned(), Some((false, Some(true), false))),
            (format!("{T}-{S}-x"), None),
            (format!("{T}-{S}-1-{S}-1"), None),
            (format!("{T}-{S}-1-no"), None),
            (format!("{T}-{}", &S[1..]), None),
            (format!("{}-{S}-1", T.to_uppercase()), None),
            (format!("{}-{S}-1", "0".repeat(32)), None),
            (T.to_owned(), None),
            (String::new(), None),
        ];
        for (text, expected) in cases {
            assert_eq!(seen(extract(&headers(&[("b3", &text)]))), expected, "{text}");
        }
    }

    #[test]
    fn what_several_headers_say() {
        let ids = [("x-b3-traceid", T), ("x-b3-spanid", S)];
        let cases: [(&[(&'static str, &str)], Seen); 11] = [
            (&[ids[0], ids[1], ("x-b3-sampled", "1")], Some((true, Some(true), false))),
            (&[ids[0], ids[1], ("x-b3-sampled", "false")], Some((true, Some(false), false))),
            (&[ids[0], ids[1]], Some((true, None, false))),
            (&[ids[0], ids[1], ("x-b3-flags", "1")], Some((true, Some(true), true))),
            (&[("x-b3-traceid", &T[16..]), ids[1]], Some((true, None, false))),
            (&[("x-b3-sampled", "0")], Some((false, Some(false), false))),
            (&[ids[0], ids[1], ("x-b3-sampled", "maybe")], None),
            (&[ids[0]], None),
            (&[ids[1]], None),
            (&[ids[0], ids[0], ids[1]], None),
            (&[], None),
        ];
        for (pairs, expected) in cases {
            assert_eq!(seen(extract_multi(&headers(pairs))), expected, "{pairs:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn what_is_written_is_read_again(trace in 1..u128::MAX, span in 1..u64::MAX, sampled: bool, debug: bool) {
            let (trace, span) = (TraceId::from(trace), SpanId::from(span));
            let state = State { sampled: Some(sampled), debug: sampled && debug };
            let expected = Some(Extracted::Parent(parent(trace, span, state)));
            let span = Traceparent::new(trace, span, 0);
            let mut headers = HeaderMap::new();
            inject(&mut headers, &span, sampled, debug);
            inject_multi(&mut headers, &span, sampled, debug);
            prop_assert_eq!(extract(&headers), expected);
            prop_assert_eq!(extract_multi(&headers), expected);
        }

        #[test]
        fn nothing_makes_it_panic(text in prop::collection::vec(32..127_u8, 0..80)) {
            let mut headers = HeaderMap::new();
            for name in [&B3, &TRACE_ID, &SPAN_ID, &SAMPLED, &FLAGS] {
                headers.insert(name, HeaderValue::from_bytes(&text).unwrap());
            }
            let _ = (extract(&headers), extract_multi(&headers));
        }
    }
}
