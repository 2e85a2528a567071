//! Promise: centers and registries that let in nobody but whom they know let the gateway in: by a certificate, or by a user's
//! password, also when what they gave for it has run out or was forgotten.

#![expect(clippy::unwrap_used, reason = "tests may panic in their helpers as well")]

#[path = "fleet/mod.rs"]
mod fleets;
#[path = "registry/mod.rs"]
mod registry;

use std::time::{Duration, Instant};

use fleets::{Center, ROUTING, TRAFFIC};
use registry::{Served, from};
use serde_json::{Value, json};
use serin_e2e::client::Call;
use serin_e2e::gateway::directory;
use serin_e2e::servers::{Etcd, Host, Nacos};
use serin_e2e::tls::Authority;
use serin_e2e::world::{origins, users_conf, version};
use serin_e2e::{Gateway, Origin, wait};
use tempfile::TempDir;

/// A gateway on a center, in a directory with what it shows there.
async fn gateway(center: &Center, dir: TempDir, origins: &[Origin], place: impl Fn(&str) -> Value) -> Gateway {
    let mut conf = users_conf(origins);
    conf.weights(&[("v1", "100%"), ("v2", "0%")]);
    center.put(ROUTING, &conf.routing.to_string()).await;
    center.put(TRAFFIC, &conf.traffic.to_string()).await;
    conf.bootstrap["routing"] = place(ROUTING);
    conf.bootstrap["traffic"] = place(TRAFFIC);
    conf.bootstrap["state_dir"] = json!("state");
    Gateway::start_in(dir, conf).await
}

/// Flips go to the center, and what is edited there comes from it.
async fn follows(gateway: &Gateway, center: &Center) {
    let revision = gateway.traffic_revision().await;
    let written = gateway.set_weights(&[("v1", "0%"), ("v2", "100%")]).await.json();
    assert!(written["warning"].is_null(), "{written}");
    let text = center.get(TRAFFIC).await.unwrap();
    assert!(text.contains(&format!("revision: {}\n", revision + 1)), "{text}");
    let served = async || version(&Call::get("/").user("anybody").to(gateway.http()).await.origin());
    assert_eq!(served().await, "v2");
    center.put(TRAFFIC, &text.replace("\"v1\": \"0%\", \"v2\": \"100%\"", "\"v1\": \"100%\", \"v2\": \"0%\"")).await;
    wait::until("the edit to be in force", || async { (served().await == "v1").then_some(()) }).await;
}

/// A registry that lets the gateway in, and the same that does not.
async fn is_let_in(registry: Value, dir: TempDir, registry_of_a_stranger: Value, stranger: TempDir) -> Gateway {
    let gateway = Gateway::start_in(dir, from(json!({"r": registry}), json!({"from": "r", "service": "users"}))).await;
    Served(&gateway).by(&["v1-a"]).await;
    let conf = from(json!({"r": registry_of_a_stranger}), json!({"from": "r", "service": "users"}));
    let stranger = Gateway::start_in(stranger, conf).await;
    wait::until("the stranger to be told why", || async {
        let status = stranger.admin_get("/readyz?verbose").await["documents"]["registries"]["r"].clone();
        status["problem"]
            .as_str()
            .filter(|problem| *problem != "not connected yet")
            .map(|problem| println!("{problem}"))
    })
    .await;
    Served(&stranger).nobody().await;
    gateway
}

fn with_file(name: &str, text: &str) -> TempDir {
    let dir = directory();
    std::fs::write(dir.path().join(name), text).unwrap();
    dir
}

