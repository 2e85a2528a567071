//! What is told of the guards of a service: counters, gauges, and a line of log for every transition.

use std::sync::Arc;
use std::time::{Duration, Instant};

use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec};
use serin_core::breaker::{OnTurn, Phase};
use serin_core::guard::Events;
use serin_core::instance::Instance;
use serin_core::outlier::Cause;
use serin_core::snapshot::Service;

use super::metrics::Families;
use super::names;

/// The metric families.
pub struct GuardFamilies {
    ejections: IntCounterVec,
    ejections_refused: IntCounterVec,
    degraded: IntCounterVec,
    breaker: IntGaugeVec,
    turns: IntCounterVec,
    panic: IntCounterVec,
    budget_exhausted: IntCounterVec,
    hedges: IntCounterVec,
}

impl GuardFamilies {
    /// Registers every family.
    ///
    /// # Errors
    /// Only if a name is registered twice.
    pub(super) fn new(families: &Families<'_>) -> Result<Self, prometheus::Error> {
        let counters = |name, help, labels: &[&str]| families.counters(name, help, labels);
        let gauges = |name, help, labels: &[&str]| families.gauges(name, help, labels);
        Ok(Self {
            ejections: counters(
                names::EJECTIONS,
                "Ejections of an instance, by cause.",
                &["service", "instance", "cause"],
            )?,
            ejections_refused: counters(
                names::EJECTIONS_REFUSED,
                "Ejections that the cap kept from happening.",
                &["service"],
            )?,
            degraded: counters(names::DEGRADED, "Times an instance became degraded.", &["service", "instance"])?,
            breaker: gauges(
                names::BREAKER,
                "State of a breaker: 0 closed, 1 half open, 2 open.",
                &["service", "subset"],
            )?,
            turns: counters(names::BREAKER_TURNS, "Changes of a breaker's state.", &["service", "subset", "to"])?,
            panic: counters(
                names::PANIC,
                "Attempts for which health was ignored, as too few instances were healthy.",
                &["service", "subset"],
            )?,
            budget_exhausted: counters(
                names::BUDGET_EXHAUSTED,
                "Retries that the budget did not allow.",
                &["service"],
            )?,
            hedges: counters(
                names::HEDGES,
                "Second attempts that were made beside a slow first one, by whether they answered first.",
                &["service", "outcome"],
            )?,
        })
    }

    /// Counters and gauges of one service. Those of what is not configured are left out.
    #[must_use]
    pub fn service(
        &self,
        service: &Arc<str>,
        subsets: &[Arc<str>],
        instances: &[String],
        outlier: bool,
        breaker: bool,
    ) -> GuardMetrics {
        let judged = if outlier { instances } else { &[] };
        let broken = if breaker { subsets } else { &[] };
        GuardMetrics {
            service: Arc::clone(service),
            subsets: subsets.to_vec(),
            ejections: judged
                .iter()
                .map(|i| Cause::ALL.map(|cause| self.ejections.with_label_values(&[service, &**i, cause.as_str()])))
                .collect(),
            ejections_refused: self.ejections_refused.with_label_values(&[service]),
            degraded: judged.iter().map(|i| self.degraded.with_label_values(&[service, &**i])).collect(),
            breaker: broken.iter().map(|s| self.breaker.with_label_values(&[service, s])).collect(),
            turns: broken
                .iter()
                .map(|s| Phase::ALL.map(|phase| self.turns.with_label_values(&[service, s, phase.as_str()])))
                .collect(),
            panic: (subsets.iter().map(|s| &**s).chain(["any"]))
                .map(|subset| self.panic.with_label_values(&[service, subset]))
                .collect(),
            budget_exhausted: self.budget_exhausted.with_label_values(&[service]),
            hedge_won: self.hedges.with_label_values(&[service, "won"]),
            hedge_lost: self.hedges.with_label_values(&[service, "lost"]),
        }
    }
}

/// Counters and gauges of one service, and who is told of what happens to it.
pub struct GuardMetrics {
    service: Arc<str>,
    subsets: Vec<Arc<str>>,
    ejections: Vec<[IntCounter; Cause::ALL.len()]>,
    ejections_refused: IntCounter,
    degraded: Vec<IntCounter>,
    breaker: Vec<IntGauge>,
    turns: Vec<[IntCounter; Phase::ALL.len()]>,
    panic: Vec<IntCounter>,
    /// Retries that the budget did not allow.
    pub budget_exhausted: IntCounter,
    /// Second attempts beside a first that answered first.
    pub hedge_won: IntCounter,
    /// Second attempts beside a first that did not.
    pub hedge_lost: IntCounter,
}

impl GuardMetrics {
    /// Counts an attempt for which health was ignored; a subset of `None` is any.
    pub fn count_panic(&self, subset: Option<usize>) {
        if let Some(cell) = self.panic.get(subset.unwrap_or(self.subsets.len())) {
            cell.inc();
        }
    }

    /// Brings the gauges up to date that time alone changes.
    pub fn refresh(&self, service: &Service, now: Instant) {
        for instance in service.instances.iter() {
            instance.vitals.settle(now);
        }
        for (subset, cell) in service.subsets.iter().zip(&self.breaker) {
            cell.set(subset.breaker.as_ref().map_or(0, |breaker| breaker.phase() as i64));
        }
    }

    /// What a breaker of this service calls when it turns. `subset` is its position.
    #[must_use]
    pub fn on_turn(self: &Arc<Self>, subset: usize) -> OnTurn {
        let metrics = Arc::clone(self);
        Box::new(move |from, to| metrics.turned(subset, from, to))
    }

    fn turned(&self, at: usize, from: Phase, to: Phase) {
        let (Some(subset), Some(turns)) = (self.subsets.get(at), self.turns.get(at)) else { return };
        turns[to as usize].inc();
        self.breaker[at].set(to as i64);
        let (service, from, to_name) = (&*self.service, from.as_str(), to.as_str());
        match to {
            Phase::Open => tracing::warn!(service, %subset, from, to = to_name, "circuit breaker"),
            _ => tracing::info!(service, %subset, from, to = to_name, "circuit breaker"),
        }
    }
}

impl Events for GuardMetrics {
    fn ejected(&self, instance: &Instance, cause: Cause, time: Duration) {
        if let Some(cells) = self.ejections.get(instance.index as usize) {
            cells[cause as usize].inc();
        }
        let (service, instance, cause) = (&*self.service, instance.address, cause.as_str());
        tracing::warn!(service, %instance, cause, seconds = time.as_secs_f64(), "instance ejected");
    }

    fn ejection_refused(&self, instance: &Instance, cause: Cause) {
        self.ejections_refused.inc();
        let (service, instance, cause) = (&*self.service, instance.address, cause.as_str());
        tracing::warn!(service, %instance, cause, "instance not ejected: too many are out already");
    }

    fn returned(&self, instance: &Instance) {
        tracing::info!(service = &*self.service, instance = %instance.address, "instance back from ejection");
    }

    fn degraded(&self, instance: &Instance, on: bool) {
        if on && let Some(cell) = self.degraded.get(instance.index as usize) {
            cell.inc();
        }
        tracing::info!(service = &*self.service, instance = %instance.address, on, "instance degraded");
    }
}
