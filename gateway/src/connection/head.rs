//! Gathers the head of a request.

use std::pin::pin;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use futures_util::FutureExt;
use serin_core::strict::{self, Chunks, Framing, Policy, Refusal};
use tokio::io::AsyncReadExt;

use super::client::{Client, Rest};
use super::inbound::Inbound;

/// How much is read at a time. Most heads are smaller.
pub(super) const PIECE: usize = 4 << 10;
/// What the preface of HTTP/2 begins with (RFC 9113 section 3.4). No method does.
const H2_START: &[u8] = b"PRI";
/// The empty line that some clients send after a body (RFC 9112 section 2.2).
const EMPTY_LINE: &[u8] = b"\r\n";

/// How a request, or a connection of HTTP/2, begins.
pub(super) enum Opening {
    /// With a sound head of HTTP/1: its bytes, and what was read of its body.
    Http1(BytesMut),
    /// With the preface of HTTP/2, as far as it was read.
    Http2(BytesMut),
    /// With something that is refused, as far as it was read.
    Refused(Refusal, BytesMut),
    /// Not at all: the client is gone.
    Gone,
}

/// Where a head may come from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    /// Whether HTTP/2 may begin here.
    pub(super) h2c: bool,
    /// Whether the connection is one of TLS.
    pub(super) secure: bool,
    /// How strict the check is.
    pub(super) policy: &'a Policy,
    /// How long it may take.
    pub(super) time: Duration,
}

/// Reads a head of which `client` has a first byte already. What belongs to later requests stays with the client.
pub(super) async fn open(client: &mut Client, place: Place<'_>) -> Opening {
    let mut bytes = std::mem::take(&mut client.ahead);
    let found = {
        let mut gathered = pin!(gather(&mut client.stream, &mut bytes, place));
        // Nearly every head comes as a whole, and then needs no timer.
        match gathered.as_mut().now_or_never() {
            Some(found) => found,
            None => Box::pin(tokio::time::timeout(place.time, gathered)).await.unwrap_or(Err(Refusal::HeadTimeout)),
        }
    };
    match found {
        Ok(Found::Head { end, mut rest }) => {
            let taken = match rest.take(&bytes[end..]) {
                Ok(taken) => end + taken,
                Err(refusal) => return Opening::Refused(refusal, bytes),
            };
            if taken < bytes.len() {
                client.ahead = bytes.split_off(taken);
            }
            client.rest = rest;
            Opening::Http1(bytes)
        }
        Ok(Found::Http2) => Opening::Http2(bytes),
        Ok(Found::Nothing) => Opening::Gone,
        Err(refusal) => Opening::Refused(refusal, bytes),
    }
}

enum Found {
    Head { end: usize, rest: Rest },
    Http2,
    Nothing,
}

async fn gather(stream: &mut Inbound, bytes: &mut BytesMut, place: Place<'_>) -> Result<Found, Refusal> {
    let (mut seen, mut empty_lines) = (0, 0);
    loop {
        // What was sent ahead may be all of it. (A first byte alone says nothing.)
        if bytes.len() > 1 || empty_lines > 0 {
            if place.h2c && seen == 0 && begins(bytes, H2_START) {
                if bytes.len() >= H2_START.len() {
                    return Ok(Found::Http2);
                }
            } else if empty_lines == 0 && seen == 0 && begins(bytes, EMPTY_LINE) {
                bytes.advance(EMPTY_LINE.len());
                empty_lines = 1;
                continue;
            } else if !bytes.is_empty() {
                if let Some(end) = strict::end(bytes, seen, &place.policy.limits)? {
                    return Ok(Found::Head { end, rest: judge(&bytes[..end], place)? });
                }
                seen = bytes.len();
            }
        }
        bytes.reserve(PIECE);
        if !matches!(stream.read_buf(bytes).await, Ok(read) if read > 0) {
            return Ok(Found::Nothing);
        }
    }
}

/// Whether bytes are the beginning of a text, or begin with it.
fn begins(bytes: &[u8], text: &[u8]) -> bool {
    bytes.iter().zip(text).all(|(byte, expected)| byte == expected)
}

/// Checks a whole head, and says what is to come after it.
fn judge(head: &[u8], place: Place<'_>) -> Result<Rest, Refusal> {
    let head = strict::check(head, place.policy)?;
    if head.line.authority.is_some() && head.line.secure != place.secure {
        return Err(Refusal::Misdirected);
    }
    Ok(match head.framing {
        Framing::None => Rest::Bytes(0),
        Framing::Length(length) => Rest::Bytes(length),
        Framing::Chunked => Rest::Chunks(Chunks::default()),
    })
}
