//! Promise: active checks take an instance out of rotation and bring it back, are shared, and survive reloads.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use serin_e2e::client::{Call, Conn};
use serin_e2e::origin::{Behaviour, refusing_address};
use serin_e2e::peers::{self, PyServer};
use serin_e2e::tls::Authority;
use serin_e2e::{Conf, Gateway, Origin, conf, gateway, wait};

const INTERVAL: Duration = Duration::from_millis(200);

fn checked(origins: &[&Origin], mut check: Value) -> Value {
    check["interval"] = json!("200ms");
    check["timeout"] = json!("150ms");
    let mut service = conf::pool(origins, json!([{"round_robin": {}}]));
    service["health_check"] = check;
    service
}

async fn view(gateway: &Gateway, service: &str, address: &str) -> Value {
    let view = gateway.admin_get(&format!("/v1/services/{service}")).await;
    let mut instances = view["instances"].as_array().into_iter().flatten();
    instances.find(|instance| instance["address"] == address).cloned().unwrap_or_default()
}

/// The instance as the API shows it, once its health is this.
async fn becomes(gateway: &Gateway, service: &str, address: &str, health: &str) -> Value {
    wait::until(format!("{address} to be {health}"), || async {
        let instance = view(gateway, service, address).await;
        (instance["health"] == health).then_some(instance)
    })
    .await
}

async fn answers(gateway: &Gateway, path: &str, count: usize) -> Vec<u16> {
    let mut conn = Conn::http1(gateway.http()).await;
    let mut statuses = vec![];
    for _ in 0..count {
        statuses.push(Call::get(path).on(&mut conn).await.status.as_u16());
    }
    statuses
}

#[tokio::test]
async fn an_instance_that_fails_is_left_out_and_comes_back() {
    let (good, bad) = (Origin::start("good").await, Origin::start("bad").await);
    let service = checked(&[&good, &bad], json!({"http": {"path": "/healthz"}}));
    let gateway = Gateway::start(Conf::empty().with_service("pool", service)).await;
    let address = bad.address.to_string();
    wait::until("a first check", || async {
        (!view(&gateway, "pool", &address).await["last_check"].is_null()).then_some(())
    })
    .await;
    assert_eq!(answers(&gateway, "/pool", 4).await, [200; 4]);

    bad.set(Behaviour::Status(500));
    let begin = Instant::now();
    let instance = becomes(&gateway, "pool", &address, "unhealthy").await;
    let took = begin.elapsed();
    assert!(took <= 4 * INTERVAL + Duration::from_millis(300), "three intervals and a bit: {took:?}");
    assert!(took >= INTERVAL.mul_f64(1.7), "three failures in a row, not fewer: {took:?}");
    let last = &instance["last_check"];
    assert_eq!((&last["outcome"], &last["reason"]), (&json!("fail"), &json!("status 500")), "{last}");
    assert_eq!(answers(&gateway, "/pool", 20).await, [200; 20], "it takes no traffic");
    let metrics = gateway.metrics().await;
    let instance = format!("instance=\"{address}\"");
    assert!(metrics.sum("serin_instance_healthy", &[&instance]) < 0.5, "{}", metrics.0);
    assert!(metrics.sum("serin_health_checks_total", &[&instance, "outcome=\"fail\"", "http"]) > 2.5, "{}", metrics.0);
    let shown = gateway.cli(&["instances", "pool"]).await.expect(0).stdout;
    assert!(shown.contains("unhealthy") && shown.contains("(status 500)"), "{shown}");
    assert!(gateway.output().contains("instance is unhealthy"), "{}", gateway.output());

    bad.set(Behaviour::Describe);
    becomes(&gateway, "pool", &address, "healthy").await;
    let before = bad.hits();
    wait::until("traffic to it again", || async {
        let statuses = answers(&gateway, "/pool/back", 2).await;
        assert_eq!(statuses, [200; 2]);
        (bad.hits() > before + 2).then_some(())
    })
    .await;
    assert!(gateway.output().contains("instance is healthy again"), "{}", gateway.output());
    let metrics = gateway.metrics().await;
    assert!(metrics.sum("serin_instance_healthy", &[&instance]) > 0.5, "{}", metrics.0);
}

