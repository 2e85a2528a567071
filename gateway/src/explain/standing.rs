//! Health and weight of instances, and the state of breakers, in words.

use std::time::Instant;

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serin_core::condition::Standing;
use serin_core::instance::{Health, Instance};
use serin_core::snapshot::Service;

/// What keeps the service up, as it stands.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GuardsSeen {
    /// Breakers by subset: `closed`, `half_open` or `open`.
    pub breakers: IndexMap<String, String>,
    /// Whether so few instances are healthy that health is ignored.
    pub panic: bool,
    /// Instances that are not healthy, or not at their full weight: the first 100.
    pub instances: Vec<InstanceSeen>,
}

/// An instance that is not healthy, or not at its full weight.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct InstanceSeen {
    /// Its address.
    pub address: String,
    /// `healthy`, `unhealthy` or `ejected`.
    pub health: String,
    /// Weight in force.
    pub weight_in_force: f64,
    /// Why that is not its weight.
    pub why: Vec<String>,
}

/// Instances that are named.
const MOST_INSTANCES: usize = 100;

impl GuardsSeen {
    pub(super) fn of(service: &Service, panic: bool, now: Instant) -> Self {
        let breakers = service.subsets.iter().filter_map(|subset| {
            let breaker = subset.breaker.as_ref()?;
            Some((subset.name.to_string(), breaker.phase().as_str().to_owned()))
        });
        let seen = |instance: &Instance| {
            let standing = instance.vitals.standing(now);
            let why = why(&standing);
            (!why.is_empty()).then(|| InstanceSeen {
                address: instance.address.to_string(),
                health: standing.health.as_str().to_owned(),
                weight_in_force: weight_in_force(instance, &standing),
                why,
            })
        };
        let instances = service.instances.iter().filter_map(seen).take(MOST_INSTANCES).collect();
        Self { breakers: breakers.collect(), panic, instances }
    }

    /// Whether there is anything to say.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The weight of an instance that is in force, to three decimals.
#[must_use]
pub fn weight_in_force(instance: &Instance, standing: &Standing) -> f64 {
    if standing.health != Health::Healthy {
        return 0.0;
    }
    (f64::from(instance.weight) * standing.factor * 1e3).round() / 1e3
}

/// Why less than its whole weight is in force, in words; nothing if it is.
#[must_use]
pub fn why(standing: &Standing) -> Vec<String> {
    let mut why = Vec::new();
    let percent = |share: f64| (share * 1_000.0).round() / 10.0;
    if standing.health == Health::Unhealthy {
        why.push("its health checks fail".to_owned());
    }
    if let Some((left, cause)) = standing.ejected {
        why.push(format!("ejected by {} for {:.1} s yet", cause.as_str(), left.as_secs_f64()));
    }
    if standing.slow_start < 1.0 {
        why.push(format!("slow start at {}%", percent(standing.slow_start)));
    }
    if standing.degraded {
        let rate = standing.recent.success_rate().map_or(String::new(), |rate| format!(" at {}%", percent(rate)));
        why.push(format!("degraded to half: success rate{rate}"));
    }
    if standing.latency < 1.0 {
        let mean = standing.recent.mean_latency.as_millis();
        why.push(format!("slow, mean latency {mean} ms: {}%", percent(standing.latency)));
    }
    if standing.load < 1.0 {
        why.push(format!("load it reports: {}%", percent(standing.load)));
    }
    why
}
