//! The circuit breaker of every subset, with its caps.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::scalar::{OrNone, Percent, Span};

/// When calls to a subset are given up for a while, and how many it is given at once. What is refused is answered with
/// 503 and Retry-After, unless the fallback takes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CircuitBreaker {
    /// Share of failed calls in the window from which the breaker opens, or `none`.
    pub failure_rate: OrNone<Percent>,
    /// Calls in the window below which it stays closed.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub min_calls: u32,
    /// How far back it looks.
    pub window: Span,
    /// Look at so many of the latest calls instead, 1 to 10,000, however old they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000))]
    pub window_calls: Option<u32>,
    /// From when on a call is slow, or `none`.
    pub slow_call: OrNone<Span>,
    /// Share of slow calls in the window from which the breaker opens.
    pub slow_rate: Percent,
    /// How long it stays open the first time; every time in a row doubles it.
    pub open: Span,
    /// The longest it stays open.
    pub max_open: Span,
    /// Calls that are let through when that time is over, 1 to 1,000; by them it closes or opens again.
    #[schemars(range(min = 1, max = 1_000))]
    pub half_open_probes: u32,
    /// Attempts that may hold a connection, or be about to.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_connections: u32,
    /// Attempts that may wait for a connection.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_pending: u32,
    /// Attempts that may be unfinished.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_requests: u32,
}

impl Default for CircuitBreaker {
    fn default() -> Self {
        Self {
            failure_rate: OrNone::Some(Percent::of_whole(50)),
            min_calls: 20,
            window: Span::from_secs(10),
            window_calls: None,
            slow_call: OrNone::None,
            slow_rate: Percent::of_whole(50),
            open: Span::from_secs(5),
            max_open: Span::from_secs(60),
            half_open_probes: 5,
            max_connections: 1_024,
            max_pending: 1_024,
            max_requests: 1_024,
        }
    }
}
