//! Where a request goes, and why. Four steps:
//!
//! 1. [`RouteTable::find`](crate::route::RouteTable::find): the most specific route, which names a service.
//! 2. [`assign`]: the subset the request is meant for - kill switch or abort, tag rule, the user's bucket, or what
//!    the service does with anonymous requests.
//! 3. [`locate`]: the pool that serves it - the subset's own, or by fallback another one.
//! 4. [`pick`]: the instance - the chain narrows the pool's candidates and picks one.
//!
//! A retry repeats the last two with what was tried. A [`Recorder`] listens in, which is how a decision is explained.

use std::borrow::Cow;
use std::time::{Duration, Instant};

use rand::Rng;
use smallvec::SmallVec;

use crate::breaker::{Permit, Refusal};
use crate::candidates::{Candidates, Slot};
use crate::chain::{PickCx, exclude_tried};
use crate::instance::Instance;
use crate::request::RequestView;
use crate::retry::Across;
use crate::snapshot::{Abort, Service, ServiceTraffic};
use crate::subset::{self, FallbackReason, FallbackTo, Pool, PoolState, Subset};
use crate::tag::{Anonymous, Bucket, KeySource, SigningKey, TagVerdict};

/// Listens to a decision being made. The hot path listens with `()`, which costs nothing.
pub trait Recorder {
    /// Whether the decision is only explained, so that no state may change.
    const DRY_RUN: bool = false;
    /// A user key was found.
    fn user_key(&mut self, _source: &KeySource, _key: &str) {}
    /// A tag rule was looked at.
    fn tag(&mut self, _rule: usize, _verdict: TagVerdict) {}
    /// A subset could not serve.
    fn unusable(&mut self, _subset: usize, _reason: FallbackReason) {}
    /// A narrow left these candidates.
    fn narrowed(&mut self, _name: &str, _left: &Candidates<'_>) {}
}

impl Recorder for () {}

/// Why a request is meant for its subset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// The rollout is aborted.
    Abort,
    /// The canary kill switch is on.
    CanarySwitch,
    /// A tag rule.
    Tag,
    /// The user's bucket and the weights.
    Bucket,
    /// No user key: a random draw against the weights.
    Random,
    /// No user key: the client's address and the weights.
    Ip,
    /// No user key: the gateway's cookie and the weights.
    Cookie,
    /// No user key, or no weights: the stable subset.
    Stable,
}

impl Why {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 8] =
        [Self::Abort, Self::CanarySwitch, Self::Tag, Self::Bucket, Self::Random, Self::Ip, Self::Cookie, Self::Stable];

    /// Its name in metrics and logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Abort => "abort",
            Self::CanarySwitch => "canary_switch",
            Self::Tag => "tag",
            Self::Bucket => "bucket",
            Self::Random => "random",
            Self::Ip => "ip",
            Self::Cookie => "cookie",
            Self::Stable => "stable",
        }
    }
}

/// The subset a request is meant for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// Position of the subset in the service.
    pub subset: usize,
    /// Why that one.
    pub why: Why,
    /// The tag rule that decided.
    pub rule: Option<usize>,
    /// The user's bucket, or a random number.
    pub bucket: Bucket,
    /// An identity to issue as a cookie with the response.
    pub issue: Option<u64>,
}

/// Step 2: the subset that a request is meant for.
pub fn assign<R: Recorder>(
    service: &Service,
    traffic: &ServiceTraffic,
    signing_key: Option<&SigningKey>,
    request: &RequestView<'_>,
    rng: &mut dyn Rng,
    recorder: &mut R,
) -> Assignment {
    let user = identify(service, request, rng, recorder);
    let to = |subset, why, rule| Assignment { subset, why, rule, bucket: user.bucket, issue: user.issue };
    if traffic.abort == Abort::All {
        return to(service.stable, Why::Abort, None);
    }
    if traffic.canary_switch {
        return to(service.stable, Why::CanarySwitch, None);
    }
    for (position, rule) in service.tags.iter().enumerate() {
        let verdict = rule.verdict(request, signing_key);
        recorder.tag(position, verdict);
        if verdict == TagVerdict::Accepted {
            return to(rule.subset, Why::Tag, Some(position));
        }
    }
    if traffic.abort == Abort::Weights {
        return to(service.stable, Why::Abort, None);
    }
    if user.why == Why::Stable {
        return to(service.stable, Why::Stable, None);
    }
    match subset::assign(&traffic.shares, user.bucket) {
        Some(subset) => to(subset, user.why, None),
        None => to(service.stable, Why::Stable, None),
    }
}

struct User {
    bucket: Bucket,
    why: Why,
    issue: Option<u64>,
}

