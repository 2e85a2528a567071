//! The Redis server that holds the limits of a fleet.

use std::num::NonZeroU32;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::limits::Limits;
use super::scalar::{Name, RedisUrl, Span};

/// What clients may take up over all listeners, and where limits are that a fleet shares.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(deny_unknown_fields)]
pub struct GatewayLimits {
    /// What clients may take up.
    #[serde(flatten)]
    pub clients: Limits,
    /// Redis (version 5 or newer, or Valkey), for rate limits with `scope: fleet`: its URL, or more of it. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub redis: Option<RedisPlace>,
}

impl GatewayLimits {
    /// Whether nothing is said.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub(super) fn resolve(&mut self, join: &mut impl FnMut(&mut PathBuf)) {
        if let Some(RedisPlace::Server(redis)) = &mut self.redis {
            redis.password_file.iter_mut().chain(&mut redis.ca).for_each(join);
        }
    }
}

/// Where Redis is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum RedisPlace {
    /// Its URL.
    Url(RedisUrl),
    /// Its URL, and more.
    Server(Redis),
}

impl RedisPlace {
    /// All of it.
    #[must_use]
    pub fn server(&self) -> Redis {
        match self {
            Self::Url(url) => Redis::at(url.clone()),
            Self::Server(redis) => redis.clone(),
        }
    }
}

/// A Redis server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Redis {
    /// Where it is: `redis://HOST:PORT/DATABASE`, or `rediss` for TLS. Port and database may be left out.
    pub url: RedisUrl,
    /// User, if it is not the default one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub username: Option<String>,
    /// File of the password; white space at the end is not part of it. It is read at every connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password_file: Option<PathBuf>,
    /// Environment variable that holds the password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password_env: Option<Name>,
    /// PEM file of the authorities to trust, for TLS. Default: those of the system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    /// What its keys begin with. Fleets that share a server need one each.
    #[serde(default = "default_prefix")]
    #[schemars(length(min = 1))]
    pub prefix: String,
    /// How long a request waits for it at most, 1 ms to 1 s. A server that does not answer in this time is as good as none.
    #[serde(default = "default_deadline")]
    pub deadline: Span,
    /// How many gateways share a limit while none of them has reached the server yet. Later it is as many as there were.
    #[serde(default = "default_replicas")]
    pub replicas: NonZeroU32,
}

impl Redis {
    /// With the defaults.
    fn at(url: RedisUrl) -> Self {
        Self {
            url,
            username: None,
            password_file: None,
            password_env: None,
            ca: None,
            prefix: default_prefix(),
            deadline: default_deadline(),
            replicas: default_replicas(),
        }
    }
}

fn default_prefix() -> String {
    "serin".to_owned()
}

fn default_deadline() -> Span {
    Span::from_millis(5)
}

fn default_replicas() -> NonZeroU32 {
    NonZeroU32::MIN
}
