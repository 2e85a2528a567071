//! Nacos as registry: subscriptions over one connection. Instances that are disabled or not healthy are not listed.

use std::collections::{BTreeSet, HashMap};
use std::convert::Infallible;
use std::net::IpAddr;

use async_trait::async_trait;
use futures_util::{StreamExt, TryStreamExt, stream};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use super::desk::Desk;
use super::listed::plain;
use super::register::{Registrar, told};
use super::{LOOK, Query, Registry};
use crate::conf::{self, Instance, Registration};
use crate::sources::Lost;
use crate::sources::nacos::{Connection, Host, Push, Server, ServiceInfo, Verdict};

/// Subscriptions that are made at once.
const AT_ONCE: usize = 16;
/// Looks within which every service is asked for once though nothing was pushed.
const ROUND: usize = 10;

/// A Nacos server.
pub(super) struct NacosRegistry {
    server: Server,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Subscribed {
    #[serde(flatten)]
    verdict: Verdict,
    #[serde(default)]
    service_info: Option<ServiceInfo>,
}

impl NacosRegistry {
    pub(super) fn new(conf: &conf::NacosServer) -> Result<Self, String> {
        Ok(Self { server: Server::new(conf)? })
    }

    /// Asks to be told of a service from now on, or not any more, and tells what it is now.
    async fn subscribe(&self, connection: &Connection, query: &Query, on: bool) -> Result<Vec<Host>, Lost> {
        let body = json!({
            "module": "naming",
            "namespace": self.server.namespace(),
            "serviceName": query.service,
            "groupName": query.group,
            "clusters": "",
            "subscribe": on,
        });
        let answer: Subscribed = connection.ask("SubscribeServiceRequest", body).await?;
        if !answer.verdict.is_good() {
            return Err(Lost(format!("{}: {}", query.service, answer.verdict.problem())));
        }
        Ok(answer.service_info.and_then(|info| info.hosts).unwrap_or_default())
    }

    async fn subscribe_all<'a>(
        &self,
        connection: &Connection,
        desk: &Desk,
        queries: impl Iterator<Item = &'a Query>,
    ) -> Result<(), Lost> {
        let one = async |query: &Query| {
            let hosts = self.subscribe(connection, query, true).await?;
            tell(desk, query, &hosts);
            Ok(())
        };
        stream::iter(queries).map(one).buffer_unordered(AT_ONCE).try_collect().await
    }
}

fn tell(desk: &Desk, query: &Query, hosts: &[Host]) {
    let of_cluster = |host: &&Host| {
        let cluster = host.cluster_name.as_deref().unwrap_or("DEFAULT");
        query.clusters.is_empty() || query.clusters.iter().any(|wanted| wanted == cluster)
    };
    let serves = |host: &&Host| host.enabled && host.healthy;
    let read = |host: &Host| {
        instance(host).inspect_err(|why| desk.unreadable(&format!("{} {}", query.service, host.ip), why)).ok()
    };
    desk.tell(query, hosts.iter().filter(of_cluster).filter(serves).filter_map(read).collect());
}

/// An instance of Nacos as Serin has it: weight 1 is the usual one, metadata are labels.
fn instance(host: &Host) -> Result<Instance, String> {
    let ip: IpAddr = host.ip.parse().map_err(|_| format!("{:?} is no IP address", host.ip))?;
    let port = u16::try_from(host.port).map_err(|_| format!("{} is no port", host.port))?;
    let usual = f64::from(serin_core::instance::DEFAULT_WEIGHT);
    let metadata = host.metadata.iter().flatten();
    let mut labels: Vec<_> = metadata.map(|(name, value)| (name.clone(), value.clone())).collect();
    labels.sort();
    let zone = labels.iter().find(|(name, _)| name == "zone").and_then(|(_, zone)| zone.parse().ok());
    Ok(Instance {
        weight: match host.weight * usual {
            weight if (0.0..=1_000_000.0).contains(&weight) => weight.round() as u32,
            _ => serin_core::instance::DEFAULT_WEIGHT,
        },
        labels: labels.into_iter().collect(),
        zone,
        cluster: host.cluster_name.as_deref().and_then(|name| name.parse().ok()),
        ..plain((ip, port).into())
    })
}

