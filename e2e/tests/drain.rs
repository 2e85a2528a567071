//! Promise: a gateway that is told to stop fails no request. Readiness fails first, then connections are closed after
//! their answer, then what is left is waited for, and cut in the end. Fault 32 of faults.md.

use std::time::{Duration, Instant};

use serde_json::json;
use serin_e2e::client::{Call, Conn};
use serin_e2e::gateway::is_ready;
use serin_e2e::ledger::Outcome;
use serin_e2e::load::{Load, Talk};
use serin_e2e::tls::Authority;
use serin_e2e::{Behaviour, Conf, Gateway, World, wait};

/// A gateway with a TLS listener besides, before two origins.
async fn gateway(authority: &Authority, drain: serde_json::Value) -> World {
    World::with_tls(authority, |conf| conf.bootstrap["drain"] = drain).await
}

async fn unready(gateway: &Gateway) {
    let admin = gateway.admin_address();
    wait::until("readiness to fail", || async { (!is_ready(admin).await).then_some(()) }).await;
}

#[tokio::test]
async fn sigterm_under_load_fails_no_request() {
    let authority = Authority::new();
    let world = gateway(&authority, json!({"readiness": "1s", "idle": "1s", "timeout": "20s"})).await;
    let (http, tls) = (world.http(), world.gateway.listener("tls"));
    let (client, h2) = (authority.client(&["http/1.1"]), authority.client(&["h2"]));
    let clients = [
        (6, Talk::Keeps, http),
        (2, Talk::Opens, http),
        (2, Talk::H2c, http),
        (2, Talk::Tls(client), tls),
        (2, Talk::Tls(h2), tls),
    ];
    let mut load = Load::start(&clients, "/");
    let slow = Load::start(&[(4, Talk::Keeps, http)], "/delay/700");
    load.more(200).await;
    world.gateway.signal("TERM");
    unready(&world.gateway).await;
    load.take_out();
    slow.take_out();
    assert_eq!(world.gateway.ended().await, Some(0), "it ends by itself");
    load.ended().await;
    for load in [&load, &slow] {
        let outcomes = load.ledger.outcomes("GET");
        assert!(outcomes.keys().all(|outcome| *outcome == Outcome::Answered(200)), "{outcomes:?}");
        assert_eq!(load.refused(), 0);
    }
    let answered = load.ledger.outcomes("GET")[&Outcome::Answered(200)] + slow.ledger.outcomes("GET").len();
    assert!(world.gateway.access_log(answered).await.len() >= answered, "nothing of the log is lost");
}

#[tokio::test]
async fn the_steps_come_in_their_order() {
    let world = gateway(&Authority::new(), json!({"readiness": "1500ms", "idle": "1s", "timeout": "20s"})).await;
    let http = world.http();
    let mut kept = Conn::http1(http).await;
    let mut idle = Conn::http1(http).await;
    for conn in [&mut kept, &mut idle] {
        assert_ne!(Call::get("/").on(conn).await.header("connection"), "close");
    }
    let told = Instant::now();
    world.gateway.signal("TERM");
    unready(&world.gateway).await;
    if told.elapsed() < Duration::from_millis(700) {
        // Not ready, and all goes on.
        assert_ne!(Call::get("/").on(&mut kept).await.header("connection"), "close");
        let fresh = Call::get("/").to(http).await.expect(200);
        assert_ne!(fresh.header("connection"), "close");
        let ready = world.gateway.admin(Call::get("/readyz")).await.expect(503);
        assert_eq!(ready.json()["ready"], json!(false));
        let _ = world.gateway.admin(Call::get("/healthz")).await.expect(200);
    }
    wait::until("the listener to close", || async { Conn::try_http1(http).await.is_err().then_some(()) }).await;
    assert!(told.elapsed() >= Duration::from_millis(1_500), "after {:?}", told.elapsed());
    let last = Call::get("/").on(&mut kept).await.expect(200);
    assert_eq!(last.header("connection"), "close", "the answer closes the connection");
    assert_eq!(world.gateway.ended().await, Some(0));
    assert!(told.elapsed() >= Duration::from_millis(2_500), "idle ones had their time: {:?}", told.elapsed());
    assert!(Call::get("/").try_on(&mut idle).await.is_err());
}

#[tokio::test]
async fn what_does_not_end_is_cut() {
    let world = gateway(&Authority::new(), json!({"readiness": "0s", "idle": "0s", "timeout": "700ms"})).await;
    world.origins.iter().for_each(|origin| origin.set(Behaviour::Hold));
    let http = world.http();
    let held = tokio::spawn(async move { Call::get("/").try_on(&mut Conn::http1(http).await).await });
    wait::until("the request to arrive", || async { (world.origins.iter().any(|o| o.hits() > 0)).then_some(()) }).await;
    let told = Instant::now();
    world.gateway.signal("TERM");
    assert_eq!(world.gateway.ended().await, Some(0));
    assert!(told.elapsed() >= Duration::from_millis(700), "{:?}", told.elapsed());
    assert!(held.await.unwrap().is_err());
    assert!(world.gateway.output().contains("the time to drain is over"), "and that is said");
}

#[tokio::test]
async fn sigint_ends_at_once() {
    let world = World::with(&["v1-a"], |_: &mut Conf| ()).await;
    world.origins[0].set(Behaviour::Hold);
    let http = world.http();
    let held = tokio::spawn(async move { Call::get("/").try_on(&mut Conn::http1(http).await).await });
    wait::until("the request to arrive", || async { (world.origins[0].hits() > 0).then_some(()) }).await;
    world.gateway.signal("TERM");
    unready(&world.gateway).await;
    let told = Instant::now();
    world.gateway.signal("INT");
    assert_eq!(world.gateway.ended().await, Some(0));
    assert!(told.elapsed() < Duration::from_secs(4), "{:?}", told.elapsed());
    assert!(held.await.unwrap().is_err());
}

#[tokio::test]
async fn the_short_form_is_the_timeout() {
    let world = World::with(&["v1-a"], |conf| conf.bootstrap["drain"] = json!("45s")).await;
    let config = world.gateway.admin_get("/v1/config").await;
    assert_eq!(config["bootstrap"]["drain"], json!({"readiness": "5s", "idle": "1s", "timeout": "45s"}));
}
