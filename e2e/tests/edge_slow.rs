//! Promise: clients that are slow on purpose (Debian's slowhttptest) hold nothing that others need: the others' 99th
//! percentile stays within twice of what it was, and the attack's connections are closed and counted.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "tests may panic in their helpers as well")]

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::json;
use serin_e2e::client::{Call, Conn};
use serin_e2e::{World, wait};
use tokio::process::Command;

/// Clients that are served meanwhile, and the least time between two requests of each.
const OTHERS: usize = 4;
const GAP: Duration = Duration::from_millis(4);
/// What counts as no worse on a machine that has other things to do as well.
const FLOOR: Duration = Duration::from_millis(40);

/// The 99th percentile of what other clients wait.
async fn p99(address: SocketAddr, lasts: Duration) -> Duration {
    let client = || {
        tokio::spawn(async move {
            let (mut conn, end) = (Conn::http1(address).await, Instant::now() + lasts);
            let mut waited = vec![];
            while Instant::now() < end {
                let start = Instant::now();
                let _ = Call::get("/").on(&mut conn).await.expect(200);
                waited.push(start.elapsed());
                tokio::time::sleep(GAP.saturating_sub(start.elapsed())).await;
            }
            waited
        })
    };
    let clients: Vec<_> = (0..OTHERS).map(|_| client()).collect();
    let mut waited = vec![];
    for client in clients {
        waited.extend(client.await.expect("every request to be served"));
    }
    waited.sort_unstable();
    assert!(waited.len() >= 100, "only {} requests were served", waited.len());
    waited[waited.len() * 99 / 100]
}

/// One way of slowhttptest, from 200 connections, for so many seconds.
async fn attack(url: &str, seconds: u32, way: &[&str]) {
    let (length, mut tool) = (seconds.to_string(), Command::new("slowhttptest"));
    tool.args(["-c", "200", "-r", "200", "-p", "2", "-l", &length, "-u", url]).args(way).kill_on_drop(true);
    let mut child = tool.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let most = Duration::from_secs(u64::from(seconds) + 15);
    let _ = tokio::time::timeout(most, child.wait()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_heads_bodies_and_reads_hold_nobody_else_up() {
    let world = World::with(&["v1-a"], |conf| {
        conf.bootstrap["limits"] = json!({"head_timeout": "2s"});
        conf.weights(&[("v1", "100%"), ("v2", "0%")]);
    })
    .await;
    let address = world.http();
    let without = p99(address, Duration::from_secs(3)).await;
    let ways: [(&str, &str, u32, &[&str]); 3] = [
        ("head_timeout", "/", 6, &["-H", "-i", "1", "-x", "10"]),
        ("min_body_rate", "/sink", 8, &["-B", "-i", "1", "-x", "10", "-s", "8192"]),
        ("min_send_rate", "/bytes/3000000", 14, &["-X", "-w", "256", "-y", "512", "-n", "5", "-z", "16"]),
    ];
    for (limit, path, seconds, way) in ways {
        let url = format!("http://{address}{path}");
        let during = Duration::from_secs(u64::from(seconds));
        let (with, ()) = tokio::join!(p99(address, during), attack(&url, seconds, way));
        let metrics = world.gateway.metrics().await;
        let refused = metrics.sum("serin_edge_refused_total", &[&format!("limit=\"{limit}\"")]);
        println!("{limit}: p99 {with:?}, without {without:?}, {refused} refused");
        assert!(refused >= 20.0, "{limit}: the attack was not noticed");
        assert!(with <= (without * 2).max(FLOOR), "{limit}: p99 {with:?}, without {without:?}");
        wait::until("the attack's connections to be gone", || async {
            let open = world.gateway.metrics().await.sum("serin_client_connections", &[]);
            (open <= 1.0).then_some(())
        })
        .await;
    }
    let _ = world.send(Call::get("/")).await.expect(200);
}
