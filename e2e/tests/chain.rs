//! Promise: any chain of narrows and one pick per service; the balancer switch turns each into round robin.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use serin_e2e::client::{Call, Conn};
use serin_e2e::ledger::Outcome;
use serin_e2e::load::{Load, Talk};
use serin_e2e::origin::Behaviour;
use serin_e2e::{Conf, Gateway, Origin, conf, wait, world};

/// A gateway before a service `pool` over origins `a`, `b`, `c` with the given weights and balancer.
struct Pool {
    origins: Vec<Origin>,
    gateway: Gateway,
}

impl Pool {
    async fn start(weights: &[u32], balancer: Value) -> Self {
        Self::with(weights, balancer, |_| ()).await
    }

    async fn with(weights: &[u32], balancer: Value, change: impl FnOnce(&mut Vec<Value>)) -> Self {
        let origins = world::origins(&["a", "b", "c", "d"][..weights.len()]).await;
        let service = conf::pool(&origins.iter().collect::<Vec<_>>(), balancer);
        let mut conf = Conf::empty().with_service("pool", service);
        for (instance, weight) in conf.instances("pool").iter_mut().zip(weights) {
            instance["weight"] = json!(weight);
        }
        change(conf.instances("pool"));
        let gateway = Gateway::start(conf).await;
        Self { origins, gateway }
    }

    /// Names of the origins that answer `count` requests in a row on one connection.
    async fn picks(&self, count: usize, adapt: impl Fn(usize, Call) -> Call) -> Vec<String> {
        let mut conn = Conn::http1(self.gateway.http()).await;
        let mut picks = vec![];
        for number in 0..count {
            picks.push(adapt(number, Call::get("/pool")).on(&mut conn).await.origin());
        }
        picks
    }

    async fn counts(&self, count: usize) -> BTreeMap<String, usize> {
        tally(&self.picks(count, |_, call| call).await)
    }
}

fn tally(picks: &[String]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for pick in picks {
        *counts.entry(pick.clone()).or_default() += 1;
    }
    counts
}

#[tokio::test]
async fn round_robin_takes_turns() {
    let pool = Pool::start(&[100, 100, 100], json!([{"round_robin": {}}])).await;
    let picks = pool.picks(9, |_, call| call).await;
    for turn in picks.windows(4) {
        assert_eq!(turn[0], turn[3], "{picks:?}");
        assert_eq!(tally(&turn[..3]).len(), 3, "{picks:?}");
    }
}

#[tokio::test]
async fn the_smooth_weighted_round_robin_interleaves() {
    let pool = Pool::start(&[5, 1, 1], json!([{"weighted_round_robin": {}}])).await;
    let picks = pool.picks(21, |_, call| call).await;
    // Which of the two equal instances comes first depends on their addresses only.
    let shape: String = picks.iter().map(|pick| if pick == "a" { 'a' } else { '.' }).collect();
    assert_eq!(shape, "aa.a.aa".repeat(3), "{picks:?}");
    assert_eq!(tally(&picks).into_values().collect::<Vec<_>>(), [15, 3, 3]);
}

#[tokio::test]
async fn weighted_picks_give_the_weights() {
    for pick in ["weighted_random", "p2c", "least_request", "peak_ewma"] {
        let pool = Pool::start(&[100, 100, 0], json!([{ pick: {} }])).await;
        let counts = pool.counts(200).await;
        assert_eq!(counts.get("c"), None, "{pick}: weight 0 gets nothing: {counts:?}");
        assert_eq!(counts.len(), 2, "{pick}: {counts:?}");
    }
    let pool = Pool::start(&[10, 20, 70], json!([{"weighted_random": {}}])).await;
    let counts = pool.counts(1_000).await;
    // Three and a half sigma of a binomial with n = 1,000.
    for (name, mean, margin) in [("a", 100, 34), ("b", 200, 45), ("c", 700, 51)] {
        let count = counts.get(name).copied().unwrap_or_default();
        assert!(count.abs_diff(mean) <= margin, "{name} got {count} of 1,000, expected {mean}");
    }
}

/// Every pick that ships.
const PICKS: [&str; 11] = [
    "round_robin",
    "random",
    "weighted_random",
    "weighted_round_robin",
    "p2c",
    "least_request",
    "peak_ewma",
    "adaptive",
    "ring_hash",
    "maglev",
    "first",
];

/// Fault 22 of faults.md.
#[tokio::test(flavor = "multi_thread")]
async fn a_kill_switch_under_a_storm_fails_no_request_whatever_the_chain() {
    for pick in PICKS {
        let chain = json!([{"exclude_tried": {}}, {"zone_affinity": {}}, { pick: {} }]);
        let pool = Pool::start(&[100, 200, 300], chain).await;
        let http = pool.gateway.http();
        let mut load = Load::start(&[(8, Talk::Keeps, http), (4, Talk::H2c, http)], "/pool");
        for switch in ["balancer", "canary"] {
            for on in [true, false, true, false, true, false] {
                load.more(30).await;
                let _ = pool.gateway.set_switch(switch, on, None).await;
            }
        }
        load.more(30).await;
        load.stop().await;
        let outcomes = load.ledger.outcomes("GET");
        assert!(outcomes.keys().all(|outcome| *outcome == Outcome::Answered(200)), "{pick}: {outcomes:?}");
        assert_eq!(load.refused(), 0, "{pick}");
    }
}

