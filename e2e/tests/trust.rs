//! Promise: who the client is comes from trusted peers only: the PROXY protocol where a listener speaks it, guarded headers,
//! names that only look like others; and paths are read as configured.

#![expect(clippy::unwrap_used, reason = "tests may panic in their helpers as well")]

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use serin_e2e::raw::Outcome;
use serin_e2e::tls::Authority;
use serin_e2e::{Conf, Gateway, Raw, Recorder, gateway};

const PATIENCE: Duration = Duration::from_secs(5);
const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

fn conf(recorder: &Recorder) -> Conf {
    let mut conf = Conf::empty().with_route("all", json!({"path": {"prefix": "/"}}), "all");
    conf.routing["services"]["all"] = json!({"instances": [{"address": recorder.address.to_string()}]});
    conf
}

fn get(path: &str, more: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: gw.test\r\n{more}\r\n")
}

/// Sends bytes on a connection of their own and waits for the answer.
async fn exchange(gateway: &Gateway, bytes: &[u8]) -> Outcome {
    let mut raw = Raw::connect(gateway.http()).await;
    raw.send(bytes).await.unwrap();
    raw.response(PATIENCE).await
}

/// A header of version 2 for a connection from 203.0.113.9:5.
fn v2(command: u8) -> Vec<u8> {
    [SIGNATURE, &[0x20 | command, 0x11, 0, 12], &[203, 0, 113, 9, 10, 0, 0, 1, 0, 5, 0, 80]].concat()
}

#[tokio::test]
async fn the_proxy_protocol_says_who_the_client_is() {
    let recorder = Recorder::start().await;
    let (authority, dir) = (Authority::new(), gateway::directory());
    authority.issue("gw.test").write(dir.path(), "gw.test");
    let mut conf = conf(&recorder);
    conf.bootstrap["trusted_proxies"] = json!(["127.0.0.0/8"]);
    conf.listeners()[0]["proxy_protocol"] = json!(true);
    conf.listeners().push(json!({
        "name": "tls", "address": "127.0.0.1:0", "protocols": ["http1"], "proxy_protocol": true,
        "tls": {"certificates": [{"cert": "gw.test.crt", "key": "gw.test.key"}]},
    }));
    conf.listeners().push(json!({"name": "plain", "address": "127.0.0.1:0"}));
    let gateway = Gateway::start_in(dir, conf).await;
    let v1 = b"PROXY TCP4 203.0.113.9 10.0.0.1 5 80\r\n".to_vec();
    let cases = [
        (v1.clone(), "203.0.113.9"),
        (v2(1), "203.0.113.9"),
        (v2(0), "127.0.0.1"),
        (b"PROXY UNKNOWN\r\n".to_vec(), "127.0.0.1"),
        (b"PROXY TCP6 2001:db8::7 ::1 5 80\r\n".to_vec(), "2001:db8::7"),
    ];
    for (header, client) in &cases {
        let bytes = [header.as_slice(), get("/", "").as_bytes()].concat();
        assert_eq!(exchange(&gateway, &bytes).await.status(), 200, "{client}");
        let seen = recorder.requests().pop().unwrap();
        assert_eq!(seen.fields("x-forwarded-for"), [*client]);
        // In pieces, and over TLS, where it comes before the handshake.
        let mut raw = Raw::connect(gateway.http()).await;
        raw.send_pieces(&bytes.chunks(1).collect::<Vec<_>>()).await;
        assert_eq!(raw.response(PATIENCE).await.status(), 200, "{client}");
        let config = authority.client(&["http/1.1"]);
        let mut raw = Raw::connect_tls_after(gateway.listener("tls"), header, "gw.test", Arc::clone(&config)).await;
        raw.send(get("/", "").as_bytes()).await.unwrap();
        assert_eq!(raw.response(PATIENCE).await.status(), 200, "{client}");
        assert_eq!(recorder.requests().pop().unwrap().fields("x-forwarded-for"), [*client]);
    }
    let lines = gateway.access_log(3 * cases.len()).await;
    assert_eq!(lines.iter().filter(|line| line["client_ip"] == "203.0.113.9").count(), 6);

    let bytes = recorder.bytes();
    for bad in [get("/", "").into_bytes(), b"PROXY TCP4 1.2.3.4\r\n".to_vec(), [&v1[..10], b"\r\n\r\n"].concat()] {
        let outcome = exchange(&gateway, &bad).await;
        assert!(matches!(&outcome, Outcome::Closed(rest) if rest.is_empty()), "{outcome:?}");
    }
    let mut raw = Raw::connect(gateway.listener("plain")).await;
    raw.send(&[v1.as_slice(), get("/", "").as_bytes()].concat()).await.unwrap();
    assert_eq!(raw.response(PATIENCE).await.status(), 400, "other listeners do not speak it");
    assert_eq!(recorder.bytes(), bytes);
}

