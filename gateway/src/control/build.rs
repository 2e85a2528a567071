//! Documents into a generation: names become positions, texts become typed values, chains are prepared. What did not
//! change since the previous generation is shared with it, and instances keep their vitals.

mod guard;
mod limits;
mod route;
mod service;
mod upkeep;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use serin_core::path::PathPolicy;
use serin_core::plugin::{Catalogue, Node};
use serin_core::route::RouteTable;
use serin_core::selfguard::SelfGuard;
use serin_core::snapshot::{self, Service, ServiceTraffic, Snapshot};
use serin_core::subset::Share;
use serin_core::tag::SigningKey;

use super::generation::{Generation, RouteSide, ServiceSide};
use crate::conf::{self, Abort, Routing, Traffic};
use crate::ease;
use crate::limits::RateLimit;
use crate::limits::bank::Bank;
use crate::telemetry::metrics::{LimitOwner, Metrics};
use crate::telemetry::names::{ROUTING, TRAFFIC};
use crate::upkeep::Upkeep;

/// What a build needs besides the documents.
pub struct Workshop {
    /// Balancers and narrows by name.
    pub catalogue: Catalogue,
    /// Where the gateway runs.
    pub node: Node,
    /// Where counters come from.
    pub metrics: Arc<Metrics>,
    /// Key of signed tags.
    pub signing_key: Option<SigningKey>,
    /// How paths are brought to the form that is routed.
    pub paths: PathPolicy,
    /// Health checks and connection pools.
    pub upkeep: Arc<Upkeep>,
    /// Where limits are that a fleet shares, if there is such a place.
    pub bank: Option<Arc<Bank>>,
}

impl Workshop {
    /// Builds a generation. `revisions` are those of the routing and the traffic document.
    ///
    /// # Errors
    /// A sentence about what only shows when it is built: a file of keys or authorities that cannot be read. All else
    /// was found when the documents were checked.
    pub fn build(
        &self,
        routing: &Arc<Routing>,
        traffic: &Arc<Traffic>,
        revisions: (u64, u64),
        previous: Option<&Generation>,
    ) -> Result<Generation, String> {
        let now = Instant::now();
        let mut services = Vec::with_capacity(routing.services.len());
        let mut sides = Vec::with_capacity(routing.services.len());
        for (name, conf) in &routing.services {
            let kept = previous.and_then(|previous| unchanged(previous, routing, name));
            let (service, side) = match kept {
                Some(kept) => kept,
                None => {
                    let before =
                        previous.and_then(|p| p.service(name).map(|at| (&*p.core.services[at], &*p.services[at])));
                    let (service, mut side) = service::build(self, name, conf, before, now)?;
                    self.limit_service(name, conf, &mut side, previous, now)?;
                    if let Some(guard) = previous.and_then(|previous| same_guard(previous, name, conf)) {
                        side.guard = guard;
                    }
                    (Arc::new(service), Arc::new(side))
                }
            };
            services.push(service);
            sides.push(side);
            ease::breathe();
        }
        let positions: HashMap<&str, usize> = services.iter().enumerate().map(|(at, s)| (&*s.name, at)).collect();
        let routes = self.routes(routing, &positions, &services, previous, now)?;
        Ok(Generation {
            core: Snapshot {
                routes: Arc::new(routes.0),
                traffic: services.iter().map(|service| in_force(service, traffic)).collect(),
                services,
                signing_key: self.signing_key.clone(),
            },
            routes: routes.1,
            services: sides,
            routing: Arc::clone(routing),
            traffic: Arc::clone(traffic),
            paths: self.paths,
            routing_revision: revisions.0,
            traffic_revision: revisions.1,
        })
    }

    /// The generation with other instances of some services; everything else is shared with it.
    ///
    /// # Errors
    /// A sentence about a file of keys or authorities that cannot be read.
    pub fn repopulate(
        &self,
        current: &Generation,
        changes: &[(conf::Name, Arc<conf::Service>)],
    ) -> Result<Generation, String> {
        let now = Instant::now();
        let mut routing = Routing::clone(&current.routing);
        let (mut services, mut sides) = (current.core.services.clone(), current.services.clone());
        let mut traffic = current.core.traffic.clone();
        for (name, conf) in changes {
            let Some(at) = routing.services.get_index_of(name) else { continue };
            let before = Some((&*services[at], &*sides[at]));
            let (service, mut side) = service::build(self, name, conf, before, now)?;
            self.limit_service(name, conf, &mut side, Some(current), now)?;
            side.guard = Arc::clone(&sides[at].guard);
            traffic[at] = in_force(&service, &current.traffic);
            (services[at], sides[at]) = (Arc::new(service), Arc::new(side));
            routing.services[at] = Arc::clone(conf);
        }
        Ok(Generation {
            core: Snapshot {
                routes: Arc::clone(&current.core.routes),
                traffic,
                services,
                signing_key: current.core.signing_key.clone(),
            },
            routes: Arc::clone(&current.routes),
            services: sides,
            paths: self.paths,
            routing: Arc::new(routing),
            traffic: Arc::clone(&current.traffic),
            routing_revision: current.routing_revision,
            traffic_revision: current.traffic_revision,
        })
    }