async fn register(etcd: &Etcd, origin: &Origin) {
    let entry = json!({"address": origin.address.to_string(), "labels": {"version": "v1"}});
    etcd.put(&format!("/serin/instances/users/{}", origin.address), entry.to_string()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn etcd_with_certificates() {
    let authority = Authority::new();
    let files = |client: bool| {
        let dir = with_file("ca.crt", &authority.pem());
        if client {
            authority.issue("serin").write(dir.path(), "serin");
        }
        dir
    };
    let server = files(false);
    authority.issue("etcd.internal").write(server.path(), "etcd");
    let etcd = Etcd::start_with_tls(server.path()).await;
    let origins = origins(&["v1-a", "v2-a"]).await;
    register(&etcd, &origins[0]).await;
    let endpoint = etcd.endpoint();
    // The name in the certificate, and the address in it.
    for sni in [json!("etcd.internal"), json!(null)] {
        let mut tls = json!({"ca": "ca.crt", "cert": "serin.crt", "key": "serin.key"});
        if sni.is_string() {
            tls["sni"] = sni;
        }
        let registry = |tls: &Value| json!({"etcd": {"endpoints": [endpoint], "tls": tls}});
        let stranger = json!({"ca": "ca.crt"});
        let _ = is_let_in(registry(&tls), files(true), registry(&stranger), files(true)).await;
    }
    let center = Center::Etcd(etcd);
    let tls = json!({"ca": "ca.crt", "cert": "serin.crt", "key": "serin.key"});
    let place = |name: &str| json!({"etcd": {"endpoints": [endpoint], "key": name, "tls": tls}});
    let gateway = gateway(&center, files(true), &origins, place).await;
    follows(&gateway, &center).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn etcd_with_passwords() {
    let etcd = Etcd::start().await;
    let origins = origins(&["v1-a", "v1-b", "v2-a"]).await;
    register(&etcd, &origins[0]).await;
    etcd.ask_for_passwords("serin", "secret").await;
    let endpoint = etcd.endpoint();
    let user = json!({"etcd": {"endpoints": [endpoint], "username": "serin", "password_file": "password"}});
    let (known, unknown) = (with_file("password", "secret\n"), with_file("password", "guessed"));
    let instances = is_let_in(user.clone(), known, user.clone(), unknown).await;
    let center = Center::Etcd(etcd);
    let place = |name: &str| {
        let mut place = user.clone();
        place["etcd"]["key"] = json!(name);
        place
    };
    let gateway = gateway(&center, with_file("password", "secret"), &origins, place).await;
    follows(&gateway, &center).await;
    // A restart forgets who was let in.
    center.kill();
    center.revive().await;
    let Center::Etcd(etcd) = &center else { return };
    etcd.log_in().await;
    register(etcd, &origins[1]).await;
    Served(&instances).by(&["v1-a", "v1-b"]).await;
    wait::until("the center to be there", || async {
        let status = gateway.admin_get("/readyz?verbose").await["documents"]["traffic"]["center"].clone();
        (status["reachable"] == true && status["local"].is_null()).then_some(())
    })
    .await;
    follows(&gateway, &center).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nacos_with_passwords() {
    /// How long what was given for a password is good.
    const GOOD: u32 = 3;
    let nacos = Nacos::start_with_passwords(GOOD).await;
    let origins = origins(&["v1-a", "v1-b", "v2-a"]).await;
    nacos.register("users", &Host::new(origins[0].address, "v1")).await;
    let mut server = nacos.conf();
    server["username"] = json!("admin");
    server["password_file"] = json!("password");
    let (known, unknown) = (with_file("password", "admin\n"), with_file("password", "guessed"));
    let registry = json!({"nacos": server});
    let instances = is_let_in(registry.clone(), known, registry, unknown).await;
    nacos.log_in().await.unwrap();
    let center = Center::Nacos(nacos);
    let place = |name: &str| {
        let mut place = server.clone();
        place["data_id"] = json!(name);
        json!({"nacos": place})
    };
    let gateway = gateway(&center, with_file("password", "admin"), &origins, place).await;
    let began = Instant::now();
    let mut rounds = 0;
    while began.elapsed() < Duration::from_secs(3 * u64::from(GOOD)) {
        let Center::Nacos(nacos) = &center else { return };
        nacos.log_in().await.unwrap();
        follows(&gateway, &center).await;
        rounds += 1;
    }
    println!("{rounds} rounds");
    let Center::Nacos(nacos) = &center else { return };
    nacos.log_in().await.unwrap();
    nacos.register("users", &Host::new(origins[1].address, "v1")).await;
    Served(&instances).by(&["v1-a", "v1-b"]).await;
}
