//! Promise: a retry goes to another instance, never resends what must not be sent twice, and stays where `across` says.

use std::time::Duration;

use serde_json::json;
use serin_e2e::client::{Call, Conn};
use serin_e2e::origin::{Behaviour, refusing_address};
use serin_e2e::{Conf, World, conf};

/// Longer than any timeout here.
const SLOW: Duration = Duration::from_secs(5);

fn retry(conf: &mut Conf, on: &[&str], across: &str) {
    conf.service("users")["retry"] = json!({"attempts": 2, "on": on, "across": across});
    conf.service("users")["balancer"] = json!([{"exclude_tried": {}}, {"round_robin": {}}]);
    conf.weights(&[("v1", "100%"), ("v2", "0%")]);
}

fn add_refusing(conf: &mut Conf, version: &str) {
    conf.instances("users").push(conf::instance(refusing_address(), version));
}

#[tokio::test]
async fn a_refused_connection_is_tried_on_another_instance() {
    let world = World::with(&["v1-a"], |conf| {
        retry(conf, &["connect_failure"], "same");
        add_refusing(conf, "v1");
    })
    .await;
    let mut conn = Conn::http1(world.http()).await;
    for number in 0..10 {
        // Nothing was sent to the instance that refused, so even a POST may go to the next one.
        let call = if number % 2 == 0 { Call::get("/") } else { Call::post("/", "body") };
        assert_eq!(call.user("u1").on(&mut conn).await.origin(), "v1-a", "request {number}");
    }
    let log = world.gateway.access_log(10).await;
    assert!(log.iter().any(|line| line["attempts"] == 2), "{log:?}");
}

#[tokio::test]
async fn without_a_retry_a_refused_connection_is_an_error() {
    let world = World::with(&["v1-a"], |conf| {
        retry(conf, &["503"], "same");
        add_refusing(conf, "v1");
    })
    .await;
    let mut statuses = vec![];
    for _ in 0..10 {
        statuses.push(world.send(Call::get("/").user("u1")).await.status.as_u16());
    }
    assert!(statuses.iter().any(|status| matches!(status, 502 | 503)), "{statuses:?}");
    assert!(statuses.contains(&200), "{statuses:?}");
}

#[tokio::test]
async fn a_post_that_was_sent_is_never_resent() {
    for behaviour in [Behaviour::Reset, Behaviour::Status(503)] {
        let world = World::with(&["v1-a", "v1-b"], |conf| retry(conf, &["reset", "503"], "same")).await;
        world.origins.iter().for_each(|origin| origin.set(behaviour.clone()));
        let status = world.send(Call::post("/", "pay").user("u1")).await.status.as_u16();
        assert!(status >= 500, "{behaviour:?}: {status}");
        let hits: u64 = world.origins.iter().map(serin_e2e::Origin::hits).sum();
        assert_eq!(hits, 1, "{behaviour:?}: the POST arrived {hits} times");
    }
}

#[tokio::test]
async fn a_get_is_resent_on_what_is_configured() {
    for (on, behaviour) in
        [("503", Behaviour::Status(503)), ("reset", Behaviour::Reset), ("timeout", Behaviour::Delay(SLOW))]
    {
        for is_configured in [true, false] {
            let on = if is_configured { on } else { "connect_failure" };
            let world = World::with(&["v1-a", "v1-b"], |conf| {
                retry(conf, &[on], "same");
                conf.service("users")["timeouts"] = json!({"first_byte": "200ms"});
            })
            .await;
            world.origin("v1-a").set(behaviour.clone());
            let mut served = 0;
            for _ in 0..8 {
                served += u32::from(world.send(Call::get("/").user("u1")).await.status == 200);
            }
            assert_eq!(served == 8, is_configured, "{behaviour:?} with retry on {on}: {served} of 8 served");
            assert!(served >= 4, "{behaviour:?}: {served}");
        }
    }
}

#[tokio::test]
async fn the_last_answer_is_passed_on_when_attempts_run_out() {
    let world = World::with(&["v1-a", "v1-b", "v1-c"], |conf| retry(conf, &["503"], "same")).await;
    world.origins.iter().for_each(|origin| origin.set(Behaviour::Status(503)));
    let _ = world.send(Call::get("/").user("u1")).await.expect(503);
    let hits: u64 = world.origins.iter().map(serin_e2e::Origin::hits).sum();
    assert_eq!(hits, 2, "two attempts");
}

#[tokio::test]
async fn across_says_which_subset_a_retry_goes_to() {
    let cases = [("stable", "v1", true), ("same", "v2", true), ("same", "v1", false)];
    for (across, healthy, served) in cases {
        // v2-a breaks; `healthy` names the version of the only instance that works.
        let other = format!("{healthy}-z");
        let world = World::with(&["v2-a", &other], |conf| {
            retry(conf, &["503"], across);
            conf.service("users")["fallback"] = json!({"to": "none"});
            conf.weights(&[("v1", "0%"), ("v2", "100%")]);
        })
        .await;
        world.origin("v2-a").set(Behaviour::Status(503));
        let mut statuses = vec![];
        for _ in 0..4 {
            statuses.push(world.send(Call::get("/").user("u1")).await.status.as_u16());
        }
        assert_eq!(statuses == [200; 4], served, "across {across}, only {healthy} healthy: {statuses:?}");
    }
}

#[tokio::test]
async fn stable_never_retries_into_the_canary() {
    let world = World::with(&["v1-a", "v2-a"], |conf| retry(conf, &["503"], "stable")).await;
    world.origin("v1-a").set(Behaviour::Status(503));
    let _ = world.send(Call::get("/").user("u1")).await.expect(503);
    assert_eq!(world.origin("v2-a").hits(), 0);
}

#[tokio::test]
async fn an_error_of_the_upstreams_does_not_cost_the_clients_connection() {
    let world = World::with(&["v1-a"], |conf| {
        conf.service("users")["timeouts"] = json!({"first_byte": "100ms"});
        conf.service("users")["retry"] = json!({"attempts": 1});
    })
    .await;
    let mut conn = Conn::http1(world.http()).await;
    let cases = [(Behaviour::Reset, 502), (Behaviour::Delay(SLOW), 504), (Behaviour::Describe, 200)];
    for (behaviour, status) in cases {
        world.origins[0].set(behaviour);
        let reply = Call::get("/").user("u1").on(&mut conn).await.expect(status);
        assert_ne!(reply.headers.get("connection").map(|value| value.as_bytes()), Some(&b"close"[..]), "{status}");
    }
}
