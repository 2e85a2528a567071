//! Promise: under a mix of everything for as long as it likes, the gateway's memory, descriptors and tasks end where they
//! were. `make soak` runs this for ten minutes (`SOAK_SECONDS` says otherwise); `make test` leaves it out.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rustls::ClientConfig;
use serde_json::json;
use serin_e2e::client::{Call, Conn, generated};
use serin_e2e::frames::{self, END_HEADERS, END_STREAM, Frames, HEADERS, RST_STREAM, frame};
use serin_e2e::tls::Authority;
use serin_e2e::{Gateway, Origin, conf, gateway, world};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

/// Clients at a time.
const CLIENTS: u64 = 24;
/// Growth that is none, in all of the time that is looked at: a share of what there was, and so much on top.
const SHARE: f64 = 0.05;
const NOISE: [(&str, f64); 3] = [("KiB of memory", 6_144.0), ("descriptors", 20.0), ("tasks", 20.0)];

/// What came of the requests.
#[derive(Default)]
struct Tally {
    good: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
    broken_off: AtomicU64,
}

#[derive(Clone)]
struct Ways {
    http: SocketAddr,
    tls: SocketAddr,
    config: [Arc<ClientConfig>; 2],
}

/// Everything that a client does, in turn; each starts elsewhere.
async fn act(ways: &Ways, nth: u64, tally: &Tally) -> std::io::Result<()> {
    let user = format!("u{}", nth % 997);
    let get = |path: &str| Call::get(path).user(&user);
    let count = |status: u16| match status {
        200..=399 | 404 => &tally.good,
        413 | 429 | 431 => &tally.refused,
        _ => &tally.failed,
    };
    let all = |statuses: &[u16]| {
        for status in statuses {
            count(*status).fetch_add(1, Relaxed);
        }
    };
    match nth % 12 {
        0 | 1 => {
            let mut conn = Conn::http1(ways.http).await;
            for path in ["/", "/delay/3", "/bytes/20000", "/nowhere"] {
                all(&[get(path).try_on(&mut conn).await?.status.as_u16()]);
            }
        }
        2 => {
            let mut conn = Conn::http1(ways.http).await;
            let reply = Call::post("/echo", vec![7; 150_000]).user(&user).try_on(&mut conn).await?;
            all(&[reply.status.as_u16()]);
            let reply = Call::post("/sink", "").stream_on(&mut conn, generated(400_000)).await?;
            all(&[reply.status().as_u16()]);
        }
        3 | 4 => {
            let conn = Conn::h2c(ways.http).await;
            let calls = (0..10).map(|nth| {
                let (mut stream, call) = (conn.another_stream(), get(&format!("/delay/{nth}")));
                async move { call.try_on(&mut stream).await }
            });
            for reply in futures_util::future::join_all(calls).await {
                all(&[reply?.status.as_u16()]);
            }
        }
        5 | 6 => {
            let config = Arc::clone(&ways.config[(nth % 2) as usize]);
            let mut conn = Conn::tls(ways.tls, "api.example.com", config).await?;
            all(&[get("/").try_on(&mut conn).await?.status.as_u16()]);
            all(&[get("/bytes/100000").try_on(&mut conn).await?.status.as_u16()]);
        }
        7 => {
            // Hangs up while it waits, and in the middle of what it sends and of what it is sent.
            for path in ["/delay/50", "/bytes/3000000"] {
                let mut conn = Conn::http1(ways.http).await;
                let _ = tokio::time::timeout(Duration::from_millis(5), get(path).try_on(&mut conn)).await;
            }
            let mut stream = TcpStream::connect(ways.http).await?;
            stream.write_all(b"POST /sink HTTP/1.1\r\nhost: a\r\ncontent-length: 9000\r\n\r\nhalf").await?;
            tally.broken_off.fetch_add(3, Relaxed);
        }
        8 => {
            let mut stream = TcpStream::connect(ways.http).await?;
            stream.write_all(b"GET / HTTP/1.1\r\nhos").await?;
            tokio::time::sleep(Duration::from_millis(20)).await;
            tally.broken_off.fetch_add(1, Relaxed);
        }
        9 => {
            let mut frames = Frames::start(ways.http, &[]).await;
            for nth in 0..40 {
                let head =
                    frame(HEADERS, END_HEADERS | END_STREAM, 2 * nth + 1, &frames::request("GET", "/delay/9", &[]));
                frames.send(&[head, frame(RST_STREAM, 0, 2 * nth + 1, &[0, 0, 0, 8])].concat()).await?;
            }
            tally.broken_off.fetch_add(40, Relaxed);
        }
        10 => {
            let mut conn = Conn::http1(ways.http).await;
            all(&[Call::post("/sink", vec![1; 3_000_000]).try_on(&mut conn).await?.status.as_u16()]);
        }
        _ => {
            let mut conn = Conn::http1(ways.http).await;
            let long = "x".repeat(70_000);
            all(&[get("/").header("x-long", &long).try_on(&mut conn).await?.status.as_u16()]);
        }
    }
    Ok(())
}

