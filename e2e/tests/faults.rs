//! Promise: an upstream that fails in an ugly way harms nobody but those it was serving, and no client is ever told that a
//! broken answer is whole, or has a request sent twice that must not be.
//!
//! Faults 1 to 8 and 27 of faults.md, a kill -9, and what other files leave open of 10 and 11. The rest is elsewhere:
//! 9 `guard::a_retry_storm_is_a_fifth_more_load`, 10 `guard::when_too_many_are_out_health_is_ignored`, 11
//! `guard::who_comes_back_begins_slowly`, 30 `limits::a_full_store_is_counted_and_does_not_open_the_limit` and core's
//! `five_million_keys_stay_within_the_bound`, 35 `overload::at_three_times_the_capacity_goodput_stays`.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "tests may panic in their helpers as well")]

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use futures_util::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use serde_json::{Value, json};
use serin_e2e::client::{Body, Call, Conn, Reply, all_at_once};
use serin_e2e::ledger::{self, Ledger, Outcome};
use serin_e2e::origin::{Behaviour, refusing_address};
use serin_e2e::rogue::{Arrival, BlackHole, ID, Rogue, Step};
use serin_e2e::{Conf, Gateway, Origin, World, conf, gateway, wait};

/// A gateway that sends everything to service `pool` over `addresses`.
async fn before(addresses: &[SocketAddr], change: impl FnOnce(&mut Value)) -> Gateway {
    Gateway::start(conf_before(addresses, change)).await
}

fn conf_before(addresses: &[SocketAddr], change: impl FnOnce(&mut Value)) -> Conf {
    let instances: Vec<_> = addresses.iter().map(|address| json!({"address": address.to_string()})).collect();
    let mut service = json!({"instances": instances, "balancer": [{"exclude_tried": {}}, {"round_robin": {}}]});
    change(&mut service);
    let mut conf = Conf::empty().with_route("all", json!({"path": {"prefix": "/"}}), "pool");
    conf.routing["services"]["pool"] = service;
    conf
}

/// What the API shows of the instance at an address.
async fn instance(gateway: &Gateway, address: SocketAddr) -> Value {
    let view = gateway.admin_get("/v1/services/pool").await;
    let mut all = view["instances"].as_array().unwrap().iter();
    all.find(|instance| instance["address"] == address.to_string()).unwrap().clone()
}

async fn selections(gateway: &Gateway, address: SocketAddr) -> f64 {
    gateway.metrics().await.sum("serin_selections_total", &[&format!("instance=\"{address}\"")])
}

fn ids<'a>(rogues: impl IntoIterator<Item = &'a Rogue>) -> Vec<String> {
    rogues.into_iter().flat_map(Rogue::arrivals).map(|arrival| arrival.id).collect()
}

/// A client of each protocol.
async fn clients(gateway: &Gateway) -> [Conn; 2] {
    [Conn::http1(gateway.http()).await, Conn::h2c(gateway.http()).await]
}

/// Faults 1 and 2.
#[tokio::test]
async fn an_address_that_refuses_or_swallows_connections_costs_nobody_an_answer_and_is_ejected() {
    let hole = BlackHole::start().await;
    for (bad, status) in [(refusing_address(), 502), (hole.address, 504)] {
        let good = Rogue::start(|_| Step::answer()).await;
        let eager = |service: &mut Value| {
            service["timeouts"] = json!({"connect": "150ms"});
            service["retry"] = json!({"attempts": 2, "on": ["connect_failure"]});
            service["outlier_detection"] =
                json!({"consecutive_local": 3, "base_ejection": "60s", "max_ejection_percent": "50%"});
        };
        let gateway = before(&[good.address, bad], eager).await;
        let (ledger, mut conn) = (Ledger::default(), Conn::http1(gateway.http()).await);
        let mut failures = 0;
        while instance(&gateway, bad).await["health"] != "ejected" {
            failures = selections(&gateway, bad).await as u32;
            assert!(failures < 3, "three failures in a row, and {bad} is not ejected");
            // Nothing was sent, so even a POST may go elsewhere.
            for method in ["GET", "POST"] {
                assert_eq!(ledger.send(method, "/", &mut conn).await.1, Outcome::Answered(200), "{method}");
            }
        }
        let picked = selections(&gateway, bad).await;
        assert_eq!(picked, 3.0, "ejected by the third, after {failures}");
        for _ in 0..20 {
            assert_eq!(ledger.send("POST", "/", &mut conn).await.1, Outcome::Answered(200));
        }
        assert_eq!(selections(&gateway, bad).await, picked, "picked while it was ejected");
        ledger.balance(1, ids([&good]));

        let alone = before(&[bad], |service| service["timeouts"] = json!({"connect": "150ms"})).await;
        let begin = Instant::now();
        let (_, outcome) = ledger.send("GET", "/", &mut Conn::http1(alone.http()).await).await;
        assert_eq!(outcome, Outcome::Answered(status), "with nobody else to ask");
        assert!(begin.elapsed() < Duration::from_secs(3), "{:?}", begin.elapsed());
    }
}

