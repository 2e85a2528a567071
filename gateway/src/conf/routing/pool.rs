//! The connections that are kept to each instance of a service.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::scalar::{OrNone, Span};

/// The connections that are kept to each instance of a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Pool {
    /// Connections to one instance that requests may use at a time, 1 to 65,535; for HTTP/1.1 only, where each request
    /// takes one. Default: no bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65_535))]
    pub max_connections: Option<u16>,
    /// How long a request waits for one of them; then it goes to another instance or is answered with status 503.
    /// `0s` is not at all.
    pub acquire_timeout: Span,
    /// How long a connection is kept that nothing uses. Shorter than what the instances allow.
    pub idle: Span,
    /// Idle connections to one instance that are made in advance and replaced, 0 to 1,000. With `tls` it is the TCP
    /// connection that is made in advance; the handshake follows with the first request.
    #[schemars(range(min = 0, max = 1_000))]
    pub min_idle: u16,
    /// How long a connection is used for new requests at most, or `none` for no bound. Instances have random phases,
    /// so that connections are not replaced everywhere at once.
    pub max_lifetime: OrNone<Span>,
}

impl Default for Pool {
    fn default() -> Self {
        Self {
            max_connections: None,
            acquire_timeout: Span::from_millis(200),
            idle: Span::from_secs(50),
            min_idle: 0,
            max_lifetime: OrNone::Some(Span::from_secs(2 * 3_600)),
        }
    }
}
