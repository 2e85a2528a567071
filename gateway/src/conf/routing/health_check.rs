//! Active health checks of a service's instances.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::scalar::Span;

/// How instances are checked: one of `http`, `tcp` and `grpc`, and how often. Services that check the same instance in
/// the same way share the checks.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HealthCheck {
    /// What is asked.
    #[serde(flatten)]
    pub probe: Probe,
    /// From the begin of one check to the begin of the next, 100ms to 1h, a tenth more or less.
    #[serde(default = "interval")]
    pub interval: Span,
    /// For one check with everything it takes; at most the interval.
    #[serde(default = "timeout")]
    pub timeout: Span,
    /// Failures in a row after which an instance takes no traffic, 1 to 100.
    #[serde(default = "unhealthy_after")]
    #[schemars(range(min = 1, max = 100))]
    pub unhealthy_after: u8,
    /// Passes in a row after which it takes traffic again, 1 to 100.
    #[serde(default = "healthy_after")]
    #[schemars(range(min = 1, max = 100))]
    pub healthy_after: u8,
}

fn interval() -> Span {
    Span::from_secs(5)
}

fn timeout() -> Span {
    Span::from_secs(1)
}

fn unhealthy_after() -> u8 {
    3
}

fn healthy_after() -> u8 {
    2
}

/// What is asked of an instance.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Probe {
    /// A GET over the service's protocol and TLS settings, which must be answered with an expected status.
    Http(HttpProbe),
    /// That it accepts a TCP connection.
    Tcp(TcpProbe),
    /// The standard health service of gRPC (`grpc.health.v1.Health/Check`), which must say SERVING.
    Grpc(GrpcProbe),
}

impl Probe {
    /// Its key in the document, and its name in metrics.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Http(_) => "http",
            Self::Tcp(_) => "tcp",
            Self::Grpc(_) => "grpc",
        }
    }
}

/// A check by an HTTP request.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HttpProbe {
    /// Path and query that are asked for.
    pub path: String,
    /// Statuses that pass, 100 to 599.
    #[serde(default = "ok")]
    #[schemars(length(min = 1), inner(range(min = 100, max = 599)))]
    pub status: Vec<u16>,
    /// Host that is asked for. Default: the `sni` of `tls`, or else the instance's address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
}

fn ok() -> Vec<u16> {
    vec![200]
}

/// A check by a TCP connection, without TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TcpProbe {}

/// A check by the standard health service of gRPC.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct GrpcProbe {
    /// gRPC service that is asked about; the empty one is the server as a whole.
    pub service: String,
}