#[tokio::test]
async fn a_tcp_check_needs_no_more_than_a_connection() {
    let mut origin = Origin::start("a").await;
    origin.set(Behaviour::Status(500));
    let mut service = checked(&[&origin], json!({"tcp": {}}));
    service["fallback"] = json!({"to": "none"});
    let gateway = Gateway::start(Conf::empty().with_service("pool", service)).await;
    let address = origin.address.to_string();
    wait::until("three passes", || async {
        let last = &view(&gateway, "pool", &address).await["last_check"];
        (last["outcome"] == "pass" && last["in_a_row"].as_u64() >= Some(3)).then_some(())
    })
    .await;
    origin.stop().await;
    let instance = becomes(&gateway, "pool", &address, "unhealthy").await;
    assert_eq!(instance["last_check"]["reason"], "connection refused");
    assert_eq!(answers(&gateway, "/pool", 1).await, [503], "nobody is left");
    let _again = Origin::start_at("a", origin.address).await;
    becomes(&gateway, "pool", &address, "healthy").await;
    assert_eq!(answers(&gateway, "/pool", 1).await, [200]);
}

#[tokio::test]
async fn a_grpc_check_asks_the_health_service_of_grpc() {
    let server = PyServer::start("health_peer.py").await;
    let address = format!("127.0.0.1:{}", server.port);
    let service = |name: &str| {
        json!({
            "instances": [{"address": address}], "protocol": "h2c",
            "health_check": {"grpc": {"service": name}, "interval": "200ms", "timeout": "200ms"},
        })
    };
    let conf = Conf::empty()
        .with_service("users", service("users.Users"))
        .with_service("whole", service(""))
        .with_service("unknown", service("nobody.Nothing"));
    let gateway = Gateway::start(conf).await;
    let unknown = becomes(&gateway, "unknown", &address, "unhealthy").await;
    assert_eq!(unknown["last_check"]["reason"], "gRPC status 5");
    let passes = |service: &'static str| {
        let (gateway, address) = (&gateway, &address);
        wait::until(format!("a check of {service} that passes"), move || async move {
            (view(gateway, service, address).await["last_check"]["outcome"] == "pass").then_some(())
        })
    };
    passes("users").await;
    passes("whole").await;
    peers::client("health_peer.py", &[&address, "users.Users", "NOT_SERVING"]).await;
    let users = becomes(&gateway, "users", &address, "unhealthy").await;
    assert_eq!(users["last_check"]["reason"], "not serving");
    assert_eq!(view(&gateway, "whole", &address).await["health"], "healthy", "each asks about its own service");
    peers::client("health_peer.py", &[&address, "users.Users", "SERVING"]).await;
    becomes(&gateway, "users", &address, "healthy").await;
}

#[tokio::test]
async fn http_checks_use_the_protocol_and_tls_of_the_service() {
    let authority = Authority::new();
    let plain = Origin::start("plain").await;
    let tls = Origin::start_tls("tls", &authority.issue("origin.test"), &["h2"]).await;
    let tls1 = Origin::start_tls("tls1", &authority.issue("origin.test"), &["http/1.1"]).await;
    let dir = gateway::directory();
    let ca = dir.path().join("ca.crt");
    std::fs::write(&ca, authority.pem()).unwrap();
    let service = |origin: &Origin, protocol: &str, sni: Option<&str>| {
        let mut service = checked(&[origin], json!({"http": {"path": "/healthz", "status": [200, 204]}}));
        service["protocol"] = json!(protocol);
        if let Some(sni) = sni {
            service["tls"] = json!({"sni": sni, "ca": ca, "verify": true});
        }
        service
    };
    let conf = Conf::empty()
        .with_service("h2c", service(&plain, "h2c", None))
        .with_service("h2", service(&tls, "h2", Some("origin.test")))
        .with_service("tls1", service(&tls1, "http1", Some("origin.test")))
        .with_service("wrong", service(&tls, "h2", Some("other.test")));
    let gateway = Gateway::start_in(dir, conf).await;
    for (name, origin) in [("h2c", &plain), ("h2", &tls), ("tls1", &tls1)] {
        let address = origin.address.to_string();
        wait::until(format!("five passes of {name}"), || async {
            let last = view(&gateway, name, &address).await["last_check"].clone();
            assert_ne!(last["outcome"], "fail", "{name}: {last}");
            (last["in_a_row"].as_u64() >= Some(5)).then_some(())
        })
        .await;
    }
    assert_eq!((plain.connections(), tls1.connections()), (1, 1), "connections are kept from check to check");
    let wrong = becomes(&gateway, "wrong", &tls.address.to_string(), "unhealthy").await;
    assert_eq!(wrong["last_check"]["reason"], "TLS failed");
}

