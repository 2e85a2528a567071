//! Promise: rate limits let through what they say and no more, tell clients where they stand, keep connections open, and
//! can be tried out, changed and switched off while the gateway runs.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use serin_e2e::client::{Call, Conn, Reply};
use serin_e2e::{Conf, World, wait};

/// A rule that lets through 2 at once and then one a minute, which no test waits for.
fn two_per_user() -> Value {
    json!({"name": "per-user", "key": [{"header": "x-user-id"}], "limit": "60/h", "burst": 2})
}

async fn limited(rules: Value) -> World {
    World::with(&["v1-a"], |conf| limit(conf, rules)).await
}

fn limit(conf: &mut Conf, rules: Value) {
    conf.service("users")["rate_limits"] = rules;
    conf.weights(&[("v1", "100%"), ("v2", "0%")]);
}

fn get(user: &str) -> Call {
    Call::get("/").user(user)
}

/// Statuses of so many requests of a user, on one connection.
async fn statuses(world: &World, user: &str, count: usize) -> Vec<u16> {
    let mut conn = Conn::http1(world.http()).await;
    let mut statuses = vec![];
    for _ in 0..count {
        statuses.push(get(user).on(&mut conn).await.status.as_u16());
    }
    statuses
}

/// The number of a parameter in a structured field.
fn param(field: &str, name: &str) -> Option<u64> {
    field.split(';').find_map(|part| part.strip_prefix(name)?.strip_prefix('='))?.parse().ok()
}

#[tokio::test]
async fn over_the_limit_is_429_and_the_connection_stays() {
    let world = limited(json!([two_per_user()])).await;
    let mut conn = Conn::http1(world.http()).await;
    for left in [1, 0] {
        let reply = get("u1").on(&mut conn).await.expect(200);
        assert_eq!(reply.header("ratelimit-policy"), "\"per-user\";q=60;w=3600;burst=2");
        assert_eq!(param(reply.header("ratelimit"), "r"), Some(left), "{}", reply.header("ratelimit"));
    }
    for call in [get("u1"), Call::post("/", vec![b'x'; 1_000]).user("u1"), get("u1")] {
        let reply = call.on(&mut conn).await.expect(429);
        let wait: u64 = reply.header("retry-after").parse().unwrap();
        assert!((50..=60).contains(&wait), "{wait}");
        assert_eq!(reply.header("ratelimit"), format!("\"per-user\";r=0;t={wait}"));
        assert_eq!(reply.header("content-type"), "application/problem+json");
        assert_eq!(reply.json()["status"], 429);
    }
    let _ = get("u2").on(&mut conn).await.expect(200);
    assert_eq!(world.origins[0].hits(), 3, "what is refused goes nowhere");
    let log = world.gateway.access_log(6).await;
    let by: Vec<_> = log.iter().map(|line| (line["status"].as_u64(), line["limit"].as_str())).collect();
    assert_eq!(by.iter().filter(|line| **line == (Some(429), Some("per-user"))).count(), 3, "{by:?}");
    assert_eq!(by.iter().filter(|line| **line == (Some(200), None)).count(), 3, "{by:?}");
}

#[tokio::test]
async fn grpc_clients_are_told_resource_exhausted() {
    let world = limited(json!([two_per_user()])).await;
    let mut conn = Conn::h2c(world.http()).await;
    assert_eq!(statuses(&world, "u1", 2).await, [200, 200]);
    let call = Call::post("/serin.test.Peer/Unary", "").user("u1").header("content-type", "application/grpc");
    let reply = call.on(&mut conn).await.expect(200);
    assert_eq!((reply.header("grpc-status"), reply.header("content-type")), ("8", "application/grpc"));
    assert!(!reply.header("retry-after").is_empty() && !reply.header("ratelimit").is_empty(), "{:?}", reply.headers);
    let _ = get("u2").on(&mut conn).await.expect(200);
}

#[tokio::test]
async fn requests_without_the_header_are_counted_together() {
    let world = limited(json!([two_per_user()])).await;
    let mut conn = Conn::http1(world.http()).await;
    let mut seen = vec![];
    for number in 0..4 {
        let call = Call::get(&format!("/{number}")).header("x-other", number.to_string());
        seen.push(call.on(&mut conn).await.status.as_u16());
    }
    assert_eq!(seen, [200, 200, 429, 429]);
}

