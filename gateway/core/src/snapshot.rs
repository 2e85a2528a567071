//! Everything a decision reads: immutable, built off the hot path, swapped as one.

use std::sync::Arc;

use http::HeaderName;
use smallvec::SmallVec;

use crate::chain::ChainPlan;
use crate::guard::Guards;
use crate::instance::Instance;
use crate::retry::RetryPolicy;
use crate::route::RouteTable;
use crate::subset::{Fallback, Pool, Share, Subset};
use crate::tag::{Anonymous, Bucketing, KeySource, SigningKey, TagRule};

/// One generation of the configuration. A request keeps the snapshot it began with.
pub struct Snapshot {
    /// The routes.
    pub routes: Arc<RouteTable>,
    /// The services; routes name them by position.
    pub services: Vec<Arc<Service>>,
    /// What the traffic document says of each service, by the same position.
    pub traffic: Vec<ServiceTraffic>,
    /// Key of signed override tags.
    pub signing_key: Option<SigningKey>,
}

/// A service with its instances, shared between snapshots for as long as nothing of it changes.
pub struct Service {
    /// Its name.
    pub name: Arc<str>,
    /// All of its instances, in order of their addresses.
    pub instances: Arc<[Instance]>,
    /// Its subsets.
    pub subsets: Vec<Subset>,
    /// Position of the stable subset.
    pub stable: usize,
    /// All instances, for `fallback.to: any` and retries across any.
    pub any: Pool,
    /// The instances that belong to no canary, for the same when the request is meant for the stable subset.
    pub any_stable: Pool,
    /// Where the user key may be, in order.
    pub user_key: Vec<KeySource>,
    /// What decides for requests without one.
    pub anonymous: Anonymous,
    /// Hashes user keys.
    pub bucketing: Bucketing,
    /// Tag rules in order.
    pub tags: Vec<TagRule>,
    /// Headers that a tag rule believes from trusted peers only.
    pub guarded_headers: Vec<HeaderName>,
    /// Cookies that a tag rule believes from trusted peers only.
    pub guarded_cookies: Vec<Box<str>>,
    /// Where requests go whose subset cannot serve.
    pub fallback: Fallback,
    /// Retries.
    pub retry: RetryPolicy,
    /// What keeps it up. Its breakers are in the subsets.
    pub guards: Guards,
}

/// What a service is made of, before its pools are prepared.
pub struct ServiceParts {
    /// See [`Service::name`].
    pub name: Arc<str>,
    /// See [`Service::instances`].
    pub instances: Vec<Instance>,
    /// Name and labels of every subset.
    pub subsets: Vec<(Arc<str>, SubsetLabels)>,
    /// See [`Service::stable`].
    pub stable: usize,
    /// See [`Service::user_key`].
    pub user_key: Vec<KeySource>,
    /// See [`Service::anonymous`].
    pub anonymous: Anonymous,
    /// Salt of the buckets.
    pub salt: Box<str>,
    /// See [`Service::tags`].
    pub tags: Vec<TagRule>,
    /// See [`Service::fallback`].
    pub fallback: Fallback,
    /// See [`Service::retry`].
    pub retry: RetryPolicy,
    /// The balancer chain.
    pub chain: ChainPlan,
    /// See [`Service::guards`].
    pub guards: Guards,
}

/// Labels that an instance of a subset must have.
pub type SubsetLabels = Vec<(Box<str>, Box<str>)>;

impl Service {
    /// Prepares the pools of a service.
    ///
    /// # Errors
    /// A subset's name that cannot be sent as a header value.
    pub fn new(parts: ServiceParts) -> Result<Self, http::header::InvalidHeaderValue> {
        let ServiceParts { name, instances, subsets, stable, chain, tags, mut guards, .. } = parts;
        instances.iter().for_each(|instance| instance.vitals.set_slow_start(guards.slow_start));
        let in_subset = |i: &Instance, at: usize| subsets.get(at).is_some_and(|(_, labels)| i.has_labels(labels));
        let in_canary = |i: &Instance| (0..subsets.len()).any(|at| at != stable && in_subset(i, at));
        let panic_threshold = guards.panic_threshold;
        let pool = |keep: &dyn Fn(&Instance) -> bool| {
            let pool = Pool::new(instances.iter().filter(|i| keep(i)).cloned().collect(), &chain);
            Pool { panic_threshold, ..pool }
        };
        let mut breakers = std::mem::take(&mut guards.breakers).into_iter();
        let any = pool(&|_| true);
        let any_stable = pool(&|i| in_subset(i, stable) || !in_canary(i));
        let built = subsets
            .iter()
            .enumerate()
            .map(|(at, (subset, _))| {
                Ok(Subset {
                    name: Arc::clone(subset),
                    header: subset.parse()?,
                    seed: xxhash_rust::xxh3::xxh3_64(subset.as_bytes()),
                    pool: pool(&|i| in_subset(i, at)),
                    spill: crate::subset::Spill::default(),
                    breaker: breakers.next().flatten(),
                })
            })
            .collect::<Result<_, http::header::InvalidHeaderValue>>()?;
        Ok(Self {
            bucketing: Bucketing::new(&parts.salt, &name),
            guarded_headers: unique(tags.iter().flat_map(TagRule::guarded_headers).cloned()),
            guarded_cookies: unique(tags.iter().flat_map(TagRule::guarded_cookies).map(Box::from)),
            subsets: built,
            instances: instances.into(),
            name,
            stable,
            any,
            any_stable,
            user_key: parts.user_key,
            anonymous: parts.anonymous,
            tags,
            fallback: parts.fallback,
            retry: parts.retry,
            guards,
        })
    }
}

fn unique<T: PartialEq>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut seen = Vec::new();
    for item in items {
        if !seen.contains(&item) {
            seen.push(item);
        }
    }
    seen
}

/// What operators flip for one service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceTraffic {
    /// Weights by subset; all of the traffic belongs to the stable subset if it is empty.
    pub shares: SmallVec<[Share; 4]>,
    /// Whether the rollout is aborted.
    pub abort: Abort,
    /// The balancer kill switch, global or of this service.
    pub balancer_switch: bool,
    /// The canary kill switch, global or of this service.
    pub canary_switch: bool,
}

impl ServiceTraffic {
    /// The weight of a subset as it is in force, aborts and switches taken into account.
    #[must_use]
    pub fn effective_weight(&self, subset: usize, stable: usize) -> crate::subset::BasisPoints {
        let all_stable = self.canary_switch || self.abort != Abort::No || self.shares.is_empty();
        match self.shares.iter().find(|share| share.subset == subset) {
            Some(share) if !all_stable => share.weight,
            _ if all_stable && subset == stable => 10_000,
            _ => 0,
        }
    }
}

/// How far a rollout is aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Abort {
    /// Not at all.
    #[default]
    No,
    /// Weights are out of force; tag rules still hold.
    Weights,
    /// All traffic goes to the stable subset, tagged or not.
    All,
}
