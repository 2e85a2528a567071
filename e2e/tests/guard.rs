//! Promise: what fails is taken out, what recovers comes back slowly, and a failing version or a retry storm does no more
//! harm than it must. Ejections and breakers have short times here, so that a test sees them end.

#![expect(clippy::unwrap_used, reason = "tests may panic in their helpers as well")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use serin_e2e::client::{Call, Conn, all_at_once};
use serin_e2e::origin::Behaviour;
use serin_e2e::{Conf, World, wait};

/// What clients got.
#[derive(Default)]
struct Ledger {
    sent: AtomicU64,
    failed: AtomicU64,
    over: AtomicBool,
}

impl Ledger {
    fn counts(&self) -> (u64, u64) {
        (self.sent.load(Relaxed), self.failed.load(Relaxed))
    }

    /// Waits until so many more requests were answered; how many of them failed.
    async fn failed_of_next(&self, count: u64) -> (u64, u64) {
        let (sent, failed) = self.counts();
        wait::until(format!("{count} more requests"), || async { (self.counts().0 >= sent + count).then_some(()) })
            .await;
        let (now_sent, now_failed) = self.counts();
        (now_sent - sent, now_failed - failed)
    }
}

/// Sends `GET /` of many users over and over on eight connections, until the ledger is over.
fn load(world: &World) -> Arc<Ledger> {
    let (ledger, http) = (Arc::new(Ledger::default()), world.http());
    for client in 0..8 {
        let ledger = Arc::clone(&ledger);
        tokio::spawn(async move {
            let mut conn = Conn::http1(http).await;
            let mut number = client;
            while !ledger.over.load(Relaxed) {
                number += 8;
                let call = Call::get("/").user(format!("u{number}"));
                match call.try_on(&mut conn).await {
                    Ok(reply) if reply.status == 200 => {}
                    Ok(_) => drop(ledger.failed.fetch_add(1, Relaxed)),
                    Err(_) => {
                        ledger.failed.fetch_add(1, Relaxed);
                        conn = Conn::http1(http).await;
                    }
                }
                ledger.sent.fetch_add(1, Relaxed);
            }
        });
    }
    ledger
}

async fn service(world: &World) -> Value {
    world.gateway.admin_get("/v1/services/users").await
}

/// What the API shows of the instance of an origin.
async fn instance(world: &World, origin: &str) -> Value {
    let address = world.origin(origin).address.to_string();
    let view = service(world).await;
    view["instances"].as_array().unwrap().iter().find(|instance| instance["address"] == address).unwrap().clone()
}

/// What the API shows of a subset.
async fn subset(world: &World, name: &str) -> Value {
    let view = service(world).await;
    view["subsets"].as_array().unwrap().iter().find(|subset| subset["name"] == name).unwrap().clone()
}

async fn until_health(world: &World, origin: &str, health: &str) -> Value {
    wait::until(format!("{origin} to be {health}"), || async {
        Some(instance(world, origin).await).filter(|instance| instance["health"] == health)
    })
    .await
}

fn all_v1(conf: &mut Conf) {
    conf.weights(&[("v1", "100%"), ("v2", "0%")]);
}

#[tokio::test]
async fn an_upstream_that_dies_under_load_costs_next_to_nothing() {
    let mut world = World::with(&["v1-a", "v1-b", "v1-c"], |conf| {
        all_v1(conf);
        conf.service("users")["outlier_detection"] = json!({"consecutive_local": 3, "base_ejection": "60s"});
    })
    .await;
    let ledger = load(&world);
    ledger.failed_of_next(500).await;
    let dead = world.origins.iter().position(|origin| origin.name == "v1-b").unwrap();
    world.origins[dead].stop().await;
    until_health(&world, "v1-b", "ejected").await;
    let attempts = || async {
        let label = format!("instance=\"{}\"", world.origin("v1-b").address);
        world.gateway.metrics().await.sum("serin_selections_total", &[&label])
    };
    // Those that were picked before it was ejected have ended when others were sent after them.
    let before = ledger.failed_of_next(50).await;
    let picked = attempts().await;
    let (_, failed) = ledger.failed_of_next(1_500).await;
    assert_eq!(failed, 0, "after the ejection");
    assert!((attempts().await - picked).abs() < 0.1, "it was picked after its ejection");
    ledger.over.store(true, Relaxed);
    let (sent, failed) = ledger.counts();
    assert!(failed * 1_000 <= sent, "{failed} of {sent} failed, {before:?}");
    let metrics = world.gateway.metrics().await;
    assert!(
        (metrics.sum("serin_ejections_total", &["cause=\"consecutive_local\""]) - 1.0).abs() < 0.1,
        "{}",
        metrics.0
    );
    let address = format!("instance=\"{}\"", world.origin("v1-b").address);
    assert_eq!(metrics.samples("serin_instance_healthy").find(|(labels, _)| labels.contains(&address)).unwrap().1, 0.0);
}

