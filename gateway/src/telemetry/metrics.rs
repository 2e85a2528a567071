//! Prometheus metrics. Handles are found once, when a snapshot is built or a combination is first seen; a request only
//! adds to atomics. All labels come from the configuration or from closed lists, so their number is bounded.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use prometheus::proto::MetricFamily;
use prometheus::{
    Encoder, Gauge, GaugeVec, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry,
    TextEncoder,
};
use serin_core::decide::Why;
use serin_core::instance::Health;
use serin_core::selfguard::Trip;
use serin_core::strict::Refusal;
use serin_core::subset::FallbackReason;

use self::bank::BankFamilies;
pub use self::bank::{BankMetrics, RedisFailure};
use self::certificates::CertificateMetrics;
pub(super) use self::families::Families;
use self::families::Family;
pub use self::instance::{FailureKind, InstanceMetrics};
use self::limits::LimitFamilies;
pub use self::limits::LimitOwner;
pub use self::route::RouteMetrics;
use super::exemplars::{Exemplars, Slots};
use super::guard::{GuardFamilies, GuardMetrics};
use super::in_force::InForce;
use super::live::{Live, ServiceMeters};
use super::names;
use super::openmetrics;
use super::otlp::spans::SpanCounters;
use super::process::Process;
use super::sources::Sources;
use super::tail::Tail;
use crate::conf::{Ramp, RampState};
use crate::control::generation::Generation;
use crate::ease;

mod bank;
mod certificates;
mod families;
mod instance;
mod limits;
mod route;

/// How long series of instances that left may stay, if a registry says that they left.
const SWEEP: Duration = Duration::from_secs(5);
/// Buckets of request durations, in seconds: 0.5 ms to 60 s.
const REQUEST_BUCKETS: &[f64] =
    &[0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];
/// Buckets of decision times, in seconds: 100 ns to 10 ms.
const DECISION_BUCKETS: &[f64] = &[1e-7, 2.5e-7, 5e-7, 1e-6, 2.5e-6, 5e-6, 1e-5, 1e-4, 1e-3, 1e-2];

/// Buckets of the time of a call, in seconds: 1 ms to 10 s. They are few, since every instance has them.
const CALL_BUCKETS: &[f64] = &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 10.0];

/// States of instances that are counted by subset.
pub const STATES: [Health; 3] = [Health::Healthy, Health::Unhealthy, Health::Ejected];
/// Outcomes of checks, as a label.
const PASSED: &str = "pass";
const FAILED: &str = "fail";
/// Whether metrics arrived, as a label.
const SENT: [&str; 2] = ["ok", "failed"];
/// States of connections, as a label. Those that are in use are open as well.
const OPEN: &str = "open";
const USED: &str = "in_use";

/// All metric families of the process.
pub struct Metrics {
    registry: Registry,
    families: Vec<Box<dyn Family>>,
    /// What has series; nothing is left out before the first generation is in force.
    in_force: ArcSwapOption<InForce>,
    /// Since when series may be of instances that left.
    unswept: Mutex<Option<Instant>>,
    requests: IntCounterVec,
    request_seconds: HistogramVec,
    decision_seconds: HistogramVec,
    selections: IntCounterVec,
    upstream: IntCounterVec,
    call_seconds: HistogramVec,
    failures: IntCounterVec,
    tags: IntCounterVec,
    subset_instances: IntGaugeVec,
    subset_stable: IntGaugeVec,
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
    bank: BankFamilies,
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
    /// Spans that were sent or lost.
    pub spans: SpanCounters,
    metrics_sent: IntCounterVec,
    /// Traces of single requests that histograms lead to.
    pub exemplars: Exemplars,
    malformed: IntCounterVec,
    /// Entries that could not be written to the audit log.
    pub audit_lost: IntCounter,
    /// Requests that are being served.
    pub in_flight: IntGauge,
    /// Connections of clients.
    pub client_connections: IntGauge,
    /// Tasks of the runtime that serves clients, as of the last look.
    pub tasks: IntGauge,
    /// Ages of the documents.
    pub sources: Sources,
    /// Until when certificates hold.
    pub certificates: CertificateMetrics,
}

