//! All registries of a gateway: starts them, gathers what changed for a moment, and has the services concerned built.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::Notify;

use super::desk::{Desk, RegistryStatus};
use super::{Query, open};
use crate::conf::{Bootstrap, Name, Problems, Routing, Service};
use crate::control::Control;
use crate::sources::follow::Backoff;
use crate::telemetry::metrics::Metrics;

/// How long changes are gathered before services are built: the parts of one change come within it.
const GATHER: Duration = Duration::from_millis(5);
/// Least time between two builds: whatever flaps costs one build in this time.
const DEBOUNCE: Duration = Duration::from_millis(100);
/// How often lists that are held back are looked at, and it is looked whether something is to be written to disk.
const TICK: Duration = Duration::from_millis(500);
/// How long a start waits for the first answers, if nothing is on disk.
pub(crate) const START: Duration = Duration::from_secs(3);
/// How long a new routing document waits for the first answers about services that are new.
pub(crate) const RELOAD: Duration = Duration::from_secs(1);

/// The registries of a gateway.
#[derive(Default)]
pub struct Discovery {
    desks: BTreeMap<Name, Arc<Desk>>,
    bell: Arc<Notify>,
}

impl Discovery {
    /// Opens the desks, with what is on disk, and starts the registries.
    ///
    /// # Errors
    /// If a registry cannot be used as it is configured.
    pub(crate) fn start(
        bootstrap: &Bootstrap,
        metrics: &Arc<Metrics>,
        runtime: Option<&Handle>,
    ) -> Result<Self, Problems> {
        let mut discovery = Self::default();
        let dir = bootstrap.state_dir().join("registries");
        for (name, conf) in &bootstrap.registries {
            let wrong = |problem: String| Problems::whole(&format!("registries.{name}"), problem);
            let registry = open(conf).map_err(wrong)?;
            let path = dir.join(format!("{name}.jsonl"));
            let desk = Desk::new(name, conf.kind(), path, Arc::clone(&discovery.bell), Arc::clone(metrics));
            let desk = Arc::new(desk);
            discovery.desks.insert(name.clone(), Arc::clone(&desk));
            let Some(runtime) = runtime else { continue };
            runtime.spawn(async move {
                // A registry of which nothing is wanted is not connected to.
                let mut wanted = desk.wanted();
                let mut backoff = Backoff::default();
                while wanted.wait_for(|queries| !queries.is_empty()).await.is_ok() {
                    let began = Instant::now();
                    let Err(lost) = registry.run(&desk).await;
                    desk.lost(&lost.0);
                    tokio::time::sleep(backoff.pause(began)).await;
                }
            });
        }
        Ok(discovery)
    }

    /// Says what a routing document wants.
    pub(crate) fn want(&self, routing: &Routing) {
        for (name, desk) in &self.desks {
            let of = |(service, conf): (&Name, &Arc<Service>)| {
                let registry = conf.registry.as_ref().filter(|registry| registry.from == *name)?;
                Some(Query::new(service, registry))
            };
            desk.want(routing.services.iter().filter_map(of).collect());
        }
    }

    /// Waits for answers to what is wanted, but not for long.
    pub(crate) fn await_answers(&self, patience: Duration) {
        let began = Instant::now();
        while began.elapsed() < patience && !self.desks.values().all(|desk| desk.has_all()) {
            std::thread::sleep(Duration::from_millis(5));
        }
        // What changed is still to be taken: the document that waits may yet be refused.
        self.desks.values().for_each(|desk| desk.settle(Instant::now(), &|_, _| None));
    }

    /// Gives the services of a document the instances that their registries list.
    pub(crate) fn fill(&self, routing: &mut Routing) {
        for (name, service) in &mut routing.services {
            if let Some(list) = self.list(name, service)
                && *service.instances != *list
            {
                Arc::make_mut(service).instances = list.to_vec();
            }
        }
    }