#[tokio::test]
async fn a_canary_that_fails_altogether_is_hardly_noticed() {
    let world = World::with(&["v1-a", "v1-b", "v2-a"], |conf| {
        conf.weights(&[("v1", "50%"), ("v2", "50%")]);
        conf.service("users")["circuit_breaker"] =
            json!({"min_calls": 10, "window": "2s", "open": "500ms", "max_open": "1s", "half_open_probes": 1});
    })
    .await;
    let ledger = load(&world);
    let (_, failed) = ledger.failed_of_next(300).await;
    assert_eq!(failed, 0);
    let start = Instant::now();
    world.origin("v2-a").set(Behaviour::Status(500));
    wait::until("two seconds of it", || async { (start.elapsed() > Duration::from_secs(2)).then_some(()) }).await;
    let (sent, failed) = ledger.failed_of_next(1_000).await;
    assert!(failed * 100 < sent, "{failed} of {sent} failed after 2 s");
    wait::until("an open breaker", || async {
        (subset(&world, "v2").await["breaker"]["state"] == "open").then_some(())
    })
    .await;
    let explained = world.gateway.explain("GET", "http://api.example.com/", &[("x-user-id", "u1")]).await;
    assert!(explained["guards"]["breakers"]["v2"].is_string(), "{explained}");
    let metrics = world.gateway.metrics().await;
    assert!(metrics.sum("serin_fallbacks_total", &["reason=\"breaker_open\""]) > 0.0, "{}", metrics.0);
    assert!(metrics.sum("serin_breaker_transitions_total", &["subset=\"v2\"", "to=\"half_open\""]) > 0.0);
    assert!(world.gateway.output().contains("circuit breaker"), "{}", world.gateway.output());

    world.origin("v2-a").set(Behaviour::Describe);
    wait::until("the breaker to close again", || async {
        (subset(&world, "v2").await["breaker"]["state"] == "closed").then_some(())
    })
    .await;
    let before = world.origin("v2-a").hits();
    let (sent, failed) = ledger.failed_of_next(400).await;
    ledger.over.store(true, Relaxed);
    assert_eq!(failed, 0);
    let share = (world.origin("v2-a").hits() - before) as f64 / sent as f64;
    assert!((0.35..0.65).contains(&share), "v2 has its half again: {share}");
}

#[tokio::test]
async fn a_canary_of_one_is_ejected_by_its_traffic_and_falls_back() {
    let world = World::with(&["v1-a", "v2-a"], |conf| {
        conf.weights(&[("v1", "50%"), ("v2", "50%")]);
        conf.service("users")["outlier_detection"] = json!({"consecutive_5xx": 3, "base_ejection": "1s"});
    })
    .await;
    world.origin("v2-a").set(Behaviour::Status(500));
    let ledger = load(&world);
    until_health(&world, "v2-a", "ejected").await;
    let (_, failed) = ledger.failed_of_next(100).await;
    assert!(failed <= 3, "{failed} of 100 failed beside an ejected canary");
    let metrics = world.gateway.metrics().await;
    assert!(metrics.sum("serin_fallbacks_total", &["subset=\"v2\"", "reason=\"all_unhealthy\""]) > 0.0);
    world.origin("v2-a").set(Behaviour::Describe);
    until_health(&world, "v2-a", "healthy").await;
    ledger.over.store(true, Relaxed);
}

