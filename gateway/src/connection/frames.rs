//! Watches the frames of an HTTP/2 client as they pass (RFC 9113 section 4): only their heads are read. What is counted
//! are the kinds that cost more than they carry, as in sozu: each is harmless, many of them are a flood.

use std::time::Instant;

use super::limits::{Limit, Limits};

/// Bytes of the client's preface.
const PREFACE: usize = 24;
/// Bytes of a frame's head.
pub(super) const HEAD: usize = 9;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PUSH_PROMISE: u8 = 5;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// Kinds of frames that are counted, by their place in [`Limits::frames`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum FrameKind {
    Resets = 0,
    Pings = 1,
    Settings = 2,
    Empty = 3,
}

impl FrameKind {
    /// The limit of their number.
    fn limit(self) -> Limit {
        match self {
            Self::Resets => Limit::MaxResets,
            Self::Pings => Limit::MaxPings,
            Self::Settings => Limit::MaxSettings,
            Self::Empty => Limit::MaxEmptyFrames,
        }
    }
}

/// Frames of one kind in the time that is being counted.
#[derive(Clone, Copy, Default)]
struct Count {
    since: Option<Instant>,
    seen: u32,
}

/// Where in the client's frames the connection is, and what they were.
pub(super) struct Frames {
    /// Bytes of the preface that are to come.
    preface: usize,
    head: [u8; HEAD],
    have: usize,
    /// Bytes of the frame's payload that are to come.
    payload: usize,
    /// Whether the first frame has ended.
    settled: bool,
    /// The stream whose header block has begun and not ended.
    block: Option<u32>,
    counts: [Count; 4],
    over: Option<Limit>,
    /// Requests that began.
    pub(super) requests: u32,
}

impl Default for Frames {
    fn default() -> Self {
        Self {
            preface: PREFACE,
            head: [0; HEAD],
            have: 0,
            payload: 0,
            settled: false,
            block: None,
            counts: Default::default(),
            over: None,
            requests: 0,
        }
    }
}

/// A flood, and where to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flood {
    /// What there was too much of.
    pub(super) limit: Limit,
    /// The bytes of the piece up to the end of the frame that was one too many.
    pub(super) after: usize,
    /// The stream whose header block is open there.
    pub(super) block: Option<u32>,
}

impl Frames {
    /// Whether the client owes the rest of its preface, its settings, or of a header block.
    pub(super) fn owes(&self) -> bool {
        !self.settled || self.block.is_some()
    }

    /// Looks at the next piece of input.
    pub(super) fn read(&mut self, piece: &[u8], limits: &Limits) -> Option<Flood> {
        let mut at = self.preface.min(piece.len());
        self.preface -= at;
        while at < piece.len() {
            if self.payload == 0 {
                let more = (HEAD - self.have).min(piece.len() - at);
                self.head[self.have..self.have + more].copy_from_slice(&piece[at..at + more]);
                (self.have, at) = (self.have + more, at + more);
                if self.have < HEAD {
                    return None;
                }
                self.have = 0;
                self.begin(limits);
            }
            let skipped = self.payload.min(piece.len() - at);
            (self.payload, at) = (self.payload - skipped, at + skipped);
            if self.payload == 0 {
                self.settled = true;
                if let Some(limit) = self.over {
                    return Some(Flood { limit, after: at, block: self.block });
                }
            }
        }
        None
    }

    /// Takes note of the frame whose head is complete.
    fn begin(&mut self, limits: &Limits) {
        let [a, b, c, kind, flags, d, e, f, g] = self.head;
        self.payload = u32::from_be_bytes([0, a, b, c]) as usize;
        let ends_block = flags & END_HEADERS != 0;
        let counted = match kind {
            DATA if self.payload == 0 && flags & END_STREAM == 0 => Some(FrameKind::Empty),
            HEADERS => {
                self.requests = self.requests.saturating_add(1);
                self.block = (!ends_block).then(|| u32::from_be_bytes([d, e, f, g]));
                None
            }
            CONTINUATION => {
                self.block = self.block.filter(|_| !ends_block);
                (self.payload == 0).then_some(FrameKind::Empty)
            }
            RST_STREAM => Some(FrameKind::Resets),
            SETTINGS => Some(FrameKind::Settings),
            PING => Some(FrameKind::Pings),
            DATA | PUSH_PROMISE | GOAWAY | WINDOW_UPDATE => None,
            PRIORITY | 10.. => Some(FrameKind::Empty),
        };
        if let Some(kind) = counted.filter(|kind| self.counts[*kind as usize].floods(*kind, limits)) {
            self.over = Some(kind.limit());
        }
    }
}

impl Count {
    /// Counts one more. Whether that is one too many.
    fn floods(&mut self, kind: FrameKind, limits: &Limits) -> bool {
        let quota = limits.frames[kind as usize];
        let now = Instant::now();
        if self.since.is_none_or(|since| now.duration_since(since) >= quota.per) {
            *self = Self { since: Some(now), seen: 0 };
        }
        self.seen += 1;
        self.seen > quota.most
    }
}

