//! The routing document: services, and the routes that lead to them.

mod anonymous;
mod breaker;
mod budget;
mod fallback;
mod health_check;
mod limit;
mod link;
mod load_reports;
mod outlier;
mod policy;
mod pool;
mod route;
mod slow_start;
mod value;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::anonymous::{Anonymous, AnonymousCookie};
pub use self::breaker::CircuitBreaker;
pub use self::budget::{Backoff, RetryBudget};
pub use self::fallback::{Fallback, FallbackOn, FallbackTo};
pub use self::health_check::{GrpcProbe, HealthCheck, HttpProbe, Probe, TcpProbe};
pub use self::limit::{AdaptiveLimit, Concurrency, Cost, LimitKey, LimitScope, RateLimit};
pub use self::link::{Link, default_chain};
pub use self::load_reports::{LoadReports, SelfGuard};
pub use self::outlier::OutlierDetection;
pub use self::policy::{Across, Propagate, Retry, RetryOn, Timeouts, TimeoutsOverride};
pub use self::pool::Pool;
pub use self::route::{
    Action, HeaderEdits, Match, PathMatch, Redirect, RedirectStatus, Respond, Rewrite, Route, RouteTrace, Scheme,
};
pub use self::slow_start::SlowStart;
pub use self::value::ValueMatch;
use super::registry::FromRegistry;
use super::scalar::{Address, CookieName, HeaderName, Method, Name, Percent, SpiffeId};
use crate::ease;

/// Labels of instances: values by name.
pub type Labels = IndexMap<String, String>;

/// Routing document of Serin: services, and the routes that lead to them. Paths of files are relative to this file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Routing {
    /// Services by name.
    #[serde(default)]
    pub services: IndexMap<Name, Arc<Service>>,
    /// Routes. The most specific that matches is taken; of equally specific ones the first.
    #[serde(deserialize_with = "ease::list")]
    pub routes: Arc<Vec<Route>>,
}

impl Routing {
    /// Makes relative paths relative to `base`.
    pub(super) fn resolve(&mut self, base: &Path) {
        let join = |path: &mut PathBuf| *path = base.join(&*path);
        for service in self.services.values_mut().map(Arc::make_mut) {
            service.tls.iter_mut().flat_map(UpstreamTls::files_mut).for_each(join);
            service.jwt.iter_mut().map(|jwt| jwt.key.file_mut()).for_each(join);
        }
    }

    /// Fills in what follows from the rest: the subset of services without subsets, and stable subsets.
    pub(super) fn settle(&mut self) {
        for service in self.services.values_mut().map(Arc::make_mut) {
            if service.subsets.is_empty()
                && let Ok(all) = Service::ALL.parse()
            {
                service.subsets.insert(all, Labels::new());
            }
            if service.stable.is_none() && service.subsets.len() == 1 {
                service.stable = service.subsets.keys().next().cloned();
            }
        }
    }
}

