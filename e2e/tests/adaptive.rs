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
        *new.last().unwrap() as f64 / new.iter().sum::<u64>() as f64
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
