//! What clients may take up. Defaults are those of Envoy's edge configuration, where it has one.

use std::num::{NonZeroU16, NonZeroU32};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::scalar::{ByteRate, OrNone, Rate, Size, Span};

/// What clients may take up: one key for all listeners, which a listener may have otherwise for itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(deny_unknown_fields)]
pub struct Limits {
    /// Bytes of a request's head, 1 KiB to 512 KiB; more is answered with 431. Default: `60KiB`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub header_bytes: Option<Size>,
    /// Fields of a request's head, 1 to 255; more is answered with 431. Default: 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 255))]
    pub header_count: Option<NonZeroU16>,
    /// Bytes of a request's target; more is answered with 414. Default: `8KiB`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_bytes: Option<Size>,
    /// From the first byte of a request's head to its last one; longer is answered with 408. Default: `10s`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub head_timeout: Option<Span>,
    /// How long a connection without a request is kept. Default: `1m`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle: Option<Span>,
    /// How fast a request's body has to come after its first 5 seconds, or `none`; slower is answered with 408. Streams
    /// (upgrades, server-sent events, gRPC) are as slow as they like. Default: `240B/s`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_body_rate: Option<OrNone<ByteRate>>,
    /// How fast a client has to take what is sent to it after 10 seconds of making the gateway wait, or `none`; the
    /// connection of a slower one is closed. Default: `240B/s`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_send_rate: Option<OrNone<ByteRate>>,
    /// Connections at a time; more are closed at once. Default: 50,000 over all listeners.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections: Option<NonZeroU32>,
    /// Connections of one client address (of one /64 in IPv6) at a time; more are closed at once. `trusted_proxies` have
    /// as many as they like. Default: any number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections_per_ip: Option<NonZeroU32>,
    /// Requests on one connection, which is then closed. Default: any number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_per_connection: Option<NonZeroU32>,
    /// What one HTTP/2 connection may take up.
    #[serde(skip_serializing_if = "H2Limits::is_empty")]
    pub h2: H2Limits,
}

/// What one HTTP/2 connection may take up. A connection with more frames than allowed of one kind gets GOAWAY with
/// ENHANCE_YOUR_CALM.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct H2Limits {
    /// Streams at a time. Default: 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_streams: Option<NonZeroU32>,
    /// Bytes of a request's body that a client may send ahead on one stream, up to 1 GiB. Default: `64KiB`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<Size>,
    /// The same over all streams of the connection, 64 KiB to 1 GiB. Default: `1MiB`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection_window: Option<Size>,
    /// Streams that a client may reset. Default: `100/s`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_resets: Option<Rate>,
    /// PING frames. Default: `1000/s`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_pings: Option<Rate>,
    /// SETTINGS frames. Default: `50/s`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_settings: Option<Rate>,
    /// Frames that carry nothing: DATA and CONTINUATION without a byte, PRIORITY, and unknown ones. Default: `100/s`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_empty_frames: Option<Rate>,
    /// Bytes of a request's head when it is unpacked, with 32 for each field, up to 1 MiB; more is answered with 431.
    /// Default: `header_bytes`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_header_list: Option<Size>,
}

impl Limits {
    /// Whether nothing is said.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// These limits, and for what they say nothing of, those of `others`. Numbers of connections are never taken over.
    #[must_use]
    pub fn or(&self, others: &Self) -> Self {
        Self {
            header_bytes: self.header_bytes.or(others.header_bytes),
            header_count: self.header_count.or(others.header_count),
            target_bytes: self.target_bytes.or(others.target_bytes),
            head_timeout: self.head_timeout.or(others.head_timeout),
            idle: self.idle.or(others.idle),
            min_body_rate: self.min_body_rate.or(others.min_body_rate),
            min_send_rate: self.min_send_rate.or(others.min_send_rate),
            connections: self.connections,
            connections_per_ip: self.connections_per_ip,
            requests_per_connection: self.requests_per_connection.or(others.requests_per_connection),
            h2: self.h2.or(&others.h2),
        }
    }
}

impl H2Limits {
    /// Whether nothing is said.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn or(&self, others: &Self) -> Self {
        Self {
            max_streams: self.max_streams.or(others.max_streams),
            window: self.window.or(others.window),
            connection_window: self.connection_window.or(others.connection_window),
            max_resets: self.max_resets.or(others.max_resets),
            max_pings: self.max_pings.or(others.max_pings),
            max_settings: self.max_settings.or(others.max_settings),
            max_empty_frames: self.max_empty_frames.or(others.max_empty_frames),
            max_header_list: self.max_header_list.or(others.max_header_list),
        }
    }
}
