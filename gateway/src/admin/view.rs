//! What the API shows of services and documents.

use std::collections::BTreeMap;
use std::time::Instant;

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serin_core::breaker::Breaker;
use serin_core::decide::{self, Recorder, Unavailable};
use serin_core::instance::Instance;
use serin_core::limit::Limiter;
use serin_core::snapshot::Service;
use serin_core::subset::{FallbackReason, PoolState};

use crate::checks::LastCheck;
use crate::conf::{Percent, Ramp};
use crate::control::generation::{Generation, ServiceSide};
use crate::explain::preview::{by_name, in_force};
use crate::explain::standing::{weight_in_force, why};
use crate::explain::{ConcurrencySeen, Revisions, SwitchesInForce, switches};
use crate::limits::RateLimit;
use crate::pool::InstancePool;

/// What stands for a value that is left out.
const LEFT_OUT: &str = "(left out)";
/// Parts of header names whose values may be credentials.
const SECRET: [&str; 7] = ["authorization", "cookie", "token", "secret", "password", "credential", "key"];

/// All services.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ServiceList {
    /// In the order of the routing document.
    pub services: Vec<ServiceSummary>,
}

/// A service in short.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ServiceSummary {
    /// Its name.
    pub name: String,
    /// Its stable subset.
    pub stable: String,
    /// Weights in force by subset.
    pub weights: IndexMap<String, Percent>,
    /// Kill switches and abort in force.
    pub switches: SwitchesInForce,
    /// Number of instances.
    pub instances: usize,
}

/// A service.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ServiceView {
    /// Its name.
    pub name: String,
    /// Its stable subset.
    pub stable: String,
    /// Name of its pick.
    pub balancer: String,
    /// Kill switches and abort in force.
    pub switches: SwitchesInForce,
    /// Its guarded ramp, under way or ended.
    #[serde(default)]
    pub ramp: Option<Ramp>,
    /// Its subsets.
    pub subsets: Vec<SubsetView>,
    /// Its instances, in order of their addresses.
    pub instances: Vec<InstanceView>,
    /// Its concurrency limit, if it has one.
    #[serde(default)]
    pub concurrency: Option<ConcurrencySeen>,
    /// Its rate limits.
    #[serde(default)]
    pub rate_limits: Vec<RateLimitView>,
    /// Revisions in force.
    pub revision: Revisions,
}

/// A subset.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SubsetView {
    /// Its name.
    pub name: String,
    /// Weight in force.
    pub weight: Percent,
    /// Weight in the traffic document, which an abort or the canary switch may keep out of force.
    pub configured_weight: Percent,
    /// Number of instances.
    pub instances: usize,
    /// Why it cannot serve, if it cannot: `absent`, `empty`, `all_unhealthy`, `breaker_open` or `overflow`.
    pub unusable: Option<String>,
    /// Healthy instances with a weight.
    pub healthy: u32,
    /// Whether so few are healthy that health is ignored.
    pub panic: bool,
    /// Its circuit breaker, if it has one.
    pub breaker: Option<BreakerState>,
}

/// A circuit breaker.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct BreakerState {
    /// `closed`, `half_open` or `open`.
    pub state: String,
    /// Seconds for which it stays open yet.
    pub open_for: f64,
    /// Times that it opened in a row.
    pub opened: u32,
    /// Calls that it judges by: those in its window, or its probes.
    pub calls: u64,
    /// Failed ones among them.
    pub failed: u64,
    /// Slow ones among them.
    pub slow: u64,
    /// Attempts that hold a connection.
    pub connections: u32,
    /// Attempts that wait for one.
    pub pending: u32,
}

/// A rate limit.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct RateLimitView {
    /// Its name.
    pub rule: String,
    /// Keys that it keeps.
    pub keys: usize,
    /// Keys that it keeps at most.
    pub max_keys: usize,
    /// Whether it only counts.
    pub dry_run: bool,
    /// Whether a fleet shares it.
    #[serde(default)]
    pub fleet: bool,
}

