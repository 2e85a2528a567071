//! Promise: subsets with fallback, aborts, the canary switch and weight 0, as the semantics have them.

use serde_json::{Value, json};
use serin_e2e::client::{Call, Conn};
use serin_e2e::{World, conf, wait, world};

const SPLITS: [&str; 3] = ["v1-a", "v1-b", "v2-a"];

const TRACEPARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// The versions that requests of `users` different users reach.
async fn versions(world: &World, users: usize) -> Vec<String> {
    world.burst(users).await.iter().map(|origin| world::version(origin)).collect()
}

fn all_are(versions: &[String], wanted: &str) -> bool {
    versions.iter().all(|version| version == wanted)
}

#[tokio::test]
async fn an_absent_or_empty_subset_falls_back_to_stable() {
    let empty = |conf: &mut conf::Conf| {
        for instance in conf.instances("users") {
            if instance["labels"]["version"] == "v2" {
                instance["weight"] = json!(0);
            }
        }
    };
    for (reason, names) in [("absent", &SPLITS[..2]), ("empty", &SPLITS[..])] {
        let world = World::with(names, |conf| {
            empty(conf.weights(&[("v1", "0%"), ("v2", "100%")]));
        })
        .await;
        assert!(all_are(&versions(&world, 20).await, "v1"), "{reason}");
        let explained = world.gateway.explain("GET", "http://api.example.com/", &[("x-user-id", "u1")]).await;
        assert_eq!(explained["fallback"]["reason"], reason);
        assert_eq!(explained["fallback"]["wanted"], "v2");
        assert_eq!(explained["subset"], "v1");
        let metrics = world.gateway.metrics().await;
        let label = format!("reason=\"{reason}\"");
        assert!((metrics.sum("serin_fallbacks_total", &[&label]) - 20.0).abs() < 0.1, "{reason}: {}", metrics.0);
    }
}

#[tokio::test]
async fn fallback_goes_where_it_is_told() {
    let cases: [(Value, Option<&str>); 5] = [
        (json!({"to": ["v3", "v1"]}), Some("v3")),
        (json!({"to": ["v1"]}), Some("v1")),
        (json!({"on": ["empty"], "to": ["v1"]}), None),
        (json!({"to": "none"}), None),
        (json!({"to": "any"}), Some("v")),
    ];
    for (fallback, wanted) in cases {
        let world = World::with(&["v1-a", "v3-a"], |conf| {
            let service = conf.service("users");
            service["subsets"]["v3"] = json!({"version": "v3"});
            service["fallback"] = fallback.clone();
            conf.weights(&[("v1", "0%"), ("v2", "100%"), ("v3", "0%")]);
        })
        .await;
        let reply = world.send(Call::get("/").user("u1")).await;
        match wanted {
            None => assert_eq!(reply.status, 503, "{fallback}"),
            Some(version) => assert!(reply.origin().starts_with(version), "{fallback}: {}", reply.origin()),
        }
    }
}

/// How many of 200 users are refused when v1 stands in for v2, which is absent and meant to serve half of them.
async fn refused_at(max_share: &str) -> u32 {
    let world = World::with(&["v1-a"], |conf| {
        conf.service("users")["fallback"] = json!({"to": ["v1"], "max_share": max_share});
        conf.weights(&[("v1", "50%"), ("v2", "50%")]);
    })
    .await;
    let mut refused = 0;
    for user in 0..200 {
        let status = world.send(Call::get("/").user(format!("u{user}"))).await.status.as_u16();
        assert!(status == 200 || status == 503, "{status}");
        refused += u32::from(status == 503);
    }
    refused
}

#[tokio::test]
async fn spill_is_capped_by_max_share() {
    // At most this share of what v1 serves may be spill: all of the 100 users of v2, or about 11 of them.
    let (half, tenth) = (refused_at("50%").await, refused_at("10%").await);
    assert!(half < 30, "{half} refused at 50 %");
    assert!((60..110).contains(&tenth), "{tenth} refused at 10 %");
}

#[tokio::test]
async fn abort_beats_tags_and_buckets() {
    let world = World::with(&SPLITS, |conf| {
        conf.service("users")["tags"] =
            json!([{"name": "canary", "when": {"header": {"x-traffic-tag": "canary"}}, "subset": "v2", "trust": "any"}]);
        conf.weights(&[("v1", "0%"), ("v2", "100%")]);
    })
    .await;
    let tagged = || Call::get("/").user("u1").header("x-traffic-tag", "canary");
    assert_eq!(world.send(tagged()).await.origin(), "v2-a");

    let mut patch = json!({"abort": true, "reason": "it burns"});
    let _ = world.gateway.admin_send("PATCH", "/v1/traffic/services/users", &patch).await.expect(200);
    assert!(all_are(&versions(&world, 20).await, "v1"));
    assert!(world.send(tagged()).await.origin().starts_with("v1"));

    patch["abort"] = json!(false);
    let _ = world.gateway.admin_send("PATCH", "/v1/traffic/services/users", &patch).await.expect(200);
    assert_eq!(world.send(tagged()).await.origin(), "v2-a");
}

