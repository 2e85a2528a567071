//! Promise: instances come from Nacos as its console shows them, an edit there is in force as soon as it is pushed, and whatever
//! happens to Nacos, the gateway serves on with what it knew last.

#![expect(clippy::unwrap_used, reason = "tests may panic in their helpers as well")]

#[path = "registry/mod.rs"]
mod common;

use std::time::{Duration, Instant};

use common::{Served, from};
use serde_json::json;
use serin_e2e::servers::{Host, Nacos};
use serin_e2e::world::origins;
use serin_e2e::{Gateway, Origin, wait};

fn host(origin: &Origin) -> Host {
    Host::new(origin.address, if origin.name.starts_with("v1") { "v1" } else { "v2" })
}

async fn gateway(nacos: &Nacos, registry: serde_json::Value) -> Gateway {
    Gateway::start(from(json!({"main": {"nacos": nacos.conf()}}), registry)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edit_in_the_console_is_in_force_as_soon_as_it_is_pushed() {
    let nacos = Nacos::start().await;
    let origins = origins(&["v1-a", "v1-b", "v2-a"]).await;
    let gateway = gateway(&nacos, json!({"from": "main", "service": "users"})).await;
    let served = Served(&gateway);
    served.nobody().await;
    // A service that is first registered after the gateway started is found.
    for origin in &origins {
        nacos.register("users", &host(origin)).await;
    }
    served.by(&["v1-a", "v1-b"]).await;
    // r-nacos gathers changes for half a second to a whole one before it pushes (Nacos for half a second), and both work
    // on a machine that is busy; a push that was lost would take half a minute to be made up for.
    let soon = Duration::from_secs(3);
    let began = Instant::now();
    nacos.edit("users", &Host { weight: 0.0, ..host(&origins[0]) }).await;
    served.by(&["v1-b"]).await;
    assert!(began.elapsed() < soon, "a weight took {:?}", began.elapsed());
    let began = Instant::now();
    nacos.edit("users", &Host { weight: 1.5, ..host(&origins[0]) }).await;
    served.by(&["v1-a", "v1-b"]).await;
    assert!(began.elapsed() < soon, "a weight took {:?}", began.elapsed());
    let began = Instant::now();
    nacos.edit("users", &Host { version: "v1", ..host(&origins[2]) }).await;
    served.by(&["v1-a", "v1-b", "v2-a"]).await;
    assert!(began.elapsed() < soon, "a label took {:?}", began.elapsed());
    let began = Instant::now();
    nacos.edit("users", &Host { enabled: false, ..host(&origins[0]) }).await;
    served.by(&["v1-b", "v2-a"]).await;
    assert!(began.elapsed() < soon, "to be disabled took {:?}", began.elapsed());
    nacos.deregister("users", &host(&origins[1])).await;
    served.by(&["v2-a"]).await;
    // The last one leaves: that is held back.
    nacos.deregister("users", &host(&origins[2])).await;
    served.held(1).await;
    served.by(&["v2-a"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clusters_are_chosen_and_weights_are_kept() {
    let nacos = Nacos::start().await;
    let origins = origins(&["v1-a", "v1-b", "v1-c"]).await;
    nacos.register("users", &Host { cluster: "HZ", weight: 3.0, ..host(&origins[0]) }).await;
    nacos.register("users", &Host { cluster: "HZ", weight: 1.0, ..host(&origins[1]) }).await;
    nacos.register("users", &Host { cluster: "SH", ..host(&origins[2]) }).await;
    let mut conf = from(
        json!({"main": {"nacos": nacos.conf()}}),
        json!({"from": "main", "service": "users", "group": "DEFAULT_GROUP", "clusters": ["HZ"]}),
    );
    conf.service("users")["balancer"] = json!([{"weighted_round_robin": {}}]);
    let gateway = Gateway::start(conf).await;
    let served = Served(&gateway);
    served.by(&["v1-a", "v1-b"]).await;
    let mut first = 0;
    for _ in 0..40 {
        let origin = serin_e2e::Call::get("/").to(gateway.http()).await.origin();
        first += usize::from(origin == "v1-a");
    }
    assert_eq!(first, 30, "weights 3 and 1");
    let page = gateway.admin_get("/v1/services/users").await;
    assert!(page["instances"].as_array().unwrap().iter().all(|instance| instance["cluster"] == "HZ"), "{page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_nacos_takes_nothing_away() {
    let nacos = Nacos::start().await;
    let origins = origins(&["v1-a", "v1-b"]).await;
    for origin in &origins {
        nacos.register("users", &host(origin)).await;
    }
    let gateway = gateway(&nacos, json!({"from": "main", "service": "users"})).await;
    let served = Served(&gateway);
    served.by(&["v1-a", "v1-b"]).await;
    served.kept("registries/main.jsonl", "v1").await;
    nacos.kill();
    wait::until("the loss to be noticed", || async {
        let status = gateway.admin_get("/readyz?verbose").await["documents"]["registries"]["main"].clone();
        (status["reachable"] == false).then_some(())
    })
    .await;
    served.by(&["v1-a", "v1-b"]).await;
    gateway.restart().await;
    served.by(&["v1-a", "v1-b"]).await;
    nacos.wipe();
    nacos.revive().await;
    served.held(1).await;
    served.by(&["v1-a", "v1-b"]).await;
    for origin in &origins {
        nacos.register("users", &host(origin)).await;
    }
    served.held(0).await;
    nacos.deregister("users", &host(&origins[0])).await;
    served.by(&["v1-b"]).await;
    // Hung, and back.
    nacos.hang();
    wait::until("the silence to be noticed", || async {
        let status = gateway.admin_get("/readyz?verbose").await["documents"]["registries"]["main"].clone();
        (status["reachable"] == false).then_some(())
    })
    .await;
    served.by(&["v1-b"]).await;
    nacos.resume();
    nacos.register("users", &host(&origins[0])).await;
    served.by(&["v1-a", "v1-b"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_gateway_registers_itself_and_leaves_when_it_is_told_to_stop() {
    let nacos = Nacos::start().await;
    let origins = origins(&["v1-a"]).await;
    nacos.register("users", &host(&origins[0])).await;
    let mut conf = from(json!({"main": {"nacos": nacos.conf()}}), json!({"from": "main", "service": "users"}));
    conf.bootstrap["register"] = json!([{"in": "main", "service": "edge", "address": "10.0.0.5:8080", "weight": 200, "labels": {"version": "v9"}}]);
    let gateway = Gateway::start(conf).await;
    let listed = || async { nacos.list("edge").await };
    let hosts = wait::until("the entry", || async { Some(listed().await).filter(|hosts| !hosts.is_empty()) }).await;
    assert_eq!(
        (&hosts[0]["ip"], &hosts[0]["weight"], &hosts[0]["metadata"]["version"]),
        (&json!("10.0.0.5"), &json!(2.0), &json!("v9"))
    );
    gateway.signal("TERM");
    wait::until("the entry to be taken out", || async { listed().await.is_empty().then_some(()) }).await;
}