/// Faults 3 and 5.
#[tokio::test]
async fn an_answer_that_breaks_off_never_ends_cleanly_and_is_not_asked_for_again() {
    // More than the gateway gathers before it sends something.
    let part = "a first part ".repeat(600);
    let head = |fields: &str| format!("HTTP/1.1 200 OK\r\n{fields}\r\n\r\n");
    let heads = [
        ("length", head("content-length: 9000") + &part),
        ("chunked", format!("{}{:x}\r\n{part}\r\n", head("transfer-encoding: chunked"), part.len())),
        ("in-a-chunk", head("transfer-encoding: chunked") + "4000\r\n" + &part),
        ("until-close", head("connection: close") + &part),
    ];
    let ends = [("reset", Step::Reset), ("close", Step::Close), ("no-chunk", Step::send("no chunk\r\n"))];
    let script = move |arrival: &Arrival| {
        let mut path = arrival.path.split('/').skip(1);
        let (head, end) = (path.next().unwrap(), path.next().unwrap());
        let head = heads.iter().find(|(name, _)| *name == head).unwrap().1.clone();
        let end = ends.iter().find(|(name, _)| *name == end).unwrap().1.clone();
        vec![Step::send(head), Step::Gate, end, Step::Stall]
    };
    let rogues = [Rogue::start(script.clone()).await, Rogue::start(script).await];
    let gateway = before(&rogues.each_ref().map(|rogue| rogue.address), |service| {
        service["retry"] = json!({"attempts": 2, "on": ["reset", "timeout", "5xx"]});
    })
    .await;
    let ledger = Ledger::default();
    let cases = [
        ("length", "reset"),
        ("length", "close"),
        ("chunked", "reset"),
        ("chunked", "close"),
        ("chunked", "no-chunk"),
        ("in-a-chunk", "reset"),
        ("in-a-chunk", "close"),
        ("until-close", "reset"),
    ];
    for (head, end) in cases {
        for (mut conn, version) in clients(&gateway).await.into_iter().zip(["HTTP/1.1", "HTTP/2"]) {
            let (what, id) = (format!("{head}, {end}, {version}"), ledger::new_id());
            let call = Call::get(&format!("/{head}/{end}")).header(ID, &id);
            let response = call.open_on(&mut conn).await.unwrap();
            assert_eq!(response.status(), 200, "{what}");
            let mut body = response.into_body();
            let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
            assert!(first.starts_with(b"a first part"), "{what}");
            rogues.iter().find(|rogue| rogue.hits_of(&id) == 1).unwrap().let_go();
            let rest = tokio::time::timeout(wait::DEADLINE, body.collect()).await.expect("an end");
            let outcome = ledger.note(&id, "GET", rest.map(|_| 200).map_err(std::io::Error::other));
            assert_eq!(outcome, Outcome::Broken, "{what}: it seems whole to the client");
        }
    }
    ledger.balance(1, ids(&rogues));
    let log = gateway.access_log(cases.len() * 2).await;
    assert!(log.iter().all(|line| line["attempts"] == 1 && line["error"].is_string()), "{log:?}");
}