    fn list(&self, name: &str, service: &Service) -> Option<super::listed::List> {
        let registry = service.registry.as_ref()?;
        self.desks.get(&registry.from)?.list(&Query::new(name, registry))
    }

    /// The services of a document whose lists changed, with their new instances.
    pub(crate) fn changes(&self, control: &Control) -> Vec<(Name, Arc<Service>)> {
        let generation = control.current();
        let now = Instant::now();
        let mut changed: BTreeMap<&Name, BTreeSet<Query>> = BTreeMap::new();
        for (name, desk) in &self.desks {
            let opinion = |query: &Query, at: SocketAddr| checked(&generation, name, query, at);
            desk.settle(now, &opinion);
            changed.insert(name, desk.take_changed());
        }
        if changed.values().all(BTreeSet::is_empty) {
            return Vec::new();
        }
        let named: HashSet<&str> = changed.values().flatten().map(|query| &*query.service).collect();
        let of = |(name, service): (&Name, &Arc<Service>)| {
            let registry = service.registry.as_ref()?;
            // Most services are not concerned: nothing is made for them.
            named.get(registry.service.as_deref().unwrap_or(name))?;
            let query = Query::new(name, registry);
            changed.get(&registry.from).filter(|changed| changed.contains(&query))?;
            let list = self.list(name, service).filter(|list| **list != *service.instances)?;
            Some((name.clone(), Arc::new(Service { instances: list.to_vec(), ..Service::clone(service) })))
        };
        generation.routing.services.iter().filter_map(of).collect()
    }

    /// How the registries stand.
    pub(crate) fn status(&self) -> BTreeMap<String, RegistryStatus> {
        let now = Instant::now();
        self.desks.iter().map(|(name, desk)| (name.to_string(), desk.status(now))).collect()
    }

    /// Writes what is good to disk, now and then. No change waits for that.
    async fn keep(self: Arc<Self>) {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let discovery = Arc::clone(&self);
            let save = move || discovery.desks.values().for_each(|desk| desk.save(Instant::now()));
            if let Err(error) = tokio::task::spawn_blocking(save).await {
                tracing::error!(%error, "the instances of registries could not be kept");
            }
        }
    }

    /// Has services built whenever their lists change, for as long as the process lives.
    pub(crate) async fn follow(self: Arc<Self>, control: Arc<Control>) {
        if self.desks.is_empty() {
            return;
        }
        tokio::spawn(Arc::clone(&self).keep());
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let rung = tokio::select! {
                () = self.bell.notified() => true,
                _ = ticks.tick() => false,
            };
            if rung {
                tokio::time::sleep(GATHER).await;
            }
            let (discovery, control) = (Arc::clone(&self), Arc::clone(&control));
            let work = move || {
                if rung || discovery.desks.values().any(|desk| desk.holds()) {
                    control.populate();
                }
            };
            if let Err(error) = tokio::task::spawn_blocking(work).await {
                tracing::error!(%error, "instances could not be taken over");
            }
            if rung {
                tokio::time::sleep(DEBOUNCE).await;
            }
        }
    }
}

/// What checks say of an instance; none if it is not checked. Of several services that want the same, one is enough
/// that finds it alive.
fn checked(
    generation: &crate::control::generation::Generation,
    registry: &Name,
    query: &Query,
    at: SocketAddr,
) -> Option<bool> {
    let mut opinion = None;
    for (name, conf) in &generation.routing.services {
        let wants = |from: &crate::conf::FromRegistry| from.from == *registry && Query::new(name, from) == *query;
        if conf.health_check.is_none() || !conf.registry.as_ref().is_some_and(wants) {
            continue;
        }
        let Some(position) = generation.service(name) else { continue };
        let instances = &generation.core.services[position].instances;
        let Ok(index) = instances.binary_search_by_key(&at, |instance| instance.address) else { continue };
        opinion = Some(opinion.unwrap_or(false) || instances[index].vitals.passes_checks());
    }
    opinion
}