/// A service: instances, how they are divided into versions, and how traffic is spread over them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Service {
    /// Instances, at least one; or `registry` in their place.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1))]
    pub instances: Vec<Instance>,
    /// The registry that lists the instances, in place of `instances`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registry: Option<FromRegistry>,
    /// Protocol that the instances speak.
    #[serde(default)]
    pub protocol: UpstreamProtocol,
    /// TLS towards the instances. Default: clear text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<UpstreamTls>,
    /// Versions of the service: by name, the labels that an instance must have to be part of it. An instance may be
    /// part of several. Default: one subset `all` of every instance.
    #[serde(default)]
    pub subsets: IndexMap<Name, Labels>,
    /// The subset that is known to be good. Needed if there are several subsets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stable: Option<Name>,
    /// Where the user's key is found: the first that the request has. Default: every user is anonymous.
    #[serde(default)]
    pub user_key: Vec<UserKey>,
    /// What decides for a request that has no user's key.
    #[serde(default)]
    pub anonymous: Anonymous,
    /// Makes the division of users into versions independent of that of other salts. Default: empty.
    #[serde(default)]
    pub salt: String,
    /// How tokens are verified whose claims are used in `user_key` and `tags`. Default: no token is read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jwt: Option<Jwt>,
    /// Rules that send some requests to a certain subset; the first that holds decides.
    #[serde(default)]
    pub tags: Vec<TagRule>,
    /// What to do if the chosen subset cannot serve.
    #[serde(default)]
    pub fallback: Fallback,
    /// The balancer chain: any number of narrows, then one pick. Default: `[round_robin]`.
    #[serde(default = "default_chain")]
    #[schemars(length(min = 1))]
    pub balancer: Vec<Link>,
    /// When the gateway takes the chain out because its decisions take too long.
    #[serde(default)]
    pub self_guard: SelfGuard,
    /// What is done with the load that instances report. Default: nothing, and reports are passed on to clients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_reports: Option<LoadReports>,
    /// Longest times.
    #[serde(default)]
    pub timeouts: Timeouts,
    /// When and where a failed request is tried again.
    #[serde(default)]
    pub retry: Retry,
    /// When an instance loses weight or is taken out for what its answers say. Default: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outlier_detection: Option<OutlierDetection>,
    /// Share of healthy instances of a subset below which health is ignored, as the few could not carry the load of all;
    /// `0%` is never.
    #[serde(default = "panic_threshold")]
    pub panic_threshold: Percent,
    /// When calls to a subset are given up for a while, and how many it is given at once. Default: no breaker, no caps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub circuit_breaker: Option<CircuitBreaker>,
    /// How instances that are new or come back take less than their share for a while. Default: they do not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slow_start: Option<SlowStart>,
    /// How upstreams are told which version was chosen.
    #[serde(default)]
    pub propagate: Propagate,
    /// Rate limits, over all routes to the service together.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rate_limits: Vec<RateLimit>,
    /// How many requests may be in flight. Default: any number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<Concurrency>,
    /// How instances are checked. Default: not at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health_check: Option<HealthCheck>,
    /// The connections that are kept to each instance.
    #[serde(default)]
    pub pool: Pool,
}

fn panic_threshold() -> Percent {
    Percent::of_whole(50)
}

impl Service {
    /// Name of the one subset of a service that has none.
    pub const ALL: &'static str = "all";

    /// Name of the stable subset. Documents that were checked always have one.
    #[must_use]
    pub fn stable(&self) -> &str {
        let only = || self.subsets.keys().next().map_or(Self::ALL, Name::as_str);
        self.stable.as_ref().map_or_else(only, Name::as_str)
    }
}

/// One instance of a service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Instance {
    /// Where it listens.
    pub address: Address,
    /// Labels, for subsets and the narrow `labels`.
    #[serde(default)]
    pub labels: Labels,
    /// Zone, for `zone_affinity`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<Name>,
    /// Cluster, for the narrow `cluster`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<Name>,
    /// Weight relative to the other instances, 0 to 1,000,000; 0 takes no traffic.
    #[serde(default = "default_weight")]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub weight: u32,
}

pub(super) fn default_weight() -> u32 {
    serin_core::instance::DEFAULT_WEIGHT
}

/// A protocol that instances speak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum UpstreamProtocol {
    /// HTTP/1.1, with or without TLS.
    #[default]
    Http1,
    /// HTTP/2 over TLS.
    H2,
    /// HTTP/2 over clear text, as clear-text gRPC servers speak it.
    H2c,
}

/// TLS towards the instances of a service.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UpstreamTls {
    /// Name that is asked for and, unless there is `san`, that the certificate must bear. Needed unless `verify` is off;
    /// with `san` the default is the trust domain of the first id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sni: Option<String>,
    /// PEM file of the authorities to trust. Default: those of the system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    /// Whether the certificate is verified.
    #[serde(default = "yes")]
    pub verify: bool,
    /// PEM file of the certificate that is shown to upstreams that ask for one, followed by its intermediates (mTLS).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_cert: Option<PathBuf>,
    /// PEM file of its private key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_key: Option<PathBuf>,
    /// SPIFFE ids such as `spiffe://example.org/ns/shop/sa/users`, of which the certificate must bear one, instead of a
    /// name. An id without a path is for every workload of the trust domain. Needs `ca`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub san: Vec<SpiffeId>,
}

