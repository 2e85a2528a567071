//! Promise: a center that is slow, or lets through a few bytes at a time, holds up no operator and nobody's traffic; what was
//! flipped meanwhile is there in the end. Fault 18 of faults.md.

#![expect(clippy::unwrap_used, reason = "tests may panic in their helpers as well")]

#[path = "fleet/mod.rs"]
mod fleets;
#[path = "registry/mod.rs"]
mod registry;

use std::time::{Duration, Instant};

use fleets::{Center, Fleet, Load, ROUTING, TRAFFIC};
use registry::{Served, from};
use serde_json::{Value, json};
use serin_e2e::servers::{Etcd, Nacos};
use serin_e2e::wire::Wire;
use serin_e2e::world::origins;
use serin_e2e::{Call, Gateway, wait};

/// How long everything is held back, in each direction: a question is answered after twice that.
const DELAY: Duration = Duration::from_millis(500);
/// Time that a byte takes: a flip takes some seconds.
const PER_BYTE: Duration = Duration::from_millis(4);
/// How long an operator waits at most: 600 ms for his own change, and as long twice for one that is just being settled.
const BOUND: Duration = Duration::from_millis(2_500);

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_etcd_holds_up_no_operator() {
    let etcd = Etcd::start().await;
    let wire = Wire::to(etcd.address).await;
    let endpoint = format!("http://{}", wire.address);
    let place = move |name: &str| json!({"etcd": {"endpoints": [endpoint], "key": name}});
    holds_up_nobody(Center::Etcd(etcd), &wire, place).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_nacos_holds_up_no_operator() {
    let nacos = Nacos::start().await;
    let wire = Wire::to(nacos.grpc).await;
    let (http, grpc) = (nacos.http.to_string(), wire.address.port());
    let place = move |name: &str| json!({"nacos": {"address": http, "grpc_port": grpc, "data_id": name}});
    holds_up_nobody(Center::Nacos(nacos), &wire, place).await;
}

async fn holds_up_nobody(center: Center, wire: &Wire, place: impl Fn(&str) -> Value) {
    // The first is near, the other one is at the end of the wire.
    let mut fleet = Fleet::start(center, 1).await;
    let mut far = fleet.gateways[0].conf.clone();
    far.bootstrap["node"]["id"] = json!("gw-far");
    far.bootstrap["routing"] = place(ROUTING);
    far.bootstrap["traffic"] = place(TRAFFIC);
    // A start needs its time, but it gets there.
    wire.delay(DELAY);
    fleet.gateways.push(Gateway::start(far).await);
    let load = Load::start(&fleet.gateways);
    let (near, far) = (&fleet.gateways[0], &fleet.gateways[1]);
    // What others flip arrives late, but soon.
    let _ = near.set_weights(&[("v1", "90%"), ("v2", "10%")]).await;
    wait::until("the flip to arrive", || async { (far.traffic_revision().await == 2).then_some(()) }).await;
    for on in [true, false, true] {
        flip(far, on).await;
    }
    // It gets to the center even so.
    fleet.agreed().await;
    settled(far).await;
    assert_eq!(near.admin_get("/v1/traffic").await["switches"]["canary"], true);
    // Now nothing gets there in time.
    wire.trickle(PER_BYTE);
    for on in [false, true, false] {
        flip(far, on).await;
    }
    assert_eq!(far.admin_get("/v1/traffic").await["switches"]["canary"], false);
    assert_eq!(far.admin(Call::get("/readyz")).await.status, 200);
    wire.trickle(Duration::ZERO);
    wire.delay(Duration::ZERO);
    settled(far).await;
    fleet.agreed().await;
    assert_eq!(near.admin_get("/v1/traffic").await["switches"]["canary"], false);
    load.finish().await;
}

async fn flip(gateway: &Gateway, on: bool) {
    let began = Instant::now();
    let _ = gateway.set_switch("canary", on, None).await;
    assert!(began.elapsed() < BOUND, "a flip took {:?}", began.elapsed());
    assert_eq!(gateway.admin_get("/v1/traffic").await["switches"]["canary"], on, "it is in force here at once");
}

async fn settled(gateway: &Gateway) {
    let began = Instant::now();
    loop {
        let status = gateway.admin_get("/readyz?verbose").await["documents"]["traffic"]["center"].clone();
        if status["reachable"] == true && status["local"].is_null() {
            return;
        }
        assert!(began.elapsed() < 2 * wait::DEADLINE, "the difference is not settled: {status}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn instances_of_a_slow_registry_come_late_and_stay() {
    let etcd = Etcd::start().await;
    let wire = Wire::to(etcd.address).await;
    let origins = origins(&["v1-a", "v1-b"]).await;
    let put = async |number: usize| {
        let address = origins[number].address.to_string();
        let entry = json!({"address": address, "labels": {"version": "v1"}});
        etcd.put(&format!("/serin/instances/users/{address}"), entry.to_string()).await;
    };
    put(0).await;
    wire.delay(DELAY);
    let registries = json!({"e": {"etcd": {"endpoints": [format!("http://{}", wire.address)]}}});
    let gateway = Gateway::start(from(registries, json!({"from": "e", "service": "users"}))).await;
    let served = Served(&gateway);
    served.by(&["v1-a"]).await;
    put(1).await;
    served.by(&["v1-a", "v1-b"]).await;
    wire.trickle(Duration::from_millis(50));
    wait::until("it to be given up", || async {
        let status = gateway.admin_get("/readyz?verbose").await["documents"]["registries"]["e"].clone();
        (status["reachable"] == false).then_some(())
    })
    .await;
    served.by(&["v1-a", "v1-b"]).await;
    wire.trickle(Duration::ZERO);
    wire.delay(Duration::ZERO);
    etcd.delete(&format!("/serin/instances/users/{}", origins[0].address)).await;
    served.by(&["v1-b"]).await;
}
