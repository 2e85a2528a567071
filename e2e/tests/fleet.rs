//! Promise: gateways that share a config center are flipped by any of them, or in the center itself, within a second, and
//! agree on what is in force; without the center each still obeys its operators, and what they did is brought there later.

#![expect(clippy::unwrap_used, reason = "tests may panic in their helpers as well")]

#[path = "fleet/mod.rs"]
mod common;

use std::time::{Duration, Instant};

use common::{Center, Fleet, Load, TRAFFIC, gateway};
use serde_json::json;
use serin_e2e::client::{Call, Conn};
use serin_e2e::world::{origins, users_conf};
use serin_e2e::{Gateway, conf, wait};

const FLIPS: u64 = 50;

macro_rules! on_both {
    ($($(#[$meta:meta])* $name:ident)*) => {
        mod etcd {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                super::$name(super::Center::etcd().await).await;
            })*
        }
        mod nacos {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                super::$name(super::Center::nacos().await).await;
            })*
        }
    };
}

on_both! {
    documents_come_from_the_center_and_flips_go_there
    flips_are_everywhere_within_a_second
    without_the_center_operators_are_obeyed_and_the_difference_is_settled
    a_start_without_the_center_takes_what_was_kept
    a_wiped_center_takes_nothing_away
    a_hung_center_delays_no_flip
    every_replica_knows_who_flipped_and_why
    a_huge_document_is_refused
}

async fn documents_come_from_the_center_and_flips_go_there(center: Center) {
    let fleet = Fleet::start(center, 1).await;
    let gateway = &fleet.gateways[0];
    assert_eq!(gateway.traffic_revision().await, 1);
    let status = gateway.admin_get("/readyz?verbose").await["documents"].clone();
    assert_eq!(status["traffic"]["center"]["reachable"], true, "{status}");
    let written = gateway.set_weights(&[("v1", "0%"), ("v2", "100%")]).await.json();
    assert!(written["warning"].is_null() && written["revision"] == 2, "{written}");
    assert_eq!(fleet.version_at(0, "anybody").await, "v2");
    let text = fleet.center.get(TRAFFIC).await.unwrap();
    assert!(text.contains("revision: 2") && text.contains("100%"), "{text}");
    // Somebody edits it in the center, and does not count.
    fleet
        .center
        .put(TRAFFIC, &text.replace("\"v1\": \"0%\", \"v2\": \"100%\"", "\"v1\": \"100%\", \"v2\": \"0%\""))
        .await;
    wait::until("the edit to be in force", || async {
        (fleet.version_at(0, "anybody").await == "v1" && gateway.traffic_revision().await == 3).then_some(())
    })
    .await;
    // The number is put right in the center, so that whoever starts now has the same.
    wait::until("the number to be put right", || async {
        fleet.center.get(TRAFFIC).await.filter(|text| text.contains("revision: 3"))
    })
    .await;
    // What is not sound is refused, and is reported.
    for bad in ["services: [", "services: {users: {weights: {v1: 10%}}}", "revision: 9\nservices:", "\u{0}", " "] {
        let before = gateway.metrics().await.sum("serin_config_refused_total", &["document=\"traffic\""]);
        fleet.center.put(TRAFFIC, bad).await;
        wait::until(format!("{bad:?} to be refused"), || async {
            let refused = gateway.metrics().await.sum("serin_config_refused_total", &["document=\"traffic\""]);
            (refused > before).then_some(())
        })
        .await;
        let status = gateway.admin_get("/readyz?verbose").await["documents"]["traffic"].clone();
        assert!(!status["refused"]["problems"].as_array().unwrap().is_empty(), "{status}");
        assert_eq!((gateway.traffic_revision().await, &*fleet.version_at(0, "anybody").await), (3, "v1"), "{bad:?}");
    }
    // A flip replaces it.
    let _ = gateway.set_switch("canary", true, None).await;
    let text = fleet.center.get(TRAFFIC).await.unwrap();
    assert!(text.contains("revision: 4") && text.contains("canary: true"), "{text}");
    // Routes come from the center as well, and a rollback of traffic goes there.
    let mut routing = gateway.conf.routing.clone();
    routing["routes"]
        .as_array_mut()
        .unwrap()
        .push(json!({"name": "new", "match": {"path": {"exact": "/new"}}, "respond": {"status": 418}}));
    fleet.center.put(common::ROUTING, &routing.to_string()).await;
    wait::until("the new route", || async { (Call::get("/new").to(gateway.http()).await.status == 418).then_some(()) })
        .await;
    let _ = gateway.admin_send("POST", "/v1/rollback", &json!({"revision": 2, "reason": "a test"})).await.expect(200);
    assert_eq!(fleet.version_at(0, "anybody").await, "v2");
    assert!(fleet.center.get(TRAFFIC).await.unwrap().contains("revision: 5"));
}

