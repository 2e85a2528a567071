//! The strict reading of a request's head. HTTP/1 can be written in ways that two parsers read differently, and an edge
//! that passes such a message on lets its client speak past it. So whatever is not written as RFC 9110 and RFC 9112 say
//! is refused, before anything else looks at it. All of it is pure: bytes in, [`Refusal`] or [`Head`] out.

mod chunks;
mod fields;
mod host;
mod line;
mod refusal;
pub mod websocket;

pub use chunks::Chunks;
pub use fields::{Fields, Framing, is_odd_name};
pub use host::check_host;
pub use line::{Line, parse_line};
pub use refusal::Refusal;

use memchr::{memchr, memmem};

/// How large a head may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the request target.
    pub target: usize,
    /// Bytes of the whole head.
    pub head: usize,
    /// Number of header fields.
    pub fields: usize,
}

impl Limits {
    /// None: somebody else sees to them.
    pub const NONE: Self = Self { target: usize::MAX, head: usize::MAX, fields: usize::MAX };
}

impl Default for Limits {
    /// Envoy's limits for an edge.
    fn default() -> Self {
        Self { target: 8 << 10, head: 60 << 10, fields: 100 }
    }
}

/// What becomes of field names with `_` or `.`, which many servers take for the same name with `-`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OddNames {
    /// The request is refused.
    #[default]
    Reject,
    /// The fields are dropped.
    Drop,
    /// They are passed on.
    Keep,
}

/// How strict to be where installations differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// How large a head may be.
    pub limits: Limits,
    /// What becomes of odd field names.
    pub odd_names: OddNames,
}

/// A sound head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head<'a> {
    /// Its request line.
    pub line: Line<'a>,
    /// How its body is delimited.
    pub framing: Framing,
}

/// Where the head ends that `bytes` begin with, its empty line included; `None` if there is more to come. `seen` bytes
/// were looked at before.
///
/// # Errors
/// If what is there already can be no part of a sound head.
pub fn end(bytes: &[u8], seen: usize, limits: &Limits) -> Result<Option<usize>, Refusal> {
    let from = seen.saturating_sub(3);
    if let Some(at) = memmem::find(&bytes[from..], b"\r\n\r\n") {
        let end = from + at + 4;
        return if end > limits.head { Err(oversized(bytes, limits)) } else { Ok(Some(end)) };
    }
    if bytes.len() > limits.head || (bytes.len() > limits.target && memchr(b'\n', bytes).is_none()) {
        return Err(oversized(bytes, limits));
    }
    if bytes.first().is_some_and(|&first| !fields::is_token_byte(first)) {
        return Err(Refusal::RequestLine);
    }
    // Who ends lines with a mere LF never sends the CRLF that is waited for.
    let mut rest = seen.min(bytes.len());
    while let Some(at) = memchr(b'\n', &bytes[rest..]) {
        if (rest + at).checked_sub(1).is_none_or(|before| bytes[before] != b'\r') {
            return Err(Refusal::LineEnd);
        }
        rest += at + 1;
    }
    Ok(None)
}

/// A head that is too large, by what makes it so.
fn oversized(bytes: &[u8], limits: &Limits) -> Refusal {
    let line = memchr(b'\n', bytes).unwrap_or(bytes.len());
    if line > limits.target { Refusal::TargetTooLong } else { Refusal::HeadTooLarge }
}

/// Checks a whole head of HTTP/1, from the request line to the empty line at its end.
///
/// # Errors
/// The first thing that is wrong with it.
pub fn check<'a>(head: &'a [u8], policy: &Policy) -> Result<Head<'a>, Refusal> {
    if head.len() > policy.limits.head {
        return Err(oversized(head, &policy.limits));
    }
    let mut lines = Lines { rest: head };
    let line = parse_line(lines.next_line()?, &policy.limits)?;
    check_bytes(head)?;
    let mut fields = Fields::new(policy);
    loop {
        let field = lines.next_line()?;
        if field.is_empty() {
            break;
        }
        fields.add_line(field)?;
    }
    if !lines.rest.is_empty() {
        return Err(Refusal::LineEnd);
    }
    let framing = fields.finish(&line)?;
    Ok(Head { line, framing })
}

/// That a head has no control bytes but TAB, and CR and LF, which [`Lines`] sees to.
fn check_bytes(head: &[u8]) -> Result<(), Refusal> {
    let (mut bad, mut returns, mut feeds) = (false, 0_usize, 0_usize);
    // Pieces small enough to count in a byte, so that the compiler makes vector instructions of it.
    for piece in head.chunks(128) {
        let (mut cr, mut lf) = (0_u8, 0_u8);
        for &byte in piece {
            bad |= (byte < b' ') & (byte != b'\t') & (byte != b'\r') & (byte != b'\n') | (byte == 0x7f);
            cr += u8::from(byte == b'\r');
            lf += u8::from(byte == b'\n');
        }
        returns += usize::from(cr);
        feeds += usize::from(lf);
    }
    match (bad, returns == feeds) {
        (true, _) => Err(Refusal::ControlByte),
        (_, false) => Err(Refusal::LineEnd),
        _ => Ok(()),
    }
}

/// Takes a head apart at each CRLF.
struct Lines<'a> {
    rest: &'a [u8],
}

impl<'a> Lines<'a> {
    fn next_line(&mut self) -> Result<&'a [u8], Refusal> {
        let at = memchr(b'\n', self.rest).ok_or(Refusal::LineEnd)?;
        let (line, rest) = (&self.rest[..at], &self.rest[at + 1..]);
        self.rest = rest;
        line.strip_suffix(b"\r").ok_or(Refusal::LineEnd)
    }
}

#[cfg(test)]
mod tests;