#[tokio::test]
async fn some_keys_have_limits_of_their_own() {
    let mut rule = two_per_user();
    rule["overrides"] = json!({"vip": "120/h", "guest": "30/h"});
    let world = limited(json!([rule])).await;
    for (user, admitted) in [("me", 2), ("vip", 4), ("guest", 1)] {
        let statuses = statuses(&world, user, 6).await;
        assert_eq!(statuses.iter().filter(|status| **status == 200).count(), admitted, "{user}: {statuses:?}");
    }
}

#[tokio::test]
async fn requests_may_cost_more_than_one() {
    let rule = json!({"name": "units", "limit": "60/h", "burst": 10, "cost": {"header": "x-cost", "max": 6}});
    let world = limited(json!([rule])).await;
    let mut conn = Conn::http1(world.http()).await;
    let mut seen = vec![];
    for cost in ["5", "99", "4", "1", "0"] {
        let reply = get("u").header("x-cost", cost).on(&mut conn).await;
        seen.push((reply.status.as_u16(), param(reply.header("ratelimit"), "r")));
    }
    assert_eq!(seen, [(200, Some(5)), (429, Some(0)), (200, Some(1)), (200, Some(0)), (429, Some(0))]);
}

/// What tells requests apart: a call that uses up a limit of one, and whether another is still let through.
#[tokio::test]
async fn keys() {
    let forwarded = |address: &str| Call::get("/").header("x-forwarded-for", address);
    let tagged = |tag: &str| Call::get("/").header("x-traffic-tag", tag);
    let cookie = |uid: &str| Call::get("/").header("cookie", format!("uid={uid}"));
    let cases = [
        (json!(["client_ip"]), forwarded("192.0.2.1"), forwarded("192.0.2.2"), true),
        (json!(["client_ip"]), forwarded("2001:db8:0:1::1"), forwarded("2001:db8:0:1::2"), false),
        (json!(["client_ip"]), forwarded("2001:db8:0:1::1"), forwarded("2001:db8:0:2::1"), true),
        (json!([{"cookie": "uid"}]), cookie("a"), cookie("b"), true),
        (json!([{"query": "k"}]), Call::get("/?k=a"), Call::get("/x?k=a"), false),
        (json!(["tag"]), tagged("none"), tagged("canary"), true),
        (json!(["route"]), Call::get("/"), Call::get("/other/x"), true),
        (json!(["service"]), Call::get("/"), Call::get("/other/x"), false),
        (json!([{"header": "x-user-id"}, "route"]), get("u"), Call::get("/other/x").user("u"), true),
    ];
    for (key, one, other, apart) in cases {
        let world = World::with(&["v1-a", "v2-a"], |conf| {
            conf.bootstrap["trusted_proxies"] = json!(["127.0.0.0/8"]);
            let tag = json!({"name": "canary", "when": {"header": {"x-traffic-tag": "canary"}}, "subset": "v2"});
            conf.service("users")["tags"] = json!([tag]);
            limit(conf, json!([{"name": "one", "key": key, "limit": "1/h"}]));
            let route = json!({"name": "other", "match": {"path": {"prefix": "/other"}}, "service": "users"});
            conf.routes().push(route);
        })
        .await;
        let mut seen = vec![];
        for call in [one.clone(), one, other] {
            seen.push(world.send(call).await.status.as_u16());
        }
        assert_eq!(seen, [200, 429, if apart { 200 } else { 429 }], "{key}");
    }
}

#[tokio::test]
async fn a_route_has_limits_besides_its_service() {
    let world = World::with(&["v1-a"], |conf| {
        limit(conf, json!([{"name": "all", "limit": "60/h", "burst": 4}]));
        conf.route("all")["rate_limits"] = json!([two_per_user()]);
    })
    .await;
    // Who is over his own limit does not use up what others share.
    assert_eq!(statuses(&world, "u1", 6).await, [200, 200, 429, 429, 429, 429]);
    assert_eq!(statuses(&world, "u2", 3).await, [200, 200, 429]);
    let reply = world.send(get("u3")).await.expect(429);
    assert_eq!(reply.header("ratelimit-policy"), "\"all\";q=60;w=3600;burst=4, \"per-user\";q=60;w=3600;burst=2");
    let metrics = world.gateway.metrics().await;
    let count = |labels: &[&str]| metrics.sum("serin_rate_limit_decisions_total", labels);
    assert_eq!(count(&["scope=\"route\"", "owner=\"all\"", "rule=\"per-user\"", "outcome=\"limited\""]), 4.0);
    assert_eq!(count(&["scope=\"service\"", "owner=\"users\"", "rule=\"all\"", "outcome=\"limited\""]), 2.0);
    assert_eq!(count(&["scope=\"service\"", "outcome=\"admitted\""]), 4.0);
    assert_eq!(metrics.sum("serin_rate_limit_keys", &["scope=\"route\"", "rule=\"per-user\""]), 2.0);
}

