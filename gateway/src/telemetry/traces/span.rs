//! Spans as OTLP has them (`opentelemetry/proto/trace/v1/trace.proto`), written as protobuf at once: a span is copied
//! from the request into the bytes that are sent, with nothing in between. The tests read them with the types that are
//! generated from the definition.

use std::fmt::{Display, Write};

use opentelemetry::trace::{SpanId, TraceId};

use super::context::hex;

/// Longest text of an attribute, in bytes: what clients send may be long.
const MAX_TEXT: usize = 1_024;
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
    /// Its name: words whose number is bounded.
    pub name: (&'a str, &'a str),
    /// What it is of.
    pub kind: Kind,
    /// When it began and ended, in nanoseconds since the Unix epoch.
    pub times: (u64, u64),
    /// Whether it failed.
    pub failed: bool,
}

/// The spans of one request, as repeated `spans` of a `ScopeSpans`.
#[derive(Debug)]
pub struct Spans {
    bytes: Vec<u8>,
    count: u32,
}

impl Spans {
    /// No spans yet, with room for so many.
    #[must_use]
    pub fn with_capacity(spans: usize) -> Self {
        Self { bytes: Vec::with_capacity(spans * 800), count: 0 }
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
        self.count += 1;
        nested(&mut self.bytes, 2, |out| {
            bytes(out, 1, &trace.trace_id.to_bytes());
            bytes(out, 2, &head.span_id.to_bytes());
            if !trace.state.is_empty() {
                bytes(out, 3, trace.state.as_bytes());
            }
            if let Some(parent) = head.parent {
                bytes(out, 4, &parent.to_bytes());
            }
            let (first, second) = head.name;
            begin(out, 5, first.len() + second.len());
            out.extend_from_slice(first.as_bytes());
            out.extend_from_slice(second.as_bytes());
            tag(out, 6, VARINT);
            varint(out, head.kind as u64);
            for (field, time) in [(7, head.times.0), (8, head.times.1)] {
                tag(out, field, FIXED64);
                out.extend_from_slice(&time.to_le_bytes());
            }
            attributes(&mut Attributes { out });
            if head.failed {
                begin(out, 15, 1 + varint_size(ERROR));
                tag(out, 3, VARINT);
                varint(out, ERROR);
            }
            let remote = if head.kind == Kind::Server && head.parent.is_some() { IS_REMOTE } else { 0 };
            tag(out, 16, FIXED32);
            out.extend_from_slice(&(u32::from(trace.flags) | HAS_IS_REMOTE | remote).to_le_bytes());
        });
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

impl Attributes<'_> {
    /// A text; what is too long is cut.
    pub fn text(&mut self, key: &str, text: &str) {
        let mut end = text.len().min(MAX_TEXT);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.begin(key, size(end));
        bytes(self.out, 1, &text.as_bytes()[..end]);
    }

    /// A text, if there is one.
    pub fn maybe(&mut self, key: &str, text: Option<&str>) {
        if let Some(text) = text {
            self.text(key, text);
        }
    }

    /// A text that is formatted; what is too long is cut.
    pub fn shown(&mut self, key: &str, value: impl Display) {
        self.text(key, Text::of(value).as_str());
    }

    /// A number.
    pub fn number(&mut self, key: &str, number: u64) {
        self.begin(key, 1 + varint_size(number));
        tag(self.out, 3, VARINT);
        varint(self.out, number);
    }

    /// Writes everything before an `AnyValue` of such a length.
    fn begin(&mut self, key: &str, value: usize) {
        let pair = size(key.len()) + size(value);
        self.out.reserve(size(pair));
        begin(self.out, 9, pair);
        bytes(self.out, 1, key.as_bytes());
        begin(self.out, 2, value);
    }
}

/// A short text on the stack.
pub struct Text {
    bytes: [u8; 64],
    length: usize,
}

impl Text {
    /// A value as it is shown, as far as there is room.
    #[must_use]
    pub fn of(value: impl Display) -> Self {
        let mut text = Self { bytes: [0; 64], length: 0 };
        // A text that is full takes no more, which is as well.
        let _ = write!(text, "{value}");
        text
    }

    /// A number as 16 digits of lower-case hexadecimal.
    #[must_use]
    pub fn hex(number: u64) -> Self {
        let mut text = Self { bytes: [0; 64], length: 16 };
        hex(&number.to_be_bytes(), &mut text.bytes[..16]);
        text
    }

    /// As text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        // Only whole texts are written.
        std::str::from_utf8(&self.bytes[..self.length]).unwrap_or_default()
    }
}

impl Write for Text {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let room = self.bytes.get_mut(self.length..self.length + text.len()).ok_or(std::fmt::Error)?;
        room.copy_from_slice(text.as_bytes());
        self.length += text.len();
        Ok(())
    }
}

/// Writes the field of a message whose length is known afterwards. There is room for the length that a span has; where it
/// takes up more or less, what was written moves.
pub(in crate::telemetry) fn nested(out: &mut Vec<u8>, field: u32, write: impl FnOnce(&mut Vec<u8>)) {
    tag(out, field, BYTES);
    let at = out.len();
    out.extend_from_slice(&[0; 2]);
    write(out);
    let length = out.len() - at - 2;
    if varint_size(length as u64) == 2 {
        out[at..at + 2].copy_from_slice(&[length as u8 | 0x80, (length >> 7) as u8]);
    } else {
        let mut prefix = Vec::new();
        varint(&mut prefix, length as u64);
        out.splice(at..at + 2, prefix);
    }
}

/// Writes a field of bytes or text.
pub(in crate::telemetry) fn bytes(out: &mut Vec<u8>, field: u32, value: &[u8]) {
    begin(out, field, value.len());
    out.extend_from_slice(value);
}

/// Writes what comes before the bytes of a field: mostly two bytes, at once.
#[inline]
fn begin(out: &mut Vec<u8>, field: u32, length: usize) {
    if field < 0x10 && length < 0x80 {
        out.extend_from_slice(&[(field << 3) as u8 | BYTES, length as u8]);
    } else {
        tag(out, field, BYTES);
        varint(out, length as u64);
    }
}

/// What a field of bytes takes up, if its number is below 16.
fn size(length: usize) -> usize {
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
            nested(&mut out, 2, |out| out.resize(out.len() + length, 7));
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
            name: ("GET", " /users"),
            kind: Kind::Server,
            times: (1_000_000_007, u64::MAX),
            failed: true,
        };
        let mut spans = Spans::with_capacity(2);
        spans.add(&trace, &head, |attributes| {
            attributes.text("a", "b");
            attributes.maybe("none", None);
            attributes.number("n", 1 << 40);
            attributes.shown("address", "127.0.0.1:80".parse::<std::net::SocketAddr>().unwrap());
            attributes.text("long", &"\u{e4}x".repeat(700));
            attributes.text("", "");
            attributes.text("bucket", Text::hex(0xab).as_str());
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
            ("long", Value::StringValue(cut)),
            ("", Value::StringValue(String::new())),
            ("bucket", Value::StringValue("00000000000000ab".into())),
            ("large", Value::IntValue(i64::MAX)),
            (&"k".repeat(200), Value::StringValue(String::new())),
        ];
        assert_eq!(texts(first), expected.map(|(key, value)| (key.to_owned(), value)));
        assert_eq!((second.status.clone(), second.flags, second.kind), (None, 0x100, 3));
        assert!(second.parent_span_id.is_empty() && second.attributes.is_empty() && second.trace_state.is_empty());
    }
}
