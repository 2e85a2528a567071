//! Where instances come from that are not listed in the routing document: registries of the bootstrap document, and
//! what services take from them.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::place::{EtcdServer, NacosServer, default_group};
use super::routing::{Instance, Labels};
use super::scalar::{Address, HostPort, Name, Percent, Span};

/// A registry of instances.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Registry {
    /// Nacos: instances are pushed, with weight, health, cluster and metadata.
    Nacos(NacosServer),
    /// etcd: a key per instance below a prefix, usually with a lease.
    Etcd(EtcdRegistry),
    /// ZooKeeper: a node per instance below the node of its service, usually an ephemeral one.
    Zookeeper(ZooKeeper),
    /// DNS: A, AAAA or SRV records, asked again when they expire.
    Dns(Dns),
    /// A YAML file of instances by the name of their service, as in the routing document. It is watched.
    File(PathBuf),
}

impl Registry {
    /// Makes relative paths relative to a base.
    pub(super) fn resolve(&mut self, base: &Path) {
        let mut join = |path: &mut PathBuf| *path = base.join(&*path);
        match self {
            Self::Nacos(server) => server.resolve(&mut join),
            Self::Etcd(etcd) => etcd.server.resolve(&mut join),
            Self::File(path) => join(path),
            Self::Zookeeper(_) | Self::Dns(_) => {}
        }
    }

    /// What kind it is.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Nacos(_) => "nacos",
            Self::Etcd(_) => "etcd",
            Self::Zookeeper(_) => "zookeeper",
            Self::Dns(_) => "dns",
            Self::File(_) => "file",
        }
    }
}

/// Instances in etcd: the key is PREFIX/SERVICE/ANYTHING, the value an instance as in the routing document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct EtcdRegistry {
    /// The servers.
    #[serde(flatten)]
    pub server: EtcdServer,
    /// What the keys of all instances begin with.
    #[serde(default = "default_prefix")]
    #[schemars(length(min = 1))]
    pub prefix: String,
}

fn default_prefix() -> String {
    "/serin/instances".to_owned()
}

/// Instances in ZooKeeper: a node per instance below PATH/SERVICE, with an instance as in the routing document in it,
/// or, if it is empty, with the address as its name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZooKeeper {
    /// The servers of the ensemble, any number of them.
    #[schemars(length(min = 1))]
    pub servers: Vec<HostPort>,
    /// Path of the node that the nodes of services are below.
    #[serde(default = "default_path")]
    pub path: String,
    /// How long the servers keep a session that they do not hear of.
    #[serde(default = "default_session")]
    pub session_timeout: Span,
}

fn default_path() -> String {
    "/serin/instances".to_owned()
}

fn default_session() -> Span {
    Span::from_secs(6)
}

/// Name servers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Dns {
    /// The servers to ask. Default: those of the system.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub servers: Vec<HostPort>,
    /// How often names are asked for at most, however short the time that their records live.
    pub min_ttl: Span,
    /// How often names are asked for at least, however long the time that their records live.
    pub max_ttl: Span,
}

impl Default for Dns {
    fn default() -> Self {
        Self { servers: Vec::new(), min_ttl: Span::from_secs(1), max_ttl: Span::from_secs(30) }
    }
}

/// The instances of a service as a registry lists them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FromRegistry {
    /// Name of the registry in the bootstrap document.
    pub from: Name,
    /// What the service is called there; in DNS the name to ask for. Default: as here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub service: Option<String>,
    /// Nacos: the group of the service.
    #[serde(default = "default_group")]
    #[schemars(length(min = 1))]
    pub group: String,
    /// Nacos: only instances of these clusters. Default: of all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clusters: Vec<String>,
    /// DNS: the port of the instances. With it A and AAAA records are asked for, without it SRV records, which have
    /// ports and weights of their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65_535))]
    pub port: Option<u16>,
    /// How long a list is held back that is empty or has lost too many instances at once. `0s` holds nothing back. With
    /// a `health_check`, instances that left such a list stay until their checks fail.
    #[serde(default = "default_hold")]
    pub hold: Span,
    /// Share of the instances that may leave at once.
    #[serde(default = "default_shrink")]
    pub max_shrink: Percent,
}

fn default_hold() -> Span {
    Span::from_secs(30)
}

fn default_shrink() -> Percent {
    Percent::of_whole(50)
}

/// An entry of this gateway in a registry: made when it serves, taken out when it is told to stop.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Registration {
    /// Name of the registry, which has to be of the kind `nacos` or `etcd`.
    #[serde(rename = "in")]
    pub registry: Name,
    /// What the gateway is called there.
    #[schemars(length(min = 1))]
    pub service: String,
    /// Nacos: the group of the service.
    #[serde(default = "default_group")]
    #[schemars(length(min = 1))]
    pub group: String,
    /// Where others reach it.
    pub address: Address,
    /// Labels; in Nacos metadata.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    /// Zone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<Name>,
    /// Cluster. Default: in Nacos `DEFAULT`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<Name>,
    /// Weight, 0 to 1,000,000; 100 is 1 in Nacos.
    #[serde(default = "super::routing::default_weight")]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub weight: u32,
}

impl Registration {
    /// The gateway as an instance.
    #[must_use]
    pub fn instance(&self) -> Instance {
        Instance {
            address: self.address.clone(),
            labels: self.labels.clone(),
            zone: self.zone.clone(),
            cluster: self.cluster.clone(),
            weight: self.weight,
        }
    }
}
