//! Promise: a flip by file, API or CLI is in force within 100 ms, fails no request, is audited and can be rolled back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use serin_e2e::admin::with_json;
use serin_e2e::client::{Call, Conn};
use serin_e2e::{World, conf, wait, world};
use tokio::task::JoinHandle;

const FLIPS: u64 = 100;
const IN_FORCE: Duration = Duration::from_millis(100);
const ALL_V1: [(&str, &str); 2] = [("v1", "100%"), ("v2", "0%")];
const ALL_V2: [(&str, &str); 2] = [("v1", "0%"), ("v2", "100%")];

/// Keep-alive connections that ask without a pause until they are stopped.
struct Load {
    stop: Arc<AtomicBool>,
    served: Arc<AtomicU64>,
    tasks: Vec<JoinHandle<Vec<String>>>,
}

impl Load {
    fn start(world: &World, connections: usize) -> Self {
        let (stop, served) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let address = world.http();
        let spawn = |number: usize| {
            let (stop, served) = (Arc::clone(&stop), Arc::clone(&served));
            tokio::spawn(async move {
                let mut conn = Conn::http1(address).await;
                let mut failures = vec![];
                while !stop.load(Relaxed) {
                    match Call::get("/").user(format!("load-{number}")).try_on(&mut conn).await {
                        Ok(reply) if reply.status == 200 => {
                            served.fetch_add(1, Relaxed);
                        }
                        Ok(reply) => failures.push(format!("{}: {}", reply.status, reply.text())),
                        Err(error) => {
                            failures.push(error.to_string());
                            conn = Conn::http1(address).await;
                        }
                    }
                }
                failures
            })
        };
        let tasks = (0..connections).map(spawn).collect();
        Self { stop, served, tasks }
    }

    /// Stops and fails the test if any request failed.
    async fn finish(self) {
        self.stop.store(true, Relaxed);
        let mut failures = vec![];
        for task in self.tasks {
            failures.extend(task.await.unwrap_or_else(|error| vec![error.to_string()]));
        }
        let served = self.served.load(Relaxed);
        assert!(failures.is_empty(), "{} of {served} failed, such as {:?}", failures.len(), failures[0]);
        assert!(served > FLIPS, "too little load to tell: {served} requests");
    }
}

/// How a test flips.
#[derive(Clone, Copy, Debug)]
enum Way {
    File,
    Admin,
    Cli,
}

async fn flip(world: &World, way: Way, revision: u64, weights: &[(&str, &str)]) {
    match way {
        Way::File => {
            let mut traffic = world.gateway.conf.traffic.clone();
            traffic["revision"] = json!(revision);
            traffic["services"]["users"]["weights"] = conf::shares(weights);
            world.gateway.write_traffic(&traffic);
        }
        Way::Admin => {
            world.gateway.set_weights(weights).await;
        }
        Way::Cli => {
            let pairs: Vec<_> = weights.iter().map(|(subset, share)| format!("{subset}={share}")).collect();
            let args = ["canary", "set", "users", &pairs[0], &pairs[1], "--reason", "a test"];
            let _ = world.gateway.cli(&args).await.expect(0);
        }
    }
}

/// Flips back and forth under load, and answers how long each flip took from its end until it showed.
async fn flip_under_load(way: Way) -> Vec<Duration> {
    let world = World::with(&["v1-a", "v1-b", "v2-a"], |conf| {
        conf.weights(&ALL_V1);
    })
    .await;
    let load = Load::start(&world, 4);
    let mut conn = Conn::http1(world.http()).await;
    let mut delays = vec![];
    for number in 0..FLIPS {
        let (weights, wanted) = if number % 2 == 0 { (&ALL_V2, "v2") } else { (&ALL_V1, "v1") };
        flip(&world, way, number + 2, weights).await;
        let written = Instant::now();
        loop {
            let origin = Call::get("/").user("mover").on(&mut conn).await.origin();
            if world::version(&origin) == wanted {
                break;
            }
            assert!(written.elapsed() < wait::DEADLINE, "flip {number} by {way:?} never showed");
        }
        delays.push(written.elapsed());
    }
    load.finish().await;
    delays.sort();
    delays
}