#[tokio::test]
async fn an_open_breaker_without_a_fallback_says_when_to_come_back_and_survives_a_reload() {
    let world = World::with(&["v1-a"], |conf| {
        all_v1(conf);
        conf.service("users")["circuit_breaker"] = json!({"min_calls": 3, "open": "30s"});
    })
    .await;
    world.origin("v1-a").set(Behaviour::Status(500));
    let mut conn = Conn::http1(world.http()).await;
    for _ in 0..3 {
        let _ = Call::get("/").on(&mut conn).await.expect(500);
    }
    let refused = Call::get("/").on(&mut conn).await.expect(503);
    let after: u64 = refused.header("retry-after").parse().unwrap();
    assert!((1..=30).contains(&after), "{after}");
    assert_eq!(world.origin("v1-a").hits(), 3);
    // Something else changes, and then the breaker itself is tuned.
    for (key, value) in [("salt", json!("another")), ("circuit_breaker", json!({"min_calls": 4, "open": "20s"}))] {
        let mut routing = world.gateway.conf.routing.clone();
        routing["services"]["users"][key] = value;
        let before = world.gateway.admin_get("/readyz?verbose").await["documents"]["routing"]["revision"].clone();
        world.gateway.write_routing(&routing);
        wait::until("the new document", || async {
            (world.gateway.admin_get("/readyz?verbose").await["documents"]["routing"]["revision"] != before)
                .then_some(())
        })
        .await;
        let _ = Call::get("/").on(&mut conn).await.expect(503);
        assert_eq!(world.origin("v1-a").hits(), 3, "the breaker is open as it was after a change of {key}");
    }
}

#[tokio::test]
async fn a_retry_storm_is_a_fifth_more_load() {
    let world = World::with(&["v1-a", "v1-b"], |conf| {
        all_v1(conf);
        conf.service("users")["retry"] = json!({
            "attempts": 3, "on": ["503"], "across": "same",
            "budget": {"percent": "20%", "min_per_second": 0}, "backoff": {"base": "2ms", "max": "10ms"},
        });
    })
    .await;
    world.origins.iter().for_each(|origin| origin.set(Behaviour::Status(503)));
    let mut conn = Conn::http1(world.http()).await;
    for _ in 0..500 {
        let _ = Call::get("/").on(&mut conn).await.expect(503);
    }
    let hits: u64 = world.origins.iter().map(serin_e2e::Origin::hits).sum();
    assert!((550..=600).contains(&hits), "{hits} for 500 requests");
    let metrics = world.gateway.metrics().await;
    assert!(metrics.sum("serin_retry_budget_exhausted_total", &["service=\"users\""]) > 300.0, "{}", metrics.0);
}

#[tokio::test]
async fn when_too_many_are_out_health_is_ignored() {
    let world = World::with(&["v1-a", "v1-b", "v1-c"], |conf| {
        all_v1(conf);
        conf.service("users")["outlier_detection"] =
            json!({"consecutive_5xx": 3, "base_ejection": "60s", "max_ejection_percent": "100%"});
    })
    .await;
    world.origins.iter().for_each(|origin| origin.set(Behaviour::Status(500)));
    let mut conn = Conn::http1(world.http()).await;
    wait::until("a panic", || async {
        let _ = Call::get("/").to(world.http()).await;
        (subset(&world, "v1").await["panic"] == true).then_some(())
    })
    .await;
    let view = service(&world).await;
    let ejected = view["instances"].as_array().unwrap().iter().filter(|i| i["health"] == "ejected").count();
    assert_eq!(ejected, 2, "the last one is never ejected: {view}");
    world.origins.iter().for_each(|origin| origin.set(Behaviour::Describe));
    let mut served: Vec<_> = vec![];
    for _ in 0..9 {
        served.push(Call::get("/").on(&mut conn).await.origin());
    }
    served.sort();
    served.dedup();
    assert_eq!(served.len(), 3, "all of them serve: {served:?}");
    let explained = world.gateway.explain("GET", "http://api.example.com/", &[]).await;
    assert_eq!(explained["guards"]["panic"], true, "{explained}");
    assert_eq!(explained["guards"]["instances"].as_array().unwrap().len(), 2, "{explained}");
    assert!(world.gateway.metrics().await.sum("serin_panic_total", &["subset=\"v1\""]) >= 9.0);
    let shown = world.gateway.cli(&["instances"]).await.expect(0).stdout;
    assert!(shown.contains("ejected by consecutive_5xx") && shown.contains("panic: health is ignored"), "{shown}");
}

