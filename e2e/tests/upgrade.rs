//! Promise: a new binary takes over from the old one without a refused connection or a failed request, and what cannot
//! take over leaves the old one as it was. Certificates and documents are replaced under load as well. Fault 33 of
//! faults.md.

#![expect(clippy::unwrap_used, reason = "helpers of a test")]

use std::fs;

use serde_json::json;
use serin_e2e::client::{Call, Conn};
use serin_e2e::gateway::{self, signal, write_atomically};
use serin_e2e::ledger::Outcome;
use serin_e2e::load::{Load, Talk};
use serin_e2e::tls::Authority;
use serin_e2e::{Gateway, World, wait};

const HOST: &str = "api.example.com";

async fn start(authority: &Authority) -> World {
    let drain = json!({"readiness": "0s", "idle": "1s", "timeout": "20s"});
    World::with_tls(authority, |conf| conf.bootstrap["drain"] = drain).await
}

fn load(world: &World, authority: &Authority) -> Load {
    let (http, tls) = (world.http(), world.gateway.listener("tls"));
    let clients = [
        (4, Talk::Keeps, http),
        (4, Talk::Opens, http),
        (2, Talk::H2c, http),
        (2, Talk::Tls(authority.client(&["http/1.1"])), tls),
        (2, Talk::Tls(authority.client(&["h2"])), tls),
    ];
    Load::start(&clients, "/")
}

async fn nothing_failed(load: &mut Load) {
    load.stop().await;
    let outcomes = load.ledger.outcomes("GET");
    assert!(outcomes.keys().all(|outcome| *outcome == Outcome::Answered(200)), "{outcomes:?}");
    assert_eq!(load.refused(), 0);
}

async fn node(gateway: &Gateway) -> String {
    let id = gateway.admin_get("/v1/config").await["bootstrap"]["node"]["id"].clone();
    id.as_str().unwrap_or_default().to_owned()
}

/// Gives the node another name in the bootstrap document, which only another process reads.
fn rename(gateway: &Gateway, from: &str, to: &str) {
    let file = gateway.dir().join("serin.yaml");
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains(from), "{text}");
    write_atomically(&file, &text.replace(from, to));
}

#[tokio::test]
async fn a_new_process_takes_over_and_nothing_is_refused() {
    let authority = Authority::new();
    let world = start(&authority).await;
    let mut load = load(&world, &authority);
    for (from, to) in [("gw-1", "gw-2"), ("gw-2", "gw-3")] {
        load.more(100).await;
        rename(&world.gateway, from, to);
        let mut old = world.gateway.upgrade();
        let ended = old.ended().await;
        assert_eq!(ended, Some(0), "{}", world.gateway.output());
        load.more(100).await;
        assert_eq!(node(&world.gateway).await, to, "the new one answers");
        // Flips go on with the revisions of the old one.
        let revision = world.gateway.traffic_revision().await;
        world.gateway.set_weights(&[("v1", "100%"), ("v2", "0%")]).await;
        assert_eq!(world.gateway.traffic_revision().await, revision + 1);
    }
    nothing_failed(&mut load).await;
    // What was handed over is closed with the last process.
    world.gateway.signal("TERM");
    assert_eq!(world.gateway.ended().await, Some(0));
    assert!(Conn::try_http1(world.http()).await.is_err());
}

#[tokio::test]
async fn sigusr2_starts_the_next_process() {
    let authority = Authority::new();
    let world = start(&authority).await;
    let old = world.gateway.pid();
    let mut load = load(&world, &authority);
    load.more(100).await;
    rename(&world.gateway, "gw-1", "gw-2");
    world.gateway.signal("USR2");
    let started = || async {
        let output = world.gateway.output();
        let line = output.lines().find(|line| line.contains("started the next process"))?.to_owned();
        line.split("pid=").nth(1)?.split_whitespace().next()?.parse::<u32>().ok()
    };
    let new = wait::until("the next process to be started", started).await;
    assert_ne!(old, new);
    assert_eq!(world.gateway.ended().await, Some(0), "the old one ends");
    load.more(100).await;
    assert_eq!(node(&world.gateway).await, "gw-2");
    nothing_failed(&mut load).await;
    signal(new, "INT");
    let refused = || async { Conn::try_http1(world.http()).await.is_err().then_some(()) };
    wait::until("the next process to end", refused).await;
}

#[tokio::test]
async fn what_cannot_take_over_leaves_the_old_process_as_it_was() {
    let authority = Authority::new();
    let world = start(&authority).await;
    let mut load = load(&world, &authority);
    let file = world.gateway.dir().join("serin.yaml");
    let good = fs::read_to_string(&file).unwrap();
    let upgrade = || async { gateway::cli(&["run", "--upgrade", "--config", file.to_str().unwrap()]).await };
    write_atomically(&file, "listeners: 5\n");
    let refused = upgrade().await.expect(1);
    assert!(refused.stderr.contains("listeners"), "{refused:?}");
    // It takes the sockets, and then cannot open one of its own.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut bootstrap: serde_json::Value = serde_json::from_str(&good).unwrap();
    let more = json!({"name": "more", "address": taken.local_addr().unwrap().to_string()});
    bootstrap["listeners"].as_array_mut().unwrap().push(more);
    write_atomically(&file, &bootstrap.to_string());
    let refused = upgrade().await.expect(1);
    assert!(refused.stderr.contains("cannot listen"), "{refused:?}");
    load.more(100).await;
    let _ = world.gateway.admin(Call::get("/readyz")).await.expect(200);
    // And then a good one does.
    write_atomically(&file, &good.replace("gw-1", "gw-2"));
    assert_eq!(world.gateway.upgrade().ended().await, Some(0));
    assert_eq!(node(&world.gateway).await, "gw-2");
    nothing_failed(&mut load).await;
}

#[tokio::test]
async fn without_a_gateway_there_is_nothing_to_take_over() {
    let authority = Authority::new();
    let world = start(&authority).await;
    let file = world.gateway.dir().join("serin.yaml");
    world.gateway.signal("INT");
    assert_eq!(world.gateway.ended().await, Some(0));
    let refused = gateway::cli(&["run", "--upgrade", "--config", file.to_str().unwrap()]).await.expect(1);
    assert!(refused.stderr.contains("no running gateway"), "{refused:?}");
    world.gateway.restart().await;
}

#[tokio::test]
async fn certificates_and_documents_are_replaced_under_load() {
    let authority = Authority::new();
    let world = start(&authority).await;
    let mut load = load(&world, &authority);
    let tls = world.gateway.listener("tls");
    for round in 0..10 {
        let fresh = authority.issue(HOST);
        fresh.write(world.gateway.dir(), "tls");
        let mut routing = world.gateway.conf.routing.clone();
        routing["services"]["users"]["salt"] = json!(format!("salt-{round}"));
        world.gateway.write_routing(&routing);
        let shown = || async {
            let conn = Conn::tls(tls, HOST, authority.client(&["http/1.1"])).await.unwrap();
            (conn.peer_cert.as_deref() == Some(fresh.der())).then_some(())
        };
        wait::until("the new certificate", shown).await;
        load.more(50).await;
    }
    let revision = || async {
        let config = world.gateway.admin_get("/readyz?verbose").await;
        (config["documents"]["routing"]["revision"].as_u64() > Some(5)).then_some(())
    };
    wait::until("the routing documents", revision).await;
    nothing_failed(&mut load).await;
}
