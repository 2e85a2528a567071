//! The harness itself: what the other tests rely on holds without a gateway in between.

use std::time::Duration;

use http_body_util::BodyExt;
use serde_json::json;
use serin_e2e::client::{Call, Conn, Reply, generated};
use serin_e2e::origin::{Behaviour, Origin, refusing_address};
use serin_e2e::peers::{self, PyServer};
use serin_e2e::tls::Authority;

#[tokio::test]
async fn an_origin_says_who_it_is_and_what_it_saw() {
    let origin = Origin::start("v1-a").await;
    let reply = Call::post("/a?b=c", "four").header("x-a", "1").header("x-a", "2").to(origin.address).await;
    assert_eq!(reply.origin(), "v1-a");
    let seen = reply.json();
    assert_eq!((seen["method"].as_str(), seen["path"].as_str()), (Some("POST"), Some("/a?b=c")));
    assert_eq!(seen["received"], 4);
    assert_eq!(reply.seen("x-a").as_deref(), Some("1, 2"));
    assert_eq!(origin.hits(), 1);
}

#[tokio::test]
async fn an_origin_misbehaves_on_demand() {
    let mut origin = Origin::start("v1-a").await;
    let mut conn = Conn::http1(origin.address).await;
    assert_eq!(Call::get("/status/503").on(&mut conn).await.status, 503);
    assert_eq!(Call::get("/bytes/100000").on(&mut conn).await.body.len(), 100_000);
    assert_eq!(Call::post("/x/echo", "hello").on(&mut conn).await.text(), "hello");
    let trailers = Call::get("/trailers").header("te", "trailers").on(&mut conn).await.trailers;
    assert_eq!(trailers.unwrap()["x-trailer"], "end");
    let sunk = Reply::read(Call::new("PUT", "/sink").stream_on(&mut conn, generated(200_001)).await.unwrap()).await;
    assert_eq!(sunk.unwrap().json()["received"], 200_001);
    assert!(Call::get("/reset").try_on(&mut conn).await.is_err());
    origin.set(Behaviour::Status(418));
    assert_eq!(Call::get("/").to(origin.address).await.status, 418);
    origin.stop().await;
    assert!(std::net::TcpStream::connect(origin.address).is_err());
    assert!(std::net::TcpStream::connect_timeout(&refusing_address(), Duration::from_secs(1)).is_err());
}

#[tokio::test]
async fn h2c_and_tls_reach_an_origin() {
    let authority = Authority::new();
    let plain = Origin::start("plain").await;
    let tls = Origin::start_tls("tls", &authority.issue("origin.test"), &["h2", "http/1.1"]).await;
    let h2c = Call::get("/").on(&mut Conn::h2c(plain.address).await).await;
    assert_eq!(h2c.json()["http"], "HTTP/2.0");
    for (alpn, version) in [("h2", "HTTP/2.0"), ("http/1.1", "HTTP/1.1")] {
        let mut conn = Conn::tls(tls.address, "origin.test", authority.client(&[alpn])).await.unwrap();
        let seen = Call::get("/").on(&mut conn).await.json();
        assert_eq!((seen["http"].as_str(), seen["sni"].as_str()), (Some(version), Some("origin.test")));
    }
    assert!(Conn::tls(tls.address, "other.test", authority.client(&["h2"])).await.is_err());
}

#[tokio::test]
async fn the_peers_understand_each_other() {
    let origin = Origin::start("a").await;
    let answer = peers::client("ws_peer.py", &[&format!("ws://{}/ws", origin.address)]).await;
    assert_eq!(answer, json!({"text": "text", "big_is_same": true, "pong": true, "close_code": 1000}));
    let server = PyServer::start("grpc_peer.py").await;
    let answer = peers::client("grpc_peer.py", &[&format!("127.0.0.1:{}", server.port), "bidi"]).await;
    assert_eq!((&answer["code"], &answer["trailing"]["x-trailing"]), (&json!("OK"), &json!("after bidi")));
}

#[tokio::test]
async fn an_event_stream_ends_on_release() {
    let origin = Origin::start("a").await;
    let response = Call::get("/sse").open_on(&mut Conn::http1(origin.address).await).await.unwrap();
    origin.emit("one");
    origin.emit("two");
    let mut body = response.into_body();
    for data in ["one", "two"] {
        let frame = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(frame, format!("data: {data}\n\n"));
    }
    origin.release();
    assert!(body.frame().await.is_none());
}
