//! One generation of the configuration, as the gateway serves it: the core's snapshot and what belongs to it on the
//! gateway's side, under the same positions.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue};
use pingora::upstreams::peer::HttpPeer;
use serin_core::path::PathPolicy;
use serin_core::route::RouteTable;
use serin_core::selfguard::SelfGuard;
use serin_core::snapshot::Snapshot;

use crate::checks::Target;
use crate::conf::{Routing, Traffic};
use crate::ease;
use crate::jwt::Verifier;
use crate::limits::{ConcurrencyLimit, RateLimit};
use crate::pool::InstancePool;
use crate::proxy::load::LoadSide;
use crate::telemetry::metrics::{RouteMetrics, ServiceMetrics};
use crate::telemetry::traces::Share;

/// A generation. A request keeps the one it began with.
pub struct Generation {
    /// What decisions are made from.
    pub core: Snapshot,
    /// By position of the route.
    pub routes: Arc<Vec<RouteSide>>,
    /// By position of the service.
    pub services: Vec<Arc<ServiceSide>>,
    /// The routing document it was built from.
    pub routing: Arc<Routing>,
    /// The traffic document it was built from.
    pub traffic: Arc<Traffic>,
    /// How paths are brought to the form that is routed.
    pub paths: PathPolicy,
    /// Revision of the routing document.
    pub routing_revision: u64,
    /// Revision of the traffic document.
    pub traffic_revision: u64,
}

impl Generation {
    /// Position of a service by its name.
    #[must_use]
    pub fn service(&self, name: &str) -> Option<usize> {
        self.core.services.iter().position(|service| &*service.name == name)
    }

    /// Frees it, with a breath after each route that no other generation shares.
    pub fn dismantle(self) {
        let Self { core, routes, routing, .. } = self;
        for side in Arc::into_inner(routes).into_iter().flatten() {
            drop(side);
            ease::breathe();
        }
        for route in Arc::into_inner(routing).and_then(|routing| Arc::into_inner(routing.routes)).into_iter().flatten()
        {
            drop(route);
            ease::breathe();
        }
        for route in Arc::into_inner(core.routes).into_iter().flat_map(RouteTable::into_routes) {
            drop(route);
            ease::breathe();
        }
    }
}

/// The gateway's side of a route.
pub struct RouteSide {
    /// Timeouts of the route, where they differ from the service's.
    pub timeouts: Option<Timeouts>,
    /// Its counters.
    pub metrics: RouteMetrics,
    /// Bytes of the longest body that a request may have.
    pub max_body: Option<u64>,
    /// Rate limits, besides those of the service.
    pub rate_limits: Vec<RateLimit>,
    /// Share of its requests that are sampled, where it differs from the gateway's.
    pub sample: Option<Share>,
    /// Its path as spans have it (`http.route`): the pattern, which is one of a bounded number.
    pub pattern: Option<Box<str>>,
}

/// The gateway's side of a service.
pub struct ServiceSide {
    /// Name of the service.
    pub name: Arc<str>,
    /// How to connect, by position of the instance; cloned per attempt.
    pub peers: Vec<HttpPeer>,
    /// The connections to them, by position of the instance.
    pub pools: Vec<Arc<InstancePool>>,
    /// How they are checked, by position of the instance; empty if they are not.
    pub checks: Vec<Arc<Target>>,
    /// Timeouts.
    pub timeouts: Timeouts,
    /// How upstreams are told the subset.
    pub propagate: Propagate,
    /// Verifies JWTs for tag rules and user keys.
    pub jwt: Option<Verifier>,
    /// Guards the gateway against the chain; kept as long as the chain's configuration is the same.
    pub guard: Arc<SelfGuard>,
    /// What is done with load reports, if anything.
    pub load: Option<LoadSide>,
    /// Counters.
    pub metrics: ServiceMetrics,
    /// Rate limits over all of its routes.
    pub rate_limits: Vec<RateLimit>,
    /// How many requests may be in flight.
    pub concurrency: Option<ConcurrencyLimit>,
}

/// How long to wait for an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// For the connection, TLS included.
    pub connect: Duration,
    /// For the response's head, per attempt.
    pub first_byte: Duration,
    /// Between two reads or writes of a stream.
    pub idle: Duration,
    /// For the whole response; `None` is unlimited. Streams (upgrades, server-sent events, gRPC) have `idle` instead.
    pub request: Option<Duration>,
}

/// How the subset of a request is passed on, so that later hops can follow it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Propagate {
    /// A header with the subset's name.
    pub header: Option<HeaderName>,
    /// A member of `baggage` (W3C Baggage), by position of the subset; none if that is off.
    pub baggage: Vec<HeaderValue>,
    /// A member of `tracestate` where the request carries a trace (W3C Trace Context), likewise.
    pub tracestate: Vec<HeaderValue>,
}
