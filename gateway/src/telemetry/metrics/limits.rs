//! Counters of rate limits, concurrency limits and shed load.

use std::fmt;
use std::sync::Arc;

use prometheus::{IntCounterVec, IntGaugeVec};
use serin_core::concurrency::Concurrency;

use super::Metrics;
use crate::connection::limits::{Limit, Refusals};
use crate::limits::{ConcurrencyLimit, Outcome, RateLimitMetrics};
use crate::overload::{OverloadMetrics, Resource};

pub(super) struct LimitFamilies {
    pub(super) decisions: IntCounterVec,
    pub(super) keys: IntGaugeVec,
    pub(super) concurrency: IntGaugeVec,
    pub(super) in_flight: IntGaugeVec,
    pub(super) refused: IntCounterVec,
    pub(super) shed: IntCounterVec,
    pub(super) shedding: IntGaugeVec,
    pub(super) used: IntGaugeVec,
    pub(super) edge: IntCounterVec,
}

/// What a rate limit is part of, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitOwner<'a> {
    /// A service.
    Service(&'a str),
    /// A route.
    Route(&'a str),
}

impl LimitOwner<'_> {
    fn labels(&self) -> [&str; 2] {
        match self {
            Self::Service(name) => ["service", name],
            Self::Route(name) => ["route", name],
        }
    }
}

impl LimitOwner<'_> {
    /// Where a rule is, as one word.
    #[must_use]
    pub fn path(&self, rule: &str) -> String {
        let [scope, name] = self.labels();
        format!("{scope}/{name}/{rule}")
    }
}

impl fmt::Display for LimitOwner<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [scope, name] = self.labels();
        write!(f, "{scope} {name}")
    }
}

impl Metrics {
    /// Counters of one rate limit.
    #[must_use]
    pub fn rate_limit(&self, owner: LimitOwner<'_>, rule: &str) -> RateLimitMetrics {
        let [scope, name] = owner.labels();
        let families = &self.limits;
        RateLimitMetrics {
            decisions: Outcome::ALL
                .map(|outcome| families.decisions.with_label_values(&[scope, name, rule, outcome.as_str()])),
            keys: families.keys.with_label_values(&[scope, name, rule]),
        }
    }

    /// A concurrency limit with its counters.
    #[must_use]
    pub fn concurrency(&self, service: &str, limit: Arc<Concurrency>) -> ConcurrencyLimit {
        let families = &self.limits;
        ConcurrencyLimit {
            limit,
            refused: families.refused.with_label_values(&[service]),
            limit_gauge: families.concurrency.with_label_values(&[service]),
            in_flight_gauge: families.in_flight.with_label_values(&[service]),
        }
    }

    /// Counters of what clients were refused for, by limit.
    #[must_use]
    pub fn refusals(&self) -> Refusals {
        Refusals(Limit::ALL.map(|limit| self.limits.edge.with_label_values(&[limit.as_str()])))
    }

    /// Counters of shed load.
    #[must_use]
    pub fn overload(&self) -> OverloadMetrics {
        let families = &self.limits;
        OverloadMetrics {
            shed: Resource::ALL.map(|resource| families.shed.with_label_values(&[resource.as_str()])),
            shedding: Resource::ALL.map(|resource| families.shedding.with_label_values(&[resource.as_str()])),
            used: Resource::ALL.map(|resource| families.used.with_label_values(&[resource.as_str()])),
            tasks: self.tasks.clone(),
        }
    }
}
