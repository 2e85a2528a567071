//! Promise: Prometheus metrics and a JSON access log tell what happened, are bounded, and never hold a request up.

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;
use serin_e2e::admin::Metrics;
use serin_e2e::client::{Call, Conn};
use serin_e2e::{World, gateway, wait, world};

const FAMILIES: [&str; 8] = [
    "serin_requests_total",
    "serin_request_duration_seconds",
    "serin_decision_seconds",
    "serin_selections_total",
    "serin_fallbacks_total",
    "serin_revision",
    "serin_switch",
    "serin_config_refused_total",
];

async fn start() -> World {
    World::with(&["v1-a", "v2-a"], |conf| {
        conf.route("all")["match"] = json!({"path": {"prefix": "/api"}});
        conf.weights(&[("v1", "50%"), ("v2", "50%")]);
    })
    .await
}

/// The metrics once `count` requests are counted: that is done after the response.
async fn metrics_of(world: &World, count: u32) -> Metrics {
    wait::until(format!("{count} requests to be counted"), || async {
        let metrics = world.gateway.metrics().await;
        (metrics.sum("serin_requests_total", &[]) >= f64::from(count) - 0.01).then_some(metrics)
    })
    .await
}

fn is(value: f64, wanted: u32) -> bool {
    (value - f64::from(wanted)).abs() < 0.01
}

#[tokio::test]
async fn every_family_is_there_and_typed() {
    let world = start().await;
    let _ = world.send(Call::get("/api")).await.expect(200);
    metrics_of(&world, 1).await;
    let reply = world.gateway.admin(Call::get("/metrics")).await.expect(200);
    assert!(reply.header("content-type").starts_with("text/plain"));
    let page = reply.text();
    for family in FAMILIES {
        assert!(page.contains(&format!("# TYPE {family} ")), "no {family} in\n{page}");
        assert!(page.contains(&format!("# HELP {family} ")), "no help for {family}");
    }
}

#[tokio::test]
async fn requests_are_counted_by_what_happened_to_them() {
    let world = start().await;
    for number in 0..20 {
        let _ = world.send(Call::get("/api").user(format!("u{number}"))).await.expect(200);
    }
    for _ in 0..3 {
        let _ = world.send(Call::get("/api/status/503").user("u1")).await.expect(503);
        let _ = world.send(Call::get("/elsewhere")).await.expect(404);
    }
    let metrics = metrics_of(&world, 26).await;
    let users = ["route=\"all\"", "service=\"users\""];
    for (origin, subset) in [("v1-a", "v1"), ("v2-a", "v2")] {
        let hits = u32::try_from(world.origin(origin).hits()).unwrap_or(0);
        let subset = format!("subset=\"{subset}\"");
        assert!(is(metrics.sum("serin_requests_total", &[users[0], users[1], &subset]), hits), "{}", metrics.0);
        let instance = format!("instance=\"{}\"", world.origin(origin).address);
        assert!(is(metrics.sum("serin_selections_total", &["service=\"users\"", &instance]), hits), "{}", metrics.0);
    }
    assert!(is(metrics.sum("serin_requests_total", &["code=\"2xx\""]), 20), "{}", metrics.0);
    assert!(is(metrics.sum("serin_requests_total", &["code=\"5xx\""]), 3), "{}", metrics.0);
    assert!(is(metrics.sum("serin_requests_total", &["code=\"4xx\""]), 3), "{}", metrics.0);
    assert!(metrics.sum("serin_request_duration_seconds_count", &[]) >= 23.0, "{}", metrics.0);
    assert!(metrics.sum("serin_decision_seconds_count", &[]) >= 23.0, "{}", metrics.0);
    assert!(metrics.sum("serin_request_duration_seconds_sum", &[]) > 0.0);
}

#[tokio::test]
async fn revision_and_switches_are_shown() {
    let world = start().await;
    let before = world.gateway.metrics().await;
    world.gateway.set_weights(&[("v1", "100%"), ("v2", "0%")]).await;
    world.gateway.set_switch("canary", true, None).await;
    let after = world.gateway.metrics().await;
    let traffic = |metrics: &Metrics| metrics.sum("serin_revision", &["traffic"]);
    assert!(is(traffic(&after) - traffic(&before), 2), "{}", after.0);
    assert!(is(before.sum("serin_switch", &["canary"]), 0));
    assert!(after.sum("serin_switch", &["canary"]) >= 1.0, "{}", after.0);
    assert!(is(after.sum("serin_switch", &["balancer"]), 0), "{}", after.0);
}

