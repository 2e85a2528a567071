//! What the tests of fleets share: a config center of either kind, gateways on it, and load.

#![allow(dead_code, reason = "not every test needs all of it")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use serde_json::json;
use serin_e2e::client::{Call, Conn};
use serin_e2e::servers::{Etcd, Nacos};
use serin_e2e::world::{origins, users_conf, version};
use serin_e2e::{Conf, Gateway, Origin, wait};
use tokio::task::JoinHandle;

/// Name of the traffic document in the center.
pub(crate) const TRAFFIC: &str = "serin-traffic.yaml";
/// Name of the routing document in the center.
pub(crate) const ROUTING: &str = "serin-routing.yaml";

/// A config center.
pub(crate) enum Center {
    Etcd(Etcd),
    Nacos(Nacos),
}

impl Center {
    pub(crate) async fn etcd() -> Self {
        Self::Etcd(Etcd::start().await)
    }

    pub(crate) async fn nacos() -> Self {
        Self::Nacos(Nacos::start().await)
    }

    /// Where a document is, as the bootstrap document has it.
    pub(crate) fn place(&self, name: &str) -> serde_json::Value {
        match self {
            Self::Etcd(etcd) => json!({"etcd": {"endpoints": [etcd.endpoint()], "key": name}}),
            Self::Nacos(nacos) => {
                let mut conf = nacos.conf();
                conf["data_id"] = json!(name);
                json!({"nacos": conf})
            }
        }
    }

    pub(crate) async fn put(&self, name: &str, text: &str) {
        assert!(self.try_put(name, text).await, "{name} could not be written");
    }

    pub(crate) async fn try_put(&self, name: &str, text: &str) -> bool {
        match self {
            Self::Etcd(etcd) => {
                etcd.put(name, text).await;
                true
            }
            Self::Nacos(nacos) => nacos.try_put(name, text).await,
        }
    }

    pub(crate) async fn get(&self, name: &str) -> Option<String> {
        match self {
            Self::Etcd(etcd) => etcd.get(name).await,
            Self::Nacos(nacos) => nacos.get(name).await,
        }
    }

    pub(crate) fn kill(&self) {
        match self {
            Self::Etcd(etcd) => etcd.kill(),
            Self::Nacos(nacos) => nacos.kill(),
        }
    }

    pub(crate) async fn revive(&self) {
        match self {
            Self::Etcd(etcd) => etcd.revive().await,
            Self::Nacos(nacos) => nacos.revive().await,
        }
    }

    pub(crate) fn wipe(&self) {
        match self {
            Self::Etcd(etcd) => etcd.wipe(),
            Self::Nacos(nacos) => nacos.wipe(),
        }
    }

    pub(crate) fn hang(&self) {
        match self {
            Self::Etcd(etcd) => etcd.hang(),
            Self::Nacos(nacos) => nacos.hang(),
        }
    }

    pub(crate) fn resume(&self) {
        match self {
            Self::Etcd(etcd) => etcd.resume(),
            Self::Nacos(nacos) => nacos.resume(),
        }
    }
}

/// Gateways that share a config center, before origins of service `users` in two versions, all traffic to v1.
pub(crate) struct Fleet {
    pub(crate) center: Center,
    pub(crate) gateways: Vec<Gateway>,
    pub(crate) origins: Vec<Origin>,
}

/// Starts a gateway on a center.
pub(crate) async fn gateway(center: &Center, mut conf: Conf, number: usize) -> Gateway {
    conf.bootstrap["node"]["id"] = json!(format!("gw-{number}"));
    conf.bootstrap["routing"] = center.place(ROUTING);
    conf.bootstrap["traffic"] = center.place(TRAFFIC);
    conf.bootstrap["state_dir"] = json!("state");
    Gateway::start(conf).await
}

impl Fleet {
    pub(crate) async fn start(center: Center, gateways: usize) -> Self {
        let origins = origins(&["v1-a", "v2-a"]).await;
        let mut conf = users_conf(&origins);
        conf.weights(&[("v1", "100%"), ("v2", "0%")]);
        center.put(ROUTING, &conf.routing.to_string()).await;
        center.put(TRAFFIC, &conf.traffic.to_string()).await;
        let mut started = vec![];
        for number in 0..gateways {
            started.push(gateway(&center, conf.clone(), number).await);
        }
        let fleet = Self { center, gateways: started, origins };
        for gateway in &fleet.gateways {
            fleet.connected(gateway).await;
        }
        fleet
    }

    async fn connected(&self, gateway: &Gateway) {
        wait::until("the config center to be followed", || async {
            let documents = gateway.admin_get("/readyz?verbose").await["documents"].clone();
            let there = |name: &str| documents[name]["center"]["reachable"] == true;
            (there("routing") && there("traffic")).then_some(())
        })
        .await;
    }

    /// The version that a user gets at a gateway.
    pub(crate) async fn version_at(&self, gateway: usize, user: &str) -> String {
        version(&Call::get("/").user(user).to(self.gateways[gateway].http()).await.origin())
    }

    /// Waits until all gateways have the same revision in force as the center.
    pub(crate) async fn agreed(&self) {
        wait::until("the gateways to agree", || async {
            let center = self.center.get(TRAFFIC).await.unwrap_or_default();
            let mut all = vec![];
            for gateway in &self.gateways {
                all.push(gateway.admin_get("/v1/traffic").await);
            }
            let same = all.iter().all(|traffic| *traffic == all[0]);
            (same && center.contains(&format!("revision: {}\n", all[0]["revision"]))).then_some(())
        })
        .await;
    }
}

/// A keep-alive connection to each gateway that asks every few milliseconds until it is stopped.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    served: Arc<AtomicU64>,
    tasks: Vec<JoinHandle<Vec<String>>>,
}

impl Load {
    pub(crate) fn start(gateways: &[Gateway]) -> Self {
        let (stop, served) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let spawn = |gateway: &Gateway| {
            let (stop, served, address) = (Arc::clone(&stop), Arc::clone(&served), gateway.http());
            tokio::spawn(async move {
                let mut conn = Conn::http1(address).await;
                let (mut failures, mut number) = (vec![], 0_u64);
                while !stop.load(Relaxed) {
                    number += 1;
                    tokio::time::sleep(std::time::Duration::from_millis(2)).await;
                    match Call::get("/").user(format!("load-{number}")).try_on(&mut conn).await {
                        Ok(reply) if reply.status == 200 => drop(served.fetch_add(1, Relaxed)),
                        Ok(reply) => failures.push(format!("{}: {}", reply.status, reply.text())),
                        Err(error) => {
                            failures.push(error.to_string());
                            break;
                        }
                    }
                }
                failures
            })
        };
        let tasks = gateways.iter().map(spawn).collect();
        Self { stop, served, tasks }
    }

    /// Stops, and fails the test if any request failed.
    pub(crate) async fn finish(self) {
        let all: Vec<_> = (0..self.tasks.len()).collect();
        self.finish_of(&all).await;
    }

    /// The same, of some of the gateways only: others were restarted.
    pub(crate) async fn finish_of(self, gateways: &[usize]) {
        self.stop.store(true, Relaxed);
        for (number, task) in self.tasks.into_iter().enumerate() {
            let failures = task.await.unwrap_or_else(|error| vec![error.to_string()]);
            assert!(failures.is_empty() || !gateways.contains(&number), "gateway {number}: {failures:?}");
        }
        assert!(self.served.load(Relaxed) > 100, "too little load to tell");
    }
}
