//! Rate limits and the concurrency limit.

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serin_core::limit::{Quota, QuotaError};

use super::super::scalar::{CookieName, HeaderName, Name, Rate};

/// A rate limit. What is over it gets 429 and keeps its connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RateLimit {
    /// Name, in `RateLimit` fields, explanations, logs and metrics.
    pub name: Name,
    /// Requests that agree in all of these are counted together; a request that lacks one (a header, say) is counted
    /// with all others that lack it. Default: all requests are counted together.
    #[serde(default)]
    pub key: Vec<LimitKey>,
    /// How much a key may spend.
    pub limit: Rate,
    /// How much of it may be spent at once, 1 to 1,000,000,000. Default: the number of `limit`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub burst: Option<u32>,
    /// Other limits, by the value of the first part of the key. Their bursts are in the same proportion.
    #[serde(default, skip_serializing_if = "IndexMap::is_empty")]
    pub overrides: IndexMap<String, Rate>,
    /// What a request costs. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
    /// Count what would be refused, and refuse nothing.
    #[serde(default)]
    pub dry_run: bool,
    /// Who shares the limit.
    #[serde(default, skip_serializing_if = "LimitScope::is_gateway")]
    pub scope: LimitScope,
    /// With `scope: fleet`: refuse everything while Redis is lost. Default: each gateway then keeps to its share of the
    /// limit.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fail_closed: bool,
    /// Keys that are kept at most, 1 to 100,000,000, at up to 40 bytes each (200 with `scope: fleet`). Keys beyond share a
    /// few buckets.
    #[serde(default = "default_max_keys")]
    #[schemars(range(min = 1, max = 100_000_000))]
    pub max_keys: u32,
}

fn default_max_keys() -> u32 {
    1_000_000
}

/// Who shares a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LimitScope {
    /// Nobody: every gateway has it for itself.
    #[default]
    Gateway,
    /// All gateways whose `limits.redis` is the same.
    Fleet,
}

impl LimitScope {
    fn is_gateway(&self) -> bool {
        *self == Self::Gateway
    }
}

/// A part of a key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LimitKey {
    /// The value of a header.
    Header(HeaderName),
    /// The value of a cookie.
    Cookie(CookieName),
    /// The value of a query parameter.
    Query(#[schemars(length(min = 1))] String),
    /// A claim of the verified token; needs `jwt` in the service.
    Claim(#[schemars(length(min = 1))] String),
    /// The client's address; of an IPv6 address the first 64 bits. Written as a bare word, as are the next three.
    ClientIp,
    /// The route.
    Route,
    /// The service.
    Service,
    /// The subset that the request is meant for.
    Tag,
}

/// What a request costs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cost {
    /// Header with the cost. Without it, or if it is no number from 1 on, a request costs 1.
    pub header: HeaderName,
    /// Highest cost, 1 to 1,000,000; higher ones count as this.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max: u32,
}

impl RateLimit {
    /// The quota of a key.
    ///
    /// # Errors
    /// If there is no such quota.
    pub fn quota(&self) -> Result<Quota, QuotaError> {
        let burst = self.burst.unwrap_or(self.limit.units());
        Quota::new(self.limit.units(), self.limit.per(), burst).map(|quota| quota.named(&self.name))
    }

    /// The quota of a key that has a limit of its own.
    ///
    /// # Errors
    /// If there is no such quota.
    pub fn quota_of(&self, limit: Rate) -> Result<Quota, QuotaError> {
        let burst = match self.burst {
            None => limit.units(),
            Some(burst) => (f64::from(burst) * limit.per_second() / self.limit.per_second()).round().max(1.0) as u32,
        };
        Quota::new(limit.units(), limit.per(), burst).map(|quota| quota.named(&self.name))
    }
}

/// How many requests of a service may be in flight.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Concurrency {
    /// A limit that adapts to the latency of the service (gradient2). What is over it gets 503.
    pub adaptive: AdaptiveLimit,
}

/// The bounds of an adaptive limit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AdaptiveLimit {
    /// Lowest limit, 1 to 1,000,000.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub min: u32,
    /// Highest limit, 1 to 1,000,000.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max: u32,
}

impl Default for AdaptiveLimit {
    fn default() -> Self {
        Self { min: 10, max: 2_000 }
    }
}
