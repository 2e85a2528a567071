//! What an explanation says: the JSON that the admin API answers with and the command line draws.

use std::collections::BTreeMap;
use std::net::IpAddr;

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serin_core::selfguard::Trip;

use super::standing::GuardsSeen;
use crate::conf::{Abort, Percent};

/// The way of one request, step by step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Explanation {
    /// The request as it was understood.
    pub request: Understood,
    /// Which route it takes, and why.
    pub route: RouteTaken,
    /// The service of the route.
    pub service: Option<String>,
    /// How the subset was chosen.
    pub tag: Option<TagChosen>,
    /// The user key that was found.
    pub user_key: Option<UserKeyFound>,
    /// The user's bucket, or the random number that stands for it: 16 hexadecimal digits.
    pub bucket: Option<String>,
    /// Weights in force by subset. While the rollout is aborted or the canary switch is on, all of it is stable's.
    pub weights: IndexMap<String, Percent>,
    /// The subset that serves the request; none if nothing does, or if instances of several subsets may.
    pub subset: Option<String>,
    /// Why that is not the subset it was meant for.
    pub fallback: Option<FallbackTaken>,
    /// Breakers, panic, and instances that are ill or weak; none if there is nothing to say.
    pub guards: Option<GuardsSeen>,
    /// Instances that each narrow left, in order.
    pub narrows: Vec<Narrowed>,
    /// The instance.
    pub pick: Option<Picked>,
    /// What upstreams would see as the path.
    pub upstream_path: Option<String>,
    /// How the request stands with each rate limit, those of the service first. Nothing is taken.
    #[serde(default)]
    pub rate_limits: Vec<LimitSeen>,
    /// The concurrency limit of the service.
    #[serde(default)]
    pub concurrency: Option<ConcurrencySeen>,
    /// Kill switches and abort in force for the service.
    pub switches: SwitchesInForce,
    /// Revisions in force.
    pub revision: Revisions,
    /// What the gateway would answer itself, if it would.
    pub answer: Option<OwnAnswer>,
    /// Seed of the random numbers that were drawn: asking again with it gives the same answer.
    pub seed: u64,
}

/// The request as it was understood.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Understood {
    /// Method.
    pub method: String,
    /// Host, in lower case and without the port.
    pub host: String,
    /// Path in normal form.
    pub path: String,
    /// Query.
    pub query: Option<String>,
    /// Address of the client, after trusted proxies were taken into account.
    pub client_ip: IpAddr,
    /// Whether the peer is one of the trusted proxies.
    pub from_trusted_proxy: bool,
}

/// Which route a request takes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RouteTaken {
    /// Its name; none if no route matches.
    pub name: Option<String>,
    /// How it matched.
    pub why: Option<Matched>,
    /// Other routes whose host and path match, in order of precedence, at most 20.
    pub near_misses: Vec<NearMiss>,
}

/// How a route matched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Matched {
    /// `exact`, `wildcard` or `any`.
    pub host: String,
    /// `exact`, `template`, `regex`, `prefix` or `any`.
    pub path: String,
    /// All that had to hold, in words.
    pub conditions: Vec<String>,
}

/// A route whose host and path match and which was not taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NearMiss {
    /// Its name.
    pub name: String,
    /// How its host and path match.
    pub why: Matched,
    /// Conditions that do not hold; none if it was only outranked.
    pub failed: Vec<String>,
}

/// How the subset was chosen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TagChosen {
    /// The rule that decided, if one did.
    pub rule: Option<String>,
    /// `abort`, `canary_switch`, `tag`, `bucket`, `random`, `ip`, `cookie` or `stable`.
    pub reason: String,
    /// The rules that were looked at, in order.
    pub rules: Vec<RuleSeen>,
}

/// What came of looking at a tag rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RuleSeen {
    /// Name of the rule.
    pub name: String,
    /// `accepted`, `untrusted` (it matches, but who sent it is not believed) or `no_match`.
    pub verdict: String,
}

/// A user key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UserKeyFound {
    /// Where it was, such as `header x-user-id`.
    pub source: String,
    /// The key.
    pub value: String,
}

/// A fallback, or the lack of one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FallbackTaken {
    /// The subset that the request was meant for.
    pub wanted: String,
    /// Why it cannot serve: `absent`, `empty`, `all_unhealthy`, `breaker_open` or `overflow`.
    pub reason: String,
    /// Subsets that were found unable to serve, with their reasons.
    pub unusable: BTreeMap<String, String>,
}

/// What a narrow left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Narrowed {
    /// Name of the narrow.
    pub name: String,
    /// Number of instances that it left.
    pub count: usize,
    /// Their addresses, the first 100 of them.
    pub left: Vec<String>,
}

/// The instance that was picked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Picked {
    /// Name of the pick.
    pub balancer: String,
    /// Address of the instance.
    pub instance: String,
    /// Its zone.
    pub zone: Option<String>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
}

/// How a request stands with a rate limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LimitSeen {
    /// Name of the rule.
    pub rule: String,
    /// Whether it is one of the service or of the route.
    pub scope: String,
    /// Parts of the key with their values, such as `header x-user-id` and `7`; none for what the request lacks.
    pub key: Vec<(String, Option<String>)>,
    /// Units per period that the key may spend.
    pub limit: u32,
    /// The period in seconds.
    pub per_seconds: u64,
    /// Units at once.
    pub burst: u32,
    /// What the request costs.
    pub cost: u32,
    /// `admitted`, `limited`, or `dry_run` (it would be limited, but the rule or the switch says to only count).
    pub verdict: String,
    /// Units that would be left.
    pub remaining: u32,
    /// Milliseconds until the burst is there again; for one that is limited, until it would be let through.
    pub wait_ms: u64,
    /// Whether the store is full, so that the key shares a bucket.
    pub store_full: bool,
    /// Who decides of a limit that a fleet shares: `redis`, or `local`: this gateway by its share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fleet: Option<String>,
}

/// A concurrency limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConcurrencySeen {
    /// The limit in force.
    pub limit: u32,
    /// Requests that count against it.
    pub in_flight: u32,
}

/// Kill switches and abort in force for a service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SwitchesInForce {
    /// The balancer switch.
    pub balancer: bool,
    /// The canary switch.
    pub canary: bool,
    /// The limits switch, which is for all services.
    #[serde(default)]
    pub limits: bool,
    /// Whether its rollout is aborted.
    pub abort: Abort,
    /// Why the gateway took the balancer chain out, if it did: `panicked` or `slow`. Plain round robin takes its place.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    pub tripped: Option<Trip>,
}

/// Revisions in force.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Revisions {
    /// Of the routing document.
    pub routing: u64,
    /// Of the traffic document.
    pub traffic: u64,
}

/// An answer of the gateway itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OwnAnswer {
    /// Status.
    pub status: u16,
    /// Why.
    pub reason: String,
    /// Where a redirect leads.
    pub location: Option<String>,
}

impl OwnAnswer {
    pub(super) fn new(status: u16, reason: impl Into<String>) -> Self {
        Self { status, reason: reason.into(), location: None }
    }
}
