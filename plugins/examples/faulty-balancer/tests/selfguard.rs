//! Promise: a balancer that panics or stalls costs at most the decisions until it is taken out, and no request; plain
//! round robin takes its place until an operator arms it again.

use std::time::Duration;

use serde_json::{Value, json};
use serin_e2e::client::{Call, Conn};
use serin_e2e::world::origins;
use serin_e2e::{Conf, Gateway, Origin, conf, wait};

struct Pool {
    origins: Vec<Origin>,
    gateway: Gateway,
}

impl Pool {
    async fn start(fault: Value, self_guard: Value) -> Self {
        let origins = origins(&["a", "b"]).await;
        let mut pool = conf::pool(&origins.iter().collect::<Vec<_>>(), json!([{ "faulty": fault }]));
        pool["self_guard"] = self_guard;
        let conf = Conf::empty().with_service("pool", pool);
        Self { gateway: Gateway::start_as(env!("CARGO_BIN_EXE_serin-faulty").into(), conf).await, origins }
    }

    /// So many requests of each of eight clients, all of which must be served.
    async fn load(&self, requests: usize) {
        let client = async |_| {
            let mut conn = Conn::http1(self.gateway.http()).await;
            for _ in 0..requests {
                let _ = Call::get("/pool").on(&mut conn).await.expect(200);
            }
        };
        futures_util::future::join_all((0..8).map(client)).await;
    }

    async fn tripped(&self) -> Value {
        self.gateway.admin_get("/v1/services/pool").await["switches"]["tripped"].clone()
    }

    async fn trips(&self, why: &str) -> (f64, f64) {
        let metrics = self.gateway.metrics().await;
        let why = format!("why=\"{why}\"");
        let trips = metrics.sum("serin_self_guard_trips_total", &["service=\"pool\"", &why]);
        (metrics.sum("serin_self_guard_tripped", &["service=\"pool\""]), trips)
    }
}

#[tokio::test]
async fn a_balancer_that_panics_fails_no_request() {
    let pool = Pool::start(json!({"fault": "panic", "after": 10}), json!({})).await;
    pool.load(1).await;
    assert_eq!((pool.tripped().await, pool.trips("panicked").await), (Value::Null, (0.0, 0.0)));
    assert!(pool.origins.iter().any(|origin| origin.hits() == 0), "it takes the first one");
    pool.load(50).await;
    assert_eq!((pool.tripped().await, pool.trips("panicked").await), (json!("panicked"), (1.0, 1.0)));
    assert!(pool.origins.iter().all(|origin| origin.hits() > 190), "round robin takes its place");
    let output = pool.gateway.output();
    assert!(output.contains("ERROR") && output.contains("serin rearm pool"), "{output}");
    // At most the decisions that were under way together.
    let panics = output.matches("a fault in the balancer `faulty`").count();
    assert!((1..=8).contains(&panics), "{panics} panics");
    let shown = pool.gateway.cli(&["instances", "pool"]).await.expect(0).stdout;
    assert!(shown.contains("had panicked: plain round robin until `serin rearm pool`"), "{shown}");
    let explained = pool.gateway.explain("GET", "http://api.example.com/pool", &[]).await;
    assert_eq!(explained["pick"]["balancer"], "round_robin");
    assert_eq!(explained["switches"]["tripped"], "panicked");
}