#[tokio::test]
async fn a_dry_run_only_counts() {
    let mut rule = two_per_user();
    rule["dry_run"] = json!(true);
    let world = limited(json!([rule])).await;
    assert_eq!(statuses(&world, "u1", 5).await, [200; 5]);
    assert_eq!(world.send(get("u1")).await.header("ratelimit"), "", "it is not told");
    let metrics = world.gateway.metrics().await;
    for (outcome, expected) in [("admitted", 2.0), ("dry_run", 4.0), ("limited", 0.0), ("store_full", 0.0)] {
        let labels = [&*format!("outcome=\"{outcome}\""), "rule=\"per-user\""];
        assert_eq!(metrics.sum("serin_rate_limit_decisions_total", &labels), expected, "{outcome}");
    }
}

#[tokio::test]
async fn a_full_store_is_counted_and_does_not_open_the_limit() {
    let mut rule = two_per_user();
    rule["max_keys"] = json!(3);
    let world = limited(json!([rule])).await;
    let mut conn = Conn::http1(world.http()).await;
    let mut admitted = 0;
    for user in 0..50 {
        admitted += u32::from(get(&format!("u{user}")).on(&mut conn).await.status == 200);
    }
    assert_eq!(admitted, 5, "three that fit and two by the bucket that the others share");
    let metrics = world.gateway.metrics().await;
    assert_eq!(metrics.sum("serin_rate_limit_decisions_total", &["outcome=\"store_full\""]), 47.0);
    assert_eq!(metrics.sum("serin_rate_limit_keys", &[]), 4.0);
}

