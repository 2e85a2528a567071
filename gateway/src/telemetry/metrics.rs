//! Prometheus metrics. Handles are found once, when a snapshot is built or a combination is first seen; a request only
//! adds to atomics. All labels come from the configuration or from closed lists, so their number is bounded.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use prometheus::{
    Encoder, Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec,
    Opts, Registry, TextEncoder,
};
use serin_core::decide::Why;
use serin_core::selfguard::Trip;
use serin_core::subset::FallbackReason;

use self::limits::LimitFamilies;
pub use self::limits::LimitOwner;
use super::guard::{GuardFamilies, GuardMetrics};
use super::live::{Live, ServiceMeters};
use super::names;
use super::tail::Tail;
use crate::conf::{Ramp, RampState};

mod limits;

/// Buckets of request durations, in seconds: 0.5 ms to 60 s.
const REQUEST_BUCKETS: &[f64] =
    &[0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];
/// Buckets of decision times, in seconds: 100 ns to 10 ms.
const DECISION_BUCKETS: &[f64] = &[1e-7, 2.5e-7, 5e-7, 1e-6, 2.5e-6, 5e-6, 1e-5, 1e-4, 1e-3, 1e-2];

/// Outcomes of checks, as a label.
const PASSED: &str = "pass";
const FAILED: &str = "fail";
/// States of connections, as a label. Those that are in use are open as well.
const OPEN: &str = "open";
const USED: &str = "in_use";

/// All metric families of the process.
pub struct Metrics {
    registry: Registry,
    requests: IntCounterVec,
    request_seconds: HistogramVec,
    decision_seconds: HistogramVec,
    selections: IntCounterVec,
    upstream: IntCounterVec,
    fallbacks: IntCounterVec,
    assignments: IntCounterVec,
    retries: IntCounterVec,
    self_guard: IntGaugeVec,
    trips: IntCounterVec,
    load_reports: IntCounterVec,
    missed: IntCounterVec,
    revision: IntGaugeVec,
    switch: IntGaugeVec,
    weight: GaugeVec,
    refused: IntCounterVec,
    applied: IntCounterVec,
    build_seconds: HistogramVec,
    limits: LimitFamilies,
    checks: IntCounterVec,
    health: IntGaugeVec,
    connections: IntGaugeVec,
    pool_waits: IntCounterVec,
    pool_overflows: IntCounterVec,
    /// Instances that are being checked, each once per way to check it.
    pub checkers: IntGauge,
    ramp_step: IntGaugeVec,
    ramp_state: IntGaugeVec,
    guards: GuardFamilies,
    /// Live numbers.
    pub live: Live,
    /// Whoever listens to decisions as they happen.
    pub tail: Arc<Tail>,
    /// Access log lines that were lost.
    pub log_dropped: IntCounter,
    /// Requests that are being served.
    pub in_flight: IntGauge,
}

/// Registers families of metrics by their names and labels.
pub(super) struct Families<'a>(pub(super) &'a Registry);

impl Families<'_> {
    pub(super) fn counters(&self, name: &str, help: &str, labels: &[&str]) -> Result<IntCounterVec, prometheus::Error> {
        let family = IntCounterVec::new(Opts::new(name, help), labels)?;
        self.0.register(Box::new(family.clone()))?;
        Ok(family)
    }

    pub(super) fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> Result<IntGaugeVec, prometheus::Error> {
        let family = IntGaugeVec::new(Opts::new(name, help), labels)?;
        self.0.register(Box::new(family.clone()))?;
        Ok(family)
    }
}