#[tokio::test]
async fn nobody_but_load_balancers_may_speak_the_proxy_protocol() {
    let recorder = Recorder::start().await;
    let mut conf = conf(&recorder);
    conf.bootstrap["trusted_proxies"] = json!(["10.0.0.0/8"]);
    conf.listeners()[0]["proxy_protocol"] = json!(true);
    let gateway = Gateway::start(conf).await;
    let outcome = exchange(&gateway, &[v2(1), get("/", "").into_bytes()].concat()).await;
    assert!(matches!(outcome, Outcome::Closed(_)), "{outcome:?}");
    assert_eq!(recorder.bytes(), 0);
}

#[tokio::test]
async fn guarded_headers_come_from_trusted_peers_only() {
    let sent = "X-User-Id: 7\r\nX-Real-IP: 1.2.3.4\r\nX-Other: 1\r\n";
    for (trusted, kept) in [(json!([]), false), (json!(["127.0.0.0/8"]), true)] {
        let recorder = Recorder::start().await;
        let mut conf = conf(&recorder);
        conf.bootstrap["trusted_proxies"] = trusted;
        conf.bootstrap["requests"] = json!({"guarded_headers": ["x-user-id", "x-real-ip"]});
        // A route that only trusted peers can reach by that header.
        let special = json!({"name": "special", "service": "all", "rewrite": {"path": "/special"},
            "match": {"path": {"prefix": "/"}, "headers": [{"x-user-id": {"present": true}}]}});
        conf.routes().insert(0, special);
        let gateway = Gateway::start(conf).await;
        assert_eq!(exchange(&gateway, get("/", sent).as_bytes()).await.status(), 200);
        let seen = recorder.requests().remove(0);
        assert_eq!(seen.line(), if kept { "GET /special HTTP/1.1" } else { "GET / HTTP/1.1" });
        assert_eq!(!seen.fields("x-user-id").is_empty(), kept, "{seen:?}");
        assert_eq!(!seen.fields("x-real-ip").is_empty(), kept, "{seen:?}");
        assert_eq!(seen.fields("x-other"), ["1"]);
    }
}

#[tokio::test]
async fn names_with_underscores_are_refused_dropped_or_kept() {
    let cases: [(Value, u16, bool); 4] = [
        (json!({}), 400, false),
        (json!({"underscores_in_headers": "reject"}), 400, false),
        (json!({"underscores_in_headers": "drop"}), 200, false),
        (json!({"underscores_in_headers": "keep"}), 200, true),
    ];
    for (requests, status, kept) in cases {
        let recorder = Recorder::start().await;
        let mut conf = conf(&recorder);
        conf.bootstrap["requests"] = requests;
        let gateway = Gateway::start(conf).await;
        let sent = "X_User_Id: 1\r\nX.User.Id: 2\r\nTransfer_Encoding: chunked\r\nX-Fine: 3\r\n";
        assert_eq!(exchange(&gateway, get("/", sent).as_bytes()).await.status(), status);
        let Some(seen) = recorder.requests().pop() else { continue };
        for name in ["x_user_id", "x.user.id", "transfer_encoding"] {
            assert_eq!(!seen.fields(name).is_empty(), kept, "{seen:?}");
        }
        assert_eq!(seen.fields("x-fine"), ["3"]);
    }
}

#[tokio::test]
async fn borders_in_paths_are_refused_kept_or_decoded() {
    let cases = [
        ("reject", "/pub/..%2fadmin", None),
        ("keep", "/pub/..%2fadmin", Some("/pub/..%2Fadmin")),
        ("keep", "/pub\\..%5cadmin", Some("/pub%5C..%5Cadmin")),
        ("decode", "/pub/..%2fadmin", Some("/admin")),
        ("decode", "/pub\\..%5cadmin", Some("/admin")),
        ("decode", "/..%2fadmin", None),
    ];
    for policy in ["reject", "keep", "decode"] {
        let recorder = Recorder::start().await;
        let mut conf = conf(&recorder);
        conf.bootstrap["requests"] = json!({"escaped_slashes": policy, "backslashes": policy});
        let guarded = json!({"name": "admin", "match": {"path": {"prefix": "/admin"}}, "respond": {"status": 403}});
        conf.routes().insert(0, guarded);
        let gateway = Gateway::start(conf).await;
        for (_, path, expected) in cases.iter().filter(|(of, ..)| *of == policy) {
            let before = recorder.requests().len();
            let status = exchange(&gateway, get(path, "").as_bytes()).await.status();
            match expected {
                None => assert_eq!(status, 400, "{policy} {path}"),
                Some("/admin") => assert_eq!(status, 403, "{policy} {path}: what is routed is the normal form"),
                Some(form) => {
                    assert_eq!(status, 200, "{policy} {path}");
                    assert_eq!(recorder.requests()[before].line(), format!("GET {form} HTTP/1.1"));
                }
            }
            let url = format!("http://gw.test{path}");
            let explained = gateway.cli(&["explain", "GET", &url, "--json"]).await;
            if let Some(form) = expected {
                assert_eq!(explained.json()["request"]["path"], *form, "explain says the same");
            }
        }
    }
}