#[tokio::test]
async fn clients_cannot_make_new_series() {
    let world = start().await;
    let mut conn = Conn::http1(world.http()).await;
    let mut counts = vec![];
    for (round, total) in [("a", 150), ("b", 300), ("c", 450)] {
        for number in 0..50 {
            let odd = format!("{round}{number}");
            let calls = [
                Call::get(&format!("/api/{odd}?{odd}=1")).user(&odd).host(&format!("{odd}.example.com")),
                Call::get(&format!("/none/{odd}")).header("x-traffic-tag", &odd).header("user-agent", &odd),
                Call::new(&format!("X{odd}").to_uppercase(), "/api").user(&odd),
            ];
            for call in calls {
                let _ = call.on(&mut conn).await;
            }
        }
        let page = metrics_of(&world, total).await.0;
        counts.push(page.lines().filter(|line| !line.starts_with('#')).count());
    }
    assert_eq!(counts[1], counts[2], "the number of series grows with what clients send: {counts:?}");
}

#[tokio::test]
async fn the_access_log_tells_the_decision() {
    let world = World::with(&["v1-a", "v2-a"], |conf| {
        conf.service("users")["tags"] =
            json!([{"name": "canary", "when": {"header": {"x-traffic-tag": "canary"}}, "subset": "v2", "trust": "any"}]);
        conf.weights(&[("v1", "100%"), ("v2", "0%")]);
        conf.route("all")["match"] = json!({"path": {"prefix": "/api"}});
    })
    .await;
    let mut conn = Conn::http1(world.http()).await;
    let reply = Call::post("/api/x?y=z", "12345").header("x-traffic-tag", "canary").on(&mut conn).await.expect(200);
    let _ = Call::get("/elsewhere").on(&mut conn).await.expect(404);
    let lines = world.gateway.access_log(2).await;
    let line = &lines[0];
    let instance = world.origin("v2-a").address.to_string();
    let wanted = [
        ("method", json!("POST")),
        ("host", json!("api.example.com")),
        ("status", json!(200)),
        ("route", json!("all")),
        ("service", json!("users")),
        ("subset", json!("v2")),
        ("tag", json!("canary")),
        ("instance", json!(instance)),
        ("client_ip", json!("127.0.0.1")),
        ("bytes_in", json!(5)),
        ("bytes_out", json!(reply.body.len())),
        ("attempts", json!(1)),
        ("request_id", json!(reply.seen("x-request-id"))),
    ];
    for (key, value) in wanted {
        assert_eq!(line[key], value, "{key} in {line}");
    }
    assert!(line["path"].as_str().unwrap().starts_with("/api/x"), "{line}");
    assert!(line["duration_ms"].as_f64().unwrap() > 0.0, "{line}");
    assert!(line["at"].as_str().unwrap().contains('T'), "{line}");
    assert!(line["fallback"].is_null(), "{line}");
    assert_eq!((&lines[1]["status"], &lines[1]["route"]), (&json!(404), &json!(null)));
}

#[tokio::test]
async fn the_access_log_stays_one_line_per_request_whatever_clients_send() {
    let world = start().await;
    let path = format!("/api/%22%0a{{\"x\":1}}/{}", "long".repeat(1_000));
    let mut conn = Conn::http1(world.http()).await;
    let _ = Call::get(&path.replace(['{', '}', '"'], "'")).host("a\"b.example.com").on(&mut conn).await;
    let _ = Call::get("/api").to(world.http()).await.expect(200);
    // What is legal, if odd; and what is refused before anybody has parsed it.
    let odd: [&[u8]; 4] = [
        b"GET /api/{x} HTTP/1.1\r\nHost: gw.test\r\nX-UA: \", \"user\":\"root \xff\r\n\r\n",
        b"GET /\x01\xff\xfe\",\"x\":1 HTTP/1.1\r\nHost: gw.test\r\n\r\n",
        b"{\"a\":\"\n\"}\r\n\r\n",
        b"\x16\x03\x01\x02\x00",
    ];
    for bytes in odd {
        let mut raw = serin_e2e::Raw::connect(world.http()).await;
        raw.send(bytes).await.unwrap();
        let _ = raw.response(wait::DEADLINE).await;
    }
    let lines = world.gateway.access_log(6).await;
    assert_eq!(lines.len(), 6, "each line is JSON of its own: {lines:?}");
    let mut statuses: Vec<_> = lines.iter().map(|line| line["status"].as_u64().unwrap()).collect();
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 200, 400, 400, 400, 400], "{lines:?}");
}

#[tokio::test]
async fn a_log_that_nobody_reads_holds_no_request_up() {
    let dir = gateway::directory();
    let pipe = dir.path().join("access.log");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    // Open for both directions, so that the gateway can open it and nobody ever reads.
    let _held = std::fs::File::options().read(true).write(true).open(&pipe).unwrap();
    let origins = world::origins(&["v1-a", "v2-a"]).await;
    let world = World { gateway: serin_e2e::Gateway::start_in(dir, world::users_conf(&origins)).await, origins };
    let mut conn = Conn::http1(world.http()).await;
    let start = Instant::now();
    for number in 0..1_500 {
        let _ = Call::get(&format!("/{}", "path".repeat(200))).user(number.to_string()).on(&mut conn).await.expect(200);
    }
    assert!(start.elapsed() < wait::DEADLINE, "1,500 requests took {:?}", start.elapsed());
    let _ = tokio::time::timeout(Duration::from_secs(2), world.gateway.metrics()).await.expect("admin to answer");
}

