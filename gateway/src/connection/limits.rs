//! What the clients of a listener may take up, as it is enforced.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use pingora::protocols::http::v2::server::{H2Options, default_h2_options};
use prometheus::IntCounter;
use serin_core::strict::Refusal;

use super::is_at;
use crate::conf;

/// Bytes that wait on one HTTP/2 stream for its client. h2's own 400 KiB are more than a stalled stream is worth.
const H2_SEND_BUFFER: usize = 32 << 10;

/// What a client may have gone beyond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Limit {
    /// Bytes of the head.
    HeaderBytes = 0,
    /// Fields of the head.
    HeaderCount = 1,
    /// Bytes of the target.
    TargetBytes = 2,
    /// Time of the head.
    HeadTimeout = 3,
    /// Bytes of the body.
    MaxBody = 4,
    /// Pace of the body.
    MinBodyRate = 5,
    /// Pace at which it takes what it is sent.
    MinSendRate = 6,
    /// Connections.
    Connections = 7,
    /// Connections of its address.
    ConnectionsPerIp = 8,
    /// RST_STREAM frames.
    MaxResets = 9,
    /// PING frames.
    MaxPings = 10,
    /// SETTINGS frames.
    MaxSettings = 11,
    /// Frames that carry nothing.
    MaxEmptyFrames = 12,
}

impl Limit {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 13] = [
        Self::HeaderBytes,
        Self::HeaderCount,
        Self::TargetBytes,
        Self::HeadTimeout,
        Self::MaxBody,
        Self::MinBodyRate,
        Self::MinSendRate,
        Self::Connections,
        Self::ConnectionsPerIp,
        Self::MaxResets,
        Self::MaxPings,
        Self::MaxSettings,
        Self::MaxEmptyFrames,
    ];

    /// The limit that a refused head was beyond.
    #[must_use]
    pub fn of(refusal: Refusal) -> Option<Self> {
        match refusal {
            Refusal::TargetTooLong => Some(Self::TargetBytes),
            Refusal::HeadTooLarge => Some(Self::HeaderBytes),
            Refusal::TooManyFields => Some(Self::HeaderCount),
            Refusal::HeadTimeout => Some(Self::HeadTimeout),
            _ => None,
        }
    }

    /// Its name: the key that sets it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::HeaderBytes => "header_bytes",
            Self::HeaderCount => "header_count",
            Self::TargetBytes => "target_bytes",
            Self::HeadTimeout => "head_timeout",
            Self::MaxBody => "max_body",
            Self::MinBodyRate => "min_body_rate",
            Self::MinSendRate => "min_send_rate",
            Self::Connections => "connections",
            Self::ConnectionsPerIp => "connections_per_ip",
            Self::MaxResets => "max_resets",
            Self::MaxPings => "max_pings",
            Self::MaxSettings => "max_settings",
            Self::MaxEmptyFrames => "max_empty_frames",
        }
    }
}

/// Counters of what was refused, by limit.
#[derive(Clone)]
pub struct Refusals(pub [IntCounter; Limit::ALL.len()]);

impl Refusals {
    /// Counts one.
    pub fn count(&self, limit: Limit) {
        self.0[limit as usize].inc();
    }
}

/// So many frames in so much time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// The most of them.
    pub most: u32,
    /// In this time.
    pub per: Duration,
}

impl From<conf::Rate> for Quota {
    fn from(rate: conf::Rate) -> Self {
        Self { most: rate.units(), per: rate.per() }
    }
}

/// Limits of one listener.
#[derive(Clone)]
pub struct Limits {
    /// Bytes of a head.
    pub header_bytes: usize,
    /// Fields of a head.
    pub header_count: usize,
    /// Bytes of a target.
    pub target_bytes: usize,
    /// Time for a head, from its first byte.
    pub head_timeout: Duration,
    /// Time that a connection without a request is kept.
    pub idle: Duration,
    /// Bytes per second of a body.
    pub min_body_rate: Option<u64>,
    /// Bytes per second that a client takes.
    pub min_send_rate: Option<u64>,
    /// Requests on one connection.
    pub requests: Option<u32>,
    /// Frames of HTTP/2 that cost more than they carry, by [`FrameKind`](super::frames::FrameKind).
    pub frames: [Quota; 4],
    /// What the HTTP/2 codec is told.
    pub h2: H2Options,
}