/// An instance.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct InstanceView {
    /// Its address.
    pub address: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its zone.
    pub zone: Option<String>,
    /// Its cluster.
    pub cluster: Option<String>,
    /// Its weight; 0 takes no traffic.
    pub weight: u32,
    /// Subsets that it is part of.
    pub subsets: Vec<String>,
    /// `healthy`, `unhealthy` or `ejected`.
    pub health: String,
    /// Weight in force: what slow start, outlier detection and reported load leave of it; 0 if it is not healthy.
    pub weight_in_force: f64,
    /// Why that is not its weight.
    pub why: Vec<String>,
    /// Share of attempts in the window of outlier detection that did not fail, 0 to 1; none without attempts.
    pub success_rate: Option<f64>,
    /// Ejections that still count.
    pub ejections: u32,
    /// Requests that it is serving.
    pub in_flight: u32,
    /// How often it was picked since it was first seen.
    pub picks: u64,
    /// Average latency in milliseconds; falls to 0 while there are no requests.
    pub ewma_ms: f64,
    /// The latest health check, if it is checked and one was made.
    pub last_check: Option<CheckView>,
    /// Connections to it.
    pub connections: ConnectionsView,
    /// What its last calls say, where the chain has them kept.
    pub calls: Option<CallsView>,
    /// The load that it reports, unless that is stale.
    pub load: Option<LoadView>,
}

/// A health check that was made.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct CheckView {
    /// `pass` or `fail`.
    pub outcome: String,
    /// Why it failed.
    pub reason: Option<String>,
    /// When it ended.
    pub at: String,
    /// How often in a row this was the outcome.
    pub in_a_row: u32,
}

/// Connections to an instance.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ConnectionsView {
    /// All that are open, idle ones included.
    pub open: usize,
    /// Those that requests use.
    pub in_use: usize,
    /// How many requests may use at a time, if there is a bound.
    pub max: Option<usize>,
}

/// The last calls of an instance: 100 at most, and none older than 10 s but for the latest eight.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CallsView {
    /// Mean latency in milliseconds, where a failure counts as slow; fades while there are no requests.
    pub mean_ms: f64,
    /// Share that succeeded, smoothed, from 0 to 1; fades to 1 while there are no requests.
    pub success: f64,
}

/// The load that an instance reports.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LoadView {
    /// Utilisation, the application's own or the processor's; 1 is all of it.
    pub utilization: f64,
    /// Requests per second.
    pub rps: f64,
    /// Errors per second.
    pub eps: f64,
    /// Age of the report in milliseconds.
    pub age_ms: u64,
    /// The part of its weight that the instance has by the reports of all.
    pub factor: f64,
}

/// All services of a generation.
pub(super) fn services(generation: &Generation) -> ServiceList {
    let core = &generation.core;
    let summary = |(at, (service, traffic)): (usize, (&std::sync::Arc<Service>, _))| ServiceSummary {
        name: service.name.to_string(),
        stable: service.subsets[service.stable].name.to_string(),
        weights: by_name(service, &in_force(service, traffic)),
        switches: switches(generation, at),
        instances: service.instances.len(),
    };
    ServiceList { services: core.services.iter().zip(&core.traffic).enumerate().map(summary).collect() }
}

/// One service of a generation.
pub(super) fn service(generation: &Generation, position: usize) -> ServiceView {
    let (service, traffic) = (&generation.core.services[position], &generation.core.traffic[position]);
    let (side, now) = (&generation.services[position], Instant::now());
    let percent = |weight| Percent::from_hundredths(weight).unwrap_or(Percent::ALL);
    let configured = |at| traffic.shares.iter().find(|share| share.subset == at).map_or(0, |share| share.weight);
    let in_force = in_force(service, traffic);
    let subset = |(at, subset): (usize, &serin_core::subset::Subset)| SubsetView {
        name: subset.name.to_string(),
        weight: percent(in_force[at]),
        configured_weight: percent(if traffic.shares.is_empty() { in_force[at] } else { configured(at) }),
        instances: subset.pool.instances.len(),
        unusable: unusable(subset, now).map(|reason| reason.as_str().to_owned()),
        healthy: subset.pool.headcount(now).healthy,
        panic: ignores_health(service, at, now),
        breaker: subset.breaker.as_ref().map(|breaker| breaker_state(breaker, now)),
    };
    ServiceView {
        name: service.name.to_string(),
        stable: service.subsets[service.stable].name.to_string(),
        balancer: service.any.chain.pick_name().to_string(),
        switches: switches(generation, position),
        ramp: generation.traffic.services.get(&*service.name).and_then(|entry| entry.ramp.clone()),
        subsets: service.subsets.iter().enumerate().map(subset).collect(),
        instances: service.instances.iter().map(|instance| self::instance(service, side, instance, now)).collect(),
        concurrency: side.concurrency.as_ref().map(|concurrency| ConcurrencySeen {
            limit: concurrency.limit.limit(),
            in_flight: concurrency.limit.in_flight(),
        }),
        rate_limits: side.rate_limits.iter().map(rate_limit).collect(),
        revision: Revisions { routing: generation.routing_revision, traffic: generation.traffic_revision },
    }
}

