//! A client of HTTP/2 that sends frames as a test puts them together, whether they make sense or not.

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use crate::client::HOST;
use crate::wait::DEADLINE;

/// What every client begins with (RFC 9113 section 3.4).
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Kinds of frames.
pub const DATA: u8 = 0;
/// The head of a request or response.
pub const HEADERS: u8 = 1;
/// A wish about the order of streams, which nobody heeds any more.
pub const PRIORITY: u8 = 2;
/// The end of a stream before its time.
pub const RST_STREAM: u8 = 3;
/// Settings, or that they were taken note of.
pub const SETTINGS: u8 = 4;
/// A ping, or its answer.
pub const PING: u8 = 6;
/// The end of a connection.
pub const GOAWAY: u8 = 7;
/// Room for more.
pub const WINDOW_UPDATE: u8 = 8;
/// More of a head.
pub const CONTINUATION: u8 = 9;
/// Flag: nothing follows on this stream. On SETTINGS and PING: an answer.
pub const END_STREAM: u8 = 1;
/// Flag: nothing follows of this head.
pub const END_HEADERS: u8 = 4;
/// The error code of a connection whose client asks for too much.
pub const ENHANCE_YOUR_CALM: u32 = 11;

/// A frame as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Its kind.
    pub kind: u8,
    /// Its flags.
    pub flags: u8,
    /// Its stream.
    pub stream: u32,
    /// What it carries.
    pub payload: Vec<u8>,
}

impl Frame {
    /// The error code of RST_STREAM or GOAWAY.
    #[must_use]
    pub fn code(&self) -> Option<u32> {
        let code = match self.kind {
            RST_STREAM => self.payload.get(..4)?,
            GOAWAY => self.payload.get(4..8)?,
            _ => return None,
        };
        Some(u32::from_be_bytes(code.try_into().ok()?))
    }

    /// The pairs of SETTINGS.
    #[must_use]
    pub fn settings(&self) -> Vec<(u16, u32)> {
        let pair = |bytes: &[u8]| {
            let value = u32::from_be_bytes(bytes[2..].try_into().unwrap());
            (u16::from_be_bytes(bytes[..2].try_into().unwrap()), value)
        };
        self.payload.chunks_exact(6).map(pair).collect()
    }
}

/// A frame as bytes.
#[must_use]
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = u32::try_from(payload.len()).unwrap().to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// A header block (RFC 7541) of literals that no table remembers.
#[must_use]
pub fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = vec![];
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            length(&mut block, text.len());
            block.extend(text.as_bytes());
        }
    }
    block
}

/// A whole number with a prefix of seven bits (RFC 7541 section 5.1).
fn length(block: &mut Vec<u8>, length: usize) {
    let Some(mut rest) = length.checked_sub(127) else { return block.push(length as u8) };
    block.push(127);
    while rest >= 128 {
        block.push((rest % 128 + 128) as u8);
        rest /= 128;
    }
    block.push(rest as u8);
}

/// The header block of a request, with more fields behind.
#[must_use]
pub fn request(method: &str, path: &str, more: &[(&str, &str)]) -> Vec<u8> {
    let mut fields = vec![(":method", method), (":scheme", "http"), (":path", path), (":authority", HOST)];
    fields.extend(more);
    block(&fields)
}

/// HEADERS of a GET without anything behind.
#[must_use]
pub fn get(stream: u32, path: &str) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | END_STREAM, stream, &request("GET", path, &[]))
}

/// A connection.
pub struct Frames {
    reader: OwnedReadHalf,
    writer: OwnedWriteHalf,
}

impl Frames {
    /// Connects, and sends nothing.
    pub async fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let (reader, writer) = stream.into_split();
        Self { reader, writer }
    }

    /// Connects, and sends preface and settings.
    pub async fn start(address: SocketAddr, settings: &[(u16, u32)]) -> Self {
        let mut frames = Self::connect(address).await;
        let pair = |(id, value): &(u16, u32)| [&id.to_be_bytes()[..], &value.to_be_bytes()[..]].concat();
        let payload: Vec<_> = settings.iter().flat_map(pair).collect();
        frames.send(&[PREFACE, &frame(SETTINGS, 0, 0, &payload)].concat()).await.unwrap();
        frames
    }

    /// Sends bytes.
    ///
    /// # Errors
    /// If the connection is closed.
    pub async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.writer.write_all(bytes).await
    }

    /// Sends a flood from a task of its own, so that the answers to it can be read, and gives the code of the GOAWAY that
    /// it ends with; `None` if the connection just closes.
    pub async fn flood(self, bytes: Vec<u8>) -> Option<u32> {
        let Self { reader, mut writer } = self;
        let sent = tokio::spawn(async move {
            // Who is told to calm down may be cut off in mid-sentence.
            let _ = writer.write_all(&bytes).await;
            writer
        });
        let code = goaway(reader).await;
        drop(sent.await.unwrap());
        code
    }

    /// The next frame; `None` at the end of the connection.
    pub async fn next(&mut self) -> Option<Frame> {
        tokio::time::timeout(DEADLINE, next(&mut self.reader)).await.expect("a frame or the end").ok()
    }

    /// The next frame that `wanted` accepts.
    pub async fn find(&mut self, wanted: impl Fn(&Frame) -> bool) -> Option<Frame> {
        loop {
            let frame = self.next().await?;
            if wanted(&frame) {
                return Some(frame);
            }
        }
    }

    /// The code of the GOAWAY that the connection ends with; `None` if it just closes.
    pub async fn goaway(self) -> Option<u32> {
        let Self { reader, writer: _writer } = self;
        goaway(reader).await
    }
}

async fn goaway(mut reader: OwnedReadHalf) -> Option<u32> {
    let read = async {
        loop {
            let frame = next(&mut reader).await.ok()?;
            if frame.kind == GOAWAY {
                return frame.code();
            }
        }
    };
    tokio::time::timeout(DEADLINE, read).await.expect("GOAWAY or the end")
}

async fn next(reader: &mut OwnedReadHalf) -> io::Result<Frame> {
    let mut head = [0; 9];
    reader.read_exact(&mut head).await?;
    let [a, b, c, kind, flags, d, e, f, g] = head;
    let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
    reader.read_exact(&mut payload).await?;
    Ok(Frame { kind, flags, stream: u32::from_be_bytes([d, e, f, g]), payload })
}
