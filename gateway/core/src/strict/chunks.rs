//! The form of a chunked body (RFC 9112 section 7.1), checked as it passes. It is what keeps a body from meaning one
//! thing to the gateway and another to whoever is behind it.

use super::Refusal;
use super::fields::is_token_byte;

/// Longest chunk extension, and longest line of the trailers.
const MAX_LINE: usize = 4 << 10;
/// Longest trailers.
const MAX_TRAILERS: usize = 16 << 10;
/// Most digits of a size: a chunk of a tebibyte and more is no chunk.
const MAX_DIGITS: u8 = 10;

/// Follows a chunked body.
#[derive(Clone, Copy, Debug, Default)]
pub struct Chunks {
    state: State,
    size: u64,
    digits: u8,
    line: usize,
    trailers: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// In the size of a chunk.
    #[default]
    Size,
    /// In its extensions.
    Extension,
    /// After the CR of its first line.
    SizeEnd,
    /// In its data.
    Data,
    /// After its data.
    DataEnd,
    /// After the CR that follows its data.
    DataFeed,
    /// At the beginning of a line of the trailers.
    Trailer,
    /// In the name of a trailer.
    Name,
    /// In its value.
    Value,
    /// After the CR of its line.
    ValueEnd,
    /// After the CR of the empty line.
    Last,
    /// After the body.
    Done,
}

impl Chunks {
    /// Takes in the next bytes, and says how many of them are part of the body.
    ///
    /// # Errors
    /// If the body breaks the form.
    pub fn feed(&mut self, all: &[u8]) -> Result<usize, Refusal> {
        let mut bytes = all;
        while let Some((&byte, rest)) = bytes.split_first() {
            match self.state {
                State::Data => {
                    let taken = usize::try_from(self.size).unwrap_or(usize::MAX).min(bytes.len());
                    self.size -= taken as u64;
                    bytes = &bytes[taken..];
                    if self.size == 0 {
                        self.state = State::DataEnd;
                    }
                    continue;
                }
                State::Done => break,
                _ => self.state = self.step(byte)?,
            }
            bytes = rest;
        }
        Ok(all.len() - bytes.len())
    }

    /// Whether the whole body was there.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    fn step(&mut self, byte: u8) -> Result<State, Refusal> {
        self.line += 1;
        let next = match (self.state, byte) {
            (State::Size, _) if byte.is_ascii_hexdigit() && self.digits < MAX_DIGITS => {
                self.digits += 1;
                self.size = self.size << 4 | u64::from(digit(byte));
                State::Size
            }
            (State::Size, b';') if self.digits > 0 => State::Extension,
            (State::Size, b'\r') if self.digits > 0 => State::SizeEnd,
            (State::Extension, b'\r') => State::SizeEnd,
            (State::Extension, _) if is_text(byte) => State::Extension,
            (State::SizeEnd, b'\n') => {
                (self.line, self.digits) = (0, 0);
                if self.size == 0 { State::Trailer } else { State::Data }
            }
            (State::DataEnd, b'\r') => State::DataFeed,
            (State::DataFeed, b'\n') => {
                self.line = 0;
                State::Size
            }
            (State::Trailer, b'\r') => State::Last,
            (State::Trailer | State::Name, _) if is_token_byte(byte) => State::Name,
            (State::Name, b':') => State::Value,
            (State::Value, b'\r') => State::ValueEnd,
            (State::Value, _) if is_text(byte) => State::Value,
            (State::ValueEnd, b'\n') => {
                self.trailers += self.line;
                self.line = 0;
                State::Trailer
            }
            (State::Last, b'\n') => State::Done,
            _ => return Err(Refusal::Chunk),
        };
        if self.line > MAX_LINE || self.trailers > MAX_TRAILERS { Err(Refusal::Chunk) } else { Ok(next) }
    }
}

fn digit(byte: u8) -> u8 {
    match byte {
        b'0'..=b'9' => byte - b'0',
        _ => (byte | 0x20) - b'a' + 10,
    }
}

/// Whether extensions and trailers may have this byte.
fn is_text(byte: u8) -> bool {
    byte == b'\t' || (byte >= b' ' && byte != 0x7f)
}
