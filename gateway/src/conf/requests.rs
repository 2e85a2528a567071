//! How requests are read, where installations differ.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serin_core::path::{Border, PathPolicy};
use serin_core::strict::OddNames;

use super::scalar::HeaderName;

/// How requests are read. What is not here is read as RFC 9110 and RFC 9112 have it, and refused otherwise.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Requests {
    /// What becomes of header names with `_` or `.`, which many upstreams take for the same name with `-`.
    pub underscores_in_headers: Underscores,
    /// What becomes of `%2F` in a path.
    pub escaped_slashes: Borders,
    /// What becomes of `\` and `%5C` in a path.
    pub backslashes: Borders,
    /// Headers that only `trusted_proxies` may send, besides forwarding headers and tags; those of others are dropped before
    /// anything looks at them.
    pub guarded_headers: Vec<HeaderName>,
}

impl Default for Requests {
    fn default() -> Self {
        let guarded = ["x-real-ip", "x-original-url", "x-rewrite-url"];
        Self {
            underscores_in_headers: Underscores::default(),
            escaped_slashes: Borders::default(),
            backslashes: Borders::default(),
            guarded_headers: guarded.map(|name| HeaderName(http::HeaderName::from_static(name))).into(),
        }
    }
}

impl Requests {
    /// How paths are brought to the form that is routed.
    #[must_use]
    pub fn paths(&self) -> PathPolicy {
        PathPolicy { escaped_slash: self.escaped_slashes.to_core(), backslash: self.backslashes.to_core() }
    }
}

/// What becomes of header names with `_` or `.`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Underscores {
    /// The request is refused with 400.
    #[default]
    Reject,
    /// The headers are dropped.
    Drop,
    /// They are passed on.
    Keep,
}

impl Underscores {
    /// As the head check has it.
    #[must_use]
    pub fn to_core(self) -> OddNames {
        match self {
            Self::Reject => OddNames::Reject,
            Self::Drop => OddNames::Drop,
            Self::Keep => OddNames::Keep,
        }
    }
}

/// What becomes of a byte that some upstreams take for a slash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Borders {
    /// The request is refused with 400.
    #[default]
    Reject,
    /// It stays, escaped, as part of its segment.
    Keep,
    /// It becomes a slash, before dot segments are resolved.
    Decode,
}

impl Borders {
    fn to_core(self) -> Border {
        match self {
            Self::Reject => Border::Reject,
            Self::Keep => Border::Keep,
            Self::Decode => Border::Decode,
        }
    }
}