/// A header block without an end, which the HTTP/2 codec takes for as long as it takes no flood, and then closes the
/// connection as it should be closed: GOAWAY with ENHANCE_YOUR_CALM. It has no call for that.
pub(super) struct Endless {
    stream: u32,
    opened: bool,
    sent: u32,
}

impl Endless {
    /// More of its frames than any codec takes.
    const MOST: u32 = 4_096;

    /// What follows on a flood.
    pub(super) fn after(flood: Flood) -> Self {
        Self { stream: flood.block.unwrap_or(1), opened: flood.block.is_some(), sent: 0 }
    }

    /// Its next frame.
    pub(super) fn next(&mut self) -> Option<[u8; HEAD]> {
        if self.sent == Self::MOST {
            return None;
        }
        self.sent += 1;
        let kind = if self.opened { CONTINUATION } else { HEADERS };
        self.opened = true;
        let [a, b, c, d] = self.stream.to_be_bytes();
        Some([0, 0, 0, kind, 0, a, b, c, d])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conf;

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let mut frame = u32::try_from(payload.len()).unwrap().to_be_bytes()[1..].to_vec();
        frame.extend([kind, flags]);
        frame.extend(stream.to_be_bytes());
        frame.extend(payload);
        frame
    }

    fn limits() -> Limits {
        let conf =
            r#"{"h2": {"max_resets": "2/d", "max_pings": "1/d", "max_settings": "9/d", "max_empty_frames": "3/d"}}"#;
        Limits::of(&serde_json::from_str(conf).unwrap(), &conf::Limits::default())
    }

    fn settled() -> (Frames, Vec<u8>) {
        let mut start = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        start.extend(frame(SETTINGS, 0, 0, &[0; 6]));
        let mut frames = Frames::default();
        assert!(frames.owes() && frames.read(&start[..30], &limits()).is_none() && frames.owes());
        assert!(frames.read(&start[30..], &limits()).is_none() && !frames.owes());
        (frames, start)
    }

    #[test]
    fn each_kind_has_its_limit() {
        let ping = frame(PING, 0, 0, &[7; 8]);
        let reset = frame(RST_STREAM, 0, 1, &[0; 4]);
        let harmless = [frame(DATA, 1, 1, b""), frame(DATA, 0, 1, b"x"), frame(WINDOW_UPDATE, 0, 0, &[1; 4])];
        let empty = [frame(PRIORITY, 0, 1, &[0; 5]), frame(99, 0, 0, b"x"), frame(DATA, 0, 1, b"")];
        let cases = [
            (ping.clone(), None),
            (ping.repeat(3), Some((Limit::MaxPings, 34))),
            ([&reset[..], &ping, &reset, &reset].concat(), Some((Limit::MaxResets, 56))),
            (harmless.concat().repeat(9), None),
            (frame(DATA, 0, 1, b"").repeat(5), Some((Limit::MaxEmptyFrames, 36))),
            (empty.concat().repeat(2), Some((Limit::MaxEmptyFrames, 47))),
        ];
        for (bytes, expected) in cases {
            let flood = settled().0.read(&bytes, &limits()).map(|flood| (flood.limit, flood.after));
            assert_eq!(flood, expected, "{bytes:?}");
            // The same byte by byte.
            let (mut frames, _) = settled();
            let at = bytes.chunks(1).position(|byte| frames.read(byte, &limits()).is_some());
            assert_eq!(at.map(|at| at + 1), expected.map(|(_, after)| after), "{bytes:?}");
        }
    }

    #[test]
    fn header_blocks_are_owed_until_they_end() {
        let (mut frames, _) = settled();
        frames.read(&frame(HEADERS, 0, 5, b"abc"), &limits());
        assert!(frames.owes());
        frames.read(&frame(CONTINUATION, 0, 5, b"abc"), &limits());
        assert!(frames.owes());
        frames.read(&frame(CONTINUATION, END_HEADERS, 5, b""), &limits());
        assert!(!frames.owes());
        frames.read(&frame(HEADERS, END_HEADERS | END_STREAM, 7, b"abc"), &limits());
        assert!(!frames.owes() && frames.requests == 2);
    }

    #[test]
    fn a_flood_within_a_header_block_knows_its_stream() {
        let (mut frames, _) = settled();
        let bytes = [frame(HEADERS, 0, 5, b"abc"), frame(CONTINUATION, 0, 5, b"").repeat(4)].concat();
        let flood = frames.read(&bytes, &limits()).unwrap();
        assert_eq!((flood.limit, flood.block), (Limit::MaxEmptyFrames, Some(5)));
        let mut endless = Endless::after(flood);
        assert_eq!(endless.next(), Some([0, 0, 0, CONTINUATION, 0, 0, 0, 0, 5]));
        let mut endless = Endless::after(Flood { block: None, ..flood });
        assert_eq!(endless.next(), Some([0, 0, 0, HEADERS, 0, 0, 0, 0, 1]));
        assert_eq!(std::iter::from_fn(|| endless.next()).count(), 4_095);
    }
}
