//! Promise: an instance whose certificate does not bear one of the service's SPIFFE ids gets nothing of any request.

#![expect(clippy::unwrap_used, reason = "tests may panic in their helpers as well")]

use serde_json::{Value, json};
use serin_e2e::client::{Call, Conn};
use serin_e2e::tls::{Authority, Identity};
use serin_e2e::{Conf, Gateway, Origin, conf, gateway, wait};
use tempfile::TempDir;

const USERS: &str = "spiffe://example.org/ns/shop/sa/users";

fn directory(authority: &Authority) -> TempDir {
    let dir = gateway::directory();
    std::fs::write(dir.path().join("ca.pem"), authority.pem()).unwrap();
    dir
}

fn service(origins: &[&Origin], protocol: &str, ids: &[&str]) -> Value {
    let mut service = conf::pool(origins, json!([{"round_robin": {}}]));
    service["protocol"] = json!(protocol);
    service["tls"] = json!({"ca": "ca.pem", "san": ids});
    service
}

/// Ways through the gateway: the relay, pingora's proxy, and HTTP/2 clients.
async fn statuses(gateway: &Gateway, path: &str) -> Vec<u16> {
    let (mut http1, mut h2c) = (Conn::http1(gateway.http()).await, Conn::h2c(gateway.http()).await);
    let calls = [
        Call::get(path).on(&mut http1).await,
        Call::get(path).on(&mut h2c).await,
        Call::post(path, "body").on(&mut h2c).await,
        Call::post(path, "body").to(gateway.http()).await,
        Call::get(path).to(gateway.http()).await,
    ];
    calls.iter().map(|reply| reply.status.as_u16()).collect()
}

#[tokio::test]
async fn only_who_bears_the_id_is_asked() {
    let (authority, other) = (Authority::new(), Authority::new());
    let certificates: [(&str, Identity, bool, bool); 7] = [
        ("right", authority.issue_uris(&[USERS]), true, true),
        ("neighbour", authority.issue_uris(&["spiffe://example.org/ns/shop/sa/orders"]), false, true),
        ("stranger", authority.issue_uris(&["spiffe://example.com/ns/shop/sa/users"]), false, false),
        ("longer", authority.issue_uris(&["spiffe://example.org/ns/shop/sa/users/more"]), false, true),
        ("two-ids", authority.issue_uris(&[USERS, "spiffe://example.org/b"]), false, false),
        ("no-id", authority.issue("example.org"), false, false),
        ("forged", other.issue_uris(&[USERS]), false, false),
    ];
    for protocol in ["http1", "h2"] {
        let alpn = if protocol == "h2" { "h2" } else { "http/1.1" };
        let (mut conf, mut origins) = (Conf::empty(), vec![]);
        for (name, certificate, ..) in &certificates {
            let origin = Origin::start_tls(name, certificate, &[alpn]).await;
            conf = conf
                .with_service(name, service(&[&origin], protocol, &["spiffe://example.org/x", USERS]))
                .with_service(&format!("any-{name}"), service(&[&origin], protocol, &["spiffe://example.org"]));
            origins.push(origin);
        }
        let gateway = Gateway::start_in(directory(&authority), conf).await;
        for ((name, _, exact, any), origin) in certificates.iter().zip(&origins) {
            for (path, fine) in [(format!("/{name}"), exact), (format!("/any-{name}"), any)] {
                let before = origin.hits();
                let (status, asked) = if *fine { (200, 5) } else { (502, 0) };
                assert_eq!(statuses(&gateway, &path).await, [status; 5], "{path} over {protocol}");
                assert_eq!(origin.hits() - before, asked, "{path} over {protocol}");
                if *fine {
                    let connections = origin.connections();
                    assert_eq!(statuses(&gateway, &path).await, [200; 5], "{path} over {protocol}");
                    let more = origin.connections() - connections;
                    assert!(more < 3, "{path} over {protocol}: {more} connections for five requests more");
                }
            }
        }
    }
}

#[tokio::test]
async fn others_are_asked_instead_and_checks_find_impostors() {
    let authority = Authority::new();
    let right = Origin::start_tls("right", &authority.issue_uris(&[USERS]), &["http/1.1"]).await;
    let wrong = Origin::start_tls("wrong", &authority.issue_uris(&["spiffe://example.org/x"]), &["http/1.1"]).await;
    let mut retried = service(&[&right, &wrong], "http1", &[USERS]);
    retried["retry"] = json!({"attempts": 2, "on": ["connect_failure"]});
    let mut checked = service(&[&right, &wrong], "http1", &[USERS]);
    checked["health_check"] =
        json!({"http": {"path": "/healthz"}, "interval": "200ms", "timeout": "200ms", "unhealthy_after": 1});
    let conf = Conf::empty().with_service("retried", retried).with_service("checked", checked);
    let gateway = Gateway::start_in(directory(&authority), conf).await;
    for _ in 0..4 {
        assert_eq!(Call::get("/retried").to(gateway.http()).await.origin(), "right");
        assert_eq!(Call::post("/retried", "body").to(gateway.http()).await.origin(), "right");
    }
    let view = |address: String| {
        let gateway = &gateway;
        async move {
            let view = gateway.admin_get("/v1/services/checked").await;
            let instances = view["instances"].as_array().unwrap();
            instances.iter().find(|instance| instance["address"] == address).unwrap().clone()
        }
    };
    let impostor = wait::until("the impostor to be found out", || async {
        Some(view(wrong.address.to_string()).await).filter(|instance| instance["health"] == "unhealthy")
    })
    .await;
    assert_eq!(impostor["last_check"]["reason"], "TLS failed");
    wait::until("checks to pass", || async {
        let last = view(right.address.to_string()).await["last_check"].clone();
        (last["outcome"] == "pass" && last["in_a_row"].as_u64() >= Some(2)).then_some(())
    })
    .await;
    assert_eq!(wrong.hits(), 0);
}

#[tokio::test]
async fn a_certificate_that_is_another_one_is_looked_at_again() {
    const PROTOCOLS: [&str; 2] = ["http/1.1", "h2"];
    let authority = Authority::new();
    let mut origin = Origin::start_tls("first", &authority.issue_uris(&[USERS]), &PROTOCOLS).await;
    let conf = Conf::empty()
        .with_service("one", service(&[&origin], "http1", &[USERS]))
        .with_service("two", service(&[&origin], "h2", &[USERS]));
    let gateway = Gateway::start_in(directory(&authority), conf).await;
    for path in ["/one", "/two"] {
        assert_eq!(statuses(&gateway, path).await, [200; 5], "{path}");
    }
    for (name, id, status) in [("renewed", USERS, 200), ("taken-over", "spiffe://example.org/x", 502)] {
        origin.stop().await;
        origin = Origin::start_tls_at(name, origin.address, &authority.issue_uris(&[id]), &PROTOCOLS).await;
        for path in ["/one", "/two"] {
            // Connections to the one before may be found broken first.
            wait::until("new connections", || async { (statuses(&gateway, path).await == [status; 5]).then_some(()) })
                .await;
        }
        assert_eq!(origin.hits() > 0, status == 200, "{name}");
    }
}
