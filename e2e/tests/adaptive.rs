//! Promise: picks that look at latency and load keep traffic away from a slow instance, and only from that one.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use serin_e2e::client::{Call, Conn};
use serin_e2e::origin::Behaviour;
use serin_e2e::world::origins;
use serin_e2e::{Conf, Gateway, Origin, conf};

const FAST: Duration = Duration::from_millis(20);
const SLOW: Duration = Duration::from_millis(200);

/// Two fast instances, a slow one, and a gateway with one pool of them.
struct Pool {
    origins: Vec<Origin>,
    gateway: Gateway,
}

impl Pool {
    async fn start(balancer: Value) -> Self {
        let origins = origins(&["fast-a", "fast-b", "slow"]).await;
        for (origin, delay) in origins.iter().zip([FAST, FAST, SLOW]) {
            origin.set(Behaviour::Delay(delay));
        }
        let pool = conf::pool(&origins.iter().collect::<Vec<_>>(), balancer);
        Self { gateway: Gateway::start(Conf::empty().with_service("pool", pool)).await, origins }
    }

    /// So many clients send one request after the other for this long.
    async fn closed_loop(&self, clients: usize, time: Duration) {
        let address = self.gateway.http();
        let end = Instant::now() + time;
        let client = async || {
            let mut conn = Conn::http1(address).await;
            while Instant::now() < end {
                let _ = Call::get("/pool").on(&mut conn).await.expect(200);
            }
        };
        futures_util::future::join_all((0..clients).map(|_| client())).await;
    }

    fn hits(&self) -> Vec<u64> {
        self.origins.iter().map(Origin::hits).collect()
    }

    /// The share of the last instance in what arrived since `before`.
    fn last_share(&self, before: &[u64]) -> f64 {
        let new: Vec<_> = self.hits().iter().zip(before).map(|(after, before)| after - before).collect();
        new.last().copied().unwrap_or_default() as f64 / new.iter().sum::<u64>() as f64
    }
}

#[tokio::test]
async fn clients_that_hang_up_do_not_make_an_instance_look_slow() {
    let pool = Pool::start(json!([{"peak_ewma": {}}])).await;
    pool.closed_loop(8, 3 * SLOW).await;
    let hung_up = async |_| {
        let mut conn = Conn::http1(pool.gateway.http()).await;
        let _ = tokio::time::timeout(FAST / 2, Call::get("/pool").open_on(&mut conn)).await;
    };
    futures_util::future::join_all((0..32).map(hung_up)).await;
    let before = pool.hits();
    pool.closed_loop(8, Duration::from_secs(1)).await;
    let share = pool.last_share(&before);
    assert!(share < 0.05, "the slow one got {share:.3} of the requests");
}

#[tokio::test]
async fn a_slow_instance_loses_its_traffic_within_ten_seconds() {
    for pick in ["adaptive", "peak_ewma"] {
        let pool = Pool::start(json!([{ pick: {} }])).await;
        pool.closed_loop(8, Duration::from_secs(2)).await;
        let before = pool.hits();
        pool.closed_loop(8, Duration::from_secs(2)).await;
        let share = pool.last_share(&before);
        assert!(share < 0.05, "{pick}: the slow one got {share:.3} of the requests");
        assert!(pool.last_share(&[0, 0, 0]) > 0.0, "{pick}: it was tried");
    }
}

/// Two instances of equal speed behind round robin, and what is done with the load that they report.
async fn reporting(load_reports: Value) -> Pool {
    let origins = origins(&["a", "b"]).await;
    let mut pool = conf::pool(&origins.iter().collect::<Vec<_>>(), json!([{"round_robin": {}}]));
    pool["load_reports"] = load_reports;
    Pool { gateway: Gateway::start(Conf::empty().with_service("pool", pool)).await, origins }
}

const REPORT: &str = "endpoint-load-metrics";

