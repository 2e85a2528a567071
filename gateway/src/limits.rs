//! Rate limits and concurrency limits as a generation has them: the core's, with their counters.

#[cfg_attr(not(feature = "redis"), expect(dead_code, reason = "nobody works in it"))]
pub mod bank;
#[cfg(feature = "redis")]
mod redis;

use std::sync::Arc;
use std::time::Instant;

use prometheus::{IntCounter, IntGauge};
use serin_core::concurrency::Concurrency;
use serin_core::limit::{Basis, Limiter, Standing};

use self::bank::Account;
use crate::control::generation::Generation;

/// A rate limit.
pub struct RateLimit {
    /// The rule with the state of its keys.
    pub limiter: Limiter,
    /// Where it is with the bank, if a fleet shares it.
    pub account: Option<Account>,
    /// Its counters.
    pub metrics: RateLimitMetrics,
}

/// Counters of one rate limit.
pub struct RateLimitMetrics {
    /// Requests by [`Outcome`].
    pub decisions: [IntCounter; Outcome::ALL.len()],
    /// Keys in the store, as of the last look.
    pub keys: IntGauge,
}

/// What a rate limit did with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Let it through.
    Admitted,
    /// Refused it.
    Limited,
    /// Would have refused it.
    DryRun,
    /// Any of these, by a shared bucket, since the store was full. Counted besides.
    StoreFull,
    /// Any of these, by this gateway's share of a limit of the fleet, since Redis did not say. Counted besides.
    Fallback,
}

impl Outcome {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 5] = [Self::Admitted, Self::Limited, Self::DryRun, Self::StoreFull, Self::Fallback];

    /// Its name in metrics and explanations.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Admitted => "admitted",
            Self::Limited => "limited",
            Self::DryRun => "dry_run",
            Self::StoreFull => "store_full",
            Self::Fallback => "fallback",
        }
    }
}

impl RateLimit {
    /// What comes of a standing with the rule; with `observe` it is a dry run.
    #[must_use]
    pub fn outcome(&self, standing: &Standing<'_>, observe: bool) -> Outcome {
        match (standing.within, observe || self.limiter.rule.dry_run) {
            (true, _) => Outcome::Admitted,
            (false, true) => Outcome::DryRun,
            (false, false) => Outcome::Limited,
        }
    }

    /// Counts one decision.
    pub fn count(&self, standing: &Standing<'_>, observe: bool) {
        self.metrics.decisions[self.outcome(standing, observe) as usize].inc();
        if standing.full {
            self.metrics.decisions[Outcome::StoreFull as usize].inc();
        }
        if standing.basis == Basis::Fallback {
            self.metrics.decisions[Outcome::Fallback as usize].inc();
        }
    }
}

/// The concurrency limit of a service.
pub struct ConcurrencyLimit {
    /// The limit.
    pub limit: Arc<Concurrency>,
    /// Requests that were over it.
    pub refused: IntCounter,
    /// The limit in force, as of the last look.
    pub limit_gauge: IntGauge,
    /// Requests that count against it, as of the last look.
    pub in_flight_gauge: IntGauge,
}

/// All rate limits of a generation.
pub fn rate_limits(generation: &Generation) -> impl Iterator<Item = &RateLimit> {
    let of_services = generation.services.iter().flat_map(|service| &service.rate_limits);
    of_services.chain(generation.routes.iter().flat_map(|route| &route.rate_limits))
}

impl RateLimit {
    /// Keys that it keeps.
    #[must_use]
    pub fn keys(&self) -> usize {
        let Limiter { store, leases, .. } = &self.limiter;
        store.len() + leases.as_ref().map_or(0, |leases| leases.len())
    }

    /// Drops what is not worth keeping.
    pub fn sweep(&self, now: Instant) {
        self.limiter.store.sweep(now);
        self.limiter.leases.iter().for_each(|leases| leases.sweep(now));
    }
}

/// Brings the gauges up to date, for whoever is about to read them.
pub fn look(generation: &Generation) {
    for limit in rate_limits(generation) {
        limit.metrics.keys.set(i64::try_from(limit.keys()).unwrap_or(i64::MAX));
    }
    for limit in generation.services.iter().filter_map(|service| service.concurrency.as_ref()) {
        limit.limit_gauge.set(limit.limit.limit().into());
        limit.in_flight_gauge.set(limit.limit.in_flight().into());
    }
}