#[tokio::test]
async fn services_that_share_an_instance_and_a_check_share_the_checks_across_reloads() {
    let origin = Origin::start("a").await;
    let check = json!({"http": {"path": "/healthz"}});
    let conf = Conf::empty()
        .with_service("one", checked(&[&origin], check.clone()))
        .with_service("two", checked(&[&origin], check));
    let gateway = Gateway::start(conf.clone()).await;
    let checkers = |count: u32| {
        let gateway = &gateway;
        wait::until(format!("{count} checkers"), move || async move {
            let now = gateway.metrics().await.sum("serin_health_checkers", &[]);
            ((now - f64::from(count)).abs() < 0.1).then_some(())
        })
    };
    checkers(1).await;
    wait::until("the first check", || async { (origin.hits() > 0).then_some(()) }).await;
    let (begin, before) = (Instant::now(), origin.hits());
    wait::until("ten more", || async { (origin.hits() >= before + 10).then_some(()) }).await;
    let took = begin.elapsed();
    assert!(took >= (9 * INTERVAL).mul_f64(0.9), "two checkers would take half as long: {took:?}");

    // A document that says nothing new of the services leaves the checker as it is: failed checks stay counted.
    origin.set(Behaviour::Status(503));
    let address = origin.address.to_string();
    becomes(&gateway, "one", &address, "unhealthy").await;
    becomes(&gateway, "two", &address, "unhealthy").await;
    let revision = |view: &Value| view["revision"]["routing"].as_u64().unwrap();
    let old = revision(&gateway.admin_get("/v1/services/one").await);
    let row = view(&gateway, "one", &address).await["last_check"]["in_a_row"].as_u64().unwrap();
    let mut changed = conf.clone().with_route("another", json!({"path": {"exact": "/another"}}), "one");
    gateway.write_routing(&changed.routing);
    wait::until("the reload", || async {
        (revision(&gateway.admin_get("/v1/services/one").await) > old).then_some(())
    })
    .await;
    let instance = view(&gateway, "one", &address).await;
    assert_eq!(instance["health"], "unhealthy");
    assert!(instance["last_check"]["in_a_row"].as_u64().unwrap() >= row, "the row goes on: {instance}");

    // The checker serves the service that is left, and ends with that one's check.
    changed.service("one").as_object_mut().unwrap().remove("health_check");
    gateway.write_routing(&changed.routing);
    becomes(&gateway, "one", &address, "healthy").await;
    assert_eq!(view(&gateway, "two", &address).await["health"], "unhealthy");
    checkers(1).await;
    changed.service("two").as_object_mut().unwrap().remove("health_check");
    gateway.write_routing(&changed.routing);
    checkers(0).await;
    let metrics = gateway.metrics().await;
    assert!(metrics.samples("serin_health_checks_total").next().is_none(), "{}", metrics.0);
}

#[tokio::test]
async fn a_black_hole_fails_by_its_timeout_and_fallback_takes_over() {
    let stable = Origin::start("v1-a").await;
    let mut conf = Conf::empty().with_route("all", json!({"path": {"prefix": "/"}}), "users");
    let instances = vec![conf::instance(stable.address, "v1"), conf::instance(refusing_address(), "v2")];
    let mut users = conf::versioned(instances);
    users["health_check"] = json!({"tcp": {}, "interval": "100ms", "timeout": "100ms", "unhealthy_after": 1});
    conf.routing["services"]["users"] = users;
    conf.weights(&[("v1", "0%"), ("v2", "100%")]);
    let gateway = Gateway::start(conf).await;
    wait::until("v2 to be found unusable", || async {
        let view = gateway.admin_get("/v1/services/users").await;
        (view["subsets"][1]["unusable"] == "all_unhealthy").then_some(())
    })
    .await;
    for user in ["a", "b", "c"] {
        assert_eq!(Call::get("/").user(user).to(gateway.http()).await.origin(), "v1-a");
    }
}
