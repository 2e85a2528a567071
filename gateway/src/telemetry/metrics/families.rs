//! Registers families of metrics, and drops the series of what left the configuration.

use std::cell::RefCell;
use std::collections::HashMap;

use prometheus::core::{Atomic, Collector, GenericCounter, GenericGauge, MetricVec, MetricVecBuilder};
use prometheus::{
    Error, GaugeVec, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
};

use crate::telemetry::in_force::InForce;
use crate::telemetry::process::Process;

/// A family of metrics.
pub(super) trait Family: Collector {
    /// Drops the series of what is not in force.
    fn sweep(&self, in_force: &InForce) {
        let _ = in_force;
    }
}

impl<P: Atomic> Family for GenericCounter<P> {}

impl<P: Atomic> Family for GenericGauge<P> {}

impl<T: MetricVecBuilder> Family for MetricVec<T> {
    fn sweep(&self, in_force: &InForce) {
        for family in self.collect() {
            for metric in family.get_metric() {
                let labels: HashMap<_, _> = metric.get_label().iter().map(|pair| (pair.name(), pair.value())).collect();
                if !in_force.keeps(family.name(), |name| labels.get(name).copied()) {
                    // Only if it is gone already, which is as well.
                    let _ = self.remove(&labels);
                }
            }
        }
    }
}

impl Family for Process {}

/// A family in words.
#[cfg(test)]
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Description {
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) labels: Vec<String>,
    pub(crate) help: String,
}

/// The families of a collector in words.
#[cfg(test)]
pub(super) fn describe(family: &dyn Family) -> Vec<Description> {
    let kinds = family.collect();
    let describe = |(desc, kind): (&prometheus::core::Desc, &prometheus::proto::MetricFamily)| Description {
        name: desc.fq_name.clone(),
        kind: format!("{:?}", kind.get_field_type()).to_lowercase(),
        labels: desc.variable_labels.clone(),
        help: desc.help.clone(),
    };
    family.desc().into_iter().zip(&kinds).map(describe).collect()
}

/// Registers families of metrics by their names and labels.
pub(in crate::telemetry) struct Families<'a> {
    registry: &'a Registry,
    all: RefCell<Vec<Box<dyn Family>>>,
}

impl<'a> Families<'a> {
    pub(super) fn new(registry: &'a Registry) -> Self {
        Self { registry, all: RefCell::default() }
    }

    /// All that were registered.
    pub(super) fn into_all(self) -> Vec<Box<dyn Family>> {
        self.all.into_inner()
    }

    pub(super) fn add<F: Family + Clone + 'static>(&self, family: F) -> Result<F, Error> {
        self.registry.register(Box::new(family.clone()))?;
        self.all.borrow_mut().push(Box::new(family.clone()));
        Ok(family)
    }

    pub(in crate::telemetry) fn counters(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> Result<IntCounterVec, Error> {
        self.add(IntCounterVec::new(Opts::new(name, help), labels)?)
    }

    pub(in crate::telemetry) fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> Result<IntGaugeVec, Error> {
        self.add(IntGaugeVec::new(Opts::new(name, help), labels)?)
    }

    pub(in crate::telemetry) fn float_gauges(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> Result<GaugeVec, Error> {
        self.add(GaugeVec::new(Opts::new(name, help), labels)?)
    }

    pub(super) fn histograms(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
        buckets: &[f64],
    ) -> Result<HistogramVec, Error> {
        self.add(HistogramVec::new(HistogramOpts::new(name, help).buckets(buckets.to_vec()), labels)?)
    }

    pub(super) fn counter(&self, name: &str, help: &str) -> Result<IntCounter, Error> {
        self.add(IntCounter::new(name, help)?)
    }

    pub(super) fn gauge(&self, name: &str, help: &str) -> Result<IntGauge, Error> {
        self.add(IntGauge::new(name, help)?)
    }
}