impl UpstreamTls {
    /// The name that is asked for in handshakes.
    #[must_use]
    pub fn asked_name(&self) -> Option<&str> {
        self.sni.as_deref().or_else(|| self.san.first().map(SpiffeId::trust_domain))
    }

    fn files_mut(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        self.ca.iter_mut().chain(&mut self.client_cert).chain(&mut self.client_key)
    }
}

fn yes() -> bool {
    true
}

/// Where a user's key is found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum UserKey {
    /// The value of a header.
    Header(HeaderName),
    /// The value of a cookie.
    Cookie(CookieName),
    /// The value of a query parameter.
    Query(#[schemars(length(min = 1))] String),
    /// A claim of the verified token; needs `jwt`.
    Claim(#[schemars(length(min = 1))] String),
    /// The client's address. Written as a bare word.
    ClientIp,
}

/// How tokens (JWT, RFC 7519) are verified.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Jwt {
    /// Header that carries the token; the word `Bearer` before it is skipped.
    #[serde(default = "authorization")]
    pub header: HeaderName,
    /// Algorithms that are accepted.
    #[schemars(length(min = 1))]
    pub algorithms: Vec<JwtAlgorithm>,
    /// The key.
    #[serde(flatten)]
    pub key: JwtKey,
    /// Issuer (`iss`) that tokens must have. Default: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub issuer: Option<String>,
    /// Audience (`aud`) that tokens must be for. Default: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audience: Option<String>,
}

fn authorization() -> HeaderName {
    HeaderName(http::header::AUTHORIZATION)
}

/// The key that tokens are verified with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum JwtKey {
    /// File of a shared secret, for the `HS` algorithms; white space at the end is not part of it.
    SecretFile(PathBuf),
    /// PEM file of a public key.
    PublicKeyFile(PathBuf),
    /// File of a JSON web key set (RFC 7517).
    JwksFile(PathBuf),
}

impl JwtKey {
    fn file_mut(&mut self) -> &mut PathBuf {
        match self {
            Self::SecretFile(path) | Self::PublicKeyFile(path) | Self::JwksFile(path) => path,
        }
    }
}

/// A signature algorithm (RFC 7518).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
#[expect(missing_docs, reason = "the names are those of RFC 7518")]
pub enum JwtAlgorithm {
    Hs256,
    Hs384,
    Hs512,
    Rs256,
    Rs384,
    Rs512,
    Ps256,
    Ps384,
    Ps512,
    Es256,
    Es384,
    #[serde(rename = "EdDSA")]
    EdDsa,
}

impl JwtAlgorithm {
    /// Whether the key is a shared secret.
    #[must_use]
    pub fn is_symmetric(self) -> bool {
        matches!(self, Self::Hs256 | Self::Hs384 | Self::Hs512)
    }
}

/// A rule that sends the requests it holds for to one subset.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TagRule {
    /// Name, in explanations and metrics.
    pub name: Name,
    /// What must hold; all of it.
    pub when: When,
    /// The subset.
    pub subset: Name,
    /// Whose requests the rule is for.
    #[serde(default)]
    pub trust: Trust,
}

/// Conditions on a request. All that are given must hold; at least one must be given.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(extend("minProperties" = 1))]
pub struct When {
    /// Headers by name.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub header: IndexMap<HeaderName, ValueMatch>,
    /// Cookies by name.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub cookie: IndexMap<CookieName, ValueMatch>,
    /// Query parameters by name.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub query: IndexMap<String, ValueMatch>,
    /// Claims of the verified token by name; needs `jwt`.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub claim: IndexMap<String, ValueMatch>,
    /// One of these methods.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub method: Vec<Method>,
    /// The path, before it is rewritten.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PathMatch>,
}

/// Whose requests a tag rule is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Trust {
    /// Anybody's: any client can choose the subset.
    Any,
    /// Those that a peer in `trusted_proxies` sends.
    #[default]
    TrustedProxies,
    /// Those with a valid signature; needs `tag_signing` in the bootstrap document.
    Signed,
}
