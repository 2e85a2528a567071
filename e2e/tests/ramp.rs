//! Promise: a guarded ramp takes a version to its users step by step, goes back by itself when a guard breaks, waits when
//! there is too little to tell by, and never fights an operator.

#![expect(clippy::unwrap_used, reason = "tests may panic in their helpers as well")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use serin_e2e::client::{Call, Conn};
use serin_e2e::{Behaviour, World, wait, world};
use tokio::task::JoinHandle;

/// Between the breach being visible in the numbers and all traffic being on stable.
const IN_FORCE: Duration = Duration::from_secs(2);

/// Users who ask without a pause until they are stopped.
struct Load {
    stop: Arc<AtomicBool>,
    failed: Arc<AtomicU64>,
    tasks: Vec<JoinHandle<()>>,
}

impl Load {
    fn start(world: &World) -> Self {
        let (stop, failed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let address = world.http();
        let spawn = |number: usize| {
            let (stop, failed) = (Arc::clone(&stop), Arc::clone(&failed));
            tokio::spawn(async move {
                let mut conn = Conn::http1(address).await;
                let mut user = number;
                while !stop.load(Relaxed) {
                    user += 8;
                    let reply = Call::get("/").user(format!("u{user}")).try_on(&mut conn).await;
                    if !reply.as_ref().is_ok_and(|reply| reply.status == 200) {
                        failed.fetch_add(1, Relaxed);
                    }
                    if reply.is_err() {
                        conn = Conn::http1(address).await;
                    }
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            })
        };
        Self { tasks: (0..8).map(spawn).collect(), stop, failed }
    }

    fn failed(&self) -> u64 {
        self.failed.load(Relaxed)
    }

    async fn finish(self) -> u64 {
        self.stop.store(true, Relaxed);
        for task in self.tasks {
            task.await.unwrap();
        }
        self.failed.load(Relaxed)
    }
}

async fn start_world() -> World {
    World::with(&["v1-a", "v2-a"], |conf| {
        conf.weights(&[("v1", "100%"), ("v2", "0%")]);
        conf.service("users")["retry"] = json!({"attempts": 1});
    })
    .await
}

/// Starts a ramp by the command line.
async fn ramp(world: &World, steps: &str, every: &str, least: &str, guards: &[&str]) {
    let mut args = vec!["ramp", "start", "users", "--to", "v2", "--steps", steps, "--every", every];
    args.extend(["--min-requests", least, "--reason", "the first try"]);
    args.extend(guards.iter().flat_map(|guard| ["--guard", guard]));
    let done = world.gateway.cli(&args).await.expect(0);
    assert!(done.stdout.contains("users: ramp to v2, running, step 1 of "), "{done:?}");
}

async fn state(world: &World) -> Value {
    world.gateway.admin_get("/v1/ramps/users").await
}

/// The ramp once it is in a state.
async fn reaches(world: &World, wanted: &str) -> Value {
    wait::until(format!("the ramp to be {wanted}"), || async {
        let view = state(world).await;
        (view["ramp"]["state"] == wanted).then_some(view)
    })
    .await
}

/// Asserts that new requests all go to v1.
async fn all_on_stable(world: &World) {
    let origins = world.burst(40).await;
    assert!(origins.iter().all(|origin| world::version(origin) == "v1"), "{origins:?}");
}

async fn weight(world: &World) -> Value {
    world.gateway.admin_get("/v1/traffic").await["services"]["users"]["weights"]["v2"].clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_good_version_gets_to_all_users_and_no_request_fails() {
    let world = start_world().await;
    let load = Load::start(&world);
    ramp(&world, "10%,50%,90%", "1s", "20", &["success_rate >= 99%", "p99 <= 50 x stable"]).await;
    wait::until("its first look", || async { state(&world).await["requests"].is_u64().then_some(()) }).await;
    let shown = world.gateway.cli(&["ramp", "status", "users"]).await.expect(0).stdout;
    for part in ["users: v1 -> v2, running", "10%", "90%", "success_rate >= 99%", "requests to v2 (at least 20)"] {
        assert!(shown.contains(part), "no {part:?} in\n{shown}");
    }
    let get = world.gateway.cli(&["canary", "get", "users"]).await.expect(0).stdout;
    assert!(get.contains("ramp to v2, running"), "{get}");
    let done = reaches(&world, "done").await;
    assert_eq!((&done["ramp"]["step"], &done["weight"]), (&json!(2), &json!("90%")));
    assert_eq!(load.finish().await, 0, "failed requests");
    let metrics = world.gateway.metrics().await;
    assert!((metrics.sum("serin_ramp_step", &["service=\"users\""]) - 3.0).abs() < 0.1, "{}", metrics.0);
    assert!((metrics.sum("serin_ramp_state", &["state=\"done\""]) - 1.0).abs() < 0.1, "{}", metrics.0);

    let history = world.gateway.admin_get("/v1/history").await;
    let entries = history["entries"].as_array().unwrap().iter();
    let by_ramp: Vec<_> = entries
        .filter(|entry| entry["by"] == "ramp" && entry["action"] != "ramp users hold")
        .map(|entry| &entry["reason"])
        .collect();
    let wanted = ["all 3 steps have lasted with every guard good", "step 3 of 3: 90% to v2", "step 2 of 3: 50% to v2"];
    assert_eq!(by_ramp, wanted, "{history}");
    assert!(history.to_string().contains("the first try"), "who started it said why");
    let again = world.gateway.cli(&["ramp", "pause", "users"]).await.expect(1);
    assert!(again.stderr.contains("is done"), "{again:?}");
}

/// Breaks v2 and waits until everything is on v1; answers with the ramp.
async fn breach(world: &World, guard: &str, behaviour: Behaviour) -> (Value, u64) {
    let load = Load::start(world);
    ramp(world, "20%,100%", "1m", "20", &[guard]).await;
    wait::until("good figures", || async { (state(world).await["guards"][0]["good"] == true).then_some(()) }).await;
    let before = load.failed();
    world.origin("v2-a").set(behaviour);
    let visible = wait::until("a broken guard or its end", || async {
        let view = state(world).await;
        (view["guards"][0]["good"] == false || view["ramp"]["state"] == "aborted").then(Instant::now)
    })
    .await;
    let view = reaches(world, "aborted").await;
    let took = visible.elapsed();
    all_on_stable(world).await;
    assert!(took <= IN_FORCE, "took {took:?}");
    assert_eq!(before, 0, "nothing failed before v2 broke");
    let at_abort = load.failed();
    all_on_stable(world).await;
    // Those that were under way to v2 may still end; nothing else may.
    let failed = load.finish().await;
    assert!(failed <= at_abort + 8, "{failed} failed, {at_abort} of them before everything was on stable");
    (view, failed)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_send_everything_to_stable_and_say_why() {
    let world = start_world().await;
    let (view, failed) = breach(&world, "success_rate >= 95%", Behaviour::Status(500)).await;
    let reason = view["ramp"]["reason"].as_str().unwrap();
    assert!(reason.starts_with("success_rate >= 95% is broken: ") && reason.contains(" requests "), "{reason}");
    assert!(failed > 0, "the version did fail");
    let history = world.gateway.admin_get("/v1/history").await;
    let entry = &history["entries"][0];
    assert_eq!(
        (&entry["by"], &entry["action"], &entry["reason"]),
        (&json!("ramp"), &json!("ramp users abort"), &json!(reason))
    );
    let shown = world.gateway.cli(&["ramp", "status"]).await.expect(0).stdout;
    assert!(shown.contains(&format!("why: {reason}")), "{shown}");
    let traffic = world.gateway.admin_get("/v1/traffic").await;
    assert_eq!(traffic["services"]["users"]["weights"], json!({"v1": "100%", "v2": "0%"}), "{traffic}");
    world.origin("v2-a").set(Behaviour::Describe);
    ramp(&world, "100%", "1m", "20", &[]).await;
    wait::until("v2", || async { (world.version_of("u1").await == "v2").then_some(()) }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slowness_sends_everything_to_stable_and_no_request_fails() {
    let world = start_world().await;
    let slow = Behaviour::Delay(Duration::from_secs(3));
    let (view, failed) = breach(&world, "p99 <= 10 x stable", slow).await;
    assert!(view["ramp"]["reason"].as_str().unwrap().starts_with("p99 <= 10 x stable is broken: "), "{view}");
    assert_eq!(failed, 0, "failed requests");
}

#[tokio::test]
async fn too_little_data_holds() {
    let world = start_world().await;
    ramp(&world, "50%,100%", "1s", "1000", &["success_rate >= 99%"]).await;
    world.origin("v2-a").set(Behaviour::Status(500));
    for user in 0..30 {
        let _ = world.send(Call::get("/").user(format!("u{user}"))).await;
    }
    let view = reaches(&world, "held").await;
    assert!(view["ramp"]["reason"].as_str().unwrap().contains(" of 1000 requests to the target"), "{view}");
    assert_eq!(weight(&world).await, "50%");
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    assert_eq!((state(&world).await["ramp"]["state"].clone(), weight(&world).await), (json!("held"), json!("50%")));
    let shown = world.gateway.cli(&["ramp", "status", "users"]).await.expect(0).stdout;
    assert!(shown.contains("held: ") && shown.contains("too little to tell: success_rate >= 99%"), "{shown}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pause_resume_and_abort() {
    let world = start_world().await;
    let load = Load::start(&world);
    ramp(&world, "10%,50%", "3s", "5", &[]).await;
    let done = world.gateway.cli(&["ramp", "pause", "users", "--reason", "lunch"]).await.expect(0);
    assert!(done.stdout.contains("paused, step 1 of 2 (10%)"), "{done:?}");
    tokio::time::sleep(Duration::from_millis(3_500)).await;
    let view = state(&world).await;
    assert_eq!((&view["ramp"]["state"], &view["weight"]), (&json!("paused"), &json!("10%")));
    assert!(view["ramp"]["reason"].as_str().unwrap().ends_with(": lunch"), "{view}");
    let resumed = Instant::now();
    let _ = world.gateway.cli(&["ramp", "resume", "users"]).await.expect(0);
    wait::until("the next step", || async { (weight(&world).await == "50%").then_some(()) }).await;
    assert!(resumed.elapsed() >= Duration::from_millis(2_950), "the step's time begins anew: {:?}", resumed.elapsed());
    let _ = world.gateway.cli(&["ramp", "abort", "users", "--reason", "enough"]).await.expect(0);
    all_on_stable(&world).await;
    assert_eq!(state(&world).await["ramp"]["state"], "aborted");
    assert_eq!(load.finish().await, 0, "failed requests");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_goes_on_at_the_same_step() {
    let world = start_world().await;
    ramp(&world, "10%,50%,100%", "2s", "5", &[]).await;
    let load = Load::start(&world);
    wait::until("step 2", || async { (weight(&world).await == "50%").then_some(()) }).await;
    let _ = world.gateway.cli(&["ramp", "pause", "users"]).await.expect(0);
    load.finish().await;
    let _ = world.gateway.cli(&["ramp", "resume", "users"]).await.expect(0);
    // Killed, and started again on its files.
    world.gateway.restart().await;
    let view = state(&world).await;
    assert_eq!((&view["ramp"]["step"], &view["weight"]), (&json!(1), &json!("50%")), "{view}");
    let view = reaches(&world, "held").await;
    assert_eq!((&view["ramp"]["step"], weight(&world).await), (&json!(1), json!("50%")), "time alone skips no step");
    let load = Load::start(&world);
    reaches(&world, "done").await;
    assert_eq!((load.finish().await, weight(&world).await), (0, json!("100%")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_has_the_last_word() {
    let world = start_world().await;
    let load = Load::start(&world);
    ramp(&world, "10%,50%", "2s", "5", &[]).await;
    let reply = world.gateway.set_weights(&[("v1", "70%"), ("v2", "30%")]).await.json();
    assert_eq!(reply["traffic"]["services"]["users"]["ramp"]["state"], "paused", "it says so: {reply}");
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    let view = state(&world).await;
    assert_eq!((&view["ramp"]["state"], &view["weight"]), (&json!("paused"), &json!("30%")));
    assert!(view["ramp"]["reason"].as_str().unwrap().contains("the weights were changed by"), "{view}");

    let _ = world.gateway.cli(&["ramp", "resume", "users"]).await.expect(0);
    let before = world.gateway.traffic_revision().await - 2;
    world.gateway.set_switch("canary", true, None).await;
    let refused = world.gateway.cli(&["ramp", "resume", "users"]).await.expect(1);
    assert!(refused.stderr.contains("the canary switch is on"), "{refused:?}");
    world.gateway.set_switch("canary", false, None).await;
    let _ = world.gateway.cli(&["ramp", "resume", "users"]).await.expect(0);
    let _ = world.gateway.cli(&["rollback", &before.to_string()]).await.expect(0);
    let view = state(&world).await;
    assert_eq!(view["ramp"]["state"], "paused", "{view}");

    let _ = world.gateway.cli(&["ramp", "resume", "users"]).await.expect(0);
    let mut traffic = world.gateway.admin_get("/v1/traffic").await;
    traffic["services"]["users"]["weights"] = json!({"v1": "95%", "v2": "5%"});
    world.gateway.write_traffic(&traffic);
    let view = reaches(&world, "paused").await;
    assert!(view["ramp"]["reason"].as_str().unwrap().contains("by an edit of the file"), "{view}");
    assert_eq!(load.finish().await, 0, "failed requests");
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_and_says_what_was_expected() {
    let world = start_world().await;
    let cases: [(&[&str], &str); 7] = [
        (&["--to", "v9"], "unknown subset `v9`"),
        (&["--to", "v1"], "is the stable subset"),
        (&["--to", "v2", "--steps", "5%,1%"], "expected steps that ascend"),
        (&["--to", "v2", "--steps", "200%"], "a percentage such as"),
        (&["--to", "v2", "--guard", "p95 <= 1s"], "`p99`"),
        (&["--to", "v2", "--guard", "p99 <= 10%"], "a duration such as"),
        (&["--to", "v2", "--every", "0s"], "a duration such as"),
    ];
    for (args, part) in cases {
        let args = [&["ramp", "start", "users"], args].concat();
        let done = world.gateway.cli(&args).await;
        assert!(done.code != 0 && done.stderr.contains(part), "{args:?} should tell {part}: {done:?}");
    }
    assert_eq!(world.gateway.traffic_revision().await, 1);
    for path in ["/v1/ramps/users", "/v1/ramps/nobody"] {
        let _ = world.gateway.admin(Call::get(path)).await.expect(404);
    }
    assert_eq!(world.gateway.admin_get("/v1/ramps").await, json!({"ramps": []}));
}
