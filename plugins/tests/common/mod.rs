//! A snapshot of a chosen size, as the gateway would build it, for tests and benchmarks of whole decisions.
#![allow(dead_code, clippy::unwrap_used, reason = "a fixture that several test binaries use in part")]

use std::sync::Arc;
use std::time::Instant;

use http::{HeaderMap, Method};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use serde_json::json;
use serin_core::chain::ChainPlan;
use serin_core::decide::{self, Assignment, Attempt, Location, Recorder, Unavailable};
use serin_core::guard::Guards;
use serin_core::instance::{Instance, Vitals};
use serin_core::matcher::{Condition, PathMatch, ValueMatch};
use serin_core::plugin::Node;
use serin_core::request::RequestView;
use serin_core::retry::{Across, RetryOn, RetryPolicy};
use serin_core::route::{Action, HostMatch, Route, RouteTable};
use serin_core::snapshot::{Abort, Service, ServiceParts, ServiceTraffic, Snapshot};
use serin_core::subset::{Fallback, FallbackReason, FallbackTo, Share};
use serin_core::tag::{Anonymous, KeySource, TagRule, Trust};

/// Two thirds of the instances are v1, in two zones; the rest are v2.
pub(crate) fn instances(n: u32) -> Vec<Instance> {
    let (now, changes) = (Instant::now(), Arc::default());
    let instance = |index: u32| Instance {
        index,
        address: ((0x0a00_0000 + index).to_be_bytes(), 8080).into(),
        labels: [("version".into(), if index % 3 == 2 { "v2" } else { "v1" }.into())].into(),
        zone: Some(if index.is_multiple_of(2) { "az-1" } else { "az-2" }.into()),
        cluster: None,
        weight: 100,
        vitals: Arc::new(Vitals::among(now, &changes)),
    };
    (0..n).map(instance).collect()
}

pub(crate) fn chain(pick: &str) -> ChainPlan {
    let catalogue = serin_plugins::builtin();
    let node = Node { id: "n".into(), zone: Some("az-1".into()), cluster: None };
    let narrow = catalogue.narrows.build("zone_affinity", json!({}), &node).unwrap().unwrap();
    let balancer = catalogue.balancers.build(pick, json!({}), &node).unwrap().unwrap();
    ChainPlan { narrows: vec![("zone_affinity".into(), narrow)], pick: (pick.into(), balancer) }
}

/// The users service of the documentation: v1 and v2, a canary tag, users by header.
pub(crate) fn service(instances: Vec<Instance>, fallback: FallbackTo, pick: &str) -> Service {
    let canary = Condition::Header("x-traffic-tag".parse().unwrap(), ValueMatch::Exact("canary".into()));
    Service::new(ServiceParts {
        name: "users".into(),
        instances,
        subsets: ["v1", "v2"].map(|v| (v.into(), vec![("version".into(), v.into())])).into(),
        stable: 0,
        user_key: vec![KeySource::Header("x-user-id".parse().unwrap()), KeySource::Cookie("uid".into())],
        anonymous: Anonymous::Random,
        salt: "users-2026".into(),
        tags: vec![TagRule { name: "canary".into(), when: vec![canary], subset: 1, trust: Trust::Any }],
        fallback: Fallback { on: FallbackReason::ALL.into_iter().collect(), to: fallback, max_share: 10_000 },
        retry: RetryPolicy {
            attempts: 2,
            on: [RetryOn::ConnectFailure].into_iter().collect(),
            across: Across::Stable,
            hedge_after: None,
        },
        chain: chain(pick),
        guards: Guards::default(),
    })
    .unwrap()
}

pub(crate) fn route(name: &str, path: &str) -> Route {
    Route {
        name: name.into(),
        hosts: vec![HostMatch::parse("api.example.com").unwrap(), HostMatch::parse("*.example.org").unwrap()],
        path: PathMatch::prefix(path).unwrap(),
        conditions: vec![Condition::Method(vec![Method::GET, Method::POST])],
        action: Action::Service(0),
        rewrite: serin_core::route::Rewrite::default(),
        request_headers: serin_core::route::HeaderEdits::default(),
        response_headers: serin_core::route::HeaderEdits::default(),
    }
}

pub(crate) fn traffic(service: &Service, weights: [u32; 2]) -> ServiceTraffic {
    let share = |subset: usize| Share { subset, seed: service.subsets[subset].seed, weight: weights[subset] };
    ServiceTraffic {
        shares: [share(0), share(1)].into_iter().collect(),
        abort: Abort::No,
        balancer_switch: false,
        canary_switch: false,
    }
}

/// A snapshot of so many routes and instances, at 90 % and 10 %.
pub(crate) fn snapshot(routes: usize, instances: u32) -> Snapshot {
    let service = service(self::instances(instances), FallbackTo::Subsets([0].into_iter().collect()), "p2c");
    let table = (0..routes).map(|at| route(&format!("r{at}"), &format!("/api/{at}/users"))).collect();
    Snapshot {
        routes: Arc::new(RouteTable::new(table)),
        traffic: vec![traffic(&service, [9_000, 1_000])],
        services: vec![Arc::new(service)],
        signing_key: None,
    }
}

pub(crate) fn rng() -> SmallRng {
    SmallRng::seed_from_u64(7)
}

/// A request with these headers.
pub(crate) fn view<'a>(headers: &'a HeaderMap, path: &'a str) -> RequestView<'a> {
    RequestView {
        method: &Method::GET,
        host: "api.example.com",
        path,
        query: None,
        headers,
        client_ip: [192, 0, 2, 1].into(),
        from_trusted_proxy: false,
        claims: None,
        unix_time: 0,
    }
}

/// The subset a request is meant for, and where it goes.
pub(crate) type Decided<'a> = (Assignment, Result<(Location<'a>, &'a Instance), Unavailable>);

/// All four steps.
pub(crate) fn decide<'a, R: Recorder>(
    snapshot: &'a Snapshot,
    request: RequestView<'_>,
    now: Instant,
    rng: &mut SmallRng,
    recorder: &mut R,
) -> Option<Decided<'a>> {
    let found = snapshot.routes.find(&request)?;
    let Action::Service(at) = snapshot.routes.routes()[found.route].action else { return None };
    let (service, traffic) = (&snapshot.services[at], &snapshot.traffic[at]);
    let assignment = decide::assign(service, traffic, None, &request, rng, recorder);
    let located = decide::locate(service, assignment.subset, now, recorder);
    let picked = located.map(|location| {
        let instance = decide::pick(
            &location,
            traffic,
            Attempt { request, bucket: assignment.bucket, tried: &[], now },
            rng,
            recorder,
        );
        (location, instance.unwrap())
    });
    Some((assignment, picked))
}
