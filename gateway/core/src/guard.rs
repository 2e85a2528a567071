//! What keeps a service up: outlier detection, breakers, the retry budget, slow start and the panic threshold, as one
//! part of a [`Service`]; and the one place where the outcome of an attempt is taken in.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::breaker::Breaker;
use crate::instance::Instance;
use crate::outlier::{Cause, Outcome, OutlierPolicy};
use crate::retry::{Backoff, RetryBudget};
use crate::slow_start::SlowStart;
use crate::snapshot::Service;
use crate::subset::{BasisPoints, Pool};

/// Below this share of healthy instances health is ignored, unless configured otherwise: 50 %.
pub const PANIC_THRESHOLD: BasisPoints = 5_000;

/// Guards of a service. The default is a panic threshold of 50 % and nothing else.
pub struct Guards {
    /// Outlier detection.
    pub outlier: Option<OutlierPolicy>,
    /// Share of healthy instances of a pool below which health is ignored; 0 is never.
    pub panic_threshold: BasisPoints,
    /// Breakers by position of the subset; none where this ends.
    pub breakers: Vec<Option<Arc<Breaker>>>,
    /// How many retries may be made.
    pub budget: Option<Arc<RetryBudget>>,
    /// How long to wait before a retry.
    pub backoff: Option<Backoff>,
    /// Slow start of instances that are new or come back.
    pub slow_start: Option<SlowStart>,
    /// Who is told of what happens to instances.
    pub events: Arc<dyn Events>,
    /// Held while an ejection is decided on, so that two at once keep to the cap.
    pub ejecting: Mutex<()>,
}

impl Default for Guards {
    fn default() -> Self {
        Self {
            outlier: None,
            panic_threshold: PANIC_THRESHOLD,
            breakers: Vec::new(),
            budget: None,
            backoff: None,
            slow_start: None,
            events: Arc::new(()),
            ejecting: Mutex::new(()),
        }
    }
}

/// Is told of what happens to the instances of a service. All of it is rare.
pub trait Events: Send + Sync {
    /// It was ejected for so long.
    fn ejected(&self, _instance: &Instance, _cause: Cause, _time: Duration) {}
    /// It should have been ejected, but too many are already.
    fn ejection_refused(&self, _instance: &Instance, _cause: Cause) {}
    /// It was asked for the first time since its ejection ended.
    fn returned(&self, _instance: &Instance) {}
    /// It became degraded, or no longer is.
    fn degraded(&self, _instance: &Instance, _on: bool) {}
}

impl Events for () {}

impl Service {
    /// Takes in how an attempt at the instance at `index` ended, `latency` after it began. Costs next to nothing without
    /// outlier detection.
    pub fn observe(&self, index: u32, now: Instant, outcome: Outcome, latency: Duration) {
        let Some(policy) = &self.guards.outlier else { return };
        let Some(instance) = self.instances.get(index as usize) else { return };
        let events = &self.guards.events;
        let observed = instance.vitals.observe(policy, now, outcome, latency);
        if observed.returned {
            events.returned(instance);
        }
        if let Some(on) = observed.degraded {
            events.degraded(instance, on);
        }
        let Some(cause) = observed.eject else { return };
        match self.eject(policy, instance, now, cause) {
            Some(time) => events.ejected(instance, cause, time),
            None => events.ejection_refused(instance, cause),
        }
    }

    /// Ejects an instance unless that would take too many out of a pool it belongs to.
    fn eject(&self, policy: &OutlierPolicy, instance: &Instance, now: Instant, cause: Cause) -> Option<Duration> {
        let _one_at_a_time = self.guards.ejecting.lock().unwrap_or_else(PoisonError::into_inner);
        let mut pools =
            self.subsets.iter().map(|subset| &subset.pool).filter(|pool| pool.has(instance.index)).peekable();
        let spares = |pool: &Pool| spares(pool, instance.index, policy.max_ejection_percent, now);
        let allowed = if pools.peek().is_some() { pools.all(spares) } else { spares(&self.any) };
        if allowed {
            return Some(instance.vitals.eject(policy, now, cause));
        }
        instance.vitals.spare(now);
        None
    }
}

/// Whether one instance more may be taken out of a pool: within the cap, which is one at least. Where that leaves none, a
/// fallback or panic serves.
fn spares(pool: &Pool, index: u32, most: BasisPoints, now: Instant) -> bool {
    let total = u64::from(pool.headcount(now).total);
    let cap = (total * u64::from(most) / 10_000).max(1);
    let others = pool.instances.iter().filter(|instance| instance.weight > 0 && instance.index != index);
    let ejected = others.filter(|instance| instance.vitals.is_ejected()).count() as u64;
    ejected < cap
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::ChainPlan;
    use crate::instance::Vitals;
    use crate::outlier::tests::policy;
    use crate::retry::{Across, RetryPolicy};
    use crate::snapshot::ServiceParts;
    use crate::subset::{Fallback, FallbackTo};
    use crate::tag::Anonymous;

    /// One subset of so many instances, of which at most `percent` may be ejected.
    fn service(weights: &[u32], percent: BasisPoints, start: Instant) -> Service {
        let instance = |(index, &weight): (usize, &u32)| Instance {
            index: index as u32,
            address: ([127, 0, 0, 1], 9000 + index as u16).into(),
            labels: Arc::default(),
            zone: None,
            cluster: None,
            weight,
            vitals: Arc::new(Vitals::new(start)),
        };
        let outlier = OutlierPolicy { max_ejection_percent: percent, ..policy() };
        Service::new(ServiceParts {
            name: "s".into(),
            instances: weights.iter().enumerate().map(instance).collect(),
            subsets: vec![("all".into(), Vec::new())],
            stable: 0,
            user_key: Vec::new(),
            anonymous: Anonymous::Random,
            salt: "".into(),
            tags: Vec::new(),
            fallback: Fallback { on: Default::default(), to: FallbackTo::None, max_share: 10_000 },
            retry: RetryPolicy { attempts: 1, on: Default::default(), across: Across::Same, hedge_after: None },
            chain: ChainPlan::default(),
            guards: Guards { outlier: Some(outlier), ..Guards::default() },
        })
        .unwrap()
    }

    /// How many are ejected when every instance fails all the time, for a minute.
    fn ejected_at_most(weights: &[u32], percent: BasisPoints) -> usize {
        let start = Instant::now();
        let service = service(weights, percent, start);
        let mut most = 0;
        for step in 0..600 {
            let now = start + Duration::from_millis(step * 100);
            for index in 0..weights.len() {
                service.observe(index as u32, now, Outcome::ServerError, Duration::ZERO);
            }
            let _ = service.any.headcount(now);
            let ejected = service.instances.iter().filter(|i| i.vitals.is_ejected()).count();
            most = most.max(ejected);
        }
        most
    }

    #[test]
    fn the_cap_is_checked_before_ejecting() {
        let cases: [(&[u32], BasisPoints, usize); 9] = [
            (&[1, 1, 1], 6_700, 2),
            (&[1, 1, 1], 3_000, 1),
            (&[1, 1, 1], 10_000, 3),
            (&[1, 1, 1], 0, 1),
            (&[1; 10], 3_000, 3),
            (&[1; 10], 3_900, 3),
            (&[1], 3_000, 1),
            (&[1, 0], 10_000, 2), // the one without a weight is none of those that are counted
            (&[1, 1], 5_000, 1),
        ];
        for (weights, percent, most) in cases {
            assert_eq!(ejected_at_most(weights, percent), most, "{weights:?} {percent}");
        }
    }
}