async fn flips_are_everywhere_within_a_second(center: Center) {
    let fleet = Fleet::start(center, 3).await;
    let load = Load::start(&fleet.gateways);
    let mut times = vec![];
    for flip in 0..FLIPS {
        let at = &fleet.gateways[(flip % 3) as usize];
        let v2 = flip % 2 == 0;
        let began = Instant::now();
        let weights = if v2 { [("v1", "0%"), ("v2", "100%")] } else { [("v1", "100%"), ("v2", "0%")] };
        let written = at.set_weights(&weights).await.json();
        assert!(written["warning"].is_null(), "{written}");
        let expected = if v2 { "v2" } else { "v1" };
        for (number, gateway) in fleet.gateways.iter().enumerate() {
            wait::until(format!("flip {flip} on gateway {number}"), || async {
                let there = gateway.traffic_revision().await == written["revision"].as_u64().unwrap();
                (there && fleet.version_at(number, "anybody").await == expected).then_some(())
            })
            .await;
        }
        times.push(began.elapsed());
    }
    load.finish().await;
    times.sort();
    let (median, worst) = (times[times.len() / 2], times[times.len() - 1]);
    println!("write to last of 3 replicas in force, {FLIPS} flips: p50 {median:?}, worst {worst:?}");
    // The worst is some 0.1 s on a quiet machine; one that is busy with other tests may stop everything for longer.
    assert!(median <= Duration::from_secs(1), "p50 of {FLIPS} flips: {median:?}");
    if matches!(fleet.center, Center::Etcd(_)) {
        // r-nacos does not compare before it writes.
        operators_at_once(&fleet).await;
    }
    for name in ["balancer", "canary", "limits"] {
        let _ = fleet.gateways[0].set_switch(name, false, None).await;
    }
    let _ = fleet.gateways[1].set_weights(&[("v1", "63.21%"), ("v2", "36.79%")]).await;
    fleet.agreed().await;
    // The same user has the same version everywhere.
    const USERS: usize = 100_000;
    let versions = fleet.gateways.iter().map(|gateway| versions(gateway, USERS));
    let versions = futures_util::future::join_all(versions).await;
    assert_eq!(versions[0].len(), USERS);
    assert!(versions.iter().all(|all| *all == versions[0]), "users have different versions at different gateways");
    let share = versions[0].iter().filter(|version| **version == '2').count() as f64 / USERS as f64;
    assert!((share - 0.3679).abs() < 0.005, "{share}");
}

/// Operators at every gateway at once: every change is made, in one order.
async fn operators_at_once(fleet: &Fleet) {
    let before = fleet.gateways[0].traffic_revision().await;
    let at_once = fleet.gateways.iter().enumerate().map(|(number, gateway)| async move {
        for round in 0..5 {
            let name = ["balancer", "canary", "limits"][number];
            let _ = gateway.set_switch(name, round % 2 == 0, None).await;
        }
    });
    futures_util::future::join_all(at_once).await;
    fleet.agreed().await;
    for gateway in &fleet.gateways {
        let traffic = gateway.admin_get("/v1/traffic").await;
        let on = json!({"balancer": true, "canary": true, "limits": true});
        assert_eq!(traffic["switches"], on, "every last word holds: {traffic}");
        assert!(traffic["revision"].as_u64().unwrap() >= before + 5, "{traffic}");
    }
}

