//! What the API shows of services and documents.

use std::collections::BTreeMap;
use std::time::Instant;

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serin_core::breaker::Breaker;
use serin_core::decide::Unavailable;
use serin_core::instance::Instance;
use serin_core::snapshot::Service;
use serin_core::subset::{FallbackReason, PoolState};

use crate::conf::Percent;
use crate::control::generation::Generation;
use crate::explain::preview::{by_name, in_force};
use crate::explain::standing::{weight_in_force, why};
use crate::explain::{Revisions, SwitchesInForce, switches};

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
    /// Its subsets.
    pub subsets: Vec<SubsetView>,
    /// Its instances, in order of their addresses.
    pub instances: Vec<InstanceView>,
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
}

/// All services of a generation.
pub(super) fn services(generation: &Generation) -> ServiceList {
    let core = &generation.core;
    let summary = |(service, traffic): (&std::sync::Arc<Service>, _)| ServiceSummary {
        name: service.name.to_string(),
        stable: service.subsets[service.stable].name.to_string(),
        weights: by_name(service, &in_force(service, traffic)),
        switches: switches(traffic),
        instances: service.instances.len(),
    };
    ServiceList { services: core.services.iter().zip(&core.traffic).map(summary).collect() }
}

/// One service of a generation.
pub(super) fn service(generation: &Generation, position: usize) -> ServiceView {
    let (service, traffic) = (&generation.core.services[position], &generation.core.traffic[position]);
    let now = Instant::now();
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
        panic: subset.pool.in_panic(now),
        breaker: subset.breaker.as_ref().map(|breaker| breaker_state(breaker, now)),
    };
    ServiceView {
        name: service.name.to_string(),
        stable: service.subsets[service.stable].name.to_string(),
        balancer: service.any.chain.pick_name().to_string(),
        switches: switches(traffic),
        subsets: service.subsets.iter().enumerate().map(subset).collect(),
        instances: service.instances.iter().map(|instance| self::instance(service, instance, now)).collect(),
        revision: Revisions { routing: generation.routing_revision, traffic: generation.traffic_revision },
    }
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

fn instance(service: &Service, instance: &Instance, now: Instant) -> InstanceView {
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
    }
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
