//! Counters of what rate limits of a fleet cost.

use prometheus::{Error, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge};

use super::{Families, Metrics, names};

/// Buckets of the time of a message to Redis, in seconds: 100 us to 1 s.
const BUCKETS: &[f64] = &[1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 5e-2, 0.1, 1.0];
/// What comes of orders of leases, as a label.
const OUTCOMES: [&str; 3] = ["granted", "refused", "failed"];

/// Why Redis gave no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RedisFailure {
    /// There was no connection, or it broke.
    Connection,
    /// The answer came too late.
    Timeout,
    /// The password is wrong, or cannot be read.
    Auth,
    /// The server said that it cannot.
    Server,
    /// The answer was none that makes sense.
    Protocol,
}

impl RedisFailure {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 5] = [Self::Connection, Self::Timeout, Self::Auth, Self::Server, Self::Protocol];

    /// Its name in metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Connection => "connection",
            Self::Timeout => "timeout",
            Self::Auth => "auth",
            Self::Server => "server",
            Self::Protocol => "protocol",
        }
    }
}

pub(super) struct BankFamilies {
    fallback: IntGauge,
    replicas: IntGauge,
    leases: IntCounterVec,
    units: IntCounter,
    waits: IntCounter,
    failures: IntCounterVec,
    seconds: HistogramVec,
}

/// Counters of the bank of a fleet's limits.
pub struct BankMetrics {
    /// 1 while limits are local.
    pub fallback: IntGauge,
    /// Gateways that share the limits.
    pub replicas: IntGauge,
    /// Orders that got something.
    pub granted: IntCounter,
    /// Orders for which there was nothing.
    pub refused: IntCounter,
    /// Orders without an answer.
    pub failed: IntCounter,
    /// Units that were leased.
    pub units: IntCounter,
    /// Requests that waited.
    pub waits: IntCounter,
    /// Failures of the server, by [`RedisFailure`].
    pub failures: [IntCounter; RedisFailure::ALL.len()],
    /// Time of a message with orders.
    pub seconds: Histogram,
}

impl BankFamilies {
    pub(super) fn new(families: &Families<'_>) -> Result<Self, Error> {
        Ok(Self {
            fallback: families.gauge(
                names::FLEET_FALLBACK,
                "1 while rate limits of the fleet are local, as Redis does not answer in time.",
            )?,
            replicas: families.gauge(names::FLEET_REPLICAS, "Gateways that share the rate limits of the fleet.")?,
            leases: families.counters(names::FLEET_LEASES, "Orders of leases of fleet-wide limits.", &["outcome"])?,
            units: families.counter(names::FLEET_UNITS, "Units of fleet-wide limits that were leased.")?,
            waits: families.counter(names::FLEET_WAITS, "Requests that waited for a lease.")?,
            failures: families.counters(names::REDIS_FAILURES, "Failures of Redis by kind.", &["kind"])?,
            seconds: families.histograms(
                names::REDIS_SECONDS,
                "Time of a message to Redis with orders of leases.",
                &[],
                BUCKETS,
            )?,
        })
    }
}

impl Metrics {
    /// Counters of the bank of a fleet's limits.
    #[must_use]
    pub fn bank(&self) -> BankMetrics {
        let families = &self.bank;
        let [granted, refused, failed] = OUTCOMES.map(|outcome| families.leases.with_label_values(&[outcome]));
        BankMetrics {
            fallback: families.fallback.clone(),
            replicas: families.replicas.clone(),
            granted,
            refused,
            failed,
            units: families.units.clone(),
            waits: families.waits.clone(),
            failures: RedisFailure::ALL.map(|kind| families.failures.with_label_values(&[kind.as_str()])),
            seconds: families.seconds.with_label_values::<&str>(&[]),
        }
    }
}
