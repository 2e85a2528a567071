//! Promise: instances come from ZooKeeper as ephemeral nodes come and go, and a dead ZooKeeper takes nothing away.

#![expect(clippy::unwrap_used, reason = "tests may panic in their helpers as well")]

#[path = "registry/mod.rs"]
mod common;

use std::time::Duration;

use common::{Served, from};
use serde_json::json;
use serin_e2e::servers::ZooKeeper;
use serin_e2e::world::{origins, version};
use serin_e2e::{Gateway, Origin, wait};
use zookeeper_client::{Acls, Client, CreateMode};

const SERVICE: &str = "/serin/instances/users";

fn value(origin: &Origin) -> String {
    json!({"address": origin.address.to_string(), "labels": {"version": version(&origin.name)}}).to_string()
}

async fn client(zookeeper: &ZooKeeper) -> Client {
    let address = zookeeper.address.to_string();
    wait::until("a session", || async {
        let connector = Client::connector().with_session_timeout(Duration::from_secs(2));
        connector.connect(&address).await.ok()
    })
    .await
}

async fn register(client: &Client, origin: &Origin) {
    let parents = CreateMode::Persistent.with_acls(Acls::anyone_all());
    client.mkdir(SERVICE, &parents).await.unwrap();
    let node = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
    let path = format!("{SERVICE}/{}", origin.address);
    client.create(&path, value(origin).as_bytes(), &node).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn instances_come_and_go_as_their_nodes_do() {
    let zookeeper = ZooKeeper::start().await;
    let origins = origins(&["v1-a", "v1-b", "v1-c"]).await;
    let registries =
        json!({"zk": {"zookeeper": {"servers": [zookeeper.address.to_string()], "session_timeout": "2s"}}});
    let gateway = Gateway::start(from(registries, json!({"from": "zk", "service": "users"}))).await;
    let served = Served(&gateway);
    served.nobody().await;
    let first = client(&zookeeper).await;
    register(&first, &origins[0]).await;
    served.by(&["v1-a"]).await;
    let second = client(&zookeeper).await;
    register(&second, &origins[1]).await;
    register(&second, &origins[2]).await;
    served.by(&["v1-a", "v1-b", "v1-c"]).await;
    let path = format!("{SERVICE}/{}", origins[2].address);
    let mut entry: serde_json::Value = serde_json::from_str(&value(&origins[2])).unwrap();
    entry["weight"] = json!(0);
    second.set_data(&path, entry.to_string().as_bytes(), None).await.unwrap();
    served.by(&["v1-a", "v1-b"]).await;
    second.delete(&path, None).await.unwrap();
    wait::until("two instances", || async {
        let page = gateway.admin_get("/v1/services/users").await;
        (page["instances"].as_array().unwrap().len() == 2).then_some(())
    })
    .await;
    // The session ends, and its node with it.
    drop(second);
    served.by(&["v1-a"]).await;
    served.kept("registries/zk.jsonl", "v1").await;
    zookeeper.kill();
    wait::until("the loss to be noticed", || async {
        let status = gateway.admin_get("/readyz?verbose").await["documents"]["registries"]["zk"].clone();
        (status["reachable"] == false).then_some(())
    })
    .await;
    served.by(&["v1-a"]).await;
    gateway.restart().await;
    served.by(&["v1-a"]).await;
    drop(first);
    // Back, and empty: held back until instances are registered again.
    zookeeper.wipe();
    zookeeper.revive().await;
    served.held(1).await;
    served.by(&["v1-a"]).await;
    let third = client(&zookeeper).await;
    register(&third, &origins[0]).await;
    register(&third, &origins[1]).await;
    served.by(&["v1-a", "v1-b"]).await;
    served.held(0).await;
}