fn identify<R: Recorder>(service: &Service, request: &RequestView<'_>, rng: &mut dyn Rng, recorder: &mut R) -> User {
    let known = |key: &str, why| User { bucket: service.bucketing.bucket(key), why, issue: None };
    for source in &service.user_key {
        if let Some(key) = source.get(request) {
            recorder.user_key(source, &key);
            return known(&key, Why::Bucket);
        }
    }
    match &service.anonymous {
        Anonymous::Random => User { bucket: Bucket(rng.next_u64()), why: Why::Random, issue: None },
        Anonymous::Stable => User { bucket: Bucket(rng.next_u64()), why: Why::Stable, issue: None },
        Anonymous::Ip => {
            let key = KeySource::ClientIp.get(request).unwrap_or(Cow::Borrowed(""));
            recorder.user_key(&KeySource::ClientIp, &key);
            known(&key, Why::Ip)
        }
        Anonymous::Cookie { name, .. } => match request.cookie(name).filter(|value| !value.is_empty()) {
            Some(key) => {
                recorder.user_key(&KeySource::Cookie(name.clone()), key);
                known(key, Why::Cookie)
            }
            None => {
                let id = rng.next_u64();
                User { issue: Some(id), ..known(&issued_cookie(id), Why::Cookie) }
            }
        },
    }
}

/// The value of a cookie that the gateway issues, from the identity in [`Assignment::issue`].
#[must_use]
pub fn issued_cookie(id: u64) -> String {
    format!("{id:016x}")
}

/// The pool that serves a request.
pub struct Location<'a> {
    /// The pool.
    pub pool: &'a Pool,
    /// Its subset; `None` if the pool spans subsets.
    pub subset: Option<usize>,
    /// Why it is not the subset's own.
    pub fallback: Option<FallbackReason>,
    /// Whether too few of its instances are healthy, so that health is ignored.
    pub panic: bool,
    /// The attempt's place in the subset's breaker, if it has one. Never with a dry run.
    pub permit: Option<Permit>,
}

/// No pool can serve the request: 503.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unavailable {
    /// What was wrong with the subset it was meant for.
    pub reason: FallbackReason,
    /// When it may be worth to ask again, where that is known.
    pub retry_after: Option<Duration>,
}

impl Unavailable {
    fn because(reason: FallbackReason) -> Self {
        Self { reason, retry_after: None }
    }
}

impl From<Refusal> for Unavailable {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Open(left) => Self { reason: FallbackReason::BreakerOpen, retry_after: Some(left) },
            Refusal::Overflow => Self { reason: FallbackReason::Overflow, retry_after: Some(Duration::ZERO) },
        }
    }
}

/// Step 3: the pool that serves a request meant for `subset`.
///
/// # Errors
/// If that subset cannot serve and there is nowhere to fall back to.
pub fn locate<'a, R: Recorder>(
    service: &'a Service,
    subset: usize,
    now: Instant,
    recorder: &mut R,
) -> Result<Location<'a>, Unavailable> {
    let own = &service.subsets[subset];
    let refused = match own.pool.state(now) {
        PoolState::Usable => match enter::<R>(service, subset, None, now) {
            Ok(location) => {
                if !R::DRY_RUN && service.fallback.max_share < 10_000 {
                    own.spill.count_own();
                }
                return Ok(location);
            }
            Err(refusal) => refusal.into(),
        },
        PoolState::Unusable(reason) => Unavailable::because(reason),
    };
    recorder.unusable(subset, refused.reason);
    if let Some(location) = fall_back(service, subset, refused.reason, now, recorder) {
        return Ok(location);
    }
    // Nobody else can serve: better an instance that may be ill than none, unless that is not wanted.
    let stays = service.fallback.to != FallbackTo::None && own.pool.in_panic(now);
    if refused.reason == FallbackReason::AllUnhealthy && stays {
        return enter::<R>(service, subset, None, now).map_err(Unavailable::from);
    }
    Err(refused)
}

/// The pool of a subset, if its breaker lets the attempt through.
fn enter<R: Recorder>(
    service: &Service,
    subset: usize,
    fallback: Option<FallbackReason>,
    now: Instant,
) -> Result<Location<'_>, Refusal> {
    let Subset { pool, breaker, .. } = &service.subsets[subset];
    let permit = match breaker {
        None => None,
        Some(breaker) if R::DRY_RUN => breaker.peek(now).map(|()| None)?,
        Some(breaker) => Some(breaker.admit(now)?),
    };
    Ok(Location { pool, subset: Some(subset), fallback, panic: pool.in_panic(now), permit })
}

fn fall_back<'a, R: Recorder>(
    service: &'a Service,
    from: usize,
    reason: FallbackReason,
    now: Instant,
    recorder: &mut R,
) -> Option<Location<'a>> {
    if reason == FallbackReason::Overflow || !service.fallback.on.contains(&reason) {
        return None;
    }
    match &service.fallback.to {
        FallbackTo::None => None,
        FallbackTo::Any => {
            let pool = any_pool(service, from);
            let usable = pool.state(now) == PoolState::Usable;
            usable.then(|| Location {
                pool,
                subset: None,
                fallback: Some(reason),
                panic: pool.in_panic(now),
                permit: None,
            })
        }
        FallbackTo::Subsets(targets) => targets
            .iter()
            .filter(|&&target| target != from)
            .find_map(|&target| stand_in(service, target, reason, now, recorder)),
    }
}