#[tokio::test]
async fn calls_and_failures_are_counted_by_instance_strategy_and_kind() {
    let refusing = serin_e2e::origin::refusing_address();
    let world = World::with(&["v1-a", "v2-a"], |conf| {
        conf.weights(&[("v1", "100%"), ("v2", "0%")]);
        let users = conf.service("users");
        users["balancer"] = json!([{"zone_affinity": {}}, {"p2c": {}}]);
        users["retry"] = json!({"attempts": 1});
        users["tags"] =
            json!([{"name": "canary", "when": {"header": {"x-traffic-tag": "canary"}}, "subset": "v2", "trust": "any"}]);
        users["timeouts"] = json!({"first_byte": "150ms"});
        conf.routing["services"]["dead"] = json!({
            "instances": [{"address": refusing.to_string()}], "retry": {"attempts": 1}, "panic_threshold": "0%",
        });
        let dead = json!({"name": "dead", "match": {"path": {"prefix": "/dead"}}, "service": "dead"});
        conf.routes().push(dead);
    })
    .await;
    let _ = world.send(Call::get("/").user("u1")).await.expect(200);
    let _ = world.send(Call::get("/status/503").user("u1")).await.expect(503);
    let _ = world.send(Call::get("/dead")).await.expect(502);
    world.gateway.set_switch("balancer", true, None).await;
    let _ = world.send(Call::get("/").header("x-traffic-tag", "canary")).await.expect(200);
    let metrics = metrics_of(&world, 4).await;
    let instance = |name: &str| format!("instance=\"{}\"", world.origin(name).address);
    let (v1, v2, dead) = (instance("v1-a"), instance("v2-a"), format!("instance=\"{refusing}\""));
    let calls = "serin_upstream_request_duration_seconds_count";
    let cases: [(&str, &[&str], u32); 7] = [
        (calls, &[&v1, "strategy=\"zone_affinity+p2c\""], 2),
        (calls, &[&v2, "strategy=\"round_robin\""], 1),
        (calls, &[&dead], 0),
        ("serin_upstream_failures_total", &[&v1, "kind=\"status\""], 1),
        ("serin_upstream_failures_total", &[&dead, "kind=\"connect\""], 1),
        ("serin_upstream_failures_total", &[], 2),
        ("serin_tag_matches_total", &["rule=\"canary\"", "subset=\"v2\""], 1),
    ];
    for (family, labels, count) in cases {
        assert!(is(metrics.sum(family, labels), count), "{family} {labels:?}: not {count}\n{}", metrics.0);
    }
}

#[tokio::test]
async fn a_source_that_cannot_be_taken_grows_old() {
    let world = start().await;
    let age = async |family: &str| world.gateway.metrics().await.sum(family, &["source=\"routing\""]);
    wait::until("the routing document to be looked at", async || {
        (age("serin_source_confirmed_age_seconds").await < age("serin_source_loaded_age_seconds").await - 0.5)
            .then_some(())
    })
    .await;
    world.gateway.write_routing(&json!({"routs": []}));
    wait::until("the routing document to grow old", async || {
        (age("serin_source_confirmed_age_seconds").await > 2.5).then_some(())
    })
    .await;
    assert!(world.gateway.metrics().await.sum("serin_source_confirmed_age_seconds", &["source=\"traffic\""]) < 2.5);
}

#[tokio::test]
async fn series_leave_with_what_they_are_of() {
    let world = start().await;
    let _ = world.send(Call::get("/api").user("u1")).await.expect(200);
    metrics_of(&world, 1).await;
    let mut routing = world.gateway.conf.routing.clone();
    routing["services"]["more"] = json!({"instances": [{"address": "127.0.0.1:1"}]});
    world.gateway.write_routing(&routing);
    let of_more = async || world.gateway.metrics().await.0.lines().filter(|line| line.contains("\"more\"")).count();
    wait::until("the series of the service that joined", async || (of_more().await > 10).then_some(())).await;
    world.gateway.write_routing(&world.gateway.conf.routing);
    wait::until("them to leave with it", async || (of_more().await == 0).then_some(())).await;
    let metrics = world.gateway.metrics().await;
    assert!(is(metrics.sum("serin_requests_total", &["service=\"users\""]), 1), "{}", metrics.0);
    assert!(metrics.sum("process_resident_memory_bytes", &[]) > 1e6, "{}", metrics.0);
}
