//! Promise: with `hedge_after`, an idempotent request that waits for too long is sent to a second instance as well, and
//! the client gets what comes first.

#![expect(clippy::unwrap_used, reason = "tests may panic in their helpers as well")]

use std::time::Duration;

use serde_json::{Value, json};
use serin_e2e::client::Call;
use serin_e2e::origin::Behaviour;
use serin_e2e::world::origins;
use serin_e2e::{Conf, Gateway, Origin, conf, wait};

/// A gateway before origins of which the one that is picked first holds what it is asked.
async fn gateway(others: &[&str], change: impl FnOnce(&mut Value)) -> (Gateway, Vec<Origin>) {
    let origins = origins(&[&["a"], others].concat()).await;
    slow(&origins).set(Behaviour::Hold);
    let mut pool = conf::pool(&origins.iter().collect::<Vec<_>>(), json!([{"exclude_tried": {}}, {"first": {}}]));
    pool["retry"] = json!({"attempts": 2, "hedge_after": "100ms"});
    change(&mut pool);
    (Gateway::start(Conf::empty().with_service("pool", pool)).await, origins)
}

async fn hedges(gateway: &Gateway, outcome: &str) -> f64 {
    gateway.metrics().await.sum("serin_hedges_total", &[&format!("outcome=\"{outcome}\"")])
}

fn hits(origins: &[Origin]) -> Vec<u64> {
    let mut hits: Vec<_> = origins.iter().map(Origin::hits).collect();
    hits.sort_unstable();
    hits
}

#[tokio::test]
async fn the_second_instance_answers_for_the_first() {
    let (gateway, origins) = gateway(&["b"], |_| ()).await;
    for n in 1..=3 {
        let reply = Call::get("/pool").to(gateway.http()).await.expect(200);
        assert!(!reply.origin().is_empty());
        assert_eq!((hits(&origins), hedges(&gateway, "won").await), (vec![n, n], n as f64));
    }
    let log = gateway.access_log(3).await;
    assert!(log.iter().all(|line| line["attempts"] == 2 && line["status"] == 200), "{log:?}");
    // The ones that lost are broken off and take up nothing.
    wait::until("nothing in flight", || async {
        let service = gateway.admin_get("/v1/services/pool").await;
        let instances = service["instances"].as_array().unwrap().clone();
        instances.iter().all(|instance| instance["in_flight"] == 0).then_some(())
    })
    .await;
    assert_eq!(gateway.metrics().await.sum("serin_ejections_total", &[]), 0.0, "a slow instance is not a failed one");
}

#[tokio::test]
async fn the_first_may_still_be_the_first() {
    let (gateway, origins) = gateway(&["b"], |_| ()).await;
    origins.iter().for_each(|origin| origin.set(Behaviour::Delay(Duration::from_millis(400))));
    let _ = Call::get("/pool").to(gateway.http()).await.expect(200);
    assert_eq!((hits(&origins), hedges(&gateway, "lost").await), (vec![1, 1], 1.0));
}

#[tokio::test]
async fn a_second_attempt_that_fails_leaves_the_first_alone() {
    let (gateway, origins) = gateway(&["b"], |_| ()).await;
    origins.iter().for_each(|origin| origin.set(Behaviour::Reset));
    slow(&origins).set(Behaviour::Delay(Duration::from_millis(400)));
    let reply = Call::get("/pool").to(gateway.http()).await.expect(200);
    assert!(!reply.origin().is_empty());
    assert_eq!(hits(&origins), [1, 1]);
}

#[tokio::test]
async fn only_what_may_be_sent_twice_is() {
    let cases: [(&str, &[&str], Value, u64); 5] = [
        ("POST", &["b"], json!({}), 1),
        ("GET", &["b"], json!({"budget": {"percent": "0%", "min_per_second": 0}}), 1),
        ("GET", &[], json!({}), 1),
        ("GET", &["b"], json!({"hedge_after": "10m"}), 1),
        ("HEAD", &["b", "c"], json!({"attempts": 3}), 2),
    ];
    for (method, others, retry, expected) in cases {
        let (gateway, origins) = gateway(others, |pool| {
            for (key, value) in retry.as_object().unwrap() {
                pool["retry"][key] = value.clone();
            }
            pool["timeouts"] = json!({"first_byte": "500ms"});
        })
        .await;
        let status = Call::new(method, "/pool").to(gateway.http()).await.status.as_u16();
        let sum: u64 = hits(&origins).iter().sum();
        assert_eq!((sum, status), (expected, if expected == 1 { 504 } else { 200 }), "{method} {retry}");
    }
}

/// `first` takes the least address.
fn slow(origins: &[Origin]) -> &Origin {
    origins.iter().min_by_key(|origin| origin.address).unwrap()
}
