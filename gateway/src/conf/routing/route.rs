//! Routes: what a request must be like, and what is done with it.

use std::num::NonZeroU16;

use indexmap::IndexMap;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use super::super::scalar::{HeaderName, Method, Name, Percent, Size};
use super::limit::RateLimit;
use super::policy::TimeoutsOverride;
use super::value::ValueMatch;

/// A route: what a request must be like, and what is done with it (`service`, `redirect` or `respond`).
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// Name, in explanations, logs and metrics.
    pub name: Name,
    /// What a request must be like; `{}` matches every request.
    pub r#match: Match,
    /// What is done with the request.
    #[serde(flatten)]
    pub action: Action,
    /// How the request's target is changed before it is sent to the service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rewrite: Option<Rewrite>,
    /// Changes of the headers that the service gets.
    #[serde(default, skip_serializing_if = "HeaderEdits::is_empty")]
    pub request_headers: HeaderEdits,
    /// Changes of the headers that the client gets.
    #[serde(default, skip_serializing_if = "HeaderEdits::is_empty")]
    pub response_headers: HeaderEdits,
    /// Longest times that differ from the service's.
    #[serde(default, skip_serializing_if = "TimeoutsOverride::is_empty")]
    pub timeouts: TimeoutsOverride,
    /// Rate limits of the route, besides those of its service.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rate_limits: Vec<RateLimit>,
    /// The longest body that a request may have; a longer one is answered with 413. Default: any length.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_body: Option<Size>,
    /// What differs for its traces; only of account if the gateway makes any (`telemetry.traces`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<RouteTrace>,
}

/// What differs for the traces of a route.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RouteTrace {
    /// Share of the requests without a parent that is obeyed, in place of `telemetry.traces.sample`.
    pub sample: Percent,
}

/// A [`Route`] as it is read. serde would buffer every value of a route to tell the action from the other keys, which
/// takes half of the time that 10,000 routes take to be read.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    name: Name,
    r#match: Match,
    service: Option<Name>,
    redirect: Option<Redirect>,
    respond: Option<Respond>,
    rewrite: Option<Rewrite>,
    #[serde(default)]
    request_headers: HeaderEdits,
    #[serde(default)]
    response_headers: HeaderEdits,
    #[serde(default)]
    timeouts: TimeoutsOverride,
    #[serde(default)]
    rate_limits: Vec<RateLimit>,
    max_body: Option<Size>,
    trace: Option<RouteTrace>,
}

impl<'de> Deserialize<'de> for Route {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let written = Written::deserialize(deserializer)?;
        let action = match (written.service, written.redirect, written.respond) {
            (Some(service), None, None) => Action::Service(service),
            (None, Some(redirect), None) => Action::Redirect(redirect),
            (None, None, Some(respond)) => Action::Respond(respond),
            _ => return Err(D::Error::custom("expected exactly one of `service`, `redirect` and `respond`")),
        };
        Ok(Self {
            name: written.name,
            r#match: written.r#match,
            action,
            rewrite: written.rewrite,
            request_headers: written.request_headers,
            response_headers: written.response_headers,
            timeouts: written.timeouts,
            rate_limits: written.rate_limits,
            max_body: written.max_body,
            trace: written.trace,
        })
    }
}

/// What is done with a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// It is sent to the service of this name.
    Service(Name),
    /// It is answered with a redirect.
    Redirect(Redirect),
    /// It is answered by the gateway itself.
    Respond(Respond),
}

/// What a request must be like. All that is given must hold.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Match {
    /// One of these hosts, without a port; `*.example.org` is any host below `example.org`. Default: any host.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
    /// The path. Default: any path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PathMatch>,
    /// One of these methods. Default: any method.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub methods: Vec<Method>,
    /// Headers: a list of mappings from names to what their values must be like.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<IndexMap<HeaderName, ValueMatch>>,
    /// Query parameters: a list of mappings from names to what their values must be like.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub query: Vec<IndexMap<String, ValueMatch>>,
}

/// What a path must be like.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(extend("x-expected" = "a mapping with one of `exact`, `prefix`, `regex`, `template`, such as `{ prefix: /api }`"))]
pub enum PathMatch {
    /// Exactly this path.
    Exact(String),
    /// This path and everything below it: `/api` matches `/api` and `/api/x`, not `/apix`.
    Prefix(String),
    /// The whole path matches this regular expression.
    Regex(String),
    /// A path with parameters, such as `/users/{id}`; `{rest...}` as the last segment takes all that follows.
    Template(String),
}

/// How the target of a request is changed. `prefix` and `path` exclude each other.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(extend("minProperties" = 1))]
pub struct Rewrite {
    /// Takes the place of the prefix that matched; needs `match.path.prefix`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// Takes the place of the whole path; may use the parameters of a template, as in `/v2/{id}`, and the named groups
    /// of a regular expression.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Takes the place of the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
}

/// A redirect. What is not given stays as in the request. `path` and `prefix` exclude each other.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(extend("minProperties" = 1))]
pub struct Redirect {
    /// Status: 301, 302, 303, 307 or 308.
    pub status: RedirectStatus,
    /// Scheme.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheme: Option<Scheme>,
    /// Host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Port. Default: none if scheme or host is given, which is the scheme's own port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<NonZeroU16>,
    /// Takes the place of the whole path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Takes the place of the prefix that matched; needs `match.path.prefix`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
}

/// Status of a redirect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u16", into = "u16")]
pub struct RedirectStatus(u16);

impl RedirectStatus {
    const ALLOWED: [u16; 5] = [301, 302, 303, 307, 308];

    /// The number.
    #[must_use]
    pub fn code(self) -> u16 {
        self.0
    }
}

impl Default for RedirectStatus {
    fn default() -> Self {
        Self(302)
    }
}

impl TryFrom<u16> for RedirectStatus {
    type Error = String;

    fn try_from(status: u16) -> Result<Self, String> {
        let allowed = Self::ALLOWED.contains(&status);
        allowed.then_some(Self(status)).ok_or_else(|| format!("expected one of {:?}, got {status}", Self::ALLOWED))
    }
}

impl From<RedirectStatus> for u16 {
    fn from(status: RedirectStatus) -> Self {
        status.0
    }
}

impl JsonSchema for RedirectStatus {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "RedirectStatus".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "integer", "enum": Self::ALLOWED})
    }
}

/// Scheme of a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Scheme {
    /// `http`.
    Http,
    /// `https`.
    Https,
}

/// An answer of the gateway itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Respond {
    /// Status, 200 to 599.
    #[schemars(range(min = 200, max = 599))]
    pub status: u16,
    /// Body.
    #[serde(default)]
    pub body: String,
    /// Content type of the body.
    #[serde(default = "plain_text")]
    pub content_type: String,
}

fn plain_text() -> String {
    "text/plain; charset=utf-8".to_owned()
}

/// Changes of header fields: first `remove`, then `set`, then `add`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct HeaderEdits {
    /// Fields that get this one value.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub set: IndexMap<HeaderName, String>,
    /// Values that are added to those of the fields.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub add: IndexMap<HeaderName, String>,
    /// Fields that are taken out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub remove: Vec<HeaderName>,
}

impl HeaderEdits {
    /// Whether nothing is changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.set.is_empty() && self.add.is_empty() && self.remove.is_empty()
    }
}