/// Fault 4.
#[tokio::test]
async fn a_first_byte_that_does_not_come_is_504_and_the_breaker_counts_it() {
    let rogue = Rogue::start(|_| vec![Step::Take(u64::MAX), Step::Stall]).await;
    let gateway = before(&[rogue.address], |service| {
        service["timeouts"] = json!({"first_byte": "150ms"});
        service["retry"] = json!({"attempts": 1});
        service["circuit_breaker"] = json!({"min_calls": 4, "open": "60s"});
    })
    .await;
    let ledger = Ledger::default();
    for method in ["GET", "POST", "PUT", "POST"] {
        let (begin, mut conn) = (Instant::now(), Conn::http1(gateway.http()).await);
        assert_eq!(ledger.send(method, "/", &mut conn).await.1, Outcome::Answered(504), "{method}");
        let took = begin.elapsed();
        assert!((Duration::from_millis(140)..Duration::from_secs(2)).contains(&took), "{method}: {took:?}");
    }
    for method in ["GET", "POST"] {
        let mut conn = Conn::http1(gateway.http()).await;
        assert_eq!(ledger.send(method, "/", &mut conn).await.1, Outcome::Answered(503), "{method} at an open breaker");
    }
    assert_eq!(rogue.hits(), 4, "nothing passes an open breaker");
    ledger.balance(1, ids([&rogue]));
}

/// Fault 6.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_head_that_is_none_or_has_no_end_is_502_in_bounded_memory() {
    // For eight at a time, of which the gateway reads 1 MiB each, and what the allocator makes of that.
    const GROWTH_KIB: u64 = 64 * 1024;
    let mib = |byte: u8| Bytes::from(vec![byte; 1 << 20]);
    let many = Bytes::from((0..1_000).map(|n| format!("x-field-{n}: value\r\n")).collect::<String>());
    let ok = || Step::send("HTTP/1.1 200 OK\r\n");
    let end = || Step::send("content-length: 0\r\n\r\n");
    let cases: BTreeMap<&str, Vec<Step>> = BTreeMap::from([
        ("no-http", vec![Step::send("220 mail.example.com ESMTP\r\n\r\n")]),
        ("no-status", vec![Step::send("HTTP/1.1 fine\r\ncontent-length: 0\r\n\r\n")]),
        ("status-out-of-range", vec![Step::send("HTTP/1.1 99999 OK\r\ncontent-length: 0\r\n\r\n")]),
        ("no-field", vec![ok(), Step::send("no colon\r\n"), end()]),
        ("two-lengths", vec![ok(), Step::send("content-length: 5\r\ncontent-length: 2\r\n\r\nhello")]),
        ("100-thousand-fields", vec![ok(), Step::Flood(many, 100), end()]),
        ("100-mib-field", vec![ok(), Step::send("x-long: "), Step::Flood(mib(b'a'), 100), Step::send("\r\n"), end()]),
        ("100-mib-status-line", vec![Step::send("HTTP/1.1 200 "), Step::Flood(mib(b'b'), 100)]),
        ("100-mib-of-nothing", vec![Step::Flood(mib(b'\r'), 100)]),
    ]);
    let paths: Vec<_> = cases.keys().map(|case| format!("/{case}")).collect();
    let script = move |arrival: &Arrival| {
        let steps = cases.get(&arrival.path[1..]).cloned().map(|steps| [steps, vec![Step::Stall]].concat());
        steps.unwrap_or_else(Step::answer)
    };
    let rogue = Rogue::start(script).await;
    let gateway = before(&[rogue.address], |service| service["retry"] = json!({"attempts": 1})).await;
    let (ledger, mut good) = (Ledger::default(), Conn::http1(gateway.http()).await);
    assert_eq!(ledger.send("GET", "/", &mut good).await.1, Outcome::Answered(200));
    let start = gateway.rss_kib();
    let mut peak = start;
    for path in &paths {
        let eight = async {
            let (ledger, http) = (&ledger, gateway.http());
            let call = |method| async move { ledger.send(method, path, &mut Conn::http1(http).await).await.1 };
            futures_util::future::join_all(["GET", "POST"].repeat(4).into_iter().map(call)).await
        };
        let mut eight = std::pin::pin!(eight);
        let outcomes = loop {
            tokio::select! {
                outcomes = &mut eight => break outcomes,
                () = tokio::time::sleep(Duration::from_millis(5)) => peak = peak.max(gateway.rss_kib()),
            }
        };
        assert_eq!(outcomes, [Outcome::Answered(502); 8], "{path}");
        assert_eq!(ledger.send("GET", "/", &mut good).await.1, Outcome::Answered(200), "after {path}");
    }
    peak = peak.max(gateway.rss_kib());
    assert!(peak - start <= GROWTH_KIB, "grew by {} KiB", peak - start);
    ledger.balance(1, ids([&rogue]));
}