    /// The generation with another traffic document; everything else is shared with it.
    #[must_use]
    pub fn reflow(&self, current: &Generation, traffic: Traffic) -> Generation {
        let services = current.core.services.clone();
        Generation {
            core: Snapshot {
                routes: Arc::clone(&current.core.routes),
                traffic: services.iter().map(|service| in_force(service, &traffic)).collect(),
                services,
                signing_key: current.core.signing_key.clone(),
            },
            routes: Arc::clone(&current.routes),
            services: current.services.clone(),
            routing: Arc::clone(&current.routing),
            traffic_revision: traffic.revision,
            traffic: Arc::new(traffic),
            paths: self.paths,
            routing_revision: current.routing_revision,
        }
    }

    /// Tells the metrics and what goes on in the background what is in force.
    pub fn announce(&self, generation: &Generation) {
        self.upkeep.apply(generation);
        self.metrics.set_revision(ROUTING, generation.routing_revision);
        self.metrics.set_revision(TRAFFIC, generation.traffic_revision);
        let switches = &generation.traffic.switches;
        self.metrics.set_switch("balancer", "", switches.balancer.all);
        self.metrics.set_switch("canary", "", switches.canary.all);
        self.metrics.set_switch("limits", "", switches.limits);
        for (service, traffic) in generation.core.services.iter().zip(&generation.core.traffic) {
            self.metrics.set_switch("balancer", &service.name, traffic.balancer_switch);
            self.metrics.set_switch("canary", &service.name, traffic.canary_switch);
            let entry = generation.traffic.services.get(&*service.name);
            self.metrics.set_ramp(&service.name, entry.and_then(|entry| entry.ramp.as_ref()));
            for (at, subset) in service.subsets.iter().enumerate() {
                let weight = traffic.effective_weight(at, service.stable);
                self.metrics.weight(&service.name, &subset.name).set(f64::from(weight) / 10_000.0);
                self.metrics.set_stable(&service.name, &subset.name, at == service.stable);
            }
        }
        for side in &generation.services {
            side.metrics.tripped.set(i64::from(side.guard.tripped().is_some()));
        }
    }

    /// Gives a service its limits; what is configured as before goes on where it was.
    fn limit_service(
        &self,
        name: &str,
        conf: &conf::Service,
        side: &mut ServiceSide,
        previous: Option<&Generation>,
        now: Instant,
    ) -> Result<(), String> {
        let before = previous.and_then(|p| Some((p.routing.services.get(name)?, &*p.services[p.service(name)?])));
        let rate_limits = before.map_or(&[][..], |(_, side)| &side.rate_limits);
        let owner = LimitOwner::Service(name);
        side.rate_limits =
            limits::rate_limits(&self.metrics, owner, &conf.rate_limits, rate_limits, self.bank.as_ref(), now)?;
        let concurrency = before.and_then(|(conf, side)| Some((conf.concurrency?, side.concurrency.as_ref()?)));
        side.concurrency = limits::concurrency(&self.metrics, name, conf.concurrency, concurrency);
        Ok(())
    }

    fn routes(
        &self,
        routing: &Routing,
        positions: &HashMap<&str, usize>,
        services: &[Arc<Service>],
        previous: Option<&Generation>,
        now: Instant,
    ) -> Result<(RouteTable, Arc<Vec<RouteSide>>), String> {
        let mut routes = Vec::with_capacity(routing.routes.len());
        let mut sides = Vec::with_capacity(routing.routes.len());
        let none: Arc<str> = "none".into();
        let limited = previous.map(limited_routes).unwrap_or_default();
        for conf in routing.routes.iter() {
            let route = route::build(conf, positions)?;
            let service = route::service(&route).map(|at| &services[at]);
            let subsets = service.map_or(Vec::new(), |s| s.subsets.iter().map(|u| Arc::clone(&u.name)).collect());
            let name = service.map_or(&none, |service| &service.name);
            let before = limited.get(&*route.name).copied().unwrap_or_default();
            let (owner, bank) = (LimitOwner::Route(&route.name), self.bank.as_ref());
            sides.push(RouteSide {
                rate_limits: limits::rate_limits(&self.metrics, owner, &conf.rate_limits, before, bank, now)?,
                timeouts: route::timeouts(conf, routing),
                max_body: conf.max_body.map(|most| most.bytes()),
                sample: conf.trace.as_ref().map(|trace| trace.sample.into()),
                pattern: route::pattern(conf),
                metrics: self.metrics.route(&route.name, name, subsets),
            });
            routes.push(route);
            ease::breathe();
        }
        Ok((RouteTable::with_pauses(routes, ease::breathe), Arc::new(sides)))
    }
}