/// Flips weights and switches, and has instances leave and come back.
async fn churn(gateway: &Gateway, origins: &mut [Origin], stop: &AtomicBool) {
    let mut round = 0_usize;
    while !stop.load(Relaxed) {
        round += 1;
        let share = round * 7 % 100;
        gateway.set_weights(&[("v1", &format!("{}%", 100 - share)), ("v2", &format!("{share}%"))]).await;
        if round.is_multiple_of(5) {
            for (name, on) in [("balancer", true), ("canary", true), ("balancer", false), ("canary", false)] {
                gateway.set_switch(name, on, None).await;
            }
        }
        if round.is_multiple_of(4) {
            let at = round / 4 % origins.len();
            let (name, address) = (origins[at].name.clone(), origins[at].address);
            origins[at].stop().await;
            tokio::time::sleep(Duration::from_millis(300)).await;
            origins[at] = Origin::start_at(&name, address).await;
        }
        if round.is_multiple_of(3) {
            let mut conf = gateway.conf.clone();
            if round.is_multiple_of(2) {
                conf.instances("users").pop();
            }
            conf.instances("users").push(conf::instance(([127, 0, 0, 1], 9).into(), "v1"));
            conf.service("users")["instances"][0]["weight"] = json!(50 + round % 50);
            gateway.write_routing(&conf.routing);
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// The least of each five seconds: what comes and goes is no leak.
fn floors(samples: &[f64]) -> Vec<f64> {
    samples.chunks(10).map(|few| few.iter().copied().fold(f64::INFINITY, f64::min)).collect()
}

/// Growth over the time of the samples, by least squares.
fn growth(samples: &[f64]) -> f64 {
    let count = samples.len() as f64;
    let (middle, mean) = ((count - 1.0) / 2.0, samples.iter().sum::<f64>() / count);
    let (mut above, mut below) = (0.0, 0.0);
    for (at, sample) in samples.iter().enumerate() {
        let from_middle = at as f64 - middle;
        above += from_middle * (sample - mean);
        below += from_middle * from_middle;
    }
    above / below * (count - 1.0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes ten minutes: make soak"]
async fn nothing_grows() {
    let seconds: u64 = std::env::var("SOAK_SECONDS").ok().map_or(600, |text| text.parse().unwrap());
    let (dir, authority) = (gateway::directory(), Authority::new());
    authority.issue("api.example.com").write(dir.path(), "edge");
    let mut origins = world::origins(&["v1-a", "v1-b", "v2-a"]).await;
    let mut conf = world::users_conf(&origins);
    conf.bootstrap["telemetry"] = json!({"access_log": {"path": "/dev/null"}});
    conf.listeners().push(json!({
        "name": "tls", "address": "127.0.0.1:0",
        "tls": {"certificates": [{"cert": "edge.crt", "key": "edge.key"}]},
    }));
    conf.route("all")["max_body"] = json!("2MiB");
    conf.service("users")["retry"] = json!({"attempts": 3});
    conf.service("users")["outlier_detection"] = json!({"base_ejection": "1s"});
    conf.service("users")["circuit_breaker"] = json!({"open": "500ms"});
    let gateway = Arc::new(Gateway::start_in(dir, conf).await);
    let ways = Ways {
        http: gateway.http(),
        tls: gateway.listener("tls"),
        config: [authority.client(&["http/1.1"]), authority.client(&["h2"])],
    };
    let (stop, tally) = (Arc::new(AtomicBool::new(false)), Arc::new(Tally::default()));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|first| {
            let (ways, stop, tally) = (ways.clone(), Arc::clone(&stop), Arc::clone(&tally));
            tokio::spawn(async move {
                let mut nth = first;
                while !stop.load(Relaxed) {
                    if act(&ways, nth, &tally).await.is_err() {
                        tally.failed.fetch_add(1, Relaxed);
                    }
                    nth += CLIENTS + 1;
                    // The gateway is not to be overloaded: what is looked for here are leaks.
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            })
        })
        .collect();
    let churned = {
        let (gateway, stop) = (Arc::clone(&gateway), Arc::clone(&stop));
        tokio::spawn(async move { churn(&gateway, &mut origins, &stop).await })
    };
    let (start, mut samples) = (Instant::now(), [const { Vec::<f64>::new() }; 3]);
    while start.elapsed() < Duration::from_secs(seconds) {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let tasks = gateway.metrics().await.sum("serin_tasks", &[]);
        let now = [gateway.rss_kib() as f64, gateway.descriptors() as f64, tasks];
        samples.iter_mut().zip(now).for_each(|(all, now)| all.push(now));
        if samples[0].len().is_multiple_of(20) {
            let good = tally.good.load(Relaxed);
            println!(
                "{:4} s: {} KiB, {} descriptors, {} tasks, {good} good",
                start.elapsed().as_secs(),
                now[0],
                now[1],
                now[2]
            );
        }
    }
    stop.store(true, Relaxed);
    for client in clients {
        client.await.unwrap();
    }
    churned.await.unwrap();
    let [good, refused, failed, broken_off] =
        [&tally.good, &tally.refused, &tally.failed, &tally.broken_off].map(|count| count.load(Relaxed));
    println!("{good} good, {refused} refused, {failed} failed while instances came and went, {broken_off} broken off");
    assert!(good > seconds * 20, "there was hardly any load");
    assert!(refused > 0 && failed * 20 < good, "{failed} of {good} failed");
    for (samples, (what, noise)) in samples.iter().zip(NOISE) {
        // Buffers and pools fill in the first third.
        let settled = floors(&samples[samples.len() / 3..]);
        let (grown, mean) = (growth(&settled), settled.iter().sum::<f64>() / settled.len() as f64);
        println!("{what}: {mean:.0} at least, on average, {grown:+.1} over the last two thirds");
        assert!(
            grown <= mean * SHARE + noise,
            "{what}: {grown:+.1} over the last two thirds, {mean:.0} at least, on average"
        );
    }
}
