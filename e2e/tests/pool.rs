//! Promise: connections to an instance are bounded, made in advance, renewed, and gone when the instance is.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use serin_e2e::client::{Call, Conn};
use serin_e2e::origin::Behaviour;
use serin_e2e::tls::Authority;
use serin_e2e::{Conf, Gateway, Origin, conf, gateway, wait};
use tokio::task::JoinHandle;

fn pooled(origins: &[&Origin], pool: Value) -> Conf {
    let mut service = conf::pool(origins, json!([{"round_robin": {}}]));
    service["pool"] = pool;
    Conf::empty().with_service("pool", service)
}

fn in_background(gateway: &Gateway, path: &'static str) -> JoinHandle<u16> {
    let address = gateway.http();
    tokio::spawn(async move { Call::get(path).to(address).await.status.as_u16() })
}

async fn hits(origin: &Origin, count: u64) {
    wait::until(format!("{count} requests at {}", origin.name), || async { (origin.hits() >= count).then_some(()) })
        .await;
}

async fn connections(gateway: &Gateway) -> (u64, u64) {
    let view = gateway.admin_get("/v1/services/pool").await;
    let connections = &view["instances"][0]["connections"];
    let count = |state: &str| connections[state].as_u64().unwrap_or(u64::MAX);
    (count("open"), count("in_use"))
}

#[tokio::test]
async fn a_full_pool_is_waited_for_and_then_refused() {
    let origin = Origin::start("a").await;
    let gateway = Gateway::start(pooled(&[&origin], json!({"max_connections": 2, "acquire_timeout": "300ms"}))).await;
    let held = [in_background(&gateway, "/pool/hold"), in_background(&gateway, "/pool/hold")];
    hits(&origin, 2).await;
    assert_eq!(connections(&gateway).await, (2, 2));

    let begin = Instant::now();
    let refused = Call::get("/pool").to(gateway.http()).await.expect(503);
    // Two attempts by default, and each waits.
    let waited = begin.elapsed();
    assert!((Duration::from_millis(550)..Duration::from_secs(2)).contains(&waited), "{waited:?}");
    assert_eq!(
        (refused.header("retry-after"), refused.header("connection")),
        ("1", "keep-alive"),
        "and the connection stays open"
    );
    assert_eq!(origin.hits(), 2, "nothing was sent");
    let view = gateway.admin_get("/v1/services/pool").await;
    assert_eq!(view["instances"][0]["health"], "healthy", "it is not the instance's fault: {view}");

    let waiting = in_background(&gateway, "/pool/next");
    wait::until("the request to wait", || async {
        (gateway.metrics().await.sum("serin_pool_waits_total", &[]) > 2.5).then_some(())
    })
    .await;
    origin.release();
    assert_eq!(waiting.await.unwrap(), 200, "it gets a connection that another request gives back");
    for request in held {
        assert_eq!(request.await.unwrap(), 200);
    }
    assert!(origin.connections() <= 2, "{} connections were made", origin.connections());
    let metrics = gateway.metrics().await;
    assert!((metrics.sum("serin_pool_overflows_total", &[]) - 2.0).abs() < 0.1, "{}", metrics.0);
    let open = metrics.sum("serin_pool_connections", &["state=\"open\""]);
    assert!((1.0..=2.0).contains(&open), "{}", metrics.0);
    let log = gateway.access_log(4).await;
    assert!(log.iter().any(|line| line["error"] == "overflow" && line["status"] == 503), "{log:?}");
}

#[tokio::test]
async fn a_full_pool_sends_the_request_to_another_instance() {
    let (a, b) = (Origin::start("a").await, Origin::start("b").await);
    let gateway = Gateway::start(pooled(&[&a, &b], json!({"max_connections": 1, "acquire_timeout": "100ms"}))).await;
    a.set(Behaviour::Hold);
    let mut held = vec![];
    while a.hits() == 0 {
        held.push(in_background(&gateway, "/pool"));
        let sent = u64::try_from(held.len()).unwrap();
        wait::until("it to arrive", || async { (a.hits() + b.hits() >= sent).then_some(()) }).await;
    }
    // What the last request held is given back just after its client has the answer, which is what is waited for.
    for number in 0..10 {
        // Even a POST: nothing was sent to the full one.
        let reply = Call::post("/pool", "pay").to(gateway.http()).await;
        assert_eq!((reply.status.as_u16(), reply.origin().as_str()), (200, "b"), "request {number}");
    }
    assert_eq!(a.hits(), 1);
    a.release();
    for request in held {
        assert_eq!(request.await.unwrap(), 200);
    }
}

