//! Registries of instances. A [`Registry`] only tells what it sees, and returns when it cannot go on; everything else is
//! common to all of them: a [`desk::Desk`] per registry holds back what is hardly true and keeps what is good on disk,
//! and [`discovery::Discovery`] has the services concerned, and no others, built anew.

pub mod desk;
pub mod discovery;
#[cfg(feature = "dns")]
mod dns;
#[cfg(feature = "etcd")]
mod etcd;
mod file;
mod listed;
#[cfg(feature = "nacos")]
mod nacos;
pub(crate) mod register;
mod shelf;
mod snapshot;
#[cfg(feature = "zookeeper")]
mod zookeeper;

use std::convert::Infallible;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use self::desk::Desk;
#[cfg(test)]
pub(crate) use self::listed::plain;
use crate::conf::{self, FromRegistry};
use crate::sources::Lost;

/// How often a registry is asked whether it is still there.
pub(crate) const LOOK: Duration = Duration::from_secs(3);
/// How long an answer may take.
pub(crate) const DEADLINE: Duration = Duration::from_secs(2);

/// What a service wants of a registry.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Query {
    /// What the service is called there.
    pub service: String,
    /// Its group.
    pub group: String,
    /// The clusters of its instances; all if it is empty.
    pub clusters: Vec<String>,
    /// The port of its instances, where the registry has none.
    pub port: Option<u16>,
    /// How long lists that are hardly true are held back.
    pub hold: Duration,
    /// The share of instances that may leave at once, in hundredths of a per cent.
    pub max_shrink: u32,
}

impl Query {
    /// What the service called `name` wants.
    pub(crate) fn new(name: &str, conf: &FromRegistry) -> Self {
        Self {
            service: conf.service.clone().unwrap_or_else(|| name.to_owned()),
            group: conf.group.clone(),
            clusters: conf.clusters.clone(),
            port: conf.port,
            hold: conf.hold.duration(),
            max_shrink: conf.max_shrink.hundredths(),
        }
    }
}

/// A source of instances.
#[async_trait]
pub(crate) trait Registry: Send + Sync {
    /// Tells the desk the whole list of every service that is wanted, again whenever one changes, and that it is alive
    /// every [`LOOK`]. Returns when it cannot go on: it does not try again by itself.
    async fn run(&self, desk: &Desk) -> Result<Infallible, Lost>;
}

/// The registry that is configured.
///
/// # Errors
/// If a file of keys or passwords cannot be used, or the binary was built without this kind of registry.
pub(crate) fn open(conf: &conf::Registry) -> Result<Box<dyn Registry>, String> {
    match conf {
        conf::Registry::File(path) => Ok(Box::new(file::FileRegistry::new(path.clone()))),
        #[cfg(feature = "etcd")]
        conf::Registry::Etcd(conf) => Ok(Box::new(etcd::EtcdRegistry::new(conf)?)),
        #[cfg(feature = "nacos")]
        conf::Registry::Nacos(conf) => Ok(Box::new(nacos::NacosRegistry::new(conf)?)),
        #[cfg(feature = "zookeeper")]
        conf::Registry::Zookeeper(conf) => Ok(Box::new(zookeeper::ZooKeeperRegistry::new(conf))),
        #[cfg(feature = "dns")]
        conf::Registry::Dns(conf) => Ok(Box::new(dns::DnsRegistry::new(conf)?)),
        #[cfg(not(all(feature = "dns", feature = "etcd", feature = "nacos", feature = "zookeeper")))]
        other => Err(crate::sources::left_out(other.kind())),
    }
}
