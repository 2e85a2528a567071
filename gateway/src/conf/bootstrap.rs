//! The bootstrap document, `conf/serin.yaml`: what a gateway needs to know before it serves anything. It is read once,
//! when the gateway starts.

use std::num::NonZeroU16;
use std::path::{Path, PathBuf};

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::admin::Admin;
use super::drain::Drain;
use super::limits::Limits;
use super::overload::Overload;
use super::place::Place;
use super::redis::GatewayLimits;
use super::registry::{Registration, Registry};
use super::requests::Requests;
use super::scalar::{Address, Cidr, HeaderName, LogTarget, Name, OrNone};
use super::telemetry::{AccessLog, Telemetry};

/// Bootstrap document of Serin: listeners, admin, and where the other two documents are. Read once, at the start.
/// Paths are relative to this file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Bootstrap {
    /// What this gateway is called and where it runs.
    #[serde(default)]
    pub node: Node,
    /// Where clients connect. At least one.
    #[schemars(length(min = 1))]
    pub listeners: Vec<Listener>,
    /// The admin API.
    #[serde(default)]
    pub admin: Admin,
    /// Peers whose `X-Forwarded-*`, `Forwarded`, request id and override tags are believed. Default: none.
    #[serde(default)]
    pub trusted_proxies: Vec<Cidr>,
    /// Where the routing document is.
    pub routing: Place,
    /// Where the traffic document is. It must be writable for flips through the admin API.
    pub traffic: Place,
    /// Registries of instances by name, for services with `registry` in place of `instances`.
    #[serde(default, skip_serializing_if = "IndexMap::is_empty")]
    pub registries: IndexMap<Name, Registry>,
    /// Entries of this gateway in registries. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub register: Vec<Registration>,
    /// Directory for what must outlive a restart: the history, the audit log, and the last good state of config centers
    /// and registries. Default: `.serin` beside the traffic document's file, or beside this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_dir: Option<PathBuf>,
    /// Access log, traces, metrics.
    #[serde(default)]
    pub telemetry: Telemetry,
    /// Key for override tags of the rules with `trust: signed`. Default: no signed tag is believed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag_signing: Option<TagSigning>,
    /// Which headers tell upstreams about the client.
    #[serde(default)]
    pub forwarding: Forwarding,
    /// Worker threads, 1 to 65,535. Default: as many as CPUs are available.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<NonZeroU16>,
    /// What happens when the gateway is told to stop.
    #[serde(default)]
    pub drain: Drain,
    /// When the gateway as a whole sheds load.
    #[serde(default)]
    pub overload: Overload,
    /// What clients may take up, over all listeners.
    #[serde(default, skip_serializing_if = "GatewayLimits::is_empty")]
    pub limits: GatewayLimits,
    /// How requests are read.
    #[serde(default)]
    pub requests: Requests,
}

impl Bootstrap {
    /// Makes relative paths relative to `base`.
    pub(super) fn resolve(&mut self, base: &Path) {
        let join = |path: &mut PathBuf| *path = base.join(&*path);
        self.routing.resolve(&mut { join });
        self.traffic.resolve(&mut { join });
        self.registries.values_mut().for_each(|registry| registry.resolve(base));
        let state_dir = || self.traffic.file().map_or_else(|| base.join(".serin"), |f| f.with_file_name(".serin"));
        self.state_dir = Some(self.state_dir.take().map_or_else(state_dir, |dir| base.join(dir)));
        self.admin.token_files_mut().for_each(join);
        if let Some(tls) = &mut self.admin.tls {
            [&mut tls.cert, &mut tls.key].into_iter().chain(&mut tls.client_ca).for_each(join);
        }
        self.tag_signing.iter_mut().for_each(|signing| join(&mut signing.key_file));
        for tls in self.listeners.iter_mut().filter_map(|listener| listener.tls.as_mut()) {
            tls.certificates.iter_mut().flat_map(|pair| [&mut pair.cert, &mut pair.key]).for_each(join);
        }
        self.limits.resolve(&mut { join });
        if let Some(AccessLog { path: LogTarget::File(path), .. }) = &mut self.telemetry.access_log {
            join(path);
        }
        self.telemetry.traces.iter_mut().filter_map(|traces| traces.otlp.ca_file.as_mut()).for_each(join);
        self.telemetry.metrics.iter_mut().filter_map(|metrics| metrics.otlp.ca_file.as_mut()).for_each(join);
    }

    /// Directory for what must outlive a restart.
    #[must_use]
    pub fn state_dir(&self) -> PathBuf {
        self.state_dir.clone().unwrap_or_else(|| PathBuf::from(".serin"))
    }
}