/// Another subset that takes the place of one that cannot serve for `reason`.
fn stand_in<'a, R: Recorder>(
    service: &'a Service,
    target: usize,
    reason: FallbackReason,
    now: Instant,
    recorder: &mut R,
) -> Option<Location<'a>> {
    let other = &service.subsets[target];
    if let PoolState::Unusable(reason) = other.pool.state(now) {
        recorder.unusable(target, reason);
        return None;
    }
    let entered = enter::<R>(service, target, Some(reason), now);
    let location = entered.map_err(|refusal| recorder.unusable(target, Unavailable::from(refusal).reason)).ok()?;
    other.spill.admit(service.fallback.max_share, !R::DRY_RUN).then_some(location)
}

/// All instances, but those of canaries for a request that is not meant for one.
fn any_pool(service: &Service, meant_for: usize) -> &Pool {
    if meant_for == service.stable { &service.any_stable } else { &service.any }
}

/// The pool of a retry, by the service's `across`. Pools that span subsets have no breaker.
///
/// # Errors
/// If no pool can serve.
pub fn locate_retry<'a, R: Recorder>(
    service: &'a Service,
    subset: usize,
    now: Instant,
    recorder: &mut R,
) -> Result<Location<'a>, Unavailable> {
    match service.retry.across {
        Across::Same => locate(service, subset, now, recorder),
        Across::Stable => {
            locate(service, service.stable, now, recorder).or_else(|_| locate(service, subset, now, recorder))
        }
        Across::Any => {
            let pool = any_pool(service, subset);
            let location = Location { pool, subset: None, fallback: None, panic: pool.in_panic(now), permit: None };
            match pool.state(now) {
                PoolState::Usable => Ok(location),
                PoolState::Unusable(FallbackReason::AllUnhealthy) if location.panic => Ok(location),
                PoolState::Unusable(reason) => Err(Unavailable::because(reason)),
            }
        }
    }
}

/// Name of the step that takes unhealthy instances out.
pub const HEALTHY: &str = "healthy";
/// Name of the step that lets weak instances take part only as often as their weight in force says.
pub const WARM: &str = "warm";

/// One attempt at a request, for step 4.
#[derive(Clone, Copy)]
pub struct Attempt<'a> {
    /// The request.
    pub request: RequestView<'a>,
    /// The user's bucket, or a random number.
    pub bucket: Bucket,
    /// Instances that were tried, by their positions in the service's list.
    pub tried: &'a [u32],
    /// Current time.
    pub now: Instant,
}

/// Step 4: an instance of the pool: a healthy one (unless too few are), by the chain, in which weak instances take part
/// as often as their weight in force says. With the balancer kill switch on, plain round robin over the healthy ones
/// takes the place of the chain.
pub fn pick<'a, R: Recorder>(
    location: &Location<'a>,
    traffic: &ServiceTraffic,
    attempt: Attempt<'_>,
    rng: &mut dyn Rng,
    recorder: &mut R,
) -> Option<&'a Instance> {
    if traffic.balancer_switch {
        return pick_plainly(location, attempt, rng, recorder);
    }
    with_candidates(location, attempt, rng, recorder, |pool, cx, candidates, recorder| {
        pool.chain.narrow(cx, candidates, |name, left| recorder.narrowed(name, left));
        if !location.panic && pool.available.thin(cx.rng, candidates) {
            cx.thinned = true;
            recorder.narrowed(WARM, candidates);
        }
        pool.chain.pick(cx, candidates)
    })
}

/// Step 4 without the chain: plain round robin over the healthy instances of the pool. Nothing of it comes from a
/// plug-in.
pub fn pick_plainly<'a, R: Recorder>(
    location: &Location<'a>,
    attempt: Attempt<'_>,
    rng: &mut dyn Rng,
    recorder: &mut R,
) -> Option<&'a Instance> {
    with_candidates(location, attempt, rng, recorder, |pool, cx, candidates, _| {
        exclude_tried(cx.tried, candidates);
        pool.round_robin.pick(cx, candidates)
    })
}

fn with_candidates<'a, R: Recorder>(
    location: &Location<'a>,
    attempt: Attempt<'_>,
    rng: &mut dyn Rng,
    recorder: &mut R,
    pick: impl FnOnce(&Pool, &mut PickCx<'_>, &mut Candidates<'_>, &mut R) -> Option<Slot>,
) -> Option<&'a Instance> {
    let pool = location.pool;
    let slot = |index: &u32| pool.instances.binary_search_by_key(index, |i| i.index).ok();
    let tried: SmallVec<[Slot; 4]> = attempt.tried.iter().filter_map(slot).collect();
    let mut candidates = pool.candidates();
    // Whoever made the location has looked at the instances' health.
    if !location.panic && pool.available.keep_healthy(&mut candidates) {
        recorder.narrowed(HEALTHY, &candidates);
    }
    let mut cx = PickCx {
        request: attempt.request,
        user_hash: attempt.bucket.0,
        tried: &tried,
        thinned: false,
        now: attempt.now,
        dry_run: R::DRY_RUN,
        rng,
    };
    pick(pool, &mut cx, &mut candidates, recorder).map(|slot| &pool.instances[slot])
}