#[tokio::test]
async fn who_comes_back_begins_slowly() {
    let world = World::with(&["v1-a", "v1-b", "v1-c", "v1-d"], |conf| {
        all_v1(conf);
        let service = conf.service("users");
        service["balancer"] = json!(["random"]);
        service["outlier_detection"] = json!({"consecutive_5xx": 3, "base_ejection": "300ms"});
        service["slow_start"] = json!({"window": "2s", "initial": "10%"});
    })
    .await;
    let ledger = load(&world);
    ledger.failed_of_next(100).await;
    assert_eq!(instance(&world, "v1-a").await["weight_in_force"], 100.0, "nobody starts slowly with the gateway");
    world.origin("v1-a").set(Behaviour::Status(500));
    let ejected = until_health(&world, "v1-a", "ejected").await;
    world.origin("v1-a").set(Behaviour::Describe);
    assert_eq!((&ejected["weight_in_force"], &ejected["ejections"]), (&json!(0.0), &json!(1)), "{ejected}");
    let back = until_health(&world, "v1-a", "healthy").await;
    let weight = back["weight_in_force"].as_f64().unwrap();
    assert!((10.0..60.0).contains(&weight), "{back}");
    assert!(back["why"][0].as_str().unwrap().starts_with("slow start"), "{back}");
    let before = world.origin("v1-a").hits();
    let (sent, _) = ledger.failed_of_next(200).await;
    let share = (world.origin("v1-a").hits() - before) as f64 / sent as f64;
    assert!(share < 0.2, "a quarter is its share, and it has {share}");
    wait::until("all of its weight", || async {
        (instance(&world, "v1-a").await["weight_in_force"] == 100.0).then_some(())
    })
    .await;
    let before = world.origin("v1-a").hits();
    let (sent, failed) = ledger.failed_of_next(800).await;
    ledger.over.store(true, Relaxed);
    let share = (world.origin("v1-a").hits() - before) as f64 / sent as f64;
    assert!((0.18..0.32).contains(&share), "{share}");
    assert_eq!(failed, 0);
}

#[tokio::test]
async fn a_grpc_status_counts_like_an_http_status() {
    // UNAVAILABLE is a failure of the instance, INVALID_ARGUMENT and RESOURCE_EXHAUSTED are not; in trailers or head.
    for (path, fails) in [("/grpc/14", true), ("/grpc-head/14", true), ("/grpc/3", false), ("/grpc/8", false)] {
        let world = World::with(&["v1-a", "v1-b"], |conf| {
            all_v1(conf);
            let service = conf.service("users");
            service["protocol"] = json!("h2c");
            service["outlier_detection"] = json!({"consecutive_5xx": 2, "base_ejection": "60s"});
        })
        .await;
        let mut conn = Conn::h2c(world.http()).await;
        for _ in 0..12 {
            let call = Call::post(path, "").header("content-type", "application/grpc");
            let _ = call.on(&mut conn).await.expect(200);
        }
        let view = service(&world).await;
        let ejected = view["instances"].as_array().unwrap().iter().filter(|i| i["health"] == "ejected").count();
        assert_eq!(ejected, usize::from(fails), "{path}: {view}");
        let errors = world.gateway.metrics().await.sum("serin_requests_total", &["code=\"5xx\""]);
        assert_eq!(errors > 0.0, fails, "{path}: {errors} are counted as 5xx");
    }
}

#[tokio::test]
async fn a_full_house_is_told_at_once_and_is_nobodys_fault() {
    let world = World::with(&["v1-a"], |conf| {
        all_v1(conf);
        conf.service("users")["circuit_breaker"] = json!({"max_requests": 2});
        conf.service("users")["outlier_detection"] = json!({"consecutive_5xx": 1, "consecutive_local": 1});
    })
    .await;
    let held: Vec<_> = (0..2).map(|_| tokio::spawn(Call::get("/hold").to(world.http()))).collect();
    wait::until("two requests", || async { (world.origin("v1-a").hits() == 2).then_some(()) }).await;
    for reply in all_at_once(0..20, |_| Call::get("/").to(world.http())).await {
        let reply = reply.expect(503);
        assert_eq!(reply.header("retry-after"), "1");
    }
    let view = instance(&world, "v1-a").await;
    assert_eq!((&view["health"], &view["success_rate"]), (&json!("healthy"), &Value::Null), "{view}");
    assert_eq!(subset(&world, "v1").await["breaker"]["connections"], 2);
    assert!((world.gateway.metrics().await.sum("serin_fallbacks_total", &["reason=\"overflow\""]) - 20.0).abs() < 0.1);
    world.origin("v1-a").release();
    for held in held {
        let _ = held.await.unwrap().expect(200);
    }
    assert_eq!(world.send(Call::get("/")).await.origin(), "v1-a");
    wait::until("the places to be given back", || async {
        (subset(&world, "v1").await["breaker"]["connections"] == 0).then_some(())
    })
    .await;
}