/// Whether requests for a subset go to it whatever its instances' health: too few of them are healthy, and nothing else
/// serves in its place.
fn ignores_health(service: &Service, subset: usize, now: Instant) -> bool {
    struct Look;
    impl Recorder for Look {
        const DRY_RUN: bool = true;
    }
    let location = decide::locate(service, subset, now, &mut Look);
    location.is_ok_and(|location| location.panic && location.subset == Some(subset))
}

fn unusable(subset: &serin_core::subset::Subset, now: Instant) -> Option<FallbackReason> {
    if let PoolState::Unusable(reason) = subset.pool.state(now) {
        return Some(reason);
    }
    let refusal = subset.breaker.as_ref()?.peek(now).err()?;
    Some(Unavailable::from(refusal).reason)
}

fn breaker_state(breaker: &Breaker, now: Instant) -> BreakerState {
    let view = breaker.view(now);
    let [calls, failed, slow] = view.calls;
    BreakerState {
        state: view.phase.as_str().to_owned(),
        open_for: (view.left.as_secs_f64() * 1e3).round() / 1e3,
        opened: view.opened,
        calls,
        failed,
        slow,
        connections: view.connected,
        pending: view.pending,
    }
}

fn rate_limit(limit: &RateLimit) -> RateLimitView {
    let Limiter { rule, store, leases } = &limit.limiter;
    RateLimitView {
        rule: rule.name.to_string(),
        keys: limit.keys(),
        max_keys: store.max_keys(),
        dry_run: rule.dry_run,
        fleet: leases.is_some(),
    }
}

fn instance(service: &Service, side: &ServiceSide, instance: &Instance, now: Instant) -> InstanceView {
    let index = instance.index as usize;
    let has = |subset: &&serin_core::subset::Subset| subset.pool.instances.iter().any(|i| i.index == instance.index);
    let standing = instance.vitals.standing(now);
    InstanceView {
        address: instance.address.to_string(),
        labels: instance.labels.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect(),
        zone: instance.zone.as_ref().map(ToString::to_string),
        cluster: instance.cluster.as_ref().map(ToString::to_string),
        weight: instance.weight,
        subsets: service.subsets.iter().filter(has).map(|subset| subset.name.to_string()).collect(),
        health: standing.health.as_str().to_owned(),
        weight_in_force: weight_in_force(instance, &standing),
        why: why(&standing),
        success_rate: standing.recent.success_rate(),
        ejections: standing.ejections,
        in_flight: instance.vitals.in_flight(),
        picks: instance.vitals.picks(),
        ewma_ms: (instance.vitals.ewma_nanos(now) / 1e4).round() / 100.0,
        last_check: side.checks.get(index).and_then(|target| target.last()).map(check),
        connections: connections(&side.pools[index]),
        calls: instance.vitals.score(now).map(|score| CallsView {
            mean_ms: (score.latency_nanos / 1e4).round() / 100.0,
            success: rounded(score.success),
        }),
        load: instance.vitals.load_report(now).map(|(report, at)| LoadView {
            utilization: rounded(report.utilization()),
            rps: rounded(report.rps),
            eps: rounded(report.eps),
            age_ms: u64::try_from(now.saturating_duration_since(at).as_millis()).unwrap_or(u64::MAX),
            factor: rounded(instance.vitals.load_share(now)),
        }),
    }
}

fn check(last: LastCheck) -> CheckView {
    CheckView {
        outcome: if last.failure.is_none() { "pass" } else { "fail" }.to_owned(),
        reason: last.failure.map(|reason| reason.to_string()),
        at: humantime::format_rfc3339_millis(last.at).to_string(),
        in_a_row: last.in_a_row,
    }
}

fn connections(pool: &InstancePool) -> ConnectionsView {
    let (open, in_use) = pool.connections();
    ConnectionsView { open, in_use, max: pool.policy().max_connections }
}

/// To four decimals.
fn rounded(number: f64) -> f64 {
    (number * 1e4).round() / 1e4
}

/// Takes the values of header edits that may be credentials out of a routing document. Keys are kept in files, which
/// the documents only name.
pub(super) fn leave_out_secrets(routing: &mut Value) {
    let routes = routing.get_mut("routes").and_then(Value::as_array_mut);
    for route in routes.into_iter().flatten() {
        for edits in ["request_headers", "response_headers"] {
            for verb in ["set", "add"] {
                let edits = route.get_mut(edits).and_then(|edits| edits.get_mut(verb));
                for (name, value) in edits.and_then(Value::as_object_mut).into_iter().flatten() {
                    let name = name.to_ascii_lowercase();
                    if SECRET.iter().any(|part| name.contains(part)) {
                        *value = Value::from(LEFT_OUT);
                    }
                }
            }
        }
    }
}
