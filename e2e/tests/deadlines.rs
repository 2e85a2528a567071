//! Promise: an attempt has `first_byte`, a request has `request`, and a gRPC call has what its client gives it.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use serin_e2e::client::{Call, Conn};
use serin_e2e::origin::Behaviour;
use serin_e2e::world::origins;
use serin_e2e::{Conf, Gateway, Origin, conf};

const LONG: Duration = Duration::from_secs(8);

/// A gateway before origins of which the first `stuck` take very long.
async fn gateway(count: usize, stuck: usize, change: impl FnOnce(&mut Value)) -> (Gateway, Vec<Origin>) {
    let origins = origins(&["a", "b", "c"][..count]).await;
    origins[..stuck].iter().for_each(|origin| origin.set(Behaviour::Delay(LONG)));
    let mut pool = conf::pool(&origins.iter().collect::<Vec<_>>(), json!([{"round_robin": {}}]));
    change(&mut pool);
    (Gateway::start(Conf::empty().with_service("pool", pool)).await, origins)
}

#[tokio::test]
async fn an_attempt_that_takes_too_long_is_tried_elsewhere() {
    let (gateway, _origins) = gateway(2, 1, |pool| {
        pool["timeouts"] = json!({"first_byte": "200ms"});
        pool["retry"] = json!({"attempts": 2, "on": ["timeout"]});
    })
    .await;
    for _ in 0..4 {
        let start = Instant::now();
        assert_eq!(Call::get("/pool").to(gateway.http()).await.origin(), "b");
        assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    }
    let log = gateway.access_log(4).await;
    assert!(log.iter().any(|line| line["attempts"] == 2), "{log:?}");
}

#[tokio::test]
async fn a_post_that_takes_too_long_is_not_sent_again() {
    let (gateway, origins) = gateway(2, 2, |pool| {
        pool["timeouts"] = json!({"first_byte": "100ms"});
        pool["retry"] = json!({"attempts": 2, "on": ["timeout"]});
    })
    .await;
    let _ = Call::post("/pool", "pay").to(gateway.http()).await.expect(504);
    assert_eq!(origins.iter().map(Origin::hits).sum::<u64>(), 1);
}

#[tokio::test]
async fn all_attempts_together_have_the_time_of_the_request() {
    let (gateway, origins) = gateway(3, 3, |pool| {
        pool["timeouts"] = json!({"first_byte": "300ms", "request": "500ms"});
        pool["retry"] = json!({"attempts": 3, "on": ["timeout"]});
    })
    .await;
    let start = Instant::now();
    let _ = Call::get("/pool").to(gateway.http()).await.expect(504);
    let took = start.elapsed();
    assert!((Duration::from_millis(450)..Duration::from_secs(2)).contains(&took), "{took:?}");
    assert_eq!(origins.iter().map(Origin::hits).sum::<u64>(), 2, "300 ms and 200 ms");
}

fn grpc(path: &str, timeout: Option<&str>) -> Call {
    let call = Call::post(path, "").header("content-type", "application/grpc").header("te", "trailers");
    match timeout {
        Some(timeout) => call.header("grpc-timeout", timeout),
        None => call,
    }
}

#[tokio::test]
async fn a_grpc_call_has_the_time_that_its_client_gives_it() {
    let (gateway, origins) = gateway(1, 1, |pool| pool["protocol"] = json!("h2c")).await;
    let mut conn = Conn::h2c(gateway.http()).await;
    let start = Instant::now();
    let reply = grpc("/pool", Some("300m")).on(&mut conn).await.expect(200);
    let took = start.elapsed();
    assert_eq!(reply.header("grpc-status"), "4", "DEADLINE_EXCEEDED: {:?}", reply.headers);
    assert!((Duration::from_millis(250)..Duration::from_secs(2)).contains(&took), "{took:?}");
    // Without a deadline of its own, a call is a stream and may take as long as it likes.
    origins[0].set(Behaviour::Describe);
    assert_eq!(grpc("/pool", None).on(&mut conn).await.seen("grpc-timeout"), None);
}

#[tokio::test]
async fn upstreams_are_told_what_is_left() {
    let cases = [("10S", "30s", 9_000..=10_000), ("10S", "2s", 1_000..=2_000), ("500m", "none", 100..=500)];
    for (given, request, expected) in cases {
        let (gateway, _origins) = gateway(1, 0, |pool| {
            pool["protocol"] = json!("h2c");
            pool["timeouts"] = json!({"request": request});
        })
        .await;
        let mut conn = Conn::h2c(gateway.http()).await;
        let told = grpc("/pool", Some(given)).on(&mut conn).await.seen("grpc-timeout").unwrap();
        let millis: u64 = told.strip_suffix('m').unwrap().parse().unwrap();
        assert!(expected.contains(&millis), "{given} with {request}: {told}");
    }
    // What is no timeout is the upstream's business.
    let (gateway, _origins) = gateway(1, 0, |pool| pool["protocol"] = json!("h2c")).await;
    let mut conn = Conn::h2c(gateway.http()).await;
    assert_eq!(grpc("/pool", Some("soon")).on(&mut conn).await.seen("grpc-timeout").as_deref(), Some("soon"));
}