impl Limits {
    /// The limits that a listener and its document say, with defaults for the rest.
    #[must_use]
    pub fn of(listener: &conf::Limits, all: &conf::Limits) -> Self {
        let said = listener.or(all);
        let size = |size: Option<conf::Size>, default: usize| {
            size.map_or(default, |size| usize::try_from(size.bytes()).unwrap_or(usize::MAX))
        };
        let pace = |rate: Option<conf::OrNone<conf::ByteRate>>| match rate {
            None => Some(240),
            Some(rate) => rate.as_option().map(|rate| rate.bytes()),
        };
        let per_second = |rate: Option<conf::Rate>, default: u32| {
            rate.map_or(Quota { most: default, per: Duration::from_secs(1) }, Quota::from)
        };
        let header_bytes = size(said.header_bytes, 60 << 10);
        let small = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
        let frames = [
            per_second(said.h2.max_resets, 100),
            per_second(said.h2.max_pings, 1_000),
            per_second(said.h2.max_settings, 50),
            per_second(said.h2.max_empty_frames, 100),
        ];
        let mut h2 = default_h2_options();
        h2.max_concurrent_streams(said.h2.max_streams.map_or(100, |most| most.get()))
            .initial_window_size(small(size(said.h2.window, 64 << 10)))
            .initial_connection_window_size(small(size(said.h2.connection_window, 1 << 20)))
            .max_header_list_size(small(size(said.h2.max_header_list, header_bytes)))
            // The codec's own limit is 20, of those that are reset before it has handed them out.
            .max_pending_accept_reset_streams(frames[0].most as usize)
            .max_send_buffer_size(H2_SEND_BUFFER);
        Self {
            header_bytes,
            header_count: said.header_count.map_or(100, |most| usize::from(most.get())),
            target_bytes: size(said.target_bytes, 8 << 10),
            head_timeout: said.head_timeout.map_or(Duration::from_secs(10), |span| span.duration()),
            idle: said.idle.map_or(Duration::from_secs(60), |span| span.duration()),
            min_body_rate: pace(said.min_body_rate),
            min_send_rate: pace(said.min_send_rate),
            requests: said.requests_per_connection.map(|most| most.get()),
            frames,
            h2,
        }
    }
}

/// The limits of every listener.
#[derive(Clone)]
pub struct ListenerLimits {
    common: Arc<Limits>,
    /// Where listeners differ, each by its address.
    each: Vec<(SocketAddr, Arc<Limits>)>,
}

impl ListenerLimits {
    /// As a bootstrap document says.
    #[must_use]
    pub fn new(bootstrap: &conf::Bootstrap) -> Self {
        let all = &bootstrap.limits.clients;
        let limits = |listener: &conf::Listener| (*listener.address, Arc::new(Limits::of(&listener.limits, all)));
        let differ =
            bootstrap.listeners.iter().any(|listener| listener.limits.or(all) != conf::Limits::default().or(all));
        Self {
            common: Arc::new(Limits::of(&conf::Limits::default(), all)),
            each: if differ { bootstrap.listeners.iter().map(limits).collect() } else { Vec::new() },
        }
    }

    /// Those of the listener that a connection came in at.
    #[must_use]
    pub fn at(&self, local: impl FnOnce() -> Option<SocketAddr>) -> &Arc<Limits> {
        if self.each.is_empty() {
            return &self.common;
        }
        let local = local();
        let here = self.each.iter().find(|(address, _)| local.is_some_and(|local| is_at(address, &local)));
        here.map_or(&self.common, |(_, limits)| limits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_says_only_what_differs() {
        let read = |text: &str| serde_json::from_str::<conf::Limits>(text).unwrap();
        let all = read(r#"{"header_count": 50, "idle": "5s", "min_send_rate": "none", "h2": {"max_pings": "7/m"}}"#);
        let limits = Limits::of(&read(r#"{"idle": "2s", "h2": {"max_resets": "3/s"}}"#), &all);
        assert_eq!((limits.header_count, limits.idle), (50, Duration::from_secs(2)));
        assert_eq!((limits.header_bytes, limits.target_bytes), (61_440, 8_192));
        assert_eq!((limits.min_send_rate, limits.min_body_rate), (None, Some(240)));
        assert_eq!(limits.frames.map(|quota| quota.most), [3, 7, 50, 100]);
        assert_eq!(limits.frames[1].per, Duration::from_secs(60));
        assert!(Limit::ALL.iter().enumerate().all(|(at, limit)| *limit as usize == at));
    }
}
