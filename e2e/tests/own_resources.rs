//! Promise: what the gateway itself runs out of costs what is lost, counted, and nothing else.
//!
//! Faults 29 and 31 of faults.md, and what idle connections cost (`make memory` measures 10,000 of them). 28 is `overload::descriptors_that_become_short_are_shed_until_there_are_enough` and, for
//! connections, `edge_limits`.

use std::fs::File;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;
use serin_e2e::client::{Call, Conn};
use serin_e2e::frames::{self, Frames};
use serin_e2e::tls::Authority;
use serin_e2e::{Conf, Gateway, Origin, World, conf, gateway, wait, world};

/// A gateway in `dir` whose access log goes to `path`.
async fn logging_to(dir: tempfile::TempDir, path: &str) -> (Gateway, Vec<serin_e2e::Origin>) {
    let origins = world::origins(&["v1-a"]).await;
    let mut conf = world::users_conf(&origins);
    conf.weights(&[("v1", "100%"), ("v2", "0%")]);
    conf.bootstrap["telemetry"] = json!({"access_log": {"path": path}});
    (Gateway::start_in(dir, conf).await, origins)
}

async fn dropped(gateway: &Gateway) -> f64 {
    gateway.metrics().await.sum("serin_access_log_dropped_total", &[])
}

/// Fault 29, a full disk: every line is lost and counted, no request is.
#[tokio::test]
async fn a_full_log_disk_costs_lines_only() {
    let (gateway, _origins) = logging_to(gateway::directory(), "/dev/full").await;
    let mut conn = Conn::http1(gateway.http()).await;
    for _ in 0..50 {
        let _ = Call::get("/").on(&mut conn).await.expect(200);
    }
    wait::until("the lines to be counted", || async { (dropped(&gateway).await == 50.0).then_some(()) }).await;
}

/// Fault 29, a pipe that nobody reads: what waits is bounded, what is beyond is lost and counted, requests are as quick
/// as before, and the process ends when it is told to.
#[tokio::test]
async fn a_blocked_log_pipe_costs_lines_only() {
    let dir = gateway::directory();
    let pipe = dir.path().join("access.pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    // Open at both ends, so that the gateway's end opens as well; never read.
    let held = File::options().read(true).write(true).open(&pipe).unwrap();
    let (gateway, _origins) = logging_to(dir, "access.pipe").await;
    let mut conn = Conn::http1(gateway.http()).await;
    let long = format!("/{}", "p".repeat(7_000));
    let before = gateway.rss_kib();
    let mut slowest = Duration::ZERO;
    // Some 4 MiB wait at most, beside the pipe's 64 KiB.
    for _ in 0..1_500 {
        let start = Instant::now();
        let _ = Call::get(&long).on(&mut conn).await.expect(200);
        slowest = slowest.max(start.elapsed());
    }
    assert!(dropped(&gateway).await > 100.0, "{}", dropped(&gateway).await);
    assert!(slowest < Duration::from_secs(2), "{slowest:?}");
    let grown = gateway.rss_kib().saturating_sub(before);
    assert!(grown < 32 << 10, "{grown} KiB");
    drop(held);
    let _ = Call::get("/").on(&mut conn).await.expect(200);
}

/// Fault 31: nothing that a client sends makes a series.
#[tokio::test]
async fn no_client_makes_a_label() {
    let world = World::with(&["v1-a"], |conf| {
        conf.weights(&[("v1", "100%"), ("v2", "0%")]);
        conf.route("all")["match"] = json!({"path": {"prefix": "/known"}});
        conf.route("all")["rate_limits"] =
            json!([{"name": "per-user", "key": [{"header": "x-user-id"}], "limit": "1/d", "burst": 1}]);
    })
    .await;
    let series = || async {
        let page = world.gateway.metrics().await.0;
        page.lines().filter(|line| !line.starts_with('#')).count()
    };
    let mut conn = Conn::http1(world.http()).await;
    let kinds = |nth: usize| {
        let user = format!("user-{nth}");
        let known = Call::get(&format!("/known/{nth}")).host(&format!("h{nth}.example.com")).user(&user);
        let odd = Call::new(&format!("M{nth}"), &format!("/unknown/{nth}")).header(&format!("x-{nth}"), "v");
        [known, odd]
    };
    for call in [kinds(0), kinds(0)].into_iter().flatten() {
        let _ = call.on(&mut conn).await;
    }
    let before = series().await;
    for call in (1..500).flat_map(kinds) {
        let _ = call.on(&mut conn).await;
    }
    assert_eq!(series().await, before, "{}", world.gateway.metrics().await.0);
}

/// What idle connections cost each, in KiB, on a debug build of the gateway, which is larger than what ships.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_are_small() {
    const COUNT: u64 = 600;
    let (dir, authority) = (gateway::directory(), Authority::new());
    authority.issue("api.example.com").write(dir.path(), "edge");
    let origins = world::origins(&["v1-a"]).await;
    let mut conf = world::users_conf(&origins);
    conf.weights(&[("v1", "100%"), ("v2", "0%")]);
    conf.listeners().push(json!({
        "name": "tls", "address": "127.0.0.1:0",
        "tls": {"certificates": [{"cert": "edge.crt", "key": "edge.key"}]},
    }));
    let gateway = Gateway::start_in(dir, conf).await;
    for (tls, most) in [(false, 30), (true, 44)] {
        let config = authority.client(&["http/1.1"]);
        let connect = || async {
            let mut conn = if tls {
                Conn::tls(gateway.listener("tls"), "api.example.com", config.clone()).await.unwrap()
            } else {
                Conn::http1(gateway.http()).await
            };
            let _ = Call::get("/").on(&mut conn).await.expect(200);
            conn
        };
        let mut held = vec![];
        for _ in 0..100 {
            held.push(connect().await);
        }
        let before = gateway.rss_kib();
        for _ in 0..COUNT {
            held.push(connect().await);
        }
        let each = gateway.rss_kib().saturating_sub(before) / COUNT;
        println!("{each} KiB each, TLS: {tls}");
        assert!(each <= most, "{each} KiB each, TLS: {tls}");
    }
}