/// The last letter of the version that each user gets.
async fn versions(gateway: &Gateway, users: usize) -> Vec<char> {
    const CONNECTIONS: usize = 4;
    let address = gateway.http();
    let part = move |part: usize| async move {
        let mut conn = Conn::http1(address).await;
        let mut versions = vec![];
        for user in (part * users / CONNECTIONS)..((part + 1) * users / CONNECTIONS) {
            let origin = Call::get("/").user(format!("user-{user}")).on(&mut conn).await.origin();
            versions.push(origin.chars().nth(1).unwrap());
        }
        versions
    };
    let parts: Vec<_> = (0..CONNECTIONS).map(|number| tokio::spawn(part(number))).collect();
    let mut all = vec![];
    for part in parts {
        all.extend(part.await.unwrap());
    }
    all
}

async fn without_the_center_operators_are_obeyed_and_the_difference_is_settled(center: Center) {
    let fleet = Fleet::start(center, 2).await;
    let load = Load::start(&fleet.gateways);
    fleet.center.kill();
    for gateway in &fleet.gateways {
        let began = Instant::now();
        let written = gateway.set_switch("canary", true, None).await.json();
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
        assert!(written["warning"].as_str().unwrap().contains("this gateway only"), "{written}");
    }
    // One of them flips more.
    let _ = fleet.gateways[0].set_weights(&[("v1", "70%"), ("v2", "30%")]).await;
    let status = fleet.gateways[0].admin_get("/readyz?verbose").await["documents"]["traffic"].clone();
    assert_eq!(status["center"]["reachable"], false, "{status}");
    assert_eq!(status["center"]["local"]["base_revision"], 1, "{status}");
    assert_eq!(status["center"]["local"]["changes"].as_array().unwrap().len(), 2, "{status}");
    let metrics = fleet.gateways[0].metrics().await;
    assert_eq!(metrics.sum("serin_source_reachable", &["source=\"traffic\""]), 0.0);
    // A restart forgets none of it.
    fleet.gateways[1].restart().await;
    assert_eq!(fleet.gateways[1].admin_get("/v1/traffic").await["switches"]["canary"], true);
    fleet.center.revive().await;
    fleet.agreed().await;
    for gateway in &fleet.gateways {
        wait::until("the difference to be settled", || async {
            let status = gateway.admin_get("/readyz?verbose").await["documents"]["traffic"]["center"].clone();
            (status["reachable"] == true && status["local"].is_null()).then_some(())
        })
        .await;
        let traffic = gateway.admin_get("/v1/traffic").await;
        assert_eq!(traffic["switches"]["canary"], true, "{traffic}");
        assert_eq!(traffic["services"]["users"]["weights"], conf::shares(&[("v1", "70%"), ("v2", "30%")]), "{traffic}");
    }
    let text = fleet.center.get(TRAFFIC).await.unwrap();
    assert!(text.contains("canary: true") && text.contains("30%"), "{text}");
    load.finish_of(&[0]).await;
}

async fn a_start_without_the_center_takes_what_was_kept(center: Center) {
    let fleet = Fleet::start(center, 1).await;
    let gateway = &fleet.gateways[0];
    let _ = gateway.set_weights(&[("v1", "0%"), ("v2", "100%")]).await;
    fleet.center.kill();
    gateway.restart().await;
    assert_eq!((gateway.traffic_revision().await, &*fleet.version_at(0, "anybody").await), (2, "v2"));
    fleet.center.revive().await;
    // Garbage in the center does not keep a gateway from starting either.
    fleet.center.put(TRAFFIC, "]").await;
    fleet.center.put(common::ROUTING, "\u{1}").await;
    gateway.restart().await;
    assert_eq!((gateway.traffic_revision().await, &*fleet.version_at(0, "anybody").await), (2, "v2"));
    let _ = gateway.set_switch("canary", true, None).await;
    assert_eq!(fleet.version_at(0, "anybody").await, "v1");
}