/// An upload that does not end by itself, and whether it is over.
#[derive(Clone, Default)]
struct Upload(Arc<AtomicBool>);

impl Upload {
    /// More than anybody sends.
    const LENGTH: &str = "1000000000000";

    fn body(&self) -> Body {
        struct Sender(Upload, Bytes);
        impl Drop for Sender {
            fn drop(&mut self) {
                self.0.0.store(true, Relaxed);
            }
        }
        let sender = Sender(self.clone(), Bytes::from(vec![b'u'; 64 << 10]));
        let pieces = stream::unfold(sender, |sender| async move {
            // Others shall run in between.
            tokio::task::yield_now().await;
            Some((Ok(Frame::data(sender.1.clone())), sender))
        });
        StreamBody::new(pieces).boxed_unsync()
    }

    async fn end(&self, what: &str) {
        wait::until(format!("the upload to end: {what}"), || async { self.0.load(Relaxed).then_some(()) }).await;
    }
}

/// Fault 7.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_before_the_end_of_an_upload_is_relayed_and_ends_it() {
    const ANSWER: &str = "HTTP/1.1 413 Content Too Large\r\ncontent-length: 8\r\n\r\ntoo long";
    const EMPTY: &str = "HTTP/1.1 413 Content Too Large\r\ncontent-length: 0\r\n\r\n";
    // An upload that the upstream does not read takes the idle timeout, as the gateway waits for it to be written.
    let cases = [
        ("/closes", ANSWER, Step::Close),
        ("/reads-on", ANSWER, Step::Drain),
        ("/reads-on-empty", EMPTY, Step::Drain),
        ("/stalls", ANSWER, Step::Stall),
    ];
    let script = {
        let cases = cases.clone();
        move |arrival: &Arrival| match cases.iter().find(|(path, ..)| *path == arrival.path) {
            Some((_, answer, end)) => vec![Step::Take(100_000), Step::send(*answer), end.clone()],
            None => Step::answer(),
        }
    };
    let rogue = Rogue::start(script).await;
    let gateway = before(&[rogue.address], |service| service["timeouts"] = json!({"idle": "1s"})).await;
    let ledger = Ledger::default();
    let connection = |id: &str| rogue.arrivals().into_iter().find(|arrival| arrival.id == id).unwrap().connection;
    for (path, answer, _) in &cases {
        for (mut conn, version) in clients(&gateway).await.into_iter().zip(["HTTP/1.1", "HTTP/2"]) {
            let (what, id, upload) = (format!("{path}, {version}"), ledger::new_id(), Upload::default());
            let call = Call::new("POST", path).header(ID, &id).header("content-length", Upload::LENGTH);
            let reply = async { Reply::read(call.stream_on(&mut conn, upload.body()).await?).await };
            let reply = tokio::time::timeout(wait::DEADLINE, reply).await.expect(&what);
            let reply = reply.unwrap_or_else(|error| panic!("{what}: {error}"));
            let body = answer.split_once("\r\n\r\n").unwrap().1;
            assert_eq!((reply.status.as_u16(), reply.text().as_str()), (413, body), "{what}");
            ledger.note(&id, "POST", Ok(413));
            upload.end(&what).await;
            let (next, outcome) = ledger.send("POST", "/", &mut Conn::http1(gateway.http()).await).await;
            assert_eq!(outcome, Outcome::Answered(200), "{what}");
            assert_ne!(connection(&next), connection(&id), "{what}: its connection was used again");
        }
    }
    ledger.balance(1, ids([&rogue]));
    assert_eq!(instance(&gateway, rogue.address).await["health"], "healthy");
}

