//! Promise: a center or a registry that is cut off - what is sent to it vanishes - takes nothing away: the gateway serves from
//! memory, says how old what it knows is, stays ready and obeys its operators; and once the cable is mended, everybody agrees
//! within seconds and without a restart. Faults 13 and 18 of faults.md, in network namespaces. Needs root.

#![expect(clippy::unwrap_used, reason = "tests may panic in their helpers as well")]

#[path = "fleet/mod.rs"]
mod fleets;
#[path = "registry/mod.rs"]
mod registry;

use std::time::{Duration, Instant};

use fleets::{Center, Fleet, Load, ROUTING, TRAFFIC};
use registry::{Served, from};
use serde_json::{Value, json};
use serin_e2e::island::Island;
use serin_e2e::servers::{Etcd, Host, Nacos, Site, ZooKeeper};
use serin_e2e::world::origins;
use serin_e2e::{Call, Gateway, Origin, conf, wait};
use zookeeper_client::{Acls, Client, CreateMode};

/// How old what is known gets meanwhile, in seconds: older than any connection that is not looked after notices.
const AGE: f64 = 8.0;
/// How long it may take after the cable is mended.
const SOON: Duration = Duration::from_secs(8);

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_that_is_cut_off_from_etcd_agrees_again() {
    let Some(island) = Island::new() else { return };
    let etcd = Etcd::start_at(&Site::on(&island)).await;
    let endpoint = format!("http://{}", etcd.address);
    let place = move |name: &str| json!({"etcd": {"endpoints": [endpoint], "key": name}});
    agrees_again(&island, Center::Etcd(etcd), place).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_that_is_cut_off_from_nacos_agrees_again() {
    let Some(island) = Island::new() else { return };
    let nacos = Nacos::start_at(&Site::on(&island)).await;
    let (http, grpc) = (nacos.http.to_string(), nacos.grpc.port());
    let place = move |name: &str| json!({"nacos": {"address": http, "grpc_port": grpc, "data_id": name}});
    agrees_again(&island, Center::Nacos(nacos), place).await;
}

/// Two gateways, one of which is cut off, while operators flip at both and somebody edits the routes.
async fn agrees_again(island: &Island, center: Center, place: impl Fn(&str) -> Value) {
    let mut fleet = Fleet::start(center, 1).await;
    let mut near = fleet.gateways[0].conf.clone();
    near.bootstrap["node"]["id"] = json!("gw-near");
    near.bootstrap["routing"] = place(ROUTING);
    near.bootstrap["traffic"] = place(TRAFFIC);
    fleet.gateways.push(Gateway::start(near).await);
    let load = Load::start(&fleet.gateways);
    let (far, near) = (&fleet.gateways[0], &fleet.gateways[1]);
    island.cut();
    let began = Instant::now();
    let written = far.set_switch("canary", true, None).await.json();
    assert!(began.elapsed() < Duration::from_secs(1), "a flip took {:?}", began.elapsed());
    assert!(written["warning"].as_str().unwrap().contains("this gateway only"), "{written}");
    let written = near.set_weights(&[("v1", "70%"), ("v2", "30%")]).await.json();
    assert!(written["warning"].is_null(), "{written}");
    let mut routing = far.conf.routing.clone();
    let new = json!({"name": "new", "match": {"path": {"exact": "/new"}}, "respond": {"status": 418}});
    routing["routes"].as_array_mut().unwrap().push(new);
    fleet.center.put(ROUTING, &routing.to_string()).await;
    for document in ["traffic", "routing"] {
        lost(far, |documents| documents[document]["center"]["reachable"] == false).await;
        aged(far, document).await;
    }
    assert_eq!(far.admin_get("/readyz?verbose").await["documents"]["traffic"]["center"]["local"]["base_revision"], 1);
    assert_eq!(fleet.version_at(0, "anybody").await, "v1");
    let mended = Instant::now();
    island.mend();
    fleet.agreed().await;
    wait::until("the new route", || async { (Call::get("/new").to(far.http()).await.status == 418).then_some(()) })
        .await;
    let took = mended.elapsed();
    println!("mended to agreed: {took:?}");
    assert!(took < SOON, "{took:?}");
    for gateway in &fleet.gateways {
        let traffic = gateway.admin_get("/v1/traffic").await;
        assert_eq!(traffic["switches"]["canary"], true, "{traffic}");
        assert_eq!(traffic["services"]["users"]["weights"], conf::shares(&[("v1", "70%"), ("v2", "30%")]), "{traffic}");
    }
    // Flips of either are everywhere again.
    let written = far.set_switch("canary", false, None).await.json();
    assert!(written["warning"].is_null(), "{written}");
    fleet.agreed().await;
    load.finish().await;
}

/// Waits until a loss is noticed; meanwhile the gateway is ready.
async fn lost(gateway: &Gateway, is_lost: impl Fn(&Value) -> bool) {
    wait::until("the loss to be noticed", || async {
        let reply = gateway.admin(Call::get("/readyz?verbose")).await;
        assert_eq!(reply.status, 200, "it stays ready: {}", reply.text());
        is_lost(&reply.json()["documents"]).then_some(())
    })
    .await;
}

/// Waits until the age of a source is some seconds.
async fn aged(gateway: &Gateway, source: &str) {
    let label = format!("source=\"{source}\"");
    wait::until(format!("the age of {source}"), || async {
        let metrics = gateway.metrics().await;
        let there = metrics.sum("serin_source_reachable", &[&label]);
        (metrics.sum("serin_source_confirmed_age_seconds", &[&label]) > AGE && there < 0.5).then_some(())
    })
    .await;
}

/// A registry that is cut off: what happens there meanwhile is in force soon after.
async fn is_taken_up_again(island: &Island, gateway: &Gateway, name: &str, meanwhile: impl AsyncFnOnce()) {
    let served = Served(gateway);
    served.by(&["v1-a", "v1-b"]).await;
    let load = Load::start(std::slice::from_ref(gateway));
    island.cut();
    meanwhile().await;
    lost(gateway, |documents| documents["registries"][name]["reachable"] == false).await;
    aged(gateway, &format!("registry:{name}")).await;
    served.by(&["v1-a", "v1-b"]).await;
    let mended = Instant::now();
    island.mend();
    served.by(&["v1-b", "v1-c"]).await;
    let took = mended.elapsed();
    println!("{name} mended to in force: {took:?}");
    assert!(took < SOON, "{took:?}");
    load.finish().await;
}

fn entry(origin: &Origin) -> String {
    json!({"address": origin.address.to_string(), "labels": {"version": "v1"}}).to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn instances_come_from_an_etcd_that_was_cut_off() {
    let Some(island) = Island::new() else { return };
    let etcd = Etcd::start_at(&Site::on(&island)).await;
    let origins = origins(&["v1-a", "v1-b", "v1-c"]).await;
    let key = |origin: &Origin| format!("/serin/instances/users/{}", origin.address);
    for origin in &origins[..2] {
        etcd.put(&key(origin), entry(origin)).await;
    }
    let registries = json!({"e": {"etcd": {"endpoints": [etcd.endpoint()]}}});
    let gateway = Gateway::start(from(registries, json!({"from": "e", "service": "users"}))).await;
    is_taken_up_again(&island, &gateway, "e", async || {
        etcd.put(&key(&origins[2]), entry(&origins[2])).await;
        etcd.delete(&key(&origins[0])).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn instances_come_from_a_nacos_that_was_cut_off() {
    let Some(island) = Island::new() else { return };
    let nacos = Nacos::start_at(&Site::on(&island)).await;
    let origins = origins(&["v1-a", "v1-b", "v1-c"]).await;
    for origin in &origins[..2] {
        nacos.register("users", &Host::new(origin.address, "v1")).await;
    }
    let registries = json!({"main": {"nacos": nacos.conf()}});
    let gateway = Gateway::start(from(registries, json!({"from": "main", "service": "users"}))).await;
    is_taken_up_again(&island, &gateway, "main", async || {
        nacos.register("users", &Host::new(origins[2].address, "v1")).await;
        nacos.deregister("users", &Host::new(origins[0].address, "v1")).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn instances_come_from_a_zookeeper_that_was_cut_off() {
    const SERVICE: &str = "/serin/instances/users";
    let Some(island) = Island::new() else { return };
    let zookeeper = ZooKeeper::start_at(&Site::on(&island)).await;
    let origins = origins(&["v1-a", "v1-b", "v1-c"]).await;
    let address = zookeeper.address.to_string();
    let client = wait::until("a session", || async { Client::connector().connect(&address).await.ok() }).await;
    let (lasting, path) = (CreateMode::Persistent.with_acls(Acls::anyone_all()), |origin: &Origin| {
        format!("{SERVICE}/{}", origin.address)
    });
    client.mkdir(SERVICE, &lasting).await.unwrap();
    for origin in &origins[..2] {
        client.create(&path(origin), entry(origin).as_bytes(), &lasting).await.unwrap();
    }
    let registries = json!({"zk": {"zookeeper": {"servers": [zookeeper.seen.to_string()], "session_timeout": "2s"}}});
    let gateway = Gateway::start(from(registries, json!({"from": "zk", "service": "users"}))).await;
    is_taken_up_again(&island, &gateway, "zk", async || {
        client.create(&path(&origins[2]), entry(&origins[2]).as_bytes(), &lasting).await.unwrap();
        client.delete(&path(&origins[0]), None).await.unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_without_a_way_to_the_center_takes_what_was_kept() {
    let Some(island) = Island::new() else { return };
    let fleet = Fleet::start(Center::Etcd(Etcd::start_at(&Site::on(&island)).await), 1).await;
    let _ = fleet.gateways[0].set_weights(&[("v1", "0%"), ("v2", "100%")]).await;
    island.cut();
    fleet.gateways[0].restart().await;
    assert_eq!((fleet.gateways[0].traffic_revision().await, &*fleet.version_at(0, "anybody").await), (2, "v2"));
    island.mend();
    fleet.agreed().await;
}