async fn a_wiped_center_takes_nothing_away(center: Center) {
    let fleet = Fleet::start(center, 2).await;
    let _ = fleet.gateways[0].set_weights(&[("v1", "0%"), ("v2", "100%")]).await;
    fleet.agreed().await;
    fleet.center.kill();
    fleet.center.wipe();
    fleet.center.revive().await;
    for gateway in &fleet.gateways {
        wait::until("the loss to be noticed", || async {
            let status = gateway.admin_get("/readyz?verbose").await["documents"]["traffic"].clone();
            (!status["refused"].is_null() && status["center"]["reachable"] == true).then_some(())
        })
        .await;
    }
    assert_eq!(fleet.version_at(1, "anybody").await, "v2");
    // The next flip makes it again.
    let _ = fleet.gateways[1].set_switch("canary", true, None).await;
    fleet.agreed().await;
    assert_eq!(fleet.version_at(0, "anybody").await, "v1");
    assert!(fleet.center.get(TRAFFIC).await.unwrap().contains("canary: true"));
}

async fn a_hung_center_delays_no_flip(center: Center) {
    let fleet = Fleet::start(center, 1).await;
    let gateway = &fleet.gateways[0];
    fleet.center.hang();
    let mut took = vec![];
    for on in [true, false, true] {
        let began = Instant::now();
        let _ = gateway.set_switch("canary", on, None).await;
        took.push(began.elapsed());
    }
    fleet.center.resume();
    assert!(took.iter().all(|took| *took < Duration::from_secs(1)), "{took:?}");
    wait::until("the difference to be settled", || async {
        let status = gateway.admin_get("/readyz?verbose").await["documents"]["traffic"]["center"].clone();
        (status["reachable"] == true && status["local"].is_null()).then_some(())
    })
    .await;
    assert!(fleet.center.get(TRAFFIC).await.unwrap().contains("canary: true"));
}

/// 10 MB of comments are a document, as large ones are; 20 MB are more than the 16 MiB that one may have.
async fn a_huge_document_is_refused(center: Center) {
    let fleet = Fleet::start(center, 1).await;
    let gateway = &fleet.gateways[0];
    let text = fleet.center.get(TRAFFIC).await.unwrap();
    let padded = |megabytes: usize| format!("{text}\n#{}\n", "x".repeat(megabytes * 1_000_000));
    if !fleet.center.try_put(TRAFFIC, &padded(20)).await {
        // A center that does not take it has refused it for everybody.
        assert!(matches!(fleet.center, Center::Nacos(_)), "etcd takes it");
    } else {
        wait::until("it to be refused", || async {
            let refused = gateway.metrics().await.sum("serin_config_refused_total", &["document=\"traffic\""]);
            (refused > 0.0).then_some(())
        })
        .await;
        let status = gateway.admin_get("/readyz?verbose").await["documents"]["traffic"].clone();
        assert_eq!(status["center"]["reachable"], true, "{status}");
        assert!(status["refused"]["problems"].to_string().contains("at most 16777216"), "{status}");
    }
    assert_eq!(fleet.version_at(0, "anybody").await, "v1");
    fleet
        .center
        .put(TRAFFIC, &padded(10).replace("\"v1\":\"100%\",\"v2\":\"0%\"", "\"v1\":\"0%\",\"v2\":\"100%\""))
        .await;
    wait::until("the large one to be in force", || async {
        (fleet.version_at(0, "anybody").await == "v2").then_some(())
    })
    .await;
    // A flip makes a small one of it.
    let written = gateway.set_switch("canary", true, None).await.json();
    assert!(written["warning"].is_null(), "{written}");
    assert_eq!(fleet.version_at(0, "anybody").await, "v1");
    assert!(fleet.center.get(TRAFFIC).await.unwrap().len() < 10_000);
}