/// Fault 8.
#[tokio::test]
async fn what_a_kept_connection_loses_is_sent_again_only_if_it_may_be() {
    // The upstream reads the request and then closes: it may have done what was asked.
    for end in [Step::Close, Step::Reset] {
        for (method, reused, status, hits) in [
            ("GET", true, 200, 2),
            ("PUT", true, 200, 2),
            ("DELETE", true, 200, 2),
            ("POST", true, 502, 1),
            ("PATCH", true, 502, 1),
            ("GET", false, 502, 1),
            ("POST", false, 502, 1),
        ] {
            let what = format!("{method}, {end:?}, {}", if reused { "kept connection" } else { "new connection" });
            let (lost, last) = (u64::from(reused), end.clone());
            let script = move |arrival: &Arrival| match (arrival.connection, arrival.nth) {
                (0, nth) if nth == lost => vec![Step::Take(u64::MAX), last.clone()],
                _ => Step::answer(),
            };
            let rogue = Rogue::start(script).await;
            let gateway = before(&[rogue.address], |service| {
                service["retry"] = json!({"attempts": 3, "on": ["connect_failure"]});
            })
            .await;
            let (ledger, mut conn) = (Ledger::default(), Conn::http1(gateway.http()).await);
            if reused {
                assert_eq!(ledger.send(method, "/", &mut conn).await.1, Outcome::Answered(200));
            }
            let (id, outcome) = ledger.send(method, "/", &mut conn).await;
            assert_eq!((outcome, rogue.hits_of(&id)), (Outcome::Answered(status), hits), "{what}");
            ledger.balance(2, ids([&rogue]));
        }
    }
}

/// Fault 8, as it happens: the upstream closes while the next request is on its way, and did not say that it would.
#[tokio::test]
async fn a_connection_that_closes_between_two_requests_loses_no_idempotent_one() {
    let rogue = Rogue::start(|_| [Step::answer(), vec![Step::Close]].concat()).await;
    let gateway = before(&[rogue.address], |service| {
        service["retry"] = json!({"attempts": 3, "on": ["connect_failure"]});
    })
    .await;
    let (ledger, mut conn) = (Ledger::default(), Conn::http1(gateway.http()).await);
    for number in 0..300 {
        let method = ["GET", "POST", "PUT"][number % 3];
        if ledger.send(method, "/", &mut conn).await.1 != Outcome::Answered(200) {
            conn = Conn::http1(gateway.http()).await;
        }
    }
    for method in ["GET", "PUT"] {
        assert_eq!(ledger.outcomes(method), BTreeMap::from([(Outcome::Answered(200), 100)]), "{method}");
    }
    let posts = ledger.outcomes("POST");
    assert!(posts.keys().all(|end| matches!(end, Outcome::Answered(200 | 502))), "{posts:?}");
    ledger.balance(3, ids([&rogue]));
}

/// Fault 10: a canary of which nothing is left. The last healthy instance of a subset is never ejected, and a check that
/// passes ends an ejection, so both instances fail their checks too.
#[tokio::test]
async fn a_canary_of_which_nothing_is_left_is_stood_in_for_and_it_is_said() {
    let mut world = World::with(&["v1-a", "v1-b", "v2-a", "v2-b"], |conf| {
        conf.weights(&[("v1", "0%"), ("v2", "100%")]);
        let service = conf.service("users");
        service["retry"] = json!({"attempts": 1});
        service["outlier_detection"] = json!({"consecutive_5xx": 3, "base_ejection": "60s"});
        service["health_check"] =
            json!({"http": {"path": "/healthz"}, "interval": "200ms", "timeout": "200ms", "unhealthy_after": 1});
    })
    .await;
    async fn canary(world: &World) -> Value {
        world.gateway.admin_get("/v1/services/users").await["subsets"][1]["unusable"].clone()
    }
    world.origin("v2-a").set(Behaviour::Status(500));
    let address = world.origin("v2-a").address.to_string();
    wait::until("v2-a to be left out", || async {
        let _ = world.send(Call::get("/").user("u")).await;
        let view = world.gateway.admin_get("/v1/services/users").await;
        let mut instances = view["instances"].as_array().unwrap().iter();
        let health = instances.find(|instance| instance["address"] == address).unwrap()["health"].clone();
        (health == "unhealthy").then_some(())
    })
    .await;
    assert_eq!((world.origin_of("u").await, canary(&world).await), ("v2-b".to_owned(), Value::Null));

    world.origins[3].stop().await;
    wait::until("v2-b to be left out", || async { (canary(&world).await == "all_unhealthy").then_some(()) }).await;
    let (before, line) = (world.gateway.metrics().await, "reason=\"all_unhealthy\"");
    for number in 0..10 {
        let origin = world.origin_of(&format!("u{number}")).await;
        assert!(origin.starts_with("v1-"), "request {number} went to {origin}");
    }
    let fallbacks = |metrics: &serin_e2e::admin::Metrics| metrics.sum("serin_fallbacks_total", &[line]);
    assert_eq!(fallbacks(&world.gateway.metrics().await) - fallbacks(&before), 10.0);
    wait::until("ten lines that say it", || async {
        let log = world.gateway.access_log(1).await;
        (log.iter().filter(|line| line["fallback"] == "all_unhealthy").count() == 10).then_some(())
    })
    .await;
}