#[tokio::test]
async fn reported_load_steers_and_expires() {
    let pool = reporting(json!({"blackout": "0s", "update_every": "50ms", "expire_after": "1s"})).await;
    let report = |utilization: f64| format!("TEXT cpu_utilization={utilization},rps_fractional=100");
    // In order of their addresses, as the gateway has them; the shares do not depend on it.
    let loads = [("a", report(0.1)), ("b", "JSON {\"cpu_utilization\": 0.9, \"rps_fractional\": 100}".to_owned())];
    for (origin, (_, report)) in pool.origins.iter().zip(&loads) {
        origin.set(Behaviour::Headers(vec![(REPORT, report.clone())]));
    }
    pool.closed_loop(2, Duration::from_millis(300)).await;
    let before = pool.hits();
    pool.closed_loop(2, Duration::from_millis(500)).await;
    let share = pool.last_share(&before);
    // Its factor is 1/9, and half of the times that it is left the other one is taken: 5.6 %.
    assert!((0.01..0.15).contains(&share), "the loaded one got {share:.3} of the requests");
    let shown = pool.gateway.admin_get("/v1/services/pool").await;
    let mut factors: Vec<_> =
        shown["instances"].as_array().unwrap().iter().map(|i| i["load"]["factor"].as_f64().unwrap()).collect();
    factors.sort_by(f64::total_cmp);
    assert_eq!(factors, [0.1111, 1.0], "{shown}");
    pool.origins.iter().for_each(|origin| origin.set(Behaviour::Describe));
    serin_e2e::wait::until("the reports to expire", || async {
        let shown = pool.gateway.admin_get("/v1/services/pool").await;
        shown["instances"].as_array().unwrap().iter().all(|i| i["load"].is_null()).then_some(())
    })
    .await;
    let before = pool.hits();
    pool.closed_loop(2, Duration::from_millis(300)).await;
    let share = pool.last_share(&before);
    assert!((0.45..0.55).contains(&share), "the formerly loaded one got {share:.3} of the requests");
}

#[tokio::test]
async fn reports_are_taken_out_and_bad_ones_do_no_harm() {
    for forward in [false, true] {
        let pool = reporting(json!({"forward": forward})).await;
        let reports = ["TEXT cpu_utilization=0.5", "JSON {", "BIN !!", "TEXT cpu_utilization=-1", "what is this"];
        for report in reports {
            pool.origins.iter().for_each(|origin| origin.set(Behaviour::Headers(vec![(REPORT, report.to_owned())])));
            let reply = Call::get("/pool").to(pool.gateway.http()).await.expect(200);
            assert_eq!(reply.header(REPORT), if forward { report } else { "" });
        }
        let binary = Behaviour::Headers(vec![("endpoint-load-metrics-bin", "CQAAAAAAAOA/".to_owned())]);
        pool.origins.iter().for_each(|origin| origin.set(binary.clone()));
        let reply = Call::get("/pool").to(pool.gateway.http()).await.expect(200);
        assert_eq!(reply.headers.contains_key("endpoint-load-metrics-bin"), forward);
        let metrics = pool.gateway.metrics().await;
        let count = |result: &str| metrics.sum("serin_load_reports_total", &[&format!("result=\"{result}\"")]);
        assert_eq!((count("ok"), count("bad")), (2.0, 4.0));
    }
}

/// Instances in these zones, 50 ms each; the gateway is in `az-1`.
async fn zoned(zones: &[&str], conf: Value) -> Pool {
    let origins = origins(zones).await;
    let mut pool = conf::pool(&origins.iter().collect::<Vec<_>>(), json!([{ "zone_affinity": conf }, {"p2c": {}}]));
    for (at, origin) in origins.iter().enumerate() {
        pool["instances"][at]["zone"] = json!(origin.name);
        origin.set(Behaviour::Delay(Duration::from_millis(50)));
    }
    Pool { gateway: Gateway::start(Conf::empty().with_service("pool", pool)).await, origins }
}

#[tokio::test]
async fn a_busy_zone_spills() {
    let pool = zoned(&["az-1", "az-2"], json!({"max_in_flight": 8})).await;
    pool.closed_loop(4, Duration::from_millis(500)).await;
    assert!(pool.hits()[0] > 10 && pool.hits()[1] == 0, "{:?} of 4 clients", pool.hits());
    pool.closed_loop(16, Duration::from_secs(1)).await;
    let hits = pool.hits();
    assert!(hits[1] > 20 && hits[0] > 20, "{hits:?} of 16 clients");
}

#[tokio::test]
async fn a_zone_without_instances_is_counted_and_warned_of_once() {
    let pool = zoned(&["az-2", "az-3"], json!({})).await;
    pool.closed_loop(1, Duration::from_millis(300)).await;
    let hits: u64 = pool.hits().iter().sum();
    let missed = async || pool.gateway.metrics().await.sum("serin_narrow_missed_total", &["narrow=\"zone_affinity\""]);
    assert_eq!([missed().await, missed().await], [hits as f64; 2]);
    let output = pool.gateway.output();
    assert_eq!(output.matches("no instance of the own zone").count(), 1, "{output}");
}
