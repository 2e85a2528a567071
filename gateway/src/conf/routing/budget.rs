//! How many retries there may be, and how long they wait.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::scalar::{Percent, Span};

/// How many retries a service may make, counted over 10 s: a share of its requests, and some more.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RetryBudget {
    /// Retries as a share of the requests.
    pub percent: Percent,
    /// Retries per second that may be made on top of that, 0 to 100,000.
    #[schemars(range(min = 0, max = 100_000))]
    pub min_per_second: u32,
}

impl Default for RetryBudget {
    fn default() -> Self {
        Self { percent: Percent::of_whole(20), min_per_second: 10 }
    }
}

/// How long a retry waits: a random time up to a bound that doubles with every attempt, within the request's time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Backoff {
    /// Bound before the first retry; `0s` does not wait.
    pub base: Span,
    /// The largest bound, not less than `base`.
    pub max: Span,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { base: Span::from_millis(25), max: Span::from_millis(250) }
    }
}