impl Metrics {
    /// Registers every family.
    ///
    /// # Errors
    /// Only if a name is registered twice, which is a mistake in this file.
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let families = Families(&registry);
        let counters = |name, help, labels: &[&str]| families.counters(name, help, labels);
        let gauges = |name, help, labels: &[&str]| families.gauges(name, help, labels);
        let histograms = |name, help, labels: &[&str], buckets: &[f64]| -> Result<HistogramVec, prometheus::Error> {
            let family = HistogramVec::new(HistogramOpts::new(name, help).buckets(buckets.to_vec()), labels)?;
            registry.register(Box::new(family.clone()))?;
            Ok(family)
        };
        let limits = LimitFamilies {
            decisions: counters(
                names::RATE_LIMIT,
                "What rate limits did with requests; store_full is counted besides one of the others.",
                &["scope", "owner", "rule", "outcome"],
            )?,
            keys: gauges(names::RATE_LIMIT_KEYS, "Keys that a rate limit keeps.", &["scope", "owner", "rule"])?,
            concurrency: gauges(names::CONCURRENCY_LIMIT, "Concurrency limit in force.", &["service"])?,
            in_flight: gauges(
                names::CONCURRENCY_IN_FLIGHT,
                "Requests that count against the concurrency limit.",
                &["service"],
            )?,
            refused: counters(names::CONCURRENCY_REFUSED, "Requests over the concurrency limit.", &["service"])?,
            shed: counters(names::SHED, "Requests refused by an overloaded gateway.", &["resource"])?,
            shedding: gauges(names::SHEDDING, "1 while the gateway sheds load.", &["resource"])?,
            used: gauges(names::RESOURCE_USED, "Bytes, descriptors or requests in use.", &["resource"])?,
        };
        let weight = GaugeVec::new(Opts::new(names::WEIGHT, "Weight in force of a subset."), &["service", "subset"])?;
        registry.register(Box::new(weight.clone()))?;
        gauges(names::BUILD_INFO, "Build information.", &["version"])?
            .with_label_values(&[env!("CARGO_PKG_VERSION")])
            .set(1);
        let refused = counters(names::REFUSED, "Documents that were refused.", &["document"])?;
        let applied = counters(names::APPLIED, "Documents that came into force.", &["document"])?;
        for document in [names::ROUTING, names::TRAFFIC] {
            // A series that begins at 0 is one that an alert can see the first increase of.
            refused.with_label_values(&[document]).reset();
            applied.with_label_values(&[document]).reset();
        }
        Ok(Self {
            requests: counters(
                names::REQUESTS,
                "Requests by route, service, subset and status class.",
                &["route", "service", "subset", "code"],
            )?,
            request_seconds: histograms(
                names::REQUEST_SECONDS,
                "Time from request head to end of response.",
                &["service", "subset"],
                REQUEST_BUCKETS,
            )?,
            decision_seconds: histograms(
                names::DECISION_SECONDS,
                "Time of the decision alone.",
                &["service"],
                DECISION_BUCKETS,
            )?,
            selections: counters(names::SELECTIONS, "Times an instance was picked.", &["service", "instance"])?,
            upstream: counters(
                names::UPSTREAM,
                "Requests that an instance answered, by status class; none: it did not answer.",
                &["service", "instance", "code"],
            )?,
            fallbacks: counters(
                names::FALLBACKS,
                "Requests that their subset could not serve.",
                &["service", "subset", "reason"],
            )?,
            assignments: counters(
                names::ASSIGNMENTS,
                "Requests by why they were meant for their subset.",
                &["service", "subset", "why"],
            )?,
            retries: counters(names::RETRIES, "Attempts after the first.", &["service"])?,
            self_guard: gauges(names::SELF_GUARD, "1 while a chain is out: it panicked or was slow.", &["service"])?,
            trips: counters(names::TRIPS, "Times that a chain was taken out.", &["service", "why"])?,
            load_reports: counters(names::LOAD_REPORTS, "Load reports of instances.", &["service", "result"])?,
            missed: counters(
                names::MISSED,
                "Requests for which a narrow found nothing that it wants and left everything.",
                &["service", "narrow"],
            )?,
            revision: gauges(names::REVISION, "Revision in force.", &["document"])?,
            switch: gauges(names::SWITCH, "1 while a kill switch is on.", &["switch", "service"])?,
            refused,
            applied,
            build_seconds: histograms(
                names::BUILD_SECONDS,
                "Time to check and build a document.",
                &["document"],
                REQUEST_BUCKETS,
            )?,
            checks: counters(names::CHECKS, "Health checks by outcome.", &["instance", "check", "outcome"])?,
            health: gauges(
                names::HEALTH,
                "1 while an instance may take traffic as far as its health is known.",
                &["service", "instance"],
            )?,
            connections: gauges(
                names::CONNECTIONS,
                "Connections to an instance: open ones, and those that requests use.",
                &["service", "instance", "state"],
            )?,
            pool_waits: counters(
                names::POOL_WAITS,
                "Requests that had to wait for a connection.",
                &["service", "instance"],
            )?,
            pool_overflows: counters(
                names::POOL_OVERFLOWS,
                "Attempts that found all connections in use.",
                &["service", "instance"],
            )?,
            checkers: {
                let gauge = IntGauge::new(names::CHECKERS, "Instances that are being checked.")?;
                registry.register(Box::new(gauge.clone()))?;
                gauge
            },
            log_dropped: {
                let counter = IntCounter::new(names::LOG_DROPPED, "Access log lines that were lost.")?;
                registry.register(Box::new(counter.clone()))?;
                counter
            },
            in_flight: {
                let gauge = IntGauge::new(names::IN_FLIGHT, "Requests in flight.")?;
                registry.register(Box::new(gauge.clone()))?;
                gauge
            },
            ramp_step: gauges(names::RAMP_STEP, "Step that a ramp is at, counted from 1.", &["service"])?,
            ramp_state: gauges(names::RAMP_STATE, "1 for the state that a ramp is in.", &["service", "state"])?,
            weight,
            limits,
            guards: GuardFamilies::new(&families)?,
            live: Live::default(),
            tail: {
                let dropped = IntCounter::new(names::TAIL_DROPPED, "Lines that readers of decisions lost.")?;
                registry.register(Box::new(dropped.clone()))?;
                Arc::new(Tail::new(dropped))
            },
            registry,
        })
    }

    /// The text that `/metrics` answers with.
    ///
    /// # Errors
    /// If a family cannot be encoded.
    pub fn render(&self) -> Result<String, prometheus::Error> {
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        String::from_utf8(text).map_err(|error| prometheus::Error::Msg(error.to_string()))
    }

    /// Notes which revision of a document is in force.
    pub fn set_revision(&self, document: &str, revision: u64) {
        self.revision.with_label_values(&[document]).set(i64::try_from(revision).unwrap_or(i64::MAX));
    }

    /// Notes a kill switch; `service` is empty for the global one.
    pub fn set_switch(&self, switch: &str, service: &str, on: bool) {
        self.switch.with_label_values(&[switch, service]).set(i64::from(on));
    }

    /// Notes the ramp of a service, or that it has none.
    pub fn set_ramp(&self, service: &str, ramp: Option<&Ramp>) {
        let Some(ramp) = ramp else {
            // What is not there need not be dropped.
            let _ = self.ramp_step.remove_label_values(&[service]);
            for state in RampState::ALL {
                let _ = self.ramp_state.remove_label_values(&[service, state.as_str()]);
            }
            return;
        };
        self.ramp_step.with_label_values(&[service]).set(i64::try_from(ramp.step + 1).unwrap_or(i64::MAX));
        for state in RampState::ALL {
            self.ramp_state.with_label_values(&[service, state.as_str()]).set(i64::from(ramp.state == state));
        }
    }

    /// The gauge of a subset's weight.
    #[must_use]
    pub fn weight(&self, service: &str, subset: &str) -> Gauge {
        self.weight.with_label_values(&[service, subset])
    }

    /// Counts a document that came into force or was refused, and how long that took.
    pub fn count_document(&self, document: &str, applied: bool, took: Duration) {
        let family = if applied { &self.applied } else { &self.refused };
        family.with_label_values(&[document]).inc();
        self.build_seconds.with_label_values(&[document]).observe(took.as_secs_f64());
    }

    /// Counts a request that no route matched.
    pub fn count_unrouted(&self, status: u16) {
        let class = names::CLASSES[names::class(status)];
        self.requests.with_label_values(&["none", "none", "none", class]).inc();
    }

    /// Counters of a service's load reports.
    #[must_use]
    pub fn load_reports(&self, service: &str) -> ReportMetrics {
        let counter = |result| self.load_reports.with_label_values(&[service, result]);
        ReportMetrics { good: counter("ok"), bad: counter("bad") }
    }

    /// Takes over what a narrow counted since it was last asked.
    pub fn count_missed(&self, service: &str, narrow: &str, count: &AtomicU64) {
        self.missed.with_label_values(&[service, narrow]).inc_by(count.swap(0, Relaxed));
    }

    /// Counters of one route.
    #[must_use]
    pub fn route(self: &Arc<Self>, route: &Arc<str>, service: &Arc<str>, subsets: Vec<Arc<str>>) -> RouteMetrics {
        let cells = (0..(subsets.len() + 1) * names::CLASSES.len()).map(|_| OnceLock::new()).collect();
        RouteMetrics {
            metrics: Arc::clone(self),
            route: Arc::clone(route),
            service: Arc::clone(service),
            subsets,
            cells,
        }
    }

    /// Counters of one instance's pool.
    #[must_use]
    pub fn pool(&self, service: &str, instance: &str) -> PoolMetrics {
        PoolMetrics {
            waits: self.pool_waits.with_label_values(&[service, instance]),
            overflows: self.pool_overflows.with_label_values(&[service, instance]),
        }
    }

    /// Counters of one checker.
    #[must_use]
    pub fn check(&self, instance: &str, check: &str) -> CheckMetrics {
        CheckMetrics {
            passed: self.checks.with_label_values(&[instance, check, PASSED]),
            failed: self.checks.with_label_values(&[instance, check, FAILED]),
        }
    }

    /// Drops the series of an instance that left a service, so that instances that come and go leave nothing behind.
    pub fn forget_instance(&self, service: &str, instance: &str) {
        // What is not there need not be dropped.
        for family in [&self.selections, &self.pool_waits, &self.pool_overflows] {
            let _ = family.remove_label_values(&[service, instance]);
        }
        for class in names::CLASSES {
            let _ = self.upstream.remove_label_values(&[service, instance, class]);
        }
        let _ = self.health.remove_label_values(&[service, instance]);
        self.guards.forget_instance(service, instance);
        for state in [OPEN, USED] {
            let _ = self.connections.remove_label_values(&[service, instance, state]);
        }
    }

    /// Drops the series of a checker that ended.
    pub fn forget_check(&self, instance: &str, check: &str) {
        for outcome in [PASSED, FAILED] {
            let _ = self.checks.remove_label_values(&[instance, check, outcome]);
        }
    }

    /// Counters of one service, with or without those of outlier detection and breakers.
    #[must_use]
    pub fn service(
        self: &Arc<Self>,
        service: &Arc<str>,
        subsets: &[Arc<str>],
        instances: &[String],
        (outlier, breaker): (bool, bool),
    ) -> ServiceMetrics {
        let with_any = subsets.iter().map(|s| &**s).chain(["any"]);
        ServiceMetrics {
            guard: Arc::new(self.guards.service(service, subsets, instances, outlier, breaker)),
            live: self.live.service(service, subsets),
            request_seconds: with_any
                .map(|subset| self.request_seconds.with_label_values(&[&**service, subset]))
                .collect(),
            decision_seconds: self.decision_seconds.with_label_values(&[service]),
            retries: self.retries.with_label_values(&[service]),
            tripped: self.self_guard.with_label_values(&[service]),
            trips: Trip::ALL.map(|why| self.trips.with_label_values(&[&**service, why.as_str()])),
            fallbacks: subsets
                .iter()
                .map(|subset| {
                    let cell = |reason: FallbackReason| {
                        self.fallbacks.with_label_values(&[&**service, &**subset, reason.as_str()])
                    };
                    FallbackReason::ALL.map(cell)
                })
                .collect(),
            assignments: subsets
                .iter()
                .map(|subset| {
                    let cell = |why: Why| self.assignments.with_label_values(&[&**service, &**subset, why.as_str()]);
                    Why::ALL.map(cell)
                })
                .collect(),
            instances: instances
                .iter()
                .map(|instance| InstanceMetrics {
                    selections: self.selections.with_label_values(&[&**service, instance.as_str()]),
                    upstream: names::CLASSES
                        .map(|class| self.upstream.with_label_values(&[&**service, instance.as_str(), class])),
                    health: self.health.with_label_values(&[&**service, instance.as_str()]),
                    connections_open: self.connections.with_label_values(&[&**service, instance.as_str(), OPEN]),
                    connections_used: self.connections.with_label_values(&[&**service, instance.as_str(), USED]),
                })
                .collect(),
        }
    }
}

