//! Counters of one instance: how often it was picked, what it answered, how long it took, how it failed.

use std::net::SocketAddr;
use std::sync::OnceLock;
use std::time::Duration;

use prometheus::{Histogram, IntCounter, IntGauge};

use super::{Metrics, OPEN, ServiceMetrics, USED};
use crate::telemetry::names;

/// The strategy while a chain is out or its kill switch is on.
const PLAIN: &str = "round_robin";

/// How an attempt failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// No connection was made.
    Connect,
    /// No response, or no more of it, in time.
    Timeout,
    /// The connection broke.
    Reset,
    /// A status from 500 to 599, or a gRPC status that stands for one.
    Status,
}

impl FailureKind {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Connect, Self::Timeout, Self::Reset, Self::Status];

    /// Its name in metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Timeout => "timeout",
            Self::Reset => "reset",
            Self::Status => "status",
        }
    }
}

/// Counters of one instance.
pub struct InstanceMetrics {
    /// Times it was picked.
    pub selections: IntCounter,
    /// Answers by status class.
    pub upstream: [IntCounter; names::CLASSES.len()],
    /// Failures by [`FailureKind`].
    pub failures: [IntCounter; FailureKind::ALL.len()],
    /// Whether it may take traffic; set when metrics are asked for.
    pub health: IntGauge,
    /// Open connections; set when metrics are asked for.
    pub connections_open: IntGauge,
    /// Connections that requests use; set when metrics are asked for.
    pub connections_used: IntGauge,
    /// Times of calls by the service's chain, and by round robin in its place. Each becomes a series when it is first
    /// seen, and is `None` for what is not in force any more then.
    calls: [OnceLock<Option<Histogram>>; 2],
}

impl Metrics {
    pub(super) fn instance(&self, service: &str, instance: &str) -> InstanceMetrics {
        let labels = [service, instance];
        InstanceMetrics {
            selections: self.selections.with_label_values(&labels),
            upstream: names::CLASSES.map(|class| self.upstream.with_label_values(&[service, instance, class])),
            failures: FailureKind::ALL.map(|kind| self.failures.with_label_values(&[service, instance, kind.as_str()])),
            health: self.health.with_label_values(&labels),
            connections_open: self.connections.with_label_values(&[service, instance, OPEN]),
            connections_used: self.connections.with_label_values(&[service, instance, USED]),
            calls: [const { OnceLock::new() }; 2],
        }
    }
}

impl ServiceMetrics {
    /// Notes how long the instance at a position took to answer; `plain` is whether round robin picked it in place of the
    /// service's chain.
    pub fn time_call(&self, index: u32, address: SocketAddr, plain: bool, took: Duration) {
        let Some(instance) = self.instances.get(index as usize) else { return };
        let cell = instance.calls[usize::from(plain)].get_or_init(|| self.call_series(address, plain));
        if let Some(histogram) = cell {
            histogram.observe(took.as_secs_f64());
        }
    }

    fn call_series(&self, address: SocketAddr, plain: bool) -> Option<Histogram> {
        let (address, strategy) = (address.to_string(), if plain { PLAIN } else { &*self.strategy });
        let labels = [("service", &*self.service), ("instance", &*address), ("strategy", strategy)];
        let kept = self.metrics.keeps(names::CALL_SECONDS, &labels);
        kept.then(|| self.metrics.call_seconds.with_label_values(&[&*self.service, &*address, strategy]))
    }
}