async fn reload(world: &World, routing: &Value) {
    let revision = |config: Value| config["revision"]["routing"].as_u64();
    let before = revision(world.gateway.admin_get("/v1/config").await);
    world.gateway.write_routing(routing);
    wait::until("the new routing", || async {
        (revision(world.gateway.admin_get("/v1/config").await) > before).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_reload_keeps_what_has_not_changed() {
    let mut other = two_per_user();
    (other["name"], other["key"]) = (json!("per-cookie"), json!([{"cookie": "uid"}]));
    let mut on_route = two_per_user();
    (on_route["name"], on_route["key"]) = (json!("per-query"), json!([{"query": "k"}]));
    let world = World::with(&["v1-a"], |conf| {
        limit(conf, json!([two_per_user(), other]));
        conf.route("all")["rate_limits"] = json!([on_route]);
    })
    .await;
    let by_cookie = |uid: &str| Call::get("/?k=free").header("cookie", format!("uid={uid}")).user(format!("of {uid}"));
    let by_query = || Call::get("/?k=q").header("cookie", "uid=free").user("free");
    for _ in 0..2 {
        let _ = world.send(Call::get("/?k=1").header("cookie", "uid=1").user("u1")).await.expect(200);
        let _ = world.send(Call::get("/?k=2").header("cookie", "uid=c").user("u2")).await.expect(200);
        let _ = world.send(by_query()).await.expect(200);
    }
    let user = || Call::get("/?k=3").header("cookie", "uid=3").user("u1");
    for call in [user(), by_cookie("c"), by_query()] {
        let _ = world.send(call).await.expect(429);
    }
    let mut routing = world.gateway.conf.routing.clone();
    routing["services"]["users"]["timeouts"] = json!({"connect": "2s"});
    reload(&world, &routing).await;
    for call in [user(), by_cookie("c"), by_query()] {
        let _ = world.send(call).await.expect(429);
    }
    routing["services"]["users"]["rate_limits"][1]["limit"] = json!("61/h");
    reload(&world, &routing).await;
    let _ = world.send(user()).await.expect(429);
    let _ = world.send(by_query()).await.expect(429);
    let changed = world.send(by_cookie("c")).await.expect(200);
    assert!(changed.header("ratelimit-policy").contains("\"per-cookie\";q=61;w=3600"), "{:?}", changed.headers);
}

#[tokio::test]
async fn the_switch_lets_everything_through_and_counts() {
    let world = limited(json!([two_per_user()])).await;
    assert_eq!(statuses(&world, "u1", 3).await, [200, 200, 429]);
    for by_cli in [false, true] {
        if by_cli {
            let cli = world.gateway.cli(&["switch", "limits", "on", "--reason", "a test"]).await.expect(0);
            assert!(cli.stdout.contains("only count"), "{cli:?}");
        } else {
            world.gateway.set_switch("limits", true, None).await;
        }
        assert_eq!(statuses(&world, "u1", 3).await, [200, 200, 200]);
        assert_eq!(world.send(get("u1")).await.header("ratelimit"), "");
        assert_eq!(world.gateway.admin_get("/v1/traffic").await["switches"]["limits"], true);
        assert_eq!(world.gateway.metrics().await.sum("serin_switch", &["switch=\"limits\""]), 1.0);
        world.gateway.set_switch("limits", false, None).await;
        assert_eq!(statuses(&world, "u1", 1).await, [429], "the keys were not forgotten");
    }
    let refused = world.gateway.metrics().await.sum("serin_rate_limit_decisions_total", &["outcome=\"dry_run\""]);
    assert_eq!(refused, 8.0);
    let body = json!({"on": true, "service": "users"});
    let wrong = world.gateway.admin_send("PUT", "/v1/switches/limits", &body).await;
    assert!(wrong.status.is_client_error() && wrong.text().contains("all services"), "{}", wrong.text());
    let file = std::fs::read_to_string(world.gateway.dir().join("traffic.yaml")).unwrap();
    assert!(file.contains("limits: false"), "{file}");
}

#[tokio::test]
async fn explain_shows_the_standing_and_takes_nothing() {
    let world = limited(json!([two_per_user()])).await;
    let explain = || world.gateway.explain("GET", "http://api.example.com/", &[("x-user-id", "u1")]);
    for _ in 0..5 {
        let shown = explain().await;
        let seen = &shown["rate_limits"][0];
        assert_eq!(seen["key"], json!([["header x-user-id", "u1"]]), "{shown}");
        assert_eq!((&seen["verdict"], &seen["remaining"]), (&json!("admitted"), &json!(1)));
        assert_eq!((&seen["rule"], &seen["scope"], &seen["burst"]), (&json!("per-user"), &json!("service"), &json!(2)));
        assert!(shown["pick"].is_object() && shown["answer"].is_null());
    }
    assert_eq!(statuses(&world, "u1", 2).await, [200, 200]);
    let shown = explain().await;
    assert_eq!((&shown["rate_limits"][0]["verdict"], &shown["answer"]["status"]), (&json!("limited"), &json!(429)));
    let text = world.gateway.cli(&["explain", "get", "http://api.example.com/", "-H", "x-user-id:u1"]).await.expect(0);
    assert!(text.stdout.contains("per-user of the service: limited, 0 left (header x-user-id = u1)"), "{text:?}");
    let view = world.gateway.admin_get("/v1/services/users").await;
    assert_eq!((&view["rate_limits"][0]["rule"], &view["rate_limits"][0]["keys"]), (&json!("per-user"), &json!(1)));
}

/// A ledger of requests by their ids, over real sockets, at far more than the limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_let_through_is_exact() {
    const LIMIT: f64 = 40.0;
    const BURST: f64 = 20.0;
    const LASTS: Duration = Duration::from_secs(3);
    let world = limited(json!([{"name": "all", "limit": "40/s", "burst": 20}])).await;
    let (began, address) = (Instant::now(), world.http());
    let load = (0..4).map(|worker| {
        tokio::spawn(async move {
            let mut conn = Conn::http1(address).await;
            let mut ledger = BTreeMap::new();
            while began.elapsed() < LASTS {
                let id = format!("{worker}-{}", ledger.len());
                let reply: Reply = Call::post(&format!("/{id}"), "").on(&mut conn).await;
                assert!(ledger.insert(id, reply.status.as_u16()).is_none());
            }
            ledger
        })
    });
    let mut ledger = BTreeMap::new();
    for part in futures_util::future::join_all(load).await {
        ledger.extend(part.unwrap());
    }
    let took = began.elapsed().as_secs_f64();
    let of = |status: u16| ledger.values().filter(|seen| **seen == status).count();
    let (admitted, refused) = (of(200), of(429));
    assert_eq!(admitted + refused, ledger.len(), "each has one outcome, and no other than these");
    assert!(ledger.len() as f64 > 3.0 * LIMIT * took, "too little load to tell: {} in {took} s", ledger.len());
    let expected = LIMIT * took + BURST;
    // The last request was sent before the time was over, and may have come a moment earlier.
    assert!(admitted as f64 <= expected + 1.0, "{admitted} of {expected}");
    assert!(admitted as f64 >= (LIMIT * LASTS.as_secs_f64() + BURST) * 0.99 - 2.0, "{admitted} of {expected}");
    assert_eq!(world.origins[0].hits(), admitted as u64, "what is refused goes nowhere, and nothing goes twice");
}
