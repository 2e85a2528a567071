//! What goes on in the background for the generation in force: health checks and connection pools.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use async_trait::async_trait;
use pingora::server::ShutdownWatch;
use pingora::services::background::BackgroundService;

use crate::checks::{Checks, Wanted};
use crate::conf::Routing;
use crate::control::generation::{Generation, ServiceSide};
use crate::pool::keeper::{Keeper, TICK};
use crate::telemetry::metrics::{Metrics, STATES};
use serin_core::instance::Health;
use serin_core::snapshot::Service;

/// Health checks and connection pools.
pub struct Upkeep {
    /// The checks.
    pub checks: Checks,
    /// The connection pools.
    pub keeper: Keeper,
    metrics: Arc<Metrics>,
    /// The routing document in force.
    in_force: Mutex<Option<Arc<Routing>>>,
}

impl Upkeep {
    /// Nothing to do yet.
    #[must_use]
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Self {
            checks: Checks::new(Arc::clone(&metrics)),
            keeper: Keeper::default(),
            metrics,
            in_force: Mutex::default(),
        }
    }

    /// Takes over a generation that comes into force: instances that are new are checked and connected to, of those
    /// that left nothing stays.
    pub fn apply(&self, generation: &Generation) {
        let mut in_force = self.in_force.lock().unwrap_or_else(PoisonError::into_inner);
        if in_force.as_ref().is_some_and(|routing| Arc::ptr_eq(routing, &generation.routing)) {
            return;
        }
        self.take_over(generation);
        self.metrics.keep_only(generation);
        *in_force = Some(Arc::clone(&generation.routing));
    }

    /// Takes over a generation in which nothing is new but instances of some services, by position; nothing else is looked
    /// at, if `before` is what was in force. Series of instances that left go a little later.
    pub fn repopulate(&self, before: &Generation, generation: &Generation, services: &[usize]) {
        let mut in_force = self.in_force.lock().unwrap_or_else(PoisonError::into_inner);
        if in_force.as_ref().is_some_and(|routing| Arc::ptr_eq(routing, &before.routing)) {
            let had = || services.iter().map(|&at| &before.services[at]);
            let has = || services.iter().map(|&at| (&generation.core.services[at], &generation.services[at]));
            let pools = has().flat_map(|(_, side)| side.pools.iter().zip(&side.peers));
            self.keeper.exchange(had().flat_map(|side| &side.pools), pools, Instant::now());
            let names = has().map(|(service, _)| &*service.name).collect();
            self.checks.exchange(&names, had().flat_map(|side| &side.checks), has().flat_map(wanted));
        } else {
            self.take_over(generation);
        }
        self.metrics.keep_instances(generation, services);
        *in_force = Some(Arc::clone(&generation.routing));
    }

    fn take_over(&self, generation: &Generation) {
        let pools = generation.services.iter().flat_map(|side| side.pools.iter().zip(&side.peers));
        self.keeper.apply(pools, Instant::now());
        self.checks.apply(generation.core.services.iter().zip(&generation.services).flat_map(wanted));
    }
}

/// What is to be checked of a service.
fn wanted<'a>((service, side): (&'a Arc<Service>, &'a Arc<ServiceSide>)) -> impl Iterator<Item = Wanted<'a>> {
    service.instances.iter().enumerate().map(|(at, instance)| Wanted {
        service: &service.name,
        vitals: &instance.vitals,
        target: side.checks.get(at),
    })
}

/// Tells the metrics what the instances of a generation are like just now.
pub fn observe(generation: &Generation) {
    for (service, side) in generation.core.services.iter().zip(&generation.services) {
        let cells = service.instances.iter().zip(&side.metrics.instances).zip(&side.pools);
        for ((instance, metrics), pool) in cells {
            metrics.health.set(i64::from(instance.vitals.health() == Health::Healthy));
            let (open, used) = pool.connections();
            metrics.connections_open.set(i64::try_from(open).unwrap_or(i64::MAX));
            metrics.connections_used.set(i64::try_from(used).unwrap_or(i64::MAX));
        }
        for (subset, cells) in service.subsets.iter().zip(&side.metrics.subset_instances) {
            let mut counts = [0; STATES.len()];
            subset.pool.instances.iter().for_each(|instance| counts[instance.vitals.health() as usize] += 1);
            cells.iter().zip(counts).for_each(|(cell, count)| cell.set(count));
        }
    }
}

/// Runs it.
pub struct UpkeepService(pub Arc<Upkeep>);

#[async_trait]
impl BackgroundService for UpkeepService {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        self.0.checks.start();
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {
                    self.0.keeper.tick(Instant::now());
                    self.0.metrics.sweep_if_due(Instant::now());
                }
                stopping = shutdown.changed() => if stopping.is_err() || *shutdown.borrow() { return },
            }
        }
    }
}
