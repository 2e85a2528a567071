//! Promise: `explain` shows the whole decision on the running gateway, is the same as a real request's, and changes nothing.

use serde_json::{Value, json};
use serin_e2e::client::{Call, Conn};
use serin_e2e::{World, world};

const URL: &str = "http://api.example.com/api/users/7?q=1";

/// An explanation without the seed of its random numbers, which is new each time.
async fn explained(world: &World, headers: &[(&str, &str)]) -> Value {
    without_seed(world.gateway.explain("GET", URL, headers).await)
}

fn without_seed(mut shown: Value) -> Value {
    shown.as_object_mut().map(|shown| shown.remove("seed"));
    shown
}

async fn start() -> World {
    World::with(&["v1-a", "v1-b", "v2-a"], |conf| {
        let service = conf.service("users");
        service["balancer"] = json!([{"zone_affinity": {}}, {"round_robin": {}}]);
        service["tags"] =
            json!([{"name": "canary", "when": {"header": {"x-traffic-tag": "canary"}}, "subset": "v2", "trust": "any"}]);
        for (instance, zone) in conf.instances("users").iter_mut().zip(["az-1", "az-2", "az-2"]) {
            instance["zone"] = json!(zone);
        }
        conf.weights(&[("v1", "60%"), ("v2", "40%")]);
    })
    .await
}

fn addresses(value: &Value) -> Vec<&str> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

#[tokio::test]
async fn it_shows_every_step() {
    let world = start().await;
    let address = |name| world.origin(name).address.to_string();
    let user = {
        let burst = world.burst(20).await;
        format!("u{}", burst.iter().position(|origin| world::version(origin) == "v1").expect("a user of v1"))
    };
    let shown = explained(&world, &[("x-user-id", &user)]).await;
    assert_eq!(shown["route"]["name"], "all");
    assert!(shown["route"]["why"].to_string().contains("prefix"), "{shown}");
    assert_eq!(shown["service"], "users");
    assert_eq!(shown["user_key"]["value"], json!(user));
    assert!(shown["user_key"]["source"].to_string().contains("x-user-id"), "{shown}");
    assert!(!shown["bucket"].is_null());
    let percent = |name: &str| shown["weights"][name].as_str().unwrap().trim_end_matches('%').parse::<f64>().unwrap();
    assert!((percent("v1") - 60.0).abs() < 0.005 && (percent("v2") - 40.0).abs() < 0.005, "{shown}");
    assert_eq!((&shown["subset"], &shown["fallback"]), (&json!("v1"), &Value::Null));
    let zone = shown["narrows"].as_array().unwrap().iter().find(|step| step["name"] == "zone_affinity").unwrap();
    assert_eq!(addresses(&zone["left"]), [address("v1-a")], "the own zone is az-1");
    assert_eq!(
        (&shown["pick"]["balancer"], &shown["pick"]["instance"]),
        (&json!("round_robin"), &json!(address("v1-a")))
    );
    assert_eq!((&shown["switches"]["balancer"], &shown["switches"]["canary"]), (&json!(false), &json!(false)));
    assert_eq!(shown["revision"]["traffic"], json!(1));
}

#[tokio::test]
async fn it_names_the_rule_that_tagged() {
    let world = start().await;
    let shown = explained(&world, &[("x-traffic-tag", "canary")]).await;
    assert_eq!((&shown["tag"]["rule"], &shown["subset"]), (&json!("canary"), &json!("v2")));
    let shown = explained(&world, &[("x-user-id", "u1")]).await;
    assert_ne!(shown["tag"]["rule"], json!("canary"));
    assert!(!shown["tag"]["reason"].as_str().unwrap_or_default().is_empty(), "{shown}");
}

#[tokio::test]
async fn it_shows_flips_and_switches() {
    let world = start().await;
    world.gateway.set_weights(&[("v1", "0%"), ("v2", "100%")]).await;
    let shown = explained(&world, &[("x-user-id", "u1")]).await;
    assert_eq!((&shown["subset"], &shown["revision"]["traffic"]), (&json!("v2"), &json!(2)));
    world.gateway.set_switch("canary", true, None).await;
    world.gateway.set_switch("balancer", true, None).await;
    let shown = explained(&world, &[("x-user-id", "u1")]).await;
    assert_eq!(shown["subset"], "v1");
    assert_eq!((&shown["switches"]["balancer"], &shown["switches"]["canary"]), (&json!(true), &json!(true)));
}

#[tokio::test]
async fn a_real_request_goes_where_explain_says() {
    let world = start().await;
    for number in 0..50 {
        let user = format!("u{number}");
        let shown = explained(&world, &[("x-user-id", &user)]).await;
        let origin = world.send(Call::get("/api/users/7?q=1").user(&user)).await.origin();
        assert_eq!(shown["subset"], json!(world::version(&origin)), "{user}");
    }
}

#[tokio::test]
async fn it_changes_no_state() {
    let world = World::with(&["v1-a", "v1-b"], |conf| {
        conf.weights(&[("v1", "100%"), ("v2", "0%")]);
    })
    .await;
    let mut conn = Conn::http1(world.http()).await;
    let mut turns = vec![];
    for _ in 0..6 {
        let shown = explained(&world, &[("x-user-id", "u1")]).await;
        for _ in 0..3 {
            assert_eq!(explained(&world, &[("x-user-id", "u1")]).await, shown);
        }
        let origin = Call::get("/").user("u1").on(&mut conn).await.origin();
        assert_eq!(shown["pick"]["instance"], json!(world.origin(&origin).address.to_string()), "the pick it showed");
        turns.push(origin);
    }
    assert!(turns.windows(2).all(|pair| pair[0] != pair[1]), "round robin is not moved by explain: {turns:?}");
    // The log is written after the metrics are counted.
    assert_eq!(world.gateway.access_log(6).await.len(), 6);
    let metrics = world.gateway.metrics().await;
    for family in ["serin_requests_total", "serin_selections_total"] {
        assert!((metrics.sum(family, &[]) - 6.0).abs() < 0.1, "{family}: {}", metrics.sum(family, &[]));
    }
}

#[tokio::test]
async fn a_request_without_a_route_is_explained_too() {
    let world = World::with(&["v1-a"], |conf| conf.route("all")["match"] = json!({"path": {"exact": "/only"}})).await;
    let shown = explained(&world, &[]).await;
    assert!(shown["route"]["name"].is_null(), "{shown}");
}

#[tokio::test]
async fn the_cli_shows_the_same() {
    let world = start().await;
    let by_cli = world.gateway.cli(&["explain", "GET", URL, "-H", "x-user-id: u1", "--json"]).await.expect(0).json();
    let by_cli = without_seed(by_cli);
    assert_eq!(by_cli, explained(&world, &[("x-user-id", "u1")]).await);
    let for_people = world.gateway.cli(&["explain", "GET", URL, "-H", "x-user-id: u1"]).await.expect(0).stdout;
    for word in ["all", "users", by_cli["subset"].as_str().unwrap(), by_cli["pick"]["instance"].as_str().unwrap()] {
        assert!(for_people.contains(word), "no {word} in\n{for_people}");
    }
}