/// Fault 11: no more probes than configured.
#[tokio::test]
async fn a_breaker_that_is_half_open_lets_one_probe_through_at_a_time() {
    let world = World::with(&["v1-a"], |conf| {
        conf.weights(&[("v1", "100%"), ("v2", "0%")]);
        conf.service("users")["circuit_breaker"] = json!({"min_calls": 2, "open": "300ms", "half_open_probes": 1});
    })
    .await;
    let origin = world.origin("v1-a");
    origin.set(Behaviour::Status(500));
    for _ in 0..2 {
        let _ = world.send(Call::get("/")).await.expect(500);
    }
    let _ = world.send(Call::get("/")).await.expect(503);
    origin.set(Behaviour::Hold);
    let probe = wait::until("the first probe", || async {
        let probe = tokio::spawn(Call::get("/").to(world.http()));
        wait::until("an answer or a probe", || async { (probe.is_finished() || origin.hits() == 3).then_some(()) })
            .await;
        (origin.hits() == 3).then_some(probe)
    })
    .await;
    for reply in all_at_once(0..20, |_| Call::get("/").to(world.http())).await {
        let _ = reply.expect(503);
    }
    assert_eq!(origin.hits(), 3, "one probe at a time");
    origin.release();
    let _ = probe.await.unwrap().expect(200);
    wait::until("the breaker to close", || async {
        let view = world.gateway.admin_get("/v1/services/users").await;
        (view["subsets"][0]["breaker"]["state"] == "closed").then_some(())
    })
    .await;
    for reply in all_at_once(0..20, |_| Call::get("/").to(world.http())).await {
        let _ = reply.expect(200);
    }
}

/// The library that shifts the wall clock of a process, from Debian's package `libfaketime` (see setup.sh).
fn libfaketime() -> PathBuf {
    let libs = ["x86_64-linux-gnu", "aarch64-linux-gnu"].map(|arch| format!("/usr/lib/{arch}/faketime"));
    let mut files = libs.iter().map(|dir| Path::new(dir).join("libfaketime.so.1"));
    files.find(|file| file.exists()).expect("libfaketime: run e2e/setup.sh")
}

/// A gateway whose wall clock is what a file says.
struct Shifted {
    gateway: Gateway,
    shift: PathBuf,
    _dir: tempfile::TempDir,
}

impl Shifted {
    async fn start(conf: Conf) -> Self {
        let dir = gateway::directory();
        let (shift, wrapper) = (dir.path().join("shift"), dir.path().join("serin"));
        fs::write(&shift, "+0").unwrap();
        let script = format!(
            "#!/bin/sh\nexport LD_PRELOAD={} FAKETIME_TIMESTAMP_FILE={} FAKETIME_NO_CACHE=1\n\
             export FAKETIME_DONT_FAKE_MONOTONIC=1 NO_FAKE_STAT=1\nexec {} \"$@\"\n",
            libfaketime().display(),
            shift.display(),
            gateway::binary().display(),
        );
        fs::write(&wrapper, script).unwrap();
        fs::set_permissions(&wrapper, Permissions::from_mode(0o755)).unwrap();
        Self { gateway: Gateway::start_as(wrapper, conf).await, shift, _dir: dir }
    }