impl Metrics {
    /// Registers every family.
    ///
    /// # Errors
    /// Only if a name is registered twice, which is a mistake in this file.
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let families = Families::new(&registry);
        let counters = |name, help, labels: &[&str]| families.counters(name, help, labels);
        let gauges = |name, help, labels: &[&str]| families.gauges(name, help, labels);
        let histograms =
            |name, help, labels: &[&str], buckets: &[f64]| families.histograms(name, help, labels, buckets);
        families.add(Process::new()?)?;
        let limits = LimitFamilies {
            decisions: counters(
                names::RATE_LIMIT,
                "What rate limits did with requests; store_full and fallback are counted besides one of the others.",
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
            edge: counters(
                names::EDGE_REFUSED,
                "Requests and connections that were refused for going beyond a limit.",
                &["limit"],
            )?,
            used: gauges(names::RESOURCE_USED, "Bytes, descriptors or requests in use.", &["resource"])?,
        };
        let malformed = counters(names::MALFORMED, "Requests refused for how they were written.", &["reason"])?;
        for refusal in Refusal::ALL {
            // A series that begins at 0 is one that an alert can see the first increase of.
            malformed.with_label_values(&[refusal.as_str()]).reset();
        }
        let weight = families.float_gauges(names::WEIGHT, "Weight in force of a subset.", &["service", "subset"])?;
        gauges(names::BUILD_INFO, "Build information.", &["version"])?
            .with_label_values(&[env!("CARGO_PKG_VERSION")])
            .set(1);
        let refused = counters(names::REFUSED, "Documents that were refused.", &["document"])?;
        let applied = counters(names::APPLIED, "Documents that came into force.", &["document"])?;
        for document in [names::ROUTING, names::TRAFFIC, names::CERTIFICATES] {
            // A series that begins at 0 is one that an alert can see the first increase of.
            refused.with_label_values(&[document]).reset();
            applied.with_label_values(&[document]).reset();
        }
        let metrics_sent = counters(names::METRICS_SENT, "Times that metrics were sent over OTLP.", &["outcome"])?;
        SENT.iter().for_each(|outcome| metrics_sent.with_label_values(&[outcome]).reset());
        Ok(Self {
            requests: counters(
                names::REQUESTS,
                "Requests by route, service, subset and status class; a response that broke off or a gRPC call that failed is a 5xx.",
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
            call_seconds: histograms(
                names::CALL_SECONDS,
                "Time from the start of an attempt to the head of its response, by the balancer chain that picked.",
                &["service", "instance", "strategy"],
                CALL_BUCKETS,
            )?,
            failures: counters(
                names::FAILURES,
                "Attempts that failed, by kind: no connection, timeout, broken connection, or a status that is one.",
                &["service", "instance", "kind"],
            )?,
            tags: counters(
                names::TAGS,
                "Requests that a tag rule sent to its subset.",
                &["service", "rule", "subset"],
            )?,
            subset_stable: gauges(
                names::SUBSET_STABLE,
                "1 for the stable subset of a service, 0 for the others.",
                &["service", "subset"],
            )?,
            subset_instances: gauges(
                names::SUBSET_INSTANCES,
                "Instances of a subset by state.",
                &["service", "subset", "state"],
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
            checkers: families.gauge(names::CHECKERS, "Instances that are being checked.")?,
            audit_lost: families.counter(names::AUDIT_LOST, "Entries that could not be written to the audit log.")?,
            log_dropped: families.counter(names::LOG_DROPPED, "Access log lines that were lost.")?,
            malformed,
            in_flight: families.gauge(names::IN_FLIGHT, "Requests in flight.")?,
            client_connections: families.gauge(names::CLIENT_CONNECTIONS, "Connections of clients.")?,
            tasks: families.gauge(names::TASKS, "Tasks of the runtime that serves clients.")?,
            spans: span_counters(&families)?,
            metrics_sent,
            exemplars: Exemplars::default(),
            sources: Sources::new(&families)?,
            certificates: CertificateMetrics::new(&families)?,
            ramp_step: gauges(names::RAMP_STEP, "Step that a ramp is at, counted from 1.", &["service"])?,
            ramp_state: gauges(names::RAMP_STATE, "1 for the state that a ramp is in.", &["service", "state"])?,
            live: Live::default(),
            tail: Arc::new(Tail::new(families.counter(names::TAIL_DROPPED, "Lines that readers of decisions lost.")?)),
            weight,
            limits,
            bank: BankFamilies::new(&families)?,
            guards: GuardFamilies::new(&families)?,
            in_force: ArcSwapOption::empty(),
            unswept: Mutex::default(),
            families: families.into_all(),
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

    /// The same in the form of OpenMetrics, with exemplars.
    ///
    /// # Errors
    /// If a family cannot be encoded.
    pub fn render_openmetrics(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        openmetrics::write(&mut text, &self.registry.gather(), &self.exemplars)?;
        Ok(text)
    }

    /// Every family as it is now.
    #[must_use]
    pub fn gather(&self) -> Vec<MetricFamily> {
        self.registry.gather()
    }

    /// Counts a time that metrics were sent, or could not be.
    pub fn count_metrics_export(&self, arrived: bool) {
        self.metrics_sent.with_label_values(&[SENT[usize::from(!arrived)]]).inc();
    }

    /// All families, for the reference.
    #[cfg(test)]
    pub(crate) fn describe(&self) -> Vec<families::Description> {
        self.families.iter().flat_map(|family| families::describe(&**family)).collect()
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

    /// Notes whether a subset is the stable one of its service.
    pub fn set_stable(&self, service: &str, subset: &str, stable: bool) {
        self.subset_stable.with_label_values(&[service, subset]).set(i64::from(stable));
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

    /// Counts a request that was refused for how it was written.
    pub fn count_refusal(&self, refusal: Refusal) {
        self.malformed.with_label_values(&[refusal.as_str()]).inc();
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

    /// From now on only what this generation has gets series; those of what left the configuration are dropped, so that
    /// instances, services and routes that come and go leave nothing behind.
    pub fn keep_only(&self, generation: &Generation) {
        let in_force = Arc::new(InForce::of(generation));
        self.in_force.store(Some(Arc::clone(&in_force)));
        for family in &self.families {
            family.sweep(&in_force);
            ease::breathe();
        }
        self.exemplars.sweep(&in_force);
    }

    /// The same if nothing but instances of some services changed, by position. As that may happen many times a second,
    /// series of instances that left are dropped later, by [`Metrics::sweep_if_due`].
    pub fn keep_instances(&self, generation: &Generation, services: &[usize]) {
        let Some(before) = self.in_force.load_full() else { return };
        self.in_force.store(Some(Arc::new(before.repopulated(generation, services))));
        let mut unswept = self.unswept.lock().unwrap_or_else(PoisonError::into_inner);
        unswept.get_or_insert_with(Instant::now);
    }

    /// Drops the series of instances that left some time ago.
    pub fn sweep_if_due(&self, now: Instant) {
        let due = |since: &mut Instant| now.saturating_duration_since(*since) >= SWEEP;
        let due = self.unswept.lock().unwrap_or_else(PoisonError::into_inner).take_if(due).is_some();
        if let (true, Some(in_force)) = (due, self.in_force.load_full()) {
            self.families.iter().for_each(|family| family.sweep(&in_force));
        }
    }

    /// Whether what these labels name is part of the configuration: a request that outlives its service makes no series.
    fn keeps(&self, family: &str, labels: &[(&str, &str)]) -> bool {
        let in_force = self.in_force.load();
        in_force.as_ref().is_none_or(|in_force| {
            in_force.keeps(family, |name| labels.iter().find(|(label, _)| *label == name).map(|(_, value)| *value))
        })
    }

    /// Drops the series of a checker that ended.
    pub fn forget_check(&self, instance: &str, check: &str) {
        for outcome in [PASSED, FAILED] {
            let _ = self.checks.remove_label_values(&[instance, check, outcome]);
        }
    }

    /// Counters of one service.
    #[must_use]
    pub fn service(self: &Arc<Self>, service: &Arc<str>, parts: &ServiceParts<'_>) -> ServiceMetrics {
        let ServiceParts { subsets, instances, tags, strategy, outlier, breaker } = *parts;
        let with_any = subsets.iter().map(|s| &**s).chain(["any"]);
        ServiceMetrics {
            guard: Arc::new(self.guards.service(service, subsets, instances, outlier, breaker)),
            live: self.live.service(service, subsets),
            tags: tags.iter().map(|(rule, subset)| self.tags.with_label_values(&[&**service, rule, subset])).collect(),
            subset_instances: subsets
                .iter()
                .map(|subset| {
                    STATES
                        .map(|state| self.subset_instances.with_label_values(&[&**service, &**subset, state.as_str()]))
                })
                .collect(),
            strategy: strategy.into(),
            exemplars: with_any.clone().map(|subset| self.exemplars.slots(service, subset, REQUEST_BUCKETS)).collect(),
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
            instances: instances.iter().map(|instance| self.instance(service, instance)).collect(),
            metrics: Arc::clone(self),
            service: Arc::clone(service),
        }
    }
}

fn span_counters(families: &Families<'_>) -> Result<SpanCounters, prometheus::Error> {
    let dropped = families.counters(names::SPANS_DROPPED, "Spans that were lost.", &["reason"])?;
    let [overflow, undelivered, rejected] = names::SPAN_LOSSES.map(|reason| dropped.with_label_values(&[reason]));
    let sent = families.counter(names::SPANS_SENT, "Spans that the receiver took.")?;
    Ok(SpanCounters { sent, overflow, undelivered, rejected })
}

/// What of a service has series of its own.
pub struct ServiceParts<'a> {
    /// Its subsets by name.
    pub subsets: &'a [Arc<str>],
    /// Its instances by address.
    pub instances: &'a [String],
    /// Its tag rules with their subsets, by name.
    pub tags: &'a [(&'a str, &'a str)],
    /// Names of its chain, joined by `+`.
    pub strategy: &'a str,
    /// Whether it has outlier detection.
    pub outlier: bool,
    /// Whether it has circuit breakers.
    pub breaker: bool,
}

/// Counters of one service.
pub struct ServiceMetrics {
    /// Request durations by subset; the last one is any.
    pub request_seconds: Vec<Histogram>,
    /// Traces of single requests among them, under the same positions.
    pub exemplars: Vec<Arc<Slots>>,
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
    /// Requests by the tag rule that sent them to its subset.
    pub tags: Vec<IntCounter>,
    /// Instances by subset and state, in the order of [`STATES`]; set when metrics are asked for.
    pub subset_instances: Vec<[IntGauge; STATES.len()]>,
    /// By position of the instance.
    pub instances: Vec<InstanceMetrics>,
    /// Names of the chain, joined by `+`.
    pub strategy: Arc<str>,
    /// What keeps it up.
    pub guard: Arc<GuardMetrics>,
    /// Live numbers by subset.
    pub live: ServiceMeters,
    metrics: Arc<Metrics>,
    service: Arc<str>,
}

/// Counters of a service's load reports.
pub struct ReportMetrics {
    /// Those that were read.
    pub good: IntCounter,
    /// Those that could not be.
    pub bad: IntCounter,
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