/// Counters of one route, by subset and status class. A combination becomes a series when it is first seen.
pub struct RouteMetrics {
    metrics: Arc<Metrics>,
    route: Arc<str>,
    service: Arc<str>,
    subsets: Vec<Arc<str>>,
    cells: Box<[OnceLock<IntCounter>]>,
}

impl RouteMetrics {
    /// Counts a finished request; a subset of `None` is any.
    pub fn count(&self, subset: Option<usize>, status: u16) {
        let row = subset.unwrap_or(self.subsets.len());
        let class = names::class(status);
        let Some(cell) = self.cells.get(row * names::CLASSES.len() + class) else { return };
        cell.get_or_init(|| {
            let subset = self.subsets.get(row).map_or("any", |subset| &**subset);
            self.metrics.requests.with_label_values(&[&*self.route, &*self.service, subset, names::CLASSES[class]])
        })
        .inc();
    }
}

/// Counters of one service.
pub struct ServiceMetrics {
    /// Request durations by subset; the last one is any.
    pub request_seconds: Vec<Histogram>,
    /// Decision times.
    pub decision_seconds: Histogram,
    /// Attempts after the first.
    pub retries: IntCounter,
    /// 1 while the chain is out.
    pub tripped: IntGauge,
    /// Times that the chain was taken out, by why.
    pub trips: [IntCounter; Trip::ALL.len()],
    /// Fallbacks by subset and reason.
    pub fallbacks: Vec<[IntCounter; FallbackReason::ALL.len()]>,
    /// Assignments by subset and why.
    pub assignments: Vec<[IntCounter; Why::ALL.len()]>,
    /// By position of the instance.
    pub instances: Vec<InstanceMetrics>,
    /// What keeps it up.
    pub guard: Arc<GuardMetrics>,
    /// Live numbers by subset.
    pub live: ServiceMeters,
}

/// Counters of a service's load reports.
pub struct ReportMetrics {
    /// Those that were read.
    pub good: IntCounter,
    /// Those that could not be.
    pub bad: IntCounter,
}

/// Counters of one instance.
pub struct InstanceMetrics {
    /// Times it was picked.
    pub selections: IntCounter,
    /// Answers by status class.
    pub upstream: [IntCounter; names::CLASSES.len()],
    /// Whether it may take traffic; set when metrics are asked for.
    pub health: IntGauge,
    /// Open connections; set when metrics are asked for.
    pub connections_open: IntGauge,
    /// Connections that requests use; set when metrics are asked for.
    pub connections_used: IntGauge,
}

/// Counters of one instance's pool.
pub struct PoolMetrics {
    /// Requests that had to wait.
    pub waits: IntCounter,
    /// Attempts that waited in vain, or did not wait.
    pub overflows: IntCounter,
}

/// Counters of one checker.
pub struct CheckMetrics {
    passed: IntCounter,
    failed: IntCounter,
}

impl CheckMetrics {
    /// Counts a check.
    pub fn count(&self, passed: bool) {
        if passed { self.passed.inc() } else { self.failed.inc() }
    }
}
