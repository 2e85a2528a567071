//! Spans as OTLP has them (`opentelemetry/proto/trace/v1/trace.proto`), written as protobuf at once: a span is copied
//! from the request into the bytes that are sent, with nothing in between. The tests read them with the types that are
//! generated from the definition.

use opentelemetry::trace::{SpanId, TraceId};

/// Longest text of an attribute, in bytes: what clients send may be long.
const MAX_TEXT: usize = 1_024;
/// What comes before the bytes of a field takes up no more, if its number is below 16.
pub(in crate::telemetry) const MAX_HEAD: usize = 11;
/// How much memory is kept for the spans of the next request, in bytes.
const MAX_KEPT: usize = 16 << 10;
/// `SpanFlags`: whether the parent is in another process is known, and that it is.
const HAS_IS_REMOTE: u32 = 0x100;
const IS_REMOTE: u32 = 0x200;
/// `STATUS_CODE_ERROR`.
const ERROR: u64 = 2;

/// Wire types of protobuf.
const VARINT: u8 = 0;
const FIXED64: u8 = 1;
const BYTES: u8 = 2;
const FIXED32: u8 = 5;

/// `SpanKind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A request that came in.
    Server = 2,
    /// A request that went out.
    Client = 3,
}

/// What every span has.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    /// Its identity.
    pub span_id: SpanId,
    /// The span that it is part of.
    pub parent: Option<SpanId>,
    /// Its name, of words whose number is bounded: the method and, where it is known, the path.
    pub name: (&'a str, Option<&'a str>),
    /// What it is of.
    pub kind: Kind,
    /// When it began and ended, in nanoseconds since the Unix epoch.
    pub times: (u64, u64),
    /// Whether it failed.
    pub failed: bool,
}

/// The spans of one request, as repeated `spans` of a `ScopeSpans`.
#[derive(Debug, Default)]
pub struct Spans {
    bytes: Vec<u8>,
    count: u32,
}

impl Spans {
    /// Forgets them, and keeps the memory for others like them.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(MAX_KEPT);
        self.count = 0;
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The bytes of all of them.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Adds a span.
    pub fn add(&mut self, trace: &TraceContext<'_>, head: &Head<'_>, attributes: impl FnOnce(&mut Attributes<'_>)) {
        let start = self.open(trace, head);
        attributes(&mut Attributes { out: &mut self.bytes });
        self.close(start, trace, head);
        self.count += 1;
    }

    /// Writes what comes before the attributes; returns where the span begins.
    fn open(&mut self, trace: &TraceContext<'_>, head: &Head<'_>) -> usize {
        let out = &mut self.bytes;
        let start = open(out, 2);
        bytes(out, 1, &trace.trace_id.to_bytes());
        bytes(out, 2, &head.span_id.to_bytes());
        if !trace.state.is_empty() {
            bytes(out, 3, trace.state.as_bytes());
        }
        if let Some(parent) = head.parent {
            bytes(out, 4, &parent.to_bytes());
        }
        let (method, path) = head.name;
        begin(out, 5, method.len() + path.map_or(0, |path| 1 + path.len()));
        out.extend_from_slice(method.as_bytes());
        if let Some(path) = path {
            out.push(b' ');
            out.extend_from_slice(path.as_bytes());
        }
        tag(out, 6, VARINT);
        varint(out, head.kind as u64);
        for (field, time) in [(7, head.times.0), (8, head.times.1)] {
            tag(out, field, FIXED64);
            out.extend_from_slice(&time.to_le_bytes());
        }
        start
    }

    /// Writes what comes after them.
    fn close(&mut self, start: usize, trace: &TraceContext<'_>, head: &Head<'_>) {
        let out = &mut self.bytes;
        if head.failed {
            begin(out, 15, 1 + varint_size(ERROR));
            tag(out, 3, VARINT);
            varint(out, ERROR);
        }
        let remote = if head.kind == Kind::Server && head.parent.is_some() { IS_REMOTE } else { 0 };
        tag(out, 16, FIXED32);
        out.extend_from_slice(&(u32::from(trace.flags) | HAS_IS_REMOTE | remote).to_le_bytes());
        close(out, start);
    }
}

/// What the spans of one request have in common.
#[derive(Clone, Copy, Debug)]
pub struct TraceContext<'a> {
    /// The trace.
    pub trace_id: TraceId,
    /// Its flags.
    pub flags: u8,
    /// Its `tracestate`.
    pub state: &'a str,
}