    /// Shifts the clock, and makes sure by the access log that it did.
    async fn jump(&self, hours: i64) {
        gateway::write_atomically(&self.shift, &format!("{:+}", hours * 3_600));
        let id = ledger::new_id();
        let path = format!("/none/{id}");
        let _ = Call::get(&path).to(self.gateway.http()).await.expect(404);
        let line = wait::until("the request in the log", || async {
            self.gateway.access_log(1).await.into_iter().find(|line| line["path"] == path.as_str())
        })
        .await;
        // Seconds of the day, as if days had no end.
        let number = |at: std::ops::Range<usize>| line["at"].as_str().unwrap()[at].parse::<i64>().unwrap();
        let logged = number(11..13) * 3_600 + number(14..16) * 60 + number(17..19);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() as i64;
        let ahead = (logged - now - hours * 3_600 + 60).rem_euclid(86_400) - 60;
        assert!((-5..=5).contains(&ahead), "the clock is {ahead} s from where it was put: {line}");
    }
}

/// Fault 27.
#[tokio::test]
async fn a_clock_that_jumps_an_hour_moves_no_limit_no_breaker_and_no_timeout() {
    let origin = Origin::start("a").await;
    let mut conf = Conf::empty();
    for name in ["limited", "broken", "plain"] {
        conf = conf.with_service(name, conf::pool(&[&origin], json!([{"round_robin": {}}])));
    }
    conf.service("limited")["rate_limits"] = json!([{"name": "two", "limit": "2/h"}]);
    conf.service("broken")["circuit_breaker"] = json!({"min_calls": 1, "open": "60s"});
    conf.service("plain")["timeouts"] = json!({"first_byte": "2s", "request": "5s"});
    conf.service("plain")["retry"] = json!({"attempts": 1});
    let shifted = Shifted::start(conf).await;
    let http = shifted.gateway.http();
    let status = |path: &'static str| async move { Call::get(path).to(http).await.status.as_u16() };
    for expected in [200, 200, 429] {
        assert_eq!(status("/limited").await, expected);
    }
    assert_eq!((status("/broken/status/500").await, status("/broken").await), (500, 503));
    for hours in [1, 0, -1, 0] {
        let connections = origin.connections();
        let (slow, hung) = (tokio::spawn(status("/plain/delay/1000")), tokio::spawn(status("/plain/delay/9000")));
        let begin = Instant::now();
        wait::until("both to be under way", || async { (origin.open_connections() >= 2).then_some(()) }).await;
        shifted.jump(hours).await;
        assert_eq!(status("/limited").await, 429, "{hours} h");
        assert_eq!(status("/broken").await, 503, "{hours} h");
        assert_eq!(status("/plain").await, 200, "{hours} h");
        assert_eq!(slow.await.unwrap(), 200, "{hours} h: a request in flight is not cut off");
        assert_eq!(hung.await.unwrap(), 504, "{hours} h: and a timeout comes");
        let took = begin.elapsed();
        assert!((Duration::from_millis(1_900)..Duration::from_secs(4)).contains(&took), "{hours} h: {took:?}");
        assert!(origin.connections() <= connections + 3, "{hours} h: idle connections were dropped");
    }
}

/// What tells a process of this test that it is an upstream: its address and the file for the ids that arrive.
const UPSTREAM_AT: &str = "SERIN_E2E_UPSTREAM_AT";
const UPSTREAM_LEDGER: &str = "SERIN_E2E_UPSTREAM_LEDGER";

/// No test, but what the processes below run.
#[tokio::test]
#[ignore = "an upstream, started by a test"]
async fn upstream_in_a_process_of_its_own() {
    let Some(address) = std::env::var_os(UPSTREAM_AT) else { return };
    let ledger = File::options().append(true).open(std::env::var_os(UPSTREAM_LEDGER).unwrap()).unwrap();
    let script = move |arrival: &Arrival| {
        (&ledger).write_all(format!("{}\n", arrival.id).as_bytes()).unwrap();
        Step::answer()
    };
    let _rogue = Rogue::start_at(address.to_str().unwrap().parse().unwrap(), script).await;
    std::future::pending::<()>().await;
}