#[tokio::test]
async fn every_pick_serves() {
    for pick in PICKS {
        let pool = Pool::start(&[100, 100, 100], json!([{"exclude_tried": {}}, { pick: {} }])).await;
        let picks = pool.picks(12, |number, call| call.user(number.to_string())).await;
        let distinct = tally(&picks).len();
        if pick == "first" {
            assert_eq!(distinct, 1, "{pick}: {picks:?}");
        } else {
            assert!(distinct > 1, "{pick}: {picks:?}");
        }
    }
}

#[tokio::test]
async fn hashing_picks_stick_to_the_user() {
    for pick in ["ring_hash", "maglev"] {
        let pool = Pool::with(&[100, 100, 100], json!([{ pick: {} }]), |_| ()).await;
        let mut routing = pool.gateway.conf.routing.clone();
        routing["services"]["pool"]["user_key"] = json!([{"header": "x-user-id"}]);
        let mut conf = pool.gateway.conf.clone();
        conf.routing = routing;
        let gateway = Gateway::start(conf).await;
        let mut used = BTreeMap::new();
        for user in 0..20 {
            let mut conn = Conn::http1(gateway.http()).await;
            let home = Call::get("/pool").user(user.to_string()).on(&mut conn).await.origin();
            for _ in 0..5 {
                let again = Call::get("/pool").user(user.to_string()).on(&mut conn).await.origin();
                assert_eq!(again, home, "{pick}: user {user} moved");
            }
            *used.entry(home).or_insert(0) += 1;
        }
        assert!(used.len() > 1, "{pick}: every user on one instance: {used:?}");
    }
}

#[tokio::test]
async fn least_request_evens_out_what_is_in_flight() {
    let pool = Pool::start(&[100, 100, 100], json!([{"least_request": {}}])).await;
    let hits = || pool.origins.iter().map(Origin::hits).collect::<Vec<_>>();
    pool.origins.iter().for_each(|origin| origin.set(Behaviour::Hold));
    let mut held = vec![];
    for sent in 1..=9 {
        held.push(tokio::spawn(Call::get("/pool").to(pool.gateway.http())));
        wait::until("the request to arrive", || async { (hits().iter().sum::<u64>() == sent).then_some(()) }).await;
        let (least, most) = (*hits().iter().min().unwrap(), *hits().iter().max().unwrap());
        assert!(most - least <= 1, "in flight: {:?}", hits());
    }
    pool.origins.iter().for_each(Origin::release);
    for call in held {
        let _ = call.await.unwrap().expect(200);
    }
}

#[tokio::test]
async fn zone_affinity_prefers_the_own_zone() {
    let zones = |zones: [Option<&'static str>; 3]| {
        move |instances: &mut Vec<Value>| {
            for (instance, zone) in instances.iter_mut().zip(zones) {
                if let Some(zone) = zone {
                    instance["zone"] = json!(zone);
                }
            }
        }
    };
    let balancer = json!([{"zone_affinity": {}}, {"round_robin": {}}]);
    let own = Pool::with(&[100; 3], balancer.clone(), zones([Some("az-1"), Some("az-2"), None])).await;
    assert_eq!(own.counts(9).await.get("a"), Some(&9), "the gateway's own zone is az-1");
    let none = Pool::with(&[100; 3], balancer, zones([Some("az-2"), Some("az-3"), None])).await;
    assert_eq!(none.counts(9).await.into_values().collect::<Vec<_>>(), [3, 3, 3], "no instance there: all");
}

#[tokio::test]
async fn narrows_go_before_the_pick() {
    let balancer = json!([{"labels": {"tier": "fast"}}, {"ip_family": {"prefer": "v4"}}, {"round_robin": {}}]);
    let pool = Pool::with(&[100; 3], balancer, |instances| {
        instances[0]["labels"] = json!({"tier": "fast"});
        instances[1]["labels"] = json!({"tier": "slow"});
        instances[2]["labels"] = json!({"tier": "fast"});
    })
    .await;
    assert_eq!(pool.counts(10).await, BTreeMap::from([("a".into(), 5), ("c".into(), 5)]));
}

#[tokio::test]
async fn the_balancer_switch_reverts_to_round_robin() {
    for service in [None, Some("pool")] {
        let pool = Pool::start(&[100; 3], json!([{"first": {}}])).await;
        assert_eq!(pool.counts(9).await.len(), 1);
        pool.gateway.set_switch("balancer", true, service).await;
        assert_eq!(pool.counts(9).await.into_values().collect::<Vec<_>>(), [3, 3, 3], "{service:?}");
        pool.gateway.set_switch("balancer", false, service).await;
        assert_eq!(pool.counts(9).await.len(), 1);
    }
}

#[tokio::test]
async fn round_robin_under_the_switch_stays_in_the_subset() {
    let origins = world::origins(&["v1-a", "v1-b", "v2-a"]).await;
    let mut conf = world::users_conf(&origins);
    conf.service("users")["balancer"] = json!([{"first": {}}]);
    conf.weights(&[("v1", "100%"), ("v2", "0%")]);
    let world = serin_e2e::World { gateway: Gateway::start(conf).await, origins };
    world.gateway.set_switch("balancer", true, None).await;
    let counts = tally(&world.burst(10).await);
    assert_eq!(counts, BTreeMap::from([("v1-a".into(), 5), ("v1-b".into(), 5)]));
}