/// The rate limits of the previous generation's routes that have any, by the name of the route.
fn limited_routes(previous: &Generation) -> HashMap<&str, &[RateLimit]> {
    let routes = previous.core.routes.routes().iter().zip(previous.routes.iter());
    let limited = routes.filter(|(_, side)| !side.rate_limits.is_empty());
    limited.map(|(route, side)| (&*route.name, &*side.rate_limits)).collect()
}

/// A service of the previous generation, if its configuration is the same.
fn unchanged(previous: &Generation, routing: &Routing, name: &str) -> Option<(Arc<Service>, Arc<ServiceSide>)> {
    let (before, now) = (previous.routing.services.get(name)?, routing.services.get(name)?);
    if !Arc::ptr_eq(before, now) && before != now {
        return None;
    }
    let at = previous.service(name)?;
    Some((Arc::clone(&previous.core.services[at]), Arc::clone(&previous.services[at])))
}

/// The guard of a service's chain in the previous generation, if the chain is the same.
fn same_guard(previous: &Generation, name: &str, conf: &conf::Service) -> Option<Arc<SelfGuard>> {
    let before = previous.routing.services.get(name)?;
    let same = before.balancer == conf.balancer && before.self_guard == conf.self_guard;
    let at = previous.service(name).filter(|_| same)?;
    Some(Arc::clone(&previous.services[at].guard))
}

/// What the traffic document says of a service.
fn in_force(service: &Service, traffic: &Traffic) -> ServiceTraffic {
    let conf = traffic.services.get(&*service.name);
    let weight = |subset: &str| conf.and_then(|conf| conf.weights.get(subset)).map_or(0, |weight| weight.hundredths());
    let share = |(at, subset): (usize, &serin_core::subset::Subset)| Share {
        subset: at,
        seed: subset.seed,
        weight: weight(&subset.name),
    };
    let weighted = conf.is_some_and(|conf| !conf.weights.is_empty());
    ServiceTraffic {
        shares: service.subsets.iter().enumerate().filter(|_| weighted).map(share).collect(),
        abort: match conf.map_or(Abort::Off, |conf| conf.abort) {
            Abort::Off => snapshot::Abort::No,
            Abort::Weights => snapshot::Abort::Weights,
            Abort::All => snapshot::Abort::All,
        },
        balancer_switch: traffic.switches.balancer.is_on(&service.name),
        canary_switch: traffic.switches.canary.is_on(&service.name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::tests::control;

    #[test]
    fn other_instances_of_a_service_build_that_service_and_nothing_else() {
        let (_dir, control) = control("127.0.0.1:0");
        let current = control.current();
        let mut routing = Routing::clone(&current.routing);
        let users = Arc::clone(&routing.services[0]);
        routing.services.extend(["orders", "mail"].map(|name| (name.parse().unwrap(), Arc::clone(&users))));
        let before = control.workshop.build(&Arc::new(routing), &current.traffic, (2, 1), Some(&current)).unwrap();
        let (name, conf) = before.routing.services.get_index(0).unwrap();
        let mut conf = conf::Service::clone(conf);
        conf.instances.push(crate::registries::plain("127.0.0.1:65001".parse().unwrap()));
        let changes = [(name.clone(), Arc::new(conf))];
        let after = control.workshop.repopulate(&before, &changes).unwrap();
        assert_eq!(after.core.services[0].instances.len(), before.core.services[0].instances.len() + 1);
        assert!(!Arc::ptr_eq(&after.services[0], &before.services[0]));
        for at in 1..before.services.len() {
            assert!(Arc::ptr_eq(&after.core.services[at], &before.core.services[at]));
            assert!(Arc::ptr_eq(&after.services[at], &before.services[at]));
        }
        assert!(Arc::ptr_eq(&after.core.routes, &before.core.routes) && Arc::ptr_eq(&after.routes, &before.routes));
        assert!(Arc::ptr_eq(&after.routing.routes, &before.routing.routes), "documents have 10,000 of them");
        assert!(Arc::ptr_eq(&after.traffic, &before.traffic));
        // What was there stays: vitals, pools and limits of the instances that are in both.
        for (old, pool) in before.core.services[0].instances.iter().zip(&before.services[0].pools) {
            let new = after.core.services[0].instances.iter().position(|new| new.address == old.address).unwrap();
            assert!(Arc::ptr_eq(&after.core.services[0].instances[new].vitals, &old.vitals));
            assert!(Arc::ptr_eq(&after.services[0].pools[new], pool));
        }
    }
}