#[async_trait]
impl Registry for NacosRegistry {
    async fn run(&self, desk: &Desk) -> Result<Infallible, Lost> {
        let mut wanted = desk.wanted();
        let (connection, mut pushes) = Connection::open(&self.server).await?;
        let mut subscribed: BTreeSet<Query> = BTreeSet::clone(&wanted.borrow_and_update());
        self.subscribe_all(&connection, desk, subscribed.iter()).await?;
        desk.alive();
        let mut looks = tokio::time::interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut round = 0;
        loop {
            tokio::select! {
                push = pushes.next() => {
                    let Push::Service(info) = push? else { continue };
                    let concerned = |query: &&Query| query.service == info.plain_name() && query.group == info.group_name;
                    let hosts = info.hosts.as_deref().unwrap_or_default();
                    subscribed.iter().filter(concerned).for_each(|query| tell(desk, query, hosts));
                }
                _ = looks.tick() => {
                    connection.demand("HealthCheckRequest", json!({"module": "internal"})).await?;
                    desk.alive();
                    // Whatever a push was lost to is put right by and by.
                    let due = subscribed.iter().skip(round).step_by(ROUND);
                    self.subscribe_all(&connection, desk, due).await?;
                    round = (round + 1) % ROUND;
                }
                changed = wanted.changed() => {
                    changed.map_err(Lost::because)?;
                    let now = BTreeSet::clone(&wanted.borrow_and_update());
                    self.subscribe_all(&connection, desk, now.difference(&subscribed)).await?;
                    for query in subscribed.difference(&now) {
                        self.subscribe(&connection, query, false).await?;
                    }
                    subscribed = now;
                }
            }
        }
    }
}

#[async_trait]
impl Registrar for NacosRegistry {
    /// The entry lives as long as the connection does.
    async fn stay(&self, entry: &Registration, leave: &mut watch::Receiver<bool>) -> Result<(), Lost> {
        let (connection, mut pushes) = Connection::open(&self.server).await?;
        let body = |kind: &str| {
            json!({
                "module": "naming",
                "namespace": self.server.namespace(),
                "serviceName": entry.service,
                "groupName": entry.group,
                "type": kind,
                "instance": host(entry),
            })
        };
        connection.demand("InstanceRequest", body("registerInstance")).await?;
        tracing::info!(registry = %entry.registry, service = entry.service, "registered");
        let mut beats = tokio::time::interval(LOOK);
        loop {
            tokio::select! {
                () = told(leave) => {
                    return connection.demand("InstanceRequest", body("deregisterInstance")).await;
                }
                push = pushes.next() => drop(push?),
                _ = beats.tick() => connection.demand("HealthCheckRequest", json!({"module": "internal"})).await?,
            }
        }
    }
}

/// This gateway as Nacos has it.
fn host(entry: &Registration) -> Host {
    let mut metadata: HashMap<String, String> = entry.labels.clone().into_iter().collect();
    metadata.extend(entry.zone.as_ref().map(|zone| ("zone".to_owned(), zone.to_string())));
    Host {
        ip: entry.address.ip().to_string(),
        port: entry.address.port().into(),
        weight: f64::from(entry.weight) / f64::from(serin_core::instance::DEFAULT_WEIGHT),
        cluster_name: Some(entry.cluster.as_ref().map_or_else(|| "DEFAULT".to_owned(), ToString::to_string)),
        metadata: Some(metadata),
        ..Host::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_become_instances() {
        let host: Host = serde_json::from_str(
            r#"{"ip": "10.0.0.1", "port": 80, "weight": 0.5, "clusterName": "HZ", "metadata": {"zone": "az-1", "v": "2"}}"#,
        )
        .unwrap();
        let made = instance(&host).unwrap();
        assert_eq!((made.address.to_string(), made.weight), ("10.0.0.1:80".to_owned(), 50));
        assert_eq!(
            (made.zone.unwrap().as_str(), made.cluster.unwrap().as_str(), &*made.labels["v"]),
            ("az-1", "HZ", "2")
        );
        for (weight, expected) in [(0.0, 0), (1.0, 100), (f64::NAN, 100), (-1.0, 100), (1e9, 100)] {
            assert_eq!(instance(&Host { weight, ..host.clone() }).unwrap().weight, expected, "{weight}");
        }
        assert!(instance(&Host { ip: "localhost".to_owned(), ..host.clone() }).is_err());
        assert!(instance(&Host { port: 65_536, ..host }).is_err());
    }
}
