//! Promise: a gateway that registers itself is listed once, and only once, at every moment: while a new binary takes over from
//! the old one, and long after; and when it drains, it is taken out while it still serves.

#![expect(clippy::unwrap_used, reason = "tests may panic in their helpers as well")]

#[path = "registry/mod.rs"]
mod registry;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use registry::from;
use serde_json::{Value, json};
use serin_e2e::servers::{Etcd, Nacos};
use serin_e2e::{Call, Gateway, wait};

/// Longer than an entry outlives whoever made it.
const LONG: Duration = Duration::from_secs(12);
const ADDRESS: &str = "10.0.0.5:8080";

async fn start(registry: Value) -> Gateway {
    let mut conf = from(json!({"r": registry}), json!({"from": "r", "service": "users"}));
    conf.bootstrap["register"] = json!([{"in": "r", "service": "edge", "address": ADDRESS}]);
    conf.bootstrap["drain"] = json!({"readiness": "2s", "idle": "1s", "timeout": "5s"});
    Gateway::start(conf).await
}

/// What is listed while `work` goes on.
async fn listed<R>(list: impl AsyncFn() -> usize, work: impl Future<Output = R>) -> Vec<usize> {
    let over = Arc::new(AtomicBool::new(false));
    let watching = async {
        let mut seen = vec![];
        while !over.load(Relaxed) {
            seen.push(list().await);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        seen.sort_unstable();
        seen.dedup();
        seen
    };
    let working = async {
        work.await;
        over.store(true, Relaxed);
    };
    tokio::join!(watching, working).0
}

async fn is_listed_once(gateway: &Gateway, list: impl AsyncFn() -> usize) {
    wait::until("the entry", || async { (list().await == 1).then_some(()) }).await;
    let counts = listed(&list, async {
        for _ in 0..2 {
            let mut old = gateway.upgrade();
            assert_eq!(old.ended().await, Some(0), "{}", gateway.output());
        }
        let ended = Instant::now();
        wait::until("the time to be over", || async { (ended.elapsed() >= LONG / 2).then_some(()) }).await;
        wait::until("the time to be over", || async { (ended.elapsed() >= LONG).then_some(()) }).await;
    })
    .await;
    assert_eq!(counts, [1], "entries that were listed at some moment");
    gateway.signal("TERM");
    wait::until("the entry to be taken out", || async { (list().await == 0).then_some(()) }).await;
    assert_eq!(Call::get("/").to(gateway.http()).await.status, 503, "it serves on: nobody is there for `users`");
    assert_eq!(gateway.admin(Call::get("/readyz")).await.status, 503);
    assert_eq!(gateway.ended().await, Some(0));
    assert_eq!(list().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn in_etcd() {
    let etcd = Etcd::start().await;
    let gateway = start(json!({"etcd": {"endpoints": [etcd.endpoint()]}})).await;
    let key = format!("/serin/instances/edge/{ADDRESS}");
    is_listed_once(&gateway, async || usize::from(etcd.get(&key).await.is_some())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn in_nacos() {
    let nacos = Nacos::start().await;
    let gateway = start(json!({"nacos": nacos.conf()})).await;
    is_listed_once(&gateway, async || nacos.list("edge").await.len()).await;
}