/// What a connection takes whose streams all stall: its client makes no room for what it asked for. It is bounded by
/// `h2.max_streams`, whatever the upstream has to say and however many streams are asked for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_of_stalled_streams_is_bounded() {
    const STREAM_KIB: u64 = 600;
    const SLACK_KIB: u64 = 8 << 10;
    const INITIAL_WINDOW: u16 = 4;
    for (most, asked) in [(10, 100_u32), (100, 100)] {
        let origin = Origin::start("a").await;
        let mut conf = Conf::empty().with_service("pool", conf::pool(&[&origin], json!([{"round_robin": {}}])));
        conf.bootstrap["limits"] = json!({"h2": {"max_streams": most}});
        let gateway = Gateway::start(conf).await;
        let _ = Call::get("/pool").to(gateway.http()).await.expect(200);
        let before = gateway.rss_kib();
        let mut conn = Frames::start(gateway.http(), &[(INITIAL_WINDOW, 1)]).await;
        let requests: Vec<u8> = (0..asked).flat_map(|nth| frames::get(2 * nth + 1, "/pool/bytes/1000000000")).collect();
        conn.send(&requests).await.unwrap();
        // The rest is refused, be it before the gateway's settings came.
        wait::until("the streams to reach the upstream", || async { (origin.hits() > most).then_some(()) }).await;
        let grown = settled(&gateway).await.saturating_sub(before);
        println!("{grown} KiB for {asked} streams of which {most} may be open");
        assert!(grown <= most * STREAM_KIB + SLACK_KIB, "{grown} KiB for {most} streams");
        assert_eq!(origin.hits(), most + 1, "no more than may be open are served");
        assert_eq!(Call::get("/pool").to(gateway.http()).await.origin(), "a", "others are served");
    }
}

/// Resident memory once it grows no more.
async fn settled(gateway: &Gateway) -> u64 {
    let (mut last, mut still) = (gateway.rss_kib(), 0);
    wait::until("memory to settle", || {
        let now = gateway.rss_kib();
        still = if now <= last + 64 { still + 1 } else { 0 };
        last = now;
        let done = (still >= 100).then_some(now);
        async move { done }
    })
    .await
}
