//! A client that writes frames of HTTP/2 as it likes.

use std::time::Duration;

use crate::raw::Raw;

/// Frame types (RFC 9113 section 6).
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
/// Flags.
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// A connection of HTTP/2.
pub struct Streams {
    raw: Raw,
    read: Vec<u8>,
    /// The stream of the next request.
    stream: u32,
}

/// What came of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A response of this status.
    Status(u16),
    /// Its stream was reset.
    Reset,
    /// The connection is being closed.
    GoAway,
    /// The connection ended.
    Closed,
    /// Nothing in time.
    Silent,
}

impl Streams {
    /// Begins HTTP/2 on a connection.
    pub async fn begin(mut raw: Raw) -> Self {
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        bytes.extend(frame(SETTINGS, 0, 0, &[]));
        let _ = raw.send(&bytes).await;
        Self { raw, read: Vec::new(), stream: 1 }
    }

    /// Sends a request with these fields, pseudo fields and all, and says what came of it. A body of `None` ends with the
    /// head.
    pub async fn request(&mut self, fields: &[(&str, &str)], body: Option<&[u8]>, patience: Duration) -> Answer {
        let stream = self.stream;
        self.stream += 2;
        let block: Vec<u8> = fields.iter().flat_map(|(name, value)| field(name, value)).collect();
        let end = if body.is_none() { END_STREAM } else { 0 };
        let mut bytes = frame(HEADERS, END_HEADERS | end, stream, &block);
        if let Some(body) = body {
            bytes.extend(frame(DATA, END_STREAM, stream, body));
        }
        if self.raw.send(&bytes).await.is_err() {
            return Answer::Closed;
        }
        tokio::time::timeout(patience, self.answer(stream)).await.unwrap_or(Answer::Silent)
    }

    async fn answer(&mut self, stream: u32) -> Answer {
        loop {
            while let Some((kind, of, payload)) = self.next() {
                match kind {
                    HEADERS if of == stream => return Answer::Status(status(&payload)),
                    RST_STREAM if of == stream => return Answer::Reset,
                    GOAWAY => return Answer::GoAway,
                    // Acknowledged, so that the other side goes on.
                    SETTINGS if payload.len() >= 6 => drop(self.raw.send(&frame(SETTINGS, 1, 0, &[])).await),
                    _ => {}
                }
            }
            match self.raw.read().await {
                Some(bytes) => self.read.extend(bytes),
                None => return Answer::Closed,
            }
        }
    }

    /// Takes a whole frame off what was read: its type, stream and payload.
    fn next(&mut self) -> Option<(u8, u32, Vec<u8>)> {
        let head = self.read.first_chunk::<9>()?;
        let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        let (kind, stream) = (head[3], u32::from_be_bytes([head[5], head[6], head[7], head[8]]));
        let payload = self.read.get(9..9 + length)?.to_vec();
        self.read.drain(..9 + length);
        Some((kind, stream, payload))
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A field that is neither indexed nor compressed (RFC 7541 section 6.2.2).
fn field(name: &str, value: &str) -> Vec<u8> {
    let text = |text: &str| {
        let bytes: Vec<u8> = text.chars().map(|character| u8::try_from(u32::from(character)).unwrap()).collect();
        [length(bytes.len()), bytes].concat()
    };
    [vec![0], text(name), text(value)].concat()
}

/// A length with a prefix of seven bits (RFC 7541 section 5.1).
fn length(mut value: usize) -> Vec<u8> {
    if value < 127 {
        return vec![value as u8];
    }
    let mut bytes = vec![127];
    value -= 127;
    while value >= 128 {
        bytes.push((value % 128) as u8 | 128);
        value /= 128;
    }
    bytes.push(value as u8);
    bytes
}

/// The status that a header block begins with: indexed, or digits, perhaps in Huffman's code (RFC 7541 appendices A, B).
fn status(block: &[u8]) -> u16 {
    const INDEXED: [u16; 7] = [200, 204, 206, 304, 400, 404, 500];
    // A change of the table's size comes first.
    let block = if block.first().is_some_and(|byte| byte & 0xe0 == 0x20) { &block[1..] } else { block };
    match block {
        [byte @ 0x88..=0x8e, ..] => INDEXED[usize::from(byte - 0x88)],
        [_, length, rest @ ..] if length & 0x80 == 0 => {
            std::str::from_utf8(&rest[..usize::from(*length)]).unwrap().parse().unwrap()
        }
        [_, length, rest @ ..] => digits(&rest[..usize::from(length & 0x7f)]),
        _ => 0,
    }
}

/// Three digits in Huffman's code: `0` to `2` have five bits, the others six.
fn digits(bytes: &[u8]) -> u16 {
    let bits: Vec<u8> = bytes.iter().flat_map(|byte| (0..8).rev().map(move |bit| byte >> bit & 1)).collect();
    let value = |bits: &[u8]| bits.iter().fold(0_u16, |value, bit| value << 1 | u16::from(*bit));
    let (mut at, mut number) = (0, 0);
    for _ in 0..3 {
        let five = value(&bits[at..at + 5]);
        let (digit, used) = if five <= 2 { (five, 5) } else { (value(&bits[at..at + 6]) - 25 + 3, 6) };
        number = number * 10 + digit;
        at += used;
    }
    number
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_read() {
        assert_eq!(status(&[0x8c]), 400);
        assert_eq!(status(&[0x20, 0x88, 0x61]), 200);
        assert_eq!(status(&[0x08, 3, b'4', b'3', b'1']), 431);
        // RFC 7541 appendix C.6.1: 302.
        assert_eq!(status(&[0x48, 0x82, 0x64, 0x02]), 302);
    }
}