#[tokio::test]
async fn the_canary_switch_sends_everything_to_stable() {
    for service in [None, Some("users")] {
        let world = World::with(&SPLITS, |conf| {
            conf.weights(&[("v1", "0%"), ("v2", "100%")]);
        })
        .await;
        assert!(all_are(&versions(&world, 10).await, "v2"));
        world.gateway.set_switch("canary", true, service).await;
        assert!(all_are(&versions(&world, 20).await, "v1"), "{service:?}");
        world.gateway.set_switch("canary", false, service).await;
        assert!(all_are(&versions(&world, 10).await, "v2"), "{service:?}");
    }
}

#[tokio::test]
async fn a_service_overrides_the_global_switch() {
    let world = World::with(&SPLITS, |conf| {
        conf.weights(&[("v1", "0%"), ("v2", "100%")]);
    })
    .await;
    world.gateway.set_switch("canary", true, None).await;
    world.gateway.set_switch("canary", false, Some("users")).await;
    assert!(all_are(&versions(&world, 10).await, "v2"), "the service's own state counts");
}

#[tokio::test]
async fn weight_0_gets_nothing_at_once_on_a_kept_connection() {
    let world = World::with(&SPLITS, |conf| {
        conf.weights(&[("v1", "0%"), ("v2", "100%")]);
    })
    .await;
    let mut conn = Conn::http1(world.http()).await;
    for round in 0..10 {
        assert_eq!(Call::get("/").user("u1").on(&mut conn).await.origin(), "v2-a", "round {round}");
        world.gateway.set_weights(&[("v1", "100%"), ("v2", "0%")]).await;
        for user in 0..20 {
            let origin = Call::get("/").user(format!("u{user}")).on(&mut conn).await.origin();
            assert!(origin.starts_with("v1"), "round {round}: {origin} after its weight was 0");
        }
        world.gateway.set_weights(&[("v1", "0%"), ("v2", "100%")]).await;
    }
}

#[tokio::test]
async fn the_upstream_is_told_the_version() {
    let world = World::with(&SPLITS, |conf| {
        conf.service("users")["propagate"] = json!({"header": "x-version", "baggage": true, "tracestate": true});
        conf.weights(&[("v1", "0%"), ("v2", "100%")]);
    })
    .await;
    let call = Call::get("/").user("u1").header("x-version", "v1").header("baggage", "serin.subset=v1");
    let reply = world.send(call.header("traceparent", TRACEPARENT)).await;
    assert_eq!(reply.seen("x-version").as_deref(), Some("v2"), "what the client says does not count");
    for name in ["tracestate", "baggage"] {
        let seen = reply.seen(name).unwrap_or_default();
        assert!(seen.contains("v2") && !seen.contains("v1"), "{name}: {seen}");
    }
    assert!(!reply.headers.values().any(|value| value == "v2"), "clients are told nothing: {:?}", reply.headers);
    let by_default = World::start().await.send(Call::get("/").user("u1")).await.json();
    let said = by_default["headers"].as_object().unwrap().values().any(|value| value == "v1" || value == "v2");
    assert!(said, "a header tells by default, too: {by_default}");
}

#[tokio::test]
async fn what_the_client_put_into_baggage_and_tracestate_stays() {
    let world = World::with(&SPLITS, |conf| {
        conf.service("users")["propagate"] = json!({"baggage": true, "tracestate": true});
    })
    .await;
    let call = Call::get("/").user("u1").header("baggage", "tenant=acme").header("tracestate", "vendor=1");
    let reply = world.send(call.header("traceparent", TRACEPARENT)).await;
    assert!(reply.seen("baggage").unwrap_or_default().contains("tenant=acme"));
    assert!(reply.seen("tracestate").unwrap_or_default().contains("vendor=1"));
}

#[tokio::test]
async fn instances_come_and_go_with_the_routing_document() {
    let world = World::with(&["v1-a", "v1-b"], |conf| {
        conf.weights(&[("v1", "100%"), ("v2", "0%")]);
    })
    .await;
    let mut routing = world.gateway.conf.routing.clone();
    routing["services"]["users"]["instances"] = json!([conf::instance(world.origin("v1-b").address, "v1")]);
    world.gateway.write_routing(&routing);
    wait::until("only v1-b to be asked", || async {
        world.burst(10).await.iter().all(|origin| origin == "v1-b").then_some(())
    })
    .await;
    world.gateway.write_routing(&world.gateway.conf.routing);
    wait::until("v1-a to be asked again", || async {
        world.burst(10).await.iter().any(|origin| origin == "v1-a").then_some(())
    })
    .await;
}