#[tokio::test]
async fn an_operator_arms_it_again_and_a_reload_does_not() {
    let pool = Pool::start(json!({"fault": "panic"}), json!({})).await;
    let explained = pool.gateway.explain("GET", "http://api.example.com/pool", &[]).await;
    assert_eq!(explained["pick"]["balancer"], "round_robin, since faulty panicked");
    assert_eq!(pool.tripped().await, Value::Null, "to explain takes nothing out");
    pool.load(1).await;
    assert_eq!(pool.trips("panicked").await, (1.0, 1.0));
    let mut routing = pool.gateway.conf.routing.clone();
    routing["services"]["pool"]["timeouts"] = json!({"connect": "2s"});
    pool.gateway.write_routing(&routing);
    wait::until("the reload", || async {
        (pool.gateway.admin_get("/v1/services/pool").await["revision"]["routing"] == 2).then_some(())
    })
    .await;
    assert_eq!((pool.tripped().await, pool.trips("panicked").await), (json!("panicked"), (1.0, 1.0)));
    let told = pool.gateway.cli(&["rearm", "pool", "--reason", "mended"]).await.expect(0).stdout;
    assert!(told.contains("in force again; it had panicked"), "{told}");
    assert_eq!((pool.tripped().await, pool.trips("panicked").await), (Value::Null, (0.0, 1.0)));
    let entry = pool.gateway.admin_get("/v1/history").await["entries"][0].clone();
    assert_eq!((&entry["action"], &entry["reason"]), (&json!("rearm pool, which had panicked"), &json!("mended")));
    pool.load(1).await;
    assert_eq!(pool.trips("panicked").await, (1.0, 2.0), "it was in force, and panicked again");
    let unknown = pool.gateway.admin_send("POST", "/v1/services/nobody/rearm", &json!({})).await;
    assert_eq!(unknown.status, 404);
    let again = pool.gateway.admin_send("POST", "/v1/services/pool/rearm", &json!({})).await.expect(200).json();
    assert_eq!(again, json!({"was": "panicked"}));
    let again = pool.gateway.admin_send("POST", "/v1/services/pool/rearm", &json!({})).await.expect(200).json();
    assert_eq!(again, json!({"was": null}));
}

#[tokio::test]
async fn a_balancer_that_stalls_is_taken_out() {
    let guard = json!({"decision_p99": "1ms", "sustained": "1s"});
    let pool = Pool::start(json!({"fault": "stall"}), guard).await;
    let start = std::time::Instant::now();
    wait::until("the trip", || async {
        pool.load(5).await;
        (!pool.tripped().await.is_null()).then_some(())
    })
    .await;
    assert!(start.elapsed() > Duration::from_millis(900), "one slow moment is no reason");
    assert_eq!((pool.tripped().await, pool.trips("slow").await), (json!("slow"), (1.0, 1.0)));
    let slow = async || pool.gateway.metrics().await.sum("serin_decision_seconds_bucket", &["le=\"0.001\""]);
    let before = (slow().await, pool.origins[1].hits());
    pool.load(20).await;
    assert!(slow().await > before.0 + 100.0, "decisions are fast again");
    assert!(pool.origins[1].hits() > before.1 + 70, "by round robin");
}

/// Work that waits for a worker thread is an overload: new requests are turned away until the queue is short again.
#[tokio::test]
async fn a_queue_before_the_workers_is_shed() {
    let origins = origins(&["a"]).await;
    let mut pool = conf::pool(&[&origins[0]], json!([{"faulty": {"fault": "stall"}}]));
    pool["self_guard"] = json!({"decision_p99": "1s"});
    let mut conf = Conf::empty().with_service("pool", pool);
    conf.bootstrap["threads"] = json!(1);
    conf.bootstrap["overload"] = json!({"queue_delay": "50ms"});
    let gateway = Gateway::start_as(env!("CARGO_BIN_EXE_serin-faulty").into(), conf).await;
    // 64 clients at a time, each of whose requests holds the only worker for 5 ms.
    let client = async || {
        let mut conn = Conn::http1(gateway.http()).await;
        let end = tokio::time::Instant::now() + Duration::from_secs(10);
        while tokio::time::Instant::now() < end {
            let reply = Call::get("/pool").on(&mut conn).await;
            if reply.status == 503 {
                return reply.header("retry-after") == "1";
            }
        }
        false
    };
    let shed = futures_util::future::join_all((0..64).map(|_| client())).await;
    assert!(shed.iter().all(|&shed| shed), "{shed:?}");
    wait::until("the end of the queue", || async {
        (Call::get("/pool").to(gateway.http()).await.status == 200).then_some(())
    })
    .await;
    assert!(gateway.metrics().await.sum("serin_shed_total", &["resource=\"queue_delay\""]) >= 64.0);
}