#[tokio::test]
async fn idle_connections_are_made_in_advance_and_used() {
    let origin = Origin::start("a").await;
    let gateway = Gateway::start(pooled(&[&origin], json!({"min_idle": 3}))).await;
    wait::until("three connections", || async { (origin.open_connections() == 3).then_some(()) }).await;
    assert_eq!((origin.hits(), connections(&gateway).await), (0, (3, 0)));
    let mut conn = Conn::http1(gateway.http()).await;
    for _ in 0..5 {
        let _ = Call::get("/pool").on(&mut conn).await.expect(200);
    }
    assert_eq!(origin.connections(), 3, "requests use what is there");

    // Connections that the other side closes are replaced.
    let address = origin.address;
    drop(origin);
    wait::until("the port to be free", || async { std::net::TcpListener::bind(address).ok().map(drop) }).await;
    let again = Origin::start_at("a", address).await;
    wait::until("three new connections", || async { (again.open_connections() == 3).then_some(()) }).await;
    assert_eq!(Call::get("/pool").on(&mut conn).await.status, 200);
}

#[tokio::test]
async fn idle_tls_connections_have_their_handshake_behind_them() {
    let authority = Authority::new();
    let origin = Origin::start_tls("a", &authority.issue("origin.test"), &["http/1.1"]).await;
    let dir = gateway::directory();
    let ca = dir.path().join("ca.crt");
    std::fs::write(&ca, authority.pem()).unwrap();
    let mut conf = pooled(&[&origin], json!({"min_idle": 3}));
    conf.service("pool")["tls"] = json!({"sni": "origin.test", "ca": ca});
    let gateway = Gateway::start_in(dir, conf).await;
    wait::until("three handshakes", || async { (origin.handshakes() == 3).then_some(()) }).await;
    wait::until("them to be idle", || async { (connections(&gateway).await == (3, 0)).then_some(()) }).await;
    assert_eq!(origin.hits(), 0);
    let mut conn = Conn::http1(gateway.http()).await;
    for _ in 0..5 {
        let _ = Call::get("/pool").on(&mut conn).await.expect(200);
    }
    assert_eq!((origin.handshakes(), origin.connections()), (3, 3), "requests use what is there");
}

#[tokio::test]
async fn idle_connections_are_closed_after_a_while() {
    let origin = Origin::start("a").await;
    let gateway = Gateway::start(pooled(&[&origin], json!({"idle": "300ms"}))).await;
    let mut conn = Conn::http1(gateway.http()).await;
    let _ = Call::get("/pool").on(&mut conn).await.expect(200);
    assert_eq!(origin.open_connections(), 1);
    wait::until("it to be closed", || async { (origin.open_connections() == 0).then_some(()) }).await;
    assert_eq!(connections(&gateway).await, (0, 0));
    let _ = Call::get("/pool").on(&mut conn).await.expect(200);
    assert_eq!(origin.connections(), 2);
}

#[tokio::test]
async fn connections_are_renewed_without_a_failed_request() {
    let origin = Origin::start("a").await;
    for protocol in ["http1", "h2c"] {
        let before = origin.connections();
        let mut conf = pooled(&[&origin], json!({"max_lifetime": "1s", "idle": "1s"}));
        conf.service("pool")["protocol"] = json!(protocol);
        conf.service("pool")["retry"] = json!({"attempts": 1});
        let gateway = Gateway::start(conf).await;
        let mut conn = Conn::http1(gateway.http()).await;
        let begin = Instant::now();
        let mut sent = 0;
        while begin.elapsed() < Duration::from_millis(3_500) {
            let _ = Call::post("/pool", "once").on(&mut conn).await.expect(200);
            sent += 1;
        }
        let made = origin.connections() - before;
        assert!((4..=5).contains(&made), "{protocol}: {made} connections for {sent} requests in 3.5 s");
        wait::until("older ones to be closed", || async { (origin.open_connections() <= 1).then_some(()) }).await;
    }
}