/// What this gateway is called and where it runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// Identity of this gateway among its replicas. Default: the name of the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<Name>,
    /// Its zone, for `zone_affinity`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<Name>,
    /// Its cluster, for the narrow `cluster`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<Name>,
}

impl Node {
    /// As the plug-ins have it; without an id if none is configured.
    #[must_use]
    pub fn to_core(&self) -> serin_core::plugin::Node {
        serin_core::plugin::Node {
            id: self.id.as_ref().map(Name::shared).unwrap_or_default(),
            zone: self.zone.as_ref().map(Name::shared),
            cluster: self.cluster.as_ref().map(Name::shared),
        }
    }
}

/// One address that clients connect to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Listener {
    /// Name, in logs and metrics.
    pub name: Name,
    /// Where it listens; port 0 takes a free one.
    pub address: Address,
    /// Protocols that clients may speak. Default: `[http1]`, with TLS `[http1, h2]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub protocols: Option<Vec<Protocol>>,
    /// TLS. Default: clear text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<ListenerTls>,
    /// What its clients may take up, where that differs from the document's `limits`.
    #[serde(default, skip_serializing_if = "Limits::is_empty")]
    pub limits: Limits,
    /// Whether load balancers among `trusted_proxies` say who the client is by the PROXY protocol, version 1 or 2. Every
    /// connection has to begin with it then, and nobody else may connect.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub proxy_protocol: bool,
}

impl Listener {
    /// Whether clients may speak this protocol.
    #[must_use]
    pub fn speaks(&self, protocol: Protocol) -> bool {
        match (&self.protocols, &self.tls) {
            (Some(protocols), _) => protocols.contains(&protocol),
            (None, Some(_)) => protocol != Protocol::H2c,
            (None, None) => protocol == Protocol::Http1,
        }
    }
}

/// A protocol that clients speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// HTTP/1.1 (and 1.0).
    Http1,
    /// HTTP/2 over TLS.
    H2,
    /// HTTP/2 over clear text, with prior knowledge.
    H2c,
}

/// TLS towards clients. The files are read when the gateway starts and whenever they change, not by `serin check`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListenerTls {
    /// Certificates; the one that fits the client's SNI is taken, else the first.
    #[schemars(length(min = 1))]
    pub certificates: Vec<Certificate>,
    /// Oldest version that is accepted.
    #[serde(default)]
    pub min_version: TlsVersion,
    /// Whether requests are answered with 421 whose host is neither the name in the client's SNI nor one of the certificate
    /// that it got. Turn it off where a proxy in front connects under one name for requests to all hosts.
    #[serde(default = "on")]
    pub check_host: bool,
}

fn on() -> bool {
    true
}

/// A certificate chain and its private key, both PEM.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Certificate {
    /// File of the certificate, followed by its intermediates.
    pub cert: PathBuf,
    /// File of the private key.
    pub key: PathBuf,
}

/// A version of TLS, in quotes: unquoted, YAML takes it for a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum TlsVersion {
    /// TLS 1.2.
    #[default]
    #[serde(rename = "1.2")]
    V12,
    /// TLS 1.3.
    #[serde(rename = "1.3")]
    V13,
}

/// Signatures of override tags.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TagSigning {
    /// File of the key for HMAC-SHA-256: at least 16 bytes; white space at the end is not part of it.
    pub key_file: PathBuf,
}

/// Which headers tell upstreams about the client. What clients send in them is kept only if the peer is one of
/// `trusted_proxies`, else it is replaced.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Forwarding {
    /// Send `X-Forwarded-For`, `X-Forwarded-Proto` and `X-Forwarded-Host`.
    pub x_forwarded: bool,
    /// Send `Forwarded` (RFC 7239).
    pub forwarded: bool,
    /// Header that carries the request's id towards upstreams and back to the client, or `none`.
    pub request_id: OrNone<HeaderName>,
    /// Whose request ids are kept; everybody else's are replaced by a fresh one.
    pub trust_request_id: TrustRequestId,
}

impl Default for Forwarding {
    fn default() -> Self {
        Self {
            x_forwarded: true,
            forwarded: false,
            request_id: OrNone::Some(HeaderName(http::HeaderName::from_static("x-request-id"))),
            trust_request_id: TrustRequestId::default(),
        }
    }
}

/// Whose request ids are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TrustRequestId {
    /// Anybody's.
    Any,
    /// Those of `trusted_proxies`.
    #[default]
    TrustedProxies,
    /// Nobody's.
    None,
}
