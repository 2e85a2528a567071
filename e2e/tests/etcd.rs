//! Promise: instances come from etcd as they are there, a change is in force in a moment and rebuilds nothing else, and
//! whatever happens to etcd, the gateway serves on with what it knew last (faults 13 to 17).

#![expect(clippy::unwrap_used, reason = "tests may panic in their helpers as well")]

#[path = "registry/mod.rs"]
mod common;

use std::time::Duration;

use common::{Served, from};
use serde_json::json;
use serin_e2e::servers::Etcd;
use serin_e2e::world::origins;
use serin_e2e::{Gateway, Origin, wait};

const PREFIX: &str = "/serin/instances";

fn key(origin: &Origin) -> String {
    format!("{PREFIX}/users/{}", origin.address)
}

fn value(origin: &Origin) -> String {
    json!({"address": origin.address.to_string(), "labels": {"version": serin_e2e::world::version(&origin.name)}})
        .to_string()
}

async fn register(etcd: &Etcd, origins: &[Origin]) {
    for origin in origins {
        etcd.put(&key(origin), value(origin)).await;
    }
}

async fn gateway(etcd: &Etcd, registry: serde_json::Value) -> Gateway {
    let registries = json!({"e": {"etcd": {"endpoints": [etcd.endpoint()]}}});
    Gateway::start(from(registries, registry)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn instances_come_and_go_as_their_keys_do() {
    let etcd = Etcd::start().await;
    let origins = origins(&["v1-a", "v1-b", "v2-a"]).await;
    let gateway = gateway(&etcd, json!({"from": "e", "service": "users"})).await;
    let served = Served(&gateway);
    served.nobody().await;
    // A service that is registered after the gateway started is found.
    register(&etcd, &origins[..1]).await;
    served.by(&["v1-a"]).await;
    register(&etcd, &origins).await;
    served.by(&["v1-a", "v1-b"]).await;
    // Weights and labels are those of the entry.
    let mut entry: serde_json::Value = serde_json::from_str(&value(&origins[0])).unwrap();
    entry["weight"] = json!(0);
    etcd.put(&key(&origins[0]), entry.to_string()).await;
    served.by(&["v1-b"]).await;
    etcd.put(&key(&origins[0]), value(&origins[0])).await;
    served.by(&["v1-a", "v1-b"]).await;
    etcd.delete(&key(&origins[1])).await;
    served.by(&["v1-a"]).await;
    // A lease that runs out takes its instance with it.
    etcd.put_for(1, &key(&origins[1]), &value(&origins[1])).await;
    served.by(&["v1-a", "v1-b"]).await;
    served.by(&["v1-a"]).await;
    // What cannot be read is left out and counted; what can be is not lost with it.
    for (name, bad) in [("x", "{"), ("y", "{\"address\": \"nowhere\"}"), ("z", "")] {
        etcd.put(&format!("{PREFIX}/users/{name}"), bad).await;
    }
    etcd.put(&format!("{PREFIX}/users/{}", origins[1].address), "").await;
    wait::until("three bad entries to be counted", || async {
        let left_out = gateway.metrics().await.sum("serin_source_unreadable_total", &["source=\"registry:e\""]);
        (left_out >= 3.0).then_some(())
    })
    .await;
    // One with nothing but an address has no version.
    wait::until("three instances", || async {
        let page = gateway.admin_get("/v1/services/users").await;
        (page["instances"].as_array().unwrap().len() == 3).then_some(())
    })
    .await;
    served.by(&["v1-a"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_etcd_takes_nothing_away() {
    let etcd = Etcd::start().await;
    let origins = origins(&["v1-a", "v1-b"]).await;
    register(&etcd, &origins).await;
    let gateway = gateway(&etcd, json!({"from": "e", "service": "users"})).await;
    let served = Served(&gateway);
    served.by(&["v1-a", "v1-b"]).await;
    served.kept("registries/e.jsonl", "v1").await;
    etcd.kill();
    wait::until("the loss to be noticed", || async {
        let status = gateway.admin_get("/readyz?verbose").await["documents"]["registries"]["e"].clone();
        (status["reachable"] == false && status["problem"].is_string()).then_some(())
    })
    .await;
    assert_eq!(gateway.metrics().await.sum("serin_source_reachable", &["source=\"registry:e\""]), 0.0);
    served.by(&["v1-a", "v1-b"]).await;
    // A start with etcd down finds the instances on disk.
    gateway.restart().await;
    served.by(&["v1-a", "v1-b"]).await;
    // Back without anything: nobody believes it.
    etcd.wipe();
    etcd.revive().await;
    served.held(1).await;
    served.by(&["v1-a", "v1-b"]).await;
    // Back with everything.
    register(&etcd, &origins).await;
    served.held(0).await;
    etcd.delete(&key(&origins[0])).await;
    served.by(&["v1-b"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hung_etcd_is_noticed_and_taken_up_again() {
    let etcd = Etcd::start().await;
    let origins = origins(&["v1-a", "v1-b"]).await;
    register(&etcd, &origins[..1]).await;
    let gateway = gateway(&etcd, json!({"from": "e", "service": "users"})).await;
    let served = Served(&gateway);
    served.by(&["v1-a"]).await;
    etcd.hang();
    wait::until("the silence to be noticed", || async {
        let status = gateway.admin_get("/readyz?verbose").await["documents"]["registries"]["e"].clone();
        (status["reachable"] == false).then_some(())
    })
    .await;
    served.by(&["v1-a"]).await;
    etcd.resume();
    register(&etcd, &origins).await;
    served.by(&["v1-a", "v1-b"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_that_loses_too_much_at_once_is_held_back() {
    let etcd = Etcd::start().await;
    let origins = origins(&["v1-a", "v1-b", "v1-c", "v1-d", "v2-a"]).await;
    register(&etcd, &origins).await;
    let gateway = gateway(&etcd, json!({"from": "e", "service": "users", "hold": "2s"})).await;
    let served = Served(&gateway);
    let all = ["v1-a", "v1-b", "v1-c", "v1-d"];
    served.by(&all).await;
    etcd.delete_below(&format!("{PREFIX}/users/")).await;
    served.held(1).await;
    served.by(&all).await;
    let status = gateway.admin_get("/readyz?verbose").await["documents"]["registries"]["e"].clone();
    assert_eq!(status["held"][0]["used"], 5, "{status}");
    // When the time is over it is believed.
    served.nobody().await;
    served.held(0).await;
    register(&etcd, &origins).await;
    served.by(&all).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn checks_say_who_is_really_gone() {
    let etcd = Etcd::start().await;
    let mut origins = origins(&["v1-a", "v1-b", "v2-a"]).await;
    register(&etcd, &origins).await;
    let registries = json!({"e": {"etcd": {"endpoints": [etcd.endpoint()]}}});
    let mut conf = from(registries, json!({"from": "e", "service": "users", "hold": "1s"}));
    conf.service("users")["health_check"] =
        json!({"tcp": {}, "interval": "200ms", "timeout": "150ms", "unhealthy_after": 1, "healthy_after": 1});
    let gateway = Gateway::start(conf).await;
    let served = Served(&gateway);
    served.by(&["v1-a", "v1-b"]).await;
    etcd.delete_below(&format!("{PREFIX}/users/")).await;
    served.held(1).await;
    // Far longer than it is held back without checks.
    let since = std::time::Instant::now();
    while since.elapsed() < Duration::from_secs(3) {
        served.by(&["v1-a", "v1-b"]).await;
    }
    drop(origins.remove(0));
    served.by(&["v1-b"]).await;
    wait::until("the dead instance to be gone", || async {
        let page = gateway.admin_get("/v1/services/users").await;
        (page["instances"].as_array().unwrap().len() == 2).then_some(())
    })
    .await;
    served.held(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_flaps_is_built_a_few_times_a_second() {
    let etcd = Etcd::start().await;
    let origins = origins(&["v1-a", "v1-b"]).await;
    register(&etcd, &origins).await;
    let gateway = gateway(&etcd, json!({"from": "e", "service": "users"})).await;
    let served = Served(&gateway);
    served.by(&["v1-a", "v1-b"]).await;
    let builds = |output: String| output.matches("instances in force").count();
    let before = builds(gateway.output());
    let began = std::time::Instant::now();
    for _ in 0..100 {
        etcd.delete(&key(&origins[0])).await;
        etcd.put(&key(&origins[0]), value(&origins[0])).await;
    }
    let took = began.elapsed();
    served.by(&["v1-a", "v1-b"]).await;
    let built = builds(gateway.output()) - before;
    let most = took.as_millis() as usize / 100 + 2;
    assert!(built <= most, "{built} builds for 200 changes in {took:?}: at most {most} were expected");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_gateway_registers_itself_and_leaves_when_it_is_told_to_stop() {
    let etcd = Etcd::start().await;
    let mut conf = from(json!({"e": {"etcd": {"endpoints": [etcd.endpoint()]}}}), json!({"from": "e"}));
    conf.bootstrap["register"] = json!([{"in": "e", "service": "edge", "address": "10.0.0.5:8080", "zone": "az-1"}]);
    let gateway = Gateway::start(conf).await;
    let key = format!("{PREFIX}/edge/10.0.0.5:8080");
    let entry = wait::until("the entry", || etcd.get(&key)).await;
    assert!(entry.contains("\"zone\":\"az-1\""), "{entry}");
    // It stays through an outage that takes it out.
    etcd.kill();
    etcd.wipe();
    etcd.revive().await;
    wait::until("the entry to be made again", || etcd.get(&key)).await;
    gateway.signal("TERM");
    wait::until("the entry to be taken out", || async { etcd.get(&key).await.is_none().then_some(()) }).await;
}
