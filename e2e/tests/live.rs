//! Promise: `/v1/live` says what happened in the last seconds, by service and version.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests may panic in their helpers as well")]

use std::time::Duration;

use serde_json::{Value, json};
use serin_e2e::client::{Call, Conn};
use serin_e2e::{World, wait};

fn float(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("no number: {value}"))
}

fn count(value: &Value) -> u64 {
    value.as_array().into_iter().flatten().map(|each| each.as_u64().unwrap()).sum()
}

fn is_near(value: &Value, wanted: f64, tolerance: f64) -> bool {
    (float(value) - wanted).abs() <= tolerance
}

/// The page once its series hold `requests` of `subset`.
async fn live(world: &World, subset: &str, requests: u64) -> Value {
    wait::until(format!("{requests} requests of {subset}"), || async {
        let page = world.gateway.admin_get("/v1/live?seconds=60&series=true").await;
        (count(&page["series"]["services"]["users"][subset]["requests"]) >= requests).then_some(page)
    })
    .await
}

#[tokio::test]
async fn figures_agree_with_a_known_load() {
    let world = World::with(&["v1-a", "v2-a"], |conf| {
        conf.weights(&[("v1", "75%"), ("v2", "25%")]);
        conf.service("users")["tags"] =
            json!([{"name": "canary", "when": {"header": {"x-traffic-tag": "canary"}}, "subset": "v2", "trust": "any"}]);
    })
    .await;
    let mut conn = Conn::http1(world.http()).await;
    for _ in 0..90 {
        let _ = Call::get("/delay/10").on(&mut conn).await.expect(200);
    }
    for number in 0..30 {
        let path = if number % 3 == 0 { "/status/503" } else { "/delay/40" };
        let _ = Call::get(path).header("x-traffic-tag", "canary").on(&mut conn).await;
    }
    live(&world, "v1", 90).await;
    let page = live(&world, "v2", 30).await;
    let (users, seconds) = (&page["services"]["users"], float(&page["seconds"]));
    assert!((1.0..=60.0).contains(&seconds), "{page}");
    assert!(is_near(&users["requests_per_second"], 120.0 / seconds, 0.01), "{page}");
    assert!(is_near(&users["error_rate"], 10.0 / 120.0, 0.001), "{page}");
    let (v1, v2) = (&users["subsets"]["v1"], &users["subsets"]["v2"]);
    assert_eq!((&v1["weight"], &v2["weight"]), (&json!("75%"), &json!("25%")));
    assert!(is_near(&v1["share"], 0.75, 0.001) && is_near(&v2["share"], 0.25, 0.001), "{page}");
    assert!(is_near(&v1["error_rate"], 0.0, 0.0) && is_near(&v2["error_rate"], 1.0 / 3.0, 0.001), "{page}");
    assert!((9.0..30.0).contains(&float(&v1["p50_ms"])), "{page}");
    assert!((36.0..120.0).contains(&float(&v2["p50_ms"])), "{page}");
    assert!(float(&v2["p99_ms"]) >= float(&v2["p50_ms"]) && float(&users["p99_ms"]) >= 36.0, "{page}");
    assert_eq!((&v1["in_flight"], &users["in_flight"]), (&json!(0), &json!(0)));
    assert!(users["subsets"].get("").is_none(), "every request had a subset: {page}");

    let series = &page["series"];
    assert_eq!(series["step_seconds"], 1);
    let v2 = &series["services"]["users"]["v2"];
    assert_eq!((count(&v2["requests"]), count(&v2["errors"])), (30, 10));
    for key in ["requests", "errors", "p50_ms", "p99_ms"] {
        assert_eq!(v2[key].as_array().unwrap().len(), seconds as usize, "{key} in {page}");
    }
    let plain = world.gateway.admin_get("/v1/live").await;
    assert!(plain.get("series").is_none() && plain["at"].as_u64() >= page["at"].as_u64(), "{plain}");
}

#[tokio::test]
async fn what_is_under_way_and_what_was_refused_is_told_apart() {
    let world = World::with(&["v1-a"], |conf| {
        conf.service("users")["rate_limits"] =
            json!([{"name": "all", "key": ["service"], "limit": "60/h", "burst": 2}]);
        conf.weights(&[("v1", "100%"), ("v2", "0%")]);
    })
    .await;
    let address = world.http();
    let held = tokio::spawn(async move { Call::get("/hold").to(address).await });
    wait::until("a request in flight", || async {
        let page = world.gateway.admin_get("/v1/live").await;
        (page["services"]["users"]["subsets"]["v1"]["in_flight"] == 1).then_some(())
    })
    .await;
    world.origin("v1-a").release();
    let _ = held.await.unwrap().expect(200);
    let _ = world.send(Call::get("/")).await.expect(200);
    for _ in 0..3 {
        let _ = world.send(Call::get("/")).await.expect(429);
    }
    let page = live(&world, "", 3).await;
    let subsets = &page["services"]["users"]["subsets"];
    assert!(is_near(&subsets[""]["share"], 0.6, 0.001), "{page}");
    assert_eq!(count(&page["series"]["services"]["users"]["v1"]["requests"]), 2, "{page}");
}

#[tokio::test]
async fn a_reload_forgets_nothing_and_a_question_that_makes_no_sense_is_refused() {
    let world = World::start().await;
    for _ in 0..5 {
        let _ = world.send(Call::get("/")).await.expect(200);
    }
    live(&world, "v1", 5).await;
    let mut routing = world.gateway.conf.routing.clone();
    routing["services"]["users"]["balancer"] = json!([{"random": {}}]);
    world.gateway.write_routing(&routing);
    wait::until("the reload", || async {
        let view = world.gateway.admin_get("/v1/services/users").await;
        (view["balancer"] == "random").then_some(())
    })
    .await;
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    live(&world, "v1", 5).await;
    for query in ["seconds=0", "seconds=301", "seconds=soon"] {
        let reply = world.gateway.admin(Call::get(&format!("/v1/live?{query}"))).await.expect(400);
        assert!(reply.text().contains("1 to 300"), "{}", reply.text());
    }
}
