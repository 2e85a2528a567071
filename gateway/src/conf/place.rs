//! Where the routing and the traffic document are: in a file, or in a config center that a fleet shares.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::scalar::{BaseUrl, HostPort};

/// Where a document is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// Path of a file. It is watched: a change is in force as soon as it is seen to be sound.
    File(PathBuf),
    /// A configuration of Nacos.
    Nacos(NacosDocument),
    /// A key of etcd.
    Etcd(EtcdDocument),
}

impl Place {
    /// The file, if it is in one.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        if let Self::File(path) = self { Some(path) } else { None }
    }

    /// The place of another document beside this one; none if it is a file.
    #[must_use]
    pub fn beside(&self, suffix: &str) -> Option<Self> {
        match self {
            Self::File(_) => None,
            Self::Nacos(nacos) => {
                Some(Self::Nacos(NacosDocument { data_id: format!("{}{suffix}", nacos.data_id), ..nacos.clone() }))
            }
            Self::Etcd(etcd) => Some(Self::Etcd(EtcdDocument { key: format!("{}{suffix}", etcd.key), ..etcd.clone() })),
        }
    }

    /// Makes relative paths relative to a base.
    pub(super) fn resolve(&mut self, join: &mut impl FnMut(&mut PathBuf)) {
        match self {
            Self::File(path) => join(path),
            Self::Nacos(nacos) => nacos.server.resolve(join),
            Self::Etcd(etcd) => etcd.server.resolve(join),
        }
    }
}

/// A configuration of Nacos.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct NacosDocument {
    /// The server.
    #[serde(flatten)]
    pub server: NacosServer,
    /// Group of the configuration.
    #[serde(default = "default_group")]
    #[schemars(length(min = 1))]
    pub group: String,
    /// Its data id.
    #[schemars(length(min = 1))]
    pub data_id: String,
}

/// The group that Nacos puts things into which are in no other.
pub(super) fn default_group() -> String {
    "DEFAULT_GROUP".to_owned()
}

/// A Nacos server, or a name that stands for all servers of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct NacosServer {
    /// Its host and its HTTP port.
    pub address: HostPort,
    /// Its gRPC port. Default: the HTTP port and 1,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65_535))]
    pub grpc_port: Option<u16>,
    /// Id of the namespace. Default: `public`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// User, if the server asks for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub username: Option<String>,
    /// File of the user's password; white space at the end is not part of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password_file: Option<PathBuf>,
}

impl NacosServer {
    /// The gRPC port.
    #[must_use]
    pub fn grpc_port(&self) -> u16 {
        self.grpc_port.unwrap_or_else(|| self.address.port().saturating_add(1_000))
    }

    pub(super) fn resolve(&mut self, join: &mut impl FnMut(&mut PathBuf)) {
        self.password_file.iter_mut().for_each(join);
    }
}

/// A key of etcd.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct EtcdDocument {
    /// The servers.
    #[serde(flatten)]
    pub server: EtcdServer,
    /// The key.
    #[schemars(length(min = 1))]
    pub key: String,
}

/// An etcd cluster (v3.4 or newer).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct EtcdServer {
    /// Its members, any number of them.
    #[schemars(length(min = 1))]
    pub endpoints: Vec<BaseUrl>,
    /// TLS towards `https` endpoints. Default: the authorities of the system are trusted, no certificate is shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<ClientTls>,
    /// User, if the servers ask for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub username: Option<String>,
    /// File of the user's password; white space at the end is not part of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password_file: Option<PathBuf>,
}

impl EtcdServer {
    pub(super) fn resolve(&mut self, join: &mut impl FnMut(&mut PathBuf)) {
        self.password_file.iter_mut().for_each(&mut *join);
        let Some(tls) = &mut self.tls else { return };
        [&mut tls.ca, &mut tls.cert, &mut tls.key].into_iter().flatten().for_each(join);
    }
}

/// TLS of a client.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ClientTls {
    /// PEM file of the authorities to trust. Default: those of the system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    /// PEM file of the certificate to show.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cert: Option<PathBuf>,
    /// PEM file of its private key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
    /// Name that the servers' certificates must bear. Default: the host of the endpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub sni: Option<String>,
}
