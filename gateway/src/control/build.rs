//! Documents into a generation: names become positions, texts become typed values, chains are prepared. What did not
//! change since the previous generation is shared with it, and instances keep their vitals.

mod guard;
mod route;
mod service;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use serin_core::plugin::{Catalogue, Node};
use serin_core::route::RouteTable;
use serin_core::snapshot::{self, Service, ServiceTraffic, Snapshot};
use serin_core::subset::Share;
use serin_core::tag::SigningKey;

use super::generation::{Generation, RouteSide, ServiceSide};
use crate::conf::{Abort, Routing, Traffic};
use crate::telemetry::metrics::Metrics;
use crate::telemetry::names::{ROUTING, TRAFFIC};

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
                    let before = previous.and_then(|p| Some(&*p.core.services[p.service(name)?]));
                    let (service, side) = service::build(self, name, conf, before, now)?;
                    (Arc::new(service), Arc::new(side))
                }
            };
            services.push(service);
            sides.push(side);
        }
        let positions: HashMap<&str, usize> = services.iter().enumerate().map(|(at, s)| (&*s.name, at)).collect();
        let routes = self.routes(routing, &positions, &services)?;
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
            routing_revision: revisions.0,
            traffic_revision: revisions.1,
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
            routing_revision: current.routing_revision,
        }
    }

    /// Tells the metrics what is in force.
    pub fn announce(&self, generation: &Generation) {
        self.metrics.set_revision(ROUTING, generation.routing_revision);
        self.metrics.set_revision(TRAFFIC, generation.traffic_revision);
        let switches = &generation.traffic.switches;
        self.metrics.set_switch("balancer", "", switches.balancer.all);
        self.metrics.set_switch("canary", "", switches.canary.all);
        for (service, traffic) in generation.core.services.iter().zip(&generation.core.traffic) {
            self.metrics.set_switch("balancer", &service.name, traffic.balancer_switch);
            self.metrics.set_switch("canary", &service.name, traffic.canary_switch);
            for (at, subset) in service.subsets.iter().enumerate() {
                let weight = traffic.effective_weight(at, service.stable);
                self.metrics.weight(&service.name, &subset.name).set(f64::from(weight) / 10_000.0);
            }
        }
    }

    fn routes(
        &self,
        routing: &Routing,
        positions: &HashMap<&str, usize>,
        services: &[Arc<Service>],
    ) -> Result<(RouteTable, Arc<[RouteSide]>), String> {
        let mut routes = Vec::with_capacity(routing.routes.len());
        let mut sides = Vec::with_capacity(routing.routes.len());
        let none: Arc<str> = "none".into();
        for conf in &routing.routes {
            let route = route::build(conf, positions)?;
            let service = route::service(&route).map(|at| &services[at]);
            let subsets = service.map_or(Vec::new(), |s| s.subsets.iter().map(|u| Arc::clone(&u.name)).collect());
            let name = service.map_or(&none, |service| &service.name);
            sides.push(RouteSide {
                timeouts: route::timeouts(conf, routing),
                metrics: self.metrics.route(&route.name, name, subsets),
            });
            routes.push(route);
        }
        Ok((RouteTable::new(routes), sides.into()))
    }
}

/// A service of the previous generation, if its configuration is the same.
fn unchanged(previous: &Generation, routing: &Routing, name: &str) -> Option<(Arc<Service>, Arc<ServiceSide>)> {
    if previous.routing.services.get(name)? != routing.services.get(name)? {
        return None;
    }
    let at = previous.service(name)?;
    Some((Arc::clone(&previous.core.services[at]), Arc::clone(&previous.services[at])))
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
