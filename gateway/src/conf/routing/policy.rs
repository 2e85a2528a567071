//! How a service's traffic is bounded in time, retried and marked.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::scalar::{HeaderName, OrNone, Scalar, Span, refuse, scalar};
use super::budget::{Backoff, RetryBudget};

/// Longest times. All but `request` are more than 0.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Timeouts {
    /// For connecting to an instance, TLS included.
    pub connect: Span,
    /// From the end of the request to the first byte of the response.
    pub first_byte: Span,
    /// Between two pieces of a body, in either direction.
    pub idle: Span,
    /// For the whole request with all its attempts, or `none`. Streams and WebSockets have no such limit; a gRPC call has
    /// the one that its client sets with `grpc-timeout`, and not a longer one than this.
    pub request: OrNone<Span>,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Span::from_secs(1),
            first_byte: Span::from_secs(15),
            idle: Span::from_secs(60),
            request: OrNone::Some(Span::from_secs(30)),
        }
    }
}

/// Longest times of a route that differ from its service's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TimeoutsOverride {
    /// For connecting to an instance, TLS included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connect: Option<Span>,
    /// From the end of the request to the first byte of the response.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_byte: Option<Span>,
    /// Between two pieces of a body, in either direction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle: Option<Span>,
    /// For the whole request with all its attempts, or `none`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<OrNone<Span>>,
}

impl TimeoutsOverride {
    /// Whether nothing differs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The times that hold for the route.
    #[must_use]
    pub fn over(&self, service: Timeouts) -> Timeouts {
        Timeouts {
            connect: self.connect.unwrap_or(service.connect),
            first_byte: self.first_byte.unwrap_or(service.first_byte),
            idle: self.idle.unwrap_or(service.idle),
            request: self.request.unwrap_or(service.request),
        }
    }
}

/// When and where a failed request is tried again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Retry {
    /// Attempts in all, 1 to 10, the first one included; 1 is no retry.
    #[schemars(range(min = 1, max = 10))]
    pub attempts: u8,
    /// What is tried again. Requests that may have been received are tried again only if their method is idempotent.
    pub on: Vec<RetryOn>,
    /// Where it is tried again.
    pub across: Across,
    /// How many retries there may be in all.
    pub budget: RetryBudget,
    /// How long a retry waits.
    pub backoff: Backoff,
    /// How long an idempotent request without a body waits for the response to begin before it is sent to a second
    /// instance as well, whichever answers first; never if left out. Counts as a retry. Holds for HTTP/1.1 on both sides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hedge_after: Option<Span>,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            attempts: 2,
            on: vec![RetryOn::ConnectFailure, RetryOn::Reset],
            across: Across::default(),
            budget: RetryBudget::default(),
            backoff: Backoff::default(),
            hedge_after: None,
        }
    }
}

/// A failure that is tried again: `connect_failure`, `reset`, `timeout`, a status such as `"503"`, or `"5xx"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryOn {
    /// No connection could be made.
    ConnectFailure,
    /// The connection broke before the response began.
    Reset,
    /// No response began within `first_byte`.
    Timeout,
    /// The response has a status from 500 to 599.
    ServerError,
    /// The response has this status, 400 to 599.
    Status(u16),
}

impl RetryOn {
    /// Whether a response with this status is tried again.
    #[must_use]
    pub fn status(self, status: u16) -> bool {
        match self {
            Self::ServerError => (500..600).contains(&status),
            Self::Status(wanted) => wanted == status,
            Self::ConnectFailure | Self::Reset | Self::Timeout => false,
        }
    }
}

impl Scalar for RetryOn {
    const SCHEMA: &'static str = "RetryOn";
    const PATTERN: &'static str = "^(connect_failure|reset|timeout|5xx|[45][0-9]{2})$";
    const EXPECTED: &'static str = "`connect_failure`, `reset`, `timeout`, `5xx` or a status such as `\"503\"`";
    const WORDS: &'static [&'static str] = &["connect_failure", "reset", "timeout", "5xx"];
}

impl FromStr for RetryOn {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "connect_failure" => Ok(Self::ConnectFailure),
            "reset" => Ok(Self::Reset),
            "timeout" => Ok(Self::Timeout),
            "5xx" => Ok(Self::ServerError),
            _ => match text.parse() {
                Ok(status @ 400..=599) if text.len() == 3 => Ok(Self::Status(status)),
                _ => Err(refuse::<Self>(text)),
            },
        }
    }
}

impl fmt::Display for RetryOn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ConnectFailure => f.write_str("connect_failure"),
            Self::Reset => f.write_str("reset"),
            Self::Timeout => f.write_str("timeout"),
            Self::ServerError => f.write_str("5xx"),
            Self::Status(status) => status.fmt(f),
        }
    }
}

scalar!(RetryOn);

/// Where a request is tried again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Across {
    /// In the same subset.
    Same,
    /// In the same subset or the stable one; never from stable to a canary.
    #[default]
    Stable,
    /// On any instance of the service.
    Any,
}

/// How upstreams are told which version was chosen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Propagate {
    /// Header that carries the chosen subset, or `none`. What a client sends in it is taken out.
    pub header: OrNone<HeaderName>,
    /// Add it to `baggage` (W3C), as `serin.subset`.
    pub baggage: bool,
    /// Add it to `tracestate` (W3C), as `serin`; not to that of a trace that is not sampled.
    pub tracestate: bool,
}

impl Default for Propagate {
    fn default() -> Self {
        let header = HeaderName(http::HeaderName::from_static("x-serin-subset"));
        Self { header: OrNone::Some(header), baggage: true, tracestate: true }
    }
}