#[tokio::test]
async fn an_instance_that_leaves_keeps_no_idle_connection_and_finishes_its_requests() {
    let (a, b) = (Origin::start("a").await, Origin::start("b").await);
    for protocol in ["http1", "h2c"] {
        let mut conf = pooled(&[&a, &b], json!({"min_idle": 1}));
        conf.service("pool")["protocol"] = json!(protocol);
        let gateway = Gateway::start(conf.clone()).await;
        let mut conn = Conn::http1(gateway.http()).await;
        for _ in 0..8 {
            let _ = Call::get("/pool").on(&mut conn).await.expect(200);
        }
        a.set(Behaviour::Delay(Duration::from_secs(4)));
        let slow = {
            let (address, before) = (gateway.http(), a.hits());
            let calls: Vec<_> = (0..2)
                .map(|_| tokio::spawn(async move { Call::get("/pool").to(address).await.status.as_u16() }))
                .collect();
            hits(&a, before + 1).await;
            calls
        };
        wait::until("one that is used and one that is idle", || async { (a.open_connections() == 2).then_some(()) })
            .await;
        let mut gone = conf.clone();
        gone.instances("pool").remove(0);
        gateway.write_routing(&gone.routing);
        wait::until("the idle connections to be closed", || async { (a.open_connections() == 1).then_some(()) }).await;
        assert_eq!(b.open_connections().min(1), 1, "those of the other one stay");
        for request in slow {
            assert_eq!(request.await.unwrap(), 200, "{protocol}: requests in flight finish");
        }
        wait::until("the last one to be closed", || async { (a.open_connections() == 0).then_some(()) }).await;
        let metrics = gateway.metrics().await;
        let instance = format!("instance=\"{}\"", a.address);
        assert!(!metrics.0.contains(&instance), "nothing is told of it any more: {}", metrics.0);
        a.set(Behaviour::Describe);
    }
}

/// 100 reloads, each with 100 instances that nobody has seen before in the place of 100 others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_instances_that_come_and_go_leave_nothing_behind() {
    const AT_A_TIME: u32 = 100;
    let origin = Origin::start_everywhere("all").await;
    let port = origin.address.port();
    let mut conf = pooled(&[&origin], json!({}));
    conf.service("pool")["health_check"] = json!({"tcp": {}, "interval": "1s"});
    let crowd = |round: u32| -> Vec<Value> {
        let address = |n: u32| SocketAddr::from(((0x7f01_0000 + round * AT_A_TIME + n).to_be_bytes(), port));
        (1..=AT_A_TIME).map(|n| json!({"address": address(n).to_string()})).collect()
    };
    *conf.instances("pool") = crowd(0);
    let gateway = Gateway::start(conf.clone()).await;
    let mut conn = Conn::http1(gateway.http()).await;
    let (mut descriptors, mut memory) = (vec![], vec![]);
    // One connection to each instance of the moment, and some checks on their way.
    let most = gateway.descriptors() + usize::try_from(AT_A_TIME).unwrap() + 40;
    let begin = Instant::now();
    for round in 1..=100 {
        *conf.instances("pool") = crowd(round);
        let first = conf.instances("pool")[0]["address"].clone();
        gateway.write_routing(&conf.routing);
        wait::until(format!("round {round}"), || async {
            let view = gateway.admin_get("/v1/services/pool").await;
            (view["instances"][0]["address"] == first).then_some(())
        })
        .await;
        for _ in 0..AT_A_TIME {
            let _ = Call::get("/pool").on(&mut conn).await.expect(200);
        }
        if round % 20 == 0 {
            // Connections to those that left are closed within seconds.
            wait::until("old connections to be closed", || async { (gateway.descriptors() <= most).then_some(()) })
                .await;
            descriptors.push(gateway.descriptors());
            memory.push(gateway.rss_kib());
        }
    }
    let took = begin.elapsed();
    println!("10,000 joins and leaves in {took:?}: descriptors {descriptors:?}, resident KiB {memory:?}");
    assert!(memory[4] <= memory[1] + 16 * 1024, "resident KiB after 2,000 steps each: {memory:?}");
    let metrics = gateway.metrics().await;
    let series = metrics.samples("serin_selections_total").count();
    assert_eq!(series, usize::try_from(AT_A_TIME).unwrap(), "series of instances that left");
    assert!(took < Duration::from_secs(120), "{took:?}");
}