/// An upstream in a process of its own.
struct Process {
    address: SocketAddr,
    ledger: PathBuf,
    child: Child,
}

impl Process {
    async fn start(dir: &Path) -> Self {
        let address = gateway::free_address();
        let ledger = dir.join(address.port().to_string());
        File::create(&ledger).unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "upstream_in_a_process_of_its_own"])
            .env(UPSTREAM_AT, address.to_string())
            .env(UPSTREAM_LEDGER, &ledger)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        wait::until("the upstream", || async { tokio::net::TcpStream::connect(address).await.ok().map(drop) }).await;
        Self { address, ledger, child }
    }

    fn arrived(&self) -> Vec<String> {
        fs::read_to_string(&self.ledger).unwrap().lines().map(str::to_owned).collect()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Requests on eight connections, every tenth a POST, until they are told to stop.
struct Load {
    ledger: Arc<Ledger>,
    over: Arc<AtomicBool>,
    clients: Vec<tokio::task::JoinHandle<()>>,
}

impl Load {
    fn start(http: SocketAddr) -> Self {
        let (ledger, over) = (Arc::new(Ledger::default()), Arc::new(AtomicBool::new(false)));
        let client = |client: usize| {
            let (ledger, over) = (Arc::clone(&ledger), Arc::clone(&over));
            tokio::spawn(async move {
                let mut conn = Conn::http1(http).await;
                for number in client.. {
                    let method = if number % 10 == 0 { "POST" } else { "GET" };
                    if ledger.send(method, "/", &mut conn).await.1 != Outcome::Answered(200) {
                        conn = Conn::http1(http).await;
                    }
                    if over.load(Relaxed) {
                        return;
                    }
                }
            })
        };
        let clients = (0..8).map(client).collect();
        Self { ledger, over, clients }
    }

    /// All requests, and those that failed.
    fn counts(&self, method: &str) -> (usize, usize) {
        let outcomes = self.ledger.outcomes(method);
        let all = outcomes.values().sum();
        (all, all - outcomes.get(&Outcome::Answered(200)).copied().unwrap_or(0))
    }

    async fn next(&self, count: usize) {
        let goal = self.counts("GET").0 + count;
        wait::until(format!("{count} more GETs"), || async { (self.counts("GET").0 >= goal).then_some(()) }).await;
    }

    async fn stop(&mut self) {
        self.over.store(true, Relaxed);
        for client in self.clients.drain(..) {
            client.await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_is_killed_under_load_costs_next_to_no_get_and_none_after_its_ejection() {
    let dir = gateway::directory();
    let mut upstreams = vec![];
    for _ in 0..3 {
        upstreams.push(Process::start(dir.path()).await);
    }
    let addresses: Vec<_> = upstreams.iter().map(|upstream| upstream.address).collect();
    let gateway = before(&addresses, |service| {
        service["retry"] = json!({"attempts": 2, "on": ["connect_failure", "reset"]});
        service["outlier_detection"] =
            json!({"consecutive_local": 3, "base_ejection": "60s", "max_ejection_percent": "50%"});
    })
    .await;
    let mut load = Load::start(gateway.http());
    load.next(500).await;
    // SIGKILL.
    upstreams[1].child.kill().unwrap();
    upstreams[1].child.wait().unwrap();
    wait::until("its ejection", || async {
        (instance(&gateway, addresses[1]).await["health"] == "ejected").then_some(())
    })
    .await;
    // Those that were picked before it was ejected have ended when others were sent after them.
    load.next(50).await;
    let (picked, failed) = (selections(&gateway, addresses[1]).await, [load.counts("GET").1, load.counts("POST").1]);
    load.next(1_500).await;
    assert_eq!([load.counts("GET").1, load.counts("POST").1], failed, "failed after the ejection");
    assert_eq!(selections(&gateway, addresses[1]).await, picked, "picked after its ejection");
    load.stop().await;
    let (sent, failed) = load.counts("GET");
    println!("GETs {sent}, failed {failed}; POSTs and failed {:?}", load.counts("POST"));
    assert!(failed * 1_000 <= sent, "{failed} of {sent} GETs failed");
    load.ledger.balance(2, upstreams.iter().flat_map(Process::arrived));
}