async fn every_replica_knows_who_flipped_and_why(center: Center) {
    let fleet = Fleet::start(center, 3).await;
    // One was not there when it happened.
    fleet.gateways[2].stop();
    let cli = fleet.gateways[0].cli(&["switch", "canary", "on", "--reason", "errors: 5 % of \"v2\""]).await;
    let _ = cli.expect(0);
    wait::until("the flip to arrive", || async { (fleet.gateways[1].traffic_revision().await == 2).then_some(()) })
        .await;
    fleet.gateways[2].restart().await;
    let entry = |gateway: usize| {
        let gateway = &fleet.gateways[gateway];
        async move { gateway.admin_get("/v1/history").await["entries"][0].clone() }
    };
    let own = entry(0).await;
    for gateway in 1..3 {
        let other = entry(gateway).await;
        for field in ["by", "action", "reason", "revision"] {
            assert_eq!(other[field], own[field], "{field} of {other}");
        }
        let (from, at) = (other["from"].as_str().unwrap(), own["from"].as_str().unwrap());
        assert!(from.starts_with(&format!("{at}, by ")), "{from}");
    }
    let text = fleet.gateways[1].cli(&["history"]).await.stdout;
    assert!(text.contains("errors: 5 % of"), "{text}");
    // Somebody edits the document in the center, and leaves the comment as it is: nobody else is blamed.
    let text = fleet.center.get(TRAFFIC).await.unwrap();
    assert!(text.contains("\"v2\\\""), "{text}");
    fleet.center.put(TRAFFIC, &text.replace("canary: true", "canary: false")).await;
    for gateway in 0..3 {
        wait::until("the edit to be noted", || async {
            let entry = entry(gateway).await;
            (entry["revision"] == 3).then(|| assert!(entry["by"] == "center" && entry["reason"] == "", "{entry}"))
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_begins_without_a_traffic_document() {
    let center = Center::etcd().await;
    let origins = origins(&["v1-a", "v2-a"]).await;
    let conf = users_conf(&origins);
    center.put(common::ROUTING, &conf.routing.to_string()).await;
    let gateway = gateway(&center, conf, 0).await;
    assert_eq!(Call::get("/").user("anybody").to(gateway.http()).await.origin(), "v1-a");
    let _ = gateway.set_weights(&[("v1", "0%"), ("v2", "100%")]).await;
    assert_eq!(Call::get("/").user("anybody").to(gateway.http()).await.origin(), "v2-a");
    assert!(center.get(TRAFFIC).await.unwrap().contains("revision: 2"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ramp_has_one_leader_and_another_takes_over() {
    let fleet = Fleet::start(Center::etcd().await, 3).await;
    let load = Load::start(&fleet.gateways);
    let steps: Vec<_> = (1..=18).map(|step| format!("{}%", 5 * step)).collect();
    let ramp = json!({"to": "v2", "steps": steps, "every": "3s", "min_requests": 1, "guards": []});
    let _ = fleet.gateways[0].admin_send("POST", "/v1/ramps/users", &ramp).await.expect(200);
    let leader = wait::until("a leader", || async {
        let mut leaders = vec![];
        for (number, gateway) in fleet.gateways.iter().enumerate() {
            let status = gateway.admin_get("/readyz?verbose").await["documents"]["traffic"]["center"].clone();
            leaders.extend((status["leads_ramps"] == true).then_some(number));
        }
        assert!(leaders.len() <= 1, "{leaders:?} lead at once");
        leaders.pop()
    })
    .await;
    let share = |gateway: usize| {
        let fleet = &fleet;
        async move {
            let traffic = fleet.gateways[gateway].admin_get("/v1/traffic").await;
            traffic["services"]["users"]["weights"]["v2"].as_str().unwrap().to_owned()
        }
    };
    let other = (leader + 1) % 3;
    let later = ["20%", "30%", "40%", "50%"];
    let before =
        wait::until("the next step", || async { Some(share(other).await).filter(|at| later.contains(&&**at)) }).await;
    fleet.gateways[leader].stop();
    // Another takes over after five seconds, and then the step lasts a while.
    let stopped = Instant::now();
    while share(other).await == before {
        assert!(stopped.elapsed() < 3 * wait::DEADLINE, "nobody took over");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    load.finish_of(&[other, (leader + 2) % 3]).await;
}