async fn flips_hold(way: Way) {
    let delays = flip_under_load(way).await;
    let p99 = delays[delays.len() * 99 / 100 - 1];
    println!("{way:?}: p50 {:?}, p99 {p99:?}, longest {:?}", delays[delays.len() / 2], delays[delays.len() - 1]);
    assert!(p99 <= IN_FORCE, "p99 of {way:?} is {p99:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_flips_by_file_fail_no_request() {
    flips_hold(Way::File).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_flips_by_api_fail_no_request() {
    flips_hold(Way::Admin).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_flips_by_cli_fail_no_request() {
    flips_hold(Way::Cli).await;
}

#[tokio::test]
async fn every_flip_is_audited() {
    let world = World::start().await;
    flip(&world, Way::Admin, 0, &ALL_V1).await;
    flip(&world, Way::Cli, 0, &ALL_V2).await;
    let revision = world.gateway.traffic_revision().await + 1;
    flip(&world, Way::File, revision, &ALL_V1).await;
    wait::until("the file's flip", || async { (world.version_of("u1").await == "v1").then_some(()) }).await;
    world.gateway.set_switch("canary", true, None).await;

    let history = world.gateway.admin_get("/v1/history").await;
    let mut entries = history["entries"].as_array().unwrap().clone();
    entries.retain(|entry| entry["document"] == "traffic");
    entries.sort_by_key(|entry| entry["revision"].as_u64());
    let revisions: Vec<_> = entries.iter().map(|entry| entry["revision"].as_u64().unwrap()).collect();
    assert!(revisions.is_sorted_by(|a, b| a < b), "each has a revision of its own: {revisions:?}");
    let flips = &entries[entries.len() - 4..];
    for entry in flips {
        for key in ["at", "by", "from", "action"] {
            assert!(!entry[key].as_str().unwrap_or_default().is_empty(), "no {key}: {entry}");
        }
        assert_eq!(entry["outcome"], "applied", "{entry}");
    }
    let reasons: Vec<_> = flips.iter().map(|entry| entry["reason"].as_str().unwrap_or_default()).collect();
    assert_eq!((reasons[0], reasons[1], reasons[3]), ("a test", "a test", "a test"), "{flips:?}");
}

#[tokio::test]
async fn flips_survive_a_restart() {
    let world = World::with(&["v1-a", "v2-a"], |conf| {
        conf.weights(&ALL_V1);
    })
    .await;
    world.gateway.set_weights(&ALL_V2).await;
    let before = world.gateway.admin_get("/v1/traffic").await;
    world.gateway.restart().await;
    assert_eq!(world.gateway.admin_get("/v1/traffic").await, before);
    assert_eq!(world.version_of("u1").await, "v2");
    let history = world.gateway.admin_get("/v1/history").await;
    assert!(history.to_string().contains("a test"), "the audit stays: {history}");
}

/// `users` with v3 in the place of v2, and all traffic on it.
fn renamed(world: &World) -> (Value, Value) {
    let rename = |document: &Value| {
        serde_json::from_str(&document.to_string().replace("\"v2\":", "\"v3\":")).unwrap_or_default()
    };
    let (routing, mut traffic): (Value, Value) =
        (rename(&world.gateway.conf.routing), rename(&world.gateway.conf.traffic));
    traffic["services"]["users"]["weights"] = json!({"v1": "0%", "v3": "100%"});
    (routing, traffic)
}

#[tokio::test]
async fn documents_that_fit_only_together_come_into_force_together() {
    for (number, pause) in [Duration::ZERO, Duration::from_millis(300)].into_iter().enumerate() {
        for routing_first in [true, false] {
            let world = World::with(&["v1-a", "v2-a"], |conf| {
                conf.weights(&ALL_V1);
            })
            .await;
            let (routing, traffic) = renamed(&world);
            let steps: [&dyn Fn(); 2] =
                [&|| world.gateway.write_routing(&routing), &|| world.gateway.write_traffic(&traffic)];
            let order = if routing_first { [0, 1] } else { [1, 0] };
            for at in order {
                steps[at]();
                // As somebody who copies one file and then the other.
                tokio::time::sleep(pause).await;
            }
            wait::until(format!("both ({number}, routing first: {routing_first})"), || async {
                let weights = world.gateway.admin_get("/v1/traffic").await["services"]["users"]["weights"].clone();
                (weights["v3"] == "100%").then_some(())
            })
            .await;
            let ready = world.gateway.admin_get("/readyz?verbose").await;
            for document in ["routing", "traffic"] {
                assert!(ready["documents"][document]["refused"].is_null(), "{ready}");
            }
        }
    }
}

#[tokio::test]
async fn what_cannot_be_written_is_in_force_and_written_later() {
    let world = World::with(&["v1-a", "v2-a"], |conf| {
        conf.weights(&ALL_V1);
    })
    .await;
    let file = world.gateway.dir().join("traffic.yaml");
    // Nothing can be moved onto a directory that is not empty.
    std::fs::rename(&file, file.with_extension("aside")).unwrap();
    std::fs::create_dir_all(file.join("x")).unwrap();
    world.gateway.set_weights(&ALL_V2).await;
    assert_eq!(world.version_of("u1").await, "v2", "in force");
    let ready = world.gateway.admin_get("/readyz?verbose").await;
    assert!(ready["documents"]["traffic"]["not_written"].is_string(), "{ready}");
    std::fs::remove_dir_all(&file).unwrap();
    std::fs::rename(file.with_extension("aside"), &file).unwrap();
    wait::until("it to be written", || async {
        std::fs::read_to_string(&file).unwrap_or_default().contains("\"v2\": \"100%\"").then_some(())
    })
    .await;
    assert_eq!(world.version_of("u1").await, "v2", "it stays in force");
    let ready = world.gateway.admin_get("/readyz?verbose").await;
    assert!(ready["documents"]["traffic"]["not_written"].is_null(), "{ready}");
}

#[tokio::test]
async fn a_flip_overwrites_no_edit_that_nobody_has_seen_yet() {
    let world = World::with(&["v1-a", "v2-a"], |conf| {
        conf.weights(&ALL_V1);
    })
    .await;
    for round in 0..20 {
        let share = format!("{}%", round + 1);
        let rest = format!("{}%", 99 - round);
        let mut traffic = world.gateway.conf.traffic.clone();
        traffic["services"]["users"]["weights"] = json!({"v1": rest, "v2": share});
        world.gateway.write_traffic(&traffic);
        let body = json!({"on": round % 2 == 0, "service": null, "reason": "a test"});
        let _ = world.gateway.admin_send("PUT", "/v1/switches/balancer", &body).await.expect(200);
        let now = world.gateway.admin_get("/v1/traffic").await;
        assert_eq!(now["services"]["users"]["weights"]["v2"], share, "round {round}: {now}");
    }
}

#[tokio::test]
async fn a_link_stays_a_link_and_what_it_points_to_is_followed() {
    let world = World::start().await;
    let file = world.gateway.dir().join("traffic.yaml");
    let (one, two) = (world.gateway.dir().join("one.yaml"), world.gateway.dir().join("two.yaml"));
    std::fs::rename(&file, &one).unwrap();
    std::os::unix::fs::symlink("one.yaml", &file).unwrap();
    world.gateway.set_weights(&ALL_V2).await;
    assert!(file.symlink_metadata().unwrap().is_symlink(), "the flip wrote through the link");
    let text = std::fs::read_to_string(&one).unwrap();
    assert!(text.contains("\"v2\": \"100%\""), "{text}");
    // As a ConfigMap changes: another target, and the link is moved over.
    std::fs::write(
        &two,
        text.replace("\"v2\": \"100%\"", "\"v2\": \"0%\"").replace("\"v1\": \"0%\"", "\"v1\": \"100%\""),
    )
    .unwrap();
    std::os::unix::fs::symlink("two.yaml", file.with_extension("new")).unwrap();
    std::fs::rename(file.with_extension("new"), &file).unwrap();
    wait::until("the other document", || async { (world.version_of("u1").await == "v1").then_some(()) }).await;
}

#[tokio::test]
async fn a_rollback_is_one_step() {
    let world = World::with(&["v1-a", "v2-a"], |conf| {
        conf.weights(&ALL_V1);
    })
    .await;
    world.gateway.set_weights(&ALL_V2).await;
    let (good, weights) = {
        let traffic = world.gateway.admin_get("/v1/traffic").await;
        (traffic["revision"].as_u64().unwrap(), traffic["services"].clone())
    };
    for by_cli in [false, true] {
        world.gateway.set_weights(&[("v1", "50%"), ("v2", "50%")]).await;
        world.gateway.set_switch("canary", true, None).await;
        let latest = world.gateway.traffic_revision().await;
        if by_cli {
            let _ = world.gateway.cli(&["rollback", &good.to_string()]).await.expect(0);
        } else {
            let body = json!({"revision": good, "reason": "it was better"});
            let _ = world.gateway.admin_send("POST", "/v1/rollback", &body).await.expect(200);
        }
        let traffic = world.gateway.admin_get("/v1/traffic").await;
        assert_eq!(traffic["services"], weights);
        assert_eq!(traffic["switches"]["canary"], json!(false), "the whole document goes back: {traffic}");
        assert_eq!(traffic["revision"], latest + 1, "a rollback is a revision too");
        assert_eq!(world.version_of("u1").await, "v2");
    }
    let unknown = world.gateway.admin_send("POST", "/v1/rollback", &json!({"revision": 999_999})).await;
    assert!(unknown.status.is_client_error(), "{}", unknown.status);
}

#[tokio::test]
async fn a_stale_etag_is_refused() {
    let world = World::start().await;
    let reply = world.gateway.admin(Call::get("/v1/traffic")).await.expect(200);
    let (fresh, document) = (reply.header("etag").to_owned(), reply.json());
    assert_eq!(fresh, format!("\"{}\"", document["revision"]));

    let put = || with_json("PUT", "/v1/traffic", &document);
    let without = world.gateway.admin(put()).await;
    assert_eq!(without.status, 428, "PUT needs If-Match: {}", without.text());
    let weights = json!({"weights": conf::shares(&ALL_V2)});
    let calls = [
        put(),
        with_json("PATCH", "/v1/traffic/services/users", &weights),
        with_json("PUT", "/v1/switches/canary", &json!({"on": true, "service": null})),
        with_json("POST", "/v1/rollback", &json!({"revision": document["revision"]})),
    ];
    for call in calls {
        let stale = world.gateway.admin(call.clone().header("if-match", "\"424242\"")).await;
        assert_eq!(stale.status, 412, "{call:?}: {}", stale.text());
        assert_eq!(world.gateway.admin_get("/v1/traffic").await, document, "nothing changed");
    }
    let call = with_json("PATCH", "/v1/traffic/services/users", &weights).header("if-match", &fresh);
    let taken = world.gateway.admin(call).await.expect(200);
    assert_ne!(taken.header("etag"), fresh);
    assert_eq!(taken.header("etag"), format!("\"{}\"", world.gateway.traffic_revision().await));
    let _ = world.gateway.admin(put().header("if-match", taken.header("etag"))).await.expect(200);
    assert_eq!(world.gateway.admin_get("/v1/traffic").await["services"], document["services"]);
}

#[tokio::test]
async fn simultaneous_flips_are_taken_one_by_one() {
    let world = World::start().await;
    let before = world.gateway.traffic_revision().await;
    let flips = (1..=20).map(|share| {
        let (rest, share) = (format!("{}%", 100 - share), format!("{share}%"));
        let gateway = &world.gateway;
        async move { gateway.set_weights(&[("v1", &rest), ("v2", &share)]).await.json()["revision"].as_u64() }
    });
    let mut revisions = futures_util::future::join_all(flips).await;
    revisions.sort();
    assert_eq!(revisions, (before + 1..=before + 20).map(Some).collect::<Vec<_>>());
}

#[tokio::test]
async fn at_most_a_thousand_revisions_are_kept() {
    let world = World::start().await;
    let first = world.gateway.traffic_revision().await;
    let address = world.gateway.admin_address();
    let mut admin = Conn::http1(address).await;
    for number in 0..1_010 {
        let weights = conf::shares(if number % 2 == 0 { &ALL_V2 } else { &ALL_V1 });
        let body = json!({"weights": weights, "reason": format!("flip {number}")});
        let call = with_json("PATCH", "/v1/traffic/services/users", &body).host(&address.to_string());
        let _ = call.on(&mut admin).await.expect(200);
    }
    let history = world.gateway.admin_get("/v1/history").await;
    assert!(history["entries"].as_array().unwrap().len() <= 1_000);
    let last = world.gateway.traffic_revision().await;
    assert_eq!(last, first + 1_010);
    let rollback = |revision: u64| json!({"revision": revision, "reason": "far back"});
    let gone = world.gateway.admin_send("POST", "/v1/rollback", &rollback(first)).await;
    assert!(gone.status.is_client_error(), "{}: {}", gone.status, gone.text());
    let _ = world.gateway.admin_send("POST", "/v1/rollback", &rollback(last - 990)).await.expect(200);
}

#[tokio::test]
async fn preview_says_exactly_who_would_move() {
    let world = World::start().await;
    let cases = [
        ([("v1", "85.5%"), ("v2", "14.5%")], "4.50%", json!([{"from": "v1", "to": "v2", "share": "4.50%"}])),
        ([("v1", "100%"), ("v2", "0%")], "10.00%", json!([{"from": "v2", "to": "v1", "share": "10.00%"}])),
        ([("v1", "90%"), ("v2", "10%")], "0.00%", json!([])),
    ];
    let percent = |value: &Value| value.as_str().unwrap().trim_end_matches('%').parse::<f64>().unwrap();
    for (weights, moved, moves) in cases {
        let body = json!({"service": "users", "weights": conf::shares(&weights)});
        let preview = world.gateway.admin_send("POST", "/v1/preview", &body).await.expect(200).json();
        assert_eq!(preview["service"], "users");
        assert!((percent(&preview["moved"]) - percent(&json!(moved))).abs() < 0.005, "{weights:?}: {preview}");
        let shown = preview["moves"].as_array().unwrap();
        assert_eq!(shown.len(), moves.as_array().unwrap().len(), "{weights:?}: {preview}");
        for (shown, wanted) in shown.iter().zip(moves.as_array().unwrap()) {
            assert_eq!((&shown["from"], &shown["to"]), (&wanted["from"], &wanted["to"]));
            assert!((percent(&shown["share"]) - percent(&wanted["share"])).abs() < 0.005, "{weights:?}: {preview}");
        }
    }
    assert_eq!(world.gateway.traffic_revision().await, 1, "a preview flips nothing");
}
