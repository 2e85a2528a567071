//! The admin API: where it listens, who may do what, and TLS.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::scalar::{Address, Name};

/// The admin API.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Admin {
    /// Where it listens. Any address but a loopback one needs a `token_file` or `tokens`.
    pub address: Address,
    /// File of a bearer token with the role `configure`. Default: none is asked for, unless there are `tokens`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
    /// Bearer tokens by name, each with a role.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tokens: Vec<AdminToken>,
    /// Names under which it may be asked besides addresses and `localhost`. Default: any, and on a loopback address none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<Name>,
    /// TLS. Default: clear text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<AdminTls>,
}

impl Default for Admin {
    fn default() -> Self {
        Self {
            address: Address(([127, 0, 0, 1], 9901).into()),
            token_file: None,
            tokens: Vec::new(),
            hosts: Vec::new(),
            tls: None,
        }
    }
}

impl Admin {
    /// Files that hold tokens.
    pub(super) fn token_files_mut(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        self.token_file.iter_mut().chain(self.tokens.iter_mut().filter_map(|token| token.file.as_mut()))
    }

    /// Whether callers have to show a token.
    #[must_use]
    pub fn asks_for_tokens(&self) -> bool {
        self.token_file.is_some() || !self.tokens.is_empty()
    }
}

/// A bearer token: at least 16 visible ASCII characters, in a `file` or in an environment variable. Files are read again
/// when they change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AdminToken {
    /// Whose it is, for the history and the audit log.
    pub name: Name,
    /// File that holds it; white space around it is not part of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// Environment variable that holds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<Name>,
    /// What whoever shows it may do.
    pub role: Role,
}

/// What somebody may do; each role may do what those before it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Look at everything, explain and preview.
    Read,
    /// Flip weights, aborts, kill switches and ramps, roll back, rearm.
    Operate,
    /// Replace whole documents.
    Configure,
}

impl Role {
    /// Its name, as documents have it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Operate => "operate",
            Self::Configure => "configure",
        }
    }
}

/// TLS of the admin API. The files are read when the gateway starts and whenever they change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AdminTls {
    /// File of the certificate, followed by its intermediates.
    pub cert: PathBuf,
    /// File of its private key.
    pub key: PathBuf,
    /// PEM file of the authorities whose clients are let in. With it, a client without a certificate is not (mTLS).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_ca: Option<PathBuf>,
}