/// Writes attributes.
pub struct Attributes<'a> {
    out: &'a mut Vec<u8>,
}

// Each of these is called dozens of times, and is there once.
impl Attributes<'_> {
    /// A text; what is too long is cut.
    #[inline(never)]
    pub fn text(&mut self, key: &str, text: &str) {
        let text = if text.len() > MAX_TEXT { cut(text) } else { text };
        self.begin(key, size(text.len()));
        bytes(self.out, 1, text.as_bytes());
    }

    /// A text, if there is one.
    pub fn maybe(&mut self, key: &str, text: Option<&str>) {
        if let Some(text) = text {
            self.text(key, text);
        }
    }

    /// A text that is put together; what is too long is cut.
    #[inline(never)]
    pub fn joined(&mut self, key: &str, parts: &[&str]) {
        let length = parts.iter().map(|part| part.len()).sum();
        if length > MAX_TEXT {
            return self.text(key, &parts.concat());
        }
        self.begin(key, size(length));
        begin(self.out, 1, length);
        for part in parts {
            self.out.extend_from_slice(part.as_bytes());
        }
    }

    /// A number.
    #[inline(never)]
    pub fn number(&mut self, key: &str, number: u64) {
        self.begin(key, 1 + varint_size(number));
        tag(self.out, 3, VARINT);
        varint(self.out, number);
    }

    /// Writes everything before an `AnyValue` of such a length.
    #[inline(never)]
    fn begin(&mut self, key: &str, value: usize) {
        let pair = key.len() + value + 4;
        if pair >= 0x80 {
            return self.begin_long(key, value);
        }
        self.out.extend_from_slice(&[9 << 3 | BYTES, pair as u8, 1 << 3 | BYTES, key.len() as u8]);
        self.out.extend_from_slice(key.as_bytes());
        self.out.extend_from_slice(&[2 << 3 | BYTES, value as u8]);
    }

    /// The same where a length takes more than a byte.
    #[cold]
    fn begin_long(&mut self, key: &str, value: usize) {
        begin(self.out, 9, size(key.len()) + size(value));
        bytes(self.out, 1, key.as_bytes());
        begin(self.out, 2, value);
    }
}

/// As much of a text as is told.
#[cold]
fn cut(text: &str) -> &str {
    let mut end = MAX_TEXT;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Begins the field of a message whose length is known afterwards, with room for the length that a span has; returns
/// where the message begins.
fn open(out: &mut Vec<u8>, field: u32) -> usize {
    tag(out, field, BYTES);
    out.extend_from_slice(&[0; 2]);
    out.len()
}

/// Ends it. If the length takes up more or less than there is room for, what was written moves.
fn close(out: &mut Vec<u8>, start: usize) {
    let length = out.len() - start;
    if varint_size(length as u64) == 2 {
        out[start - 2..start].copy_from_slice(&[length as u8 | 0x80, (length >> 7) as u8]);
    } else {
        let mut prefix = Vec::new();
        varint(&mut prefix, length as u64);
        out.splice(start - 2..start, prefix);
    }
}

/// Writes a field of bytes or text.
pub(in crate::telemetry) fn bytes(out: &mut Vec<u8>, field: u32, value: &[u8]) {
    begin(out, field, value.len());
    out.extend_from_slice(value);
}

/// Writes what comes before the bytes of a field: mostly two bytes, at once.
#[inline]
pub(in crate::telemetry) fn begin(out: &mut Vec<u8>, field: u32, length: usize) {
    if field < 0x10 && length < 0x80 {
        out.extend_from_slice(&[(field << 3) as u8 | BYTES, length as u8]);
    } else {
        tag(out, field, BYTES);
        varint(out, length as u64);
    }
}

/// What a field of bytes takes up, if its number is below 16.
pub(in crate::telemetry) fn size(length: usize) -> usize {
    1 + varint_size(length as u64) + length
}

fn tag(out: &mut Vec<u8>, field: u32, wire: u8) {
    varint(out, u64::from(field << 3 | u32::from(wire)));
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// What a number takes up: a byte for each seven bits.
fn varint_size(value: u64) -> usize {
    (value | 1).ilog2() as usize / 7 + 1
}

#[cfg(test)]
mod tests {
    use opentelemetry_proto::tonic::common::v1::any_value::Value;
    use opentelemetry_proto::tonic::trace::v1::{ScopeSpans, Span};
    use prost::Message as _;

    use super::*;

    fn decode(spans: &Spans) -> Vec<Span> {
        ScopeSpans::decode(spans.bytes()).unwrap().spans
    }

    fn texts(span: &Span) -> Vec<(String, Value)> {
        let value = |pair: &opentelemetry_proto::tonic::common::v1::KeyValue| {
            (pair.key.clone(), pair.value.clone().unwrap().value.unwrap())
        };
        span.attributes.iter().map(value).collect()
    }

    #[test]
    fn messages_of_any_length_are_read() {
        for length in [0, 1, 127, 128, 16_383, 16_384, 3 << 20] {
            let mut out = b"before".to_vec();
            let start = open(&mut out, 2);
            out.resize(start + length, 7);
            close(&mut out, start);
            let mut read = &out[6..];
            assert_eq!(
                prost::encoding::decode_key(&mut read).unwrap(),
                (2, prost::encoding::WireType::LengthDelimited)
            );
            assert_eq!(prost::decode_length_delimiter(&mut read).unwrap(), length);
            assert!(read.len() == length && read.iter().all(|byte| *byte == 7));
            assert_eq!(size(length), out.len() - 6);
        }
    }

    #[test]
    fn what_is_written_is_what_otlp_reads() {
        let trace = TraceContext { trace_id: TraceId::from(7), flags: 3, state: "a=1" };
        let head = Head {
            span_id: SpanId::from(5),
            parent: Some(SpanId::from(4)),
            name: ("GET", Some("/users")),
            kind: Kind::Server,
            times: (1_000_000_007, u64::MAX),
            failed: true,
        };
        let mut spans = Spans::default();
        spans.add(&trace, &head, |attributes| {
            attributes.text("a", "b");
            attributes.maybe("none", None);
            attributes.number("n", 1 << 40);
            attributes.joined("address", &["127.0.0.1", ":", "80"]);
            attributes.joined("joined", &["v".repeat(60).as_str(), &"w".repeat(60)]);
            attributes.text("long", &"\u{e4}x".repeat(700));
            attributes.text("", "");
            for length in 110..130 {
                attributes.text("a", &"b".repeat(length));
            }
            attributes.number("large", u64::MAX >> 1);
            attributes.text(&"k".repeat(200), "");
        });
        let plain = Head { parent: None, kind: Kind::Client, failed: false, ..head };
        spans.add(&TraceContext { state: "", flags: 0, ..trace }, &plain, |_| {});
        assert_eq!(spans.count(), 2);
        let read = decode(&spans);
        assert_eq!(read.len(), 2);
        let (first, second) = (&read[0], &read[1]);
        assert_eq!(first.trace_id, 7_u128.to_be_bytes());
        assert_eq!(
            (&first.span_id, &first.parent_span_id),
            (&5_u64.to_be_bytes().to_vec(), &4_u64.to_be_bytes().to_vec())
        );
        assert_eq!((&*first.name, &*first.trace_state, first.kind), ("GET /users", "a=1", 2));
        assert_eq!((first.start_time_unix_nano, first.end_time_unix_nano), (1_000_000_007, u64::MAX));
        assert_eq!((first.status.as_ref().unwrap().code, first.flags), (2, 0x303));
        let cut = "\u{e4}x".repeat(341);
        let expected = [
            ("a", Value::StringValue("b".into())),
            ("n", Value::IntValue(1 << 40)),
            ("address", Value::StringValue("127.0.0.1:80".into())),
            ("joined", Value::StringValue("v".repeat(60) + &"w".repeat(60))),
            ("long", Value::StringValue(cut)),
            ("", Value::StringValue(String::new())),
            ("large", Value::IntValue(i64::MAX)),
            (&"k".repeat(200), Value::StringValue(String::new())),
        ];
        let (around, others): (Vec<_>, Vec<_>) =
            texts(first).into_iter().partition(|(key, value)| key == "a" && *value != expected[0].1);
        assert_eq!(others, expected.map(|(key, value)| (key.to_owned(), value)));
        let lengths = (110..130).map(|length| ("a".to_owned(), Value::StringValue("b".repeat(length))));
        assert_eq!(around, lengths.collect::<Vec<_>>(), "lengths around those that take another byte");
        assert_eq!((second.status.clone(), second.flags, second.kind), (None, 0x100, 3));
        assert!(second.parent_span_id.is_empty() && second.attributes.is_empty() && second.trace_state.is_empty());
    }
}
