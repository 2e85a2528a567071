//! Version weights, subsets and fallback.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use http::HeaderValue;
use smallvec::SmallVec;

use crate::available::{Available, Headcount};
use crate::breaker::Breaker;
use crate::candidates::{Candidates, Mask};
use crate::chain::{Chain, ChainPlan, Pick, RoundRobin};
use crate::guard::PANIC_THRESHOLD;
use crate::instance::Instance;
use crate::tag::Bucket;

/// A weight in hundredths of a percent: 10,000 is all of the traffic.
pub type BasisPoints = u32;

/// Instances that one chain picks from: those of a subset, or all of a service.
pub struct Pool {
    /// The instances, in the service's order.
    pub instances: Arc<[Instance]>,
    /// Those with a weight; `None` when all have one.
    pub weighted: Option<Mask>,
    /// The service's chain, prepared for this pool.
    pub chain: Chain,
    /// What the balancer kill switch reverts to.
    pub round_robin: Arc<dyn Pick>,
    /// Who may take traffic.
    pub available: Available,
    /// Share of healthy instances below which health is ignored; 0 is never.
    pub panic_threshold: BasisPoints,
}

/// What a pool can do for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolState {
    /// Has instances that may take traffic.
    Usable,
    /// Cannot serve, for this reason.
    Unusable(FallbackReason),
}

impl Pool {
    /// Prepares a pool of these instances.
    #[must_use]
    pub fn new(instances: Vec<Instance>, plan: &ChainPlan) -> Self {
        let weighted = Mask::of(&instances, |instance| instance.weight > 0);
        Self {
            weighted: (weighted.len() < instances.len()).then_some(weighted),
            chain: plan.prepare(&instances),
            round_robin: Arc::new(RoundRobin::default()),
            available: Available::new(&instances),
            panic_threshold: PANIC_THRESHOLD,
            instances: instances.into(),
        }
    }

    /// All instances with a weight.
    #[must_use]
    pub fn candidates(&self) -> Candidates<'_> {
        Candidates::prepared(&self.instances, self.weighted.as_ref())
    }

    /// How many instances may take traffic.
    #[must_use]
    pub fn headcount(&self, now: Instant) -> Headcount {
        self.available.look(&self.instances, now)
    }

    /// Whether so few instances are healthy that health is ignored: the few could not carry the load of all.
    #[must_use]
    pub fn in_panic(&self, now: Instant) -> bool {
        let Headcount { healthy, total } = self.headcount(now);
        u64::from(healthy) * 10_000 < u64::from(total) * u64::from(self.panic_threshold)
    }

    /// Whether an instance of the service is part of the pool, by its position in the service.
    #[must_use]
    pub fn has(&self, index: u32) -> bool {
        self.instances.binary_search_by_key(&index, |instance| instance.index).is_ok()
    }

    /// Whether the pool can serve.
    #[must_use]
    pub fn state(&self, now: Instant) -> PoolState {
        let reason = if self.instances.is_empty() {
            FallbackReason::Absent
        } else if self.weighted.as_ref().is_some_and(Mask::is_empty) {
            FallbackReason::Empty
        } else if self.headcount(now).healthy == 0 {
            FallbackReason::AllUnhealthy
        } else {
            return PoolState::Usable;
        };
        PoolState::Unusable(reason)
    }
}

/// A version of a service: the instances that have some labels.
pub struct Subset {
    /// Its name.
    pub name: Arc<str>,
    /// The name as a header value, for telling upstreams.
    pub header: HeaderValue,
    /// Seed of its scores in the weighted rendezvous: a hash of its name, so that the order of subsets is of no account.
    pub seed: u64,
    /// Its instances.
    pub pool: Pool,
    /// Requests it was meant for, and requests that spilled into it by fallback.
    pub spill: Spill,
    /// Its circuit breaker.
    pub breaker: Option<Arc<Breaker>>,
}

/// Why a subset could not serve the requests that were meant for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FallbackReason {
    /// No instance has its labels.
    Absent,
    /// Its instances all have weight 0.
    Empty,
    /// All of its instances are unhealthy.
    AllUnhealthy,
    /// Its circuit breaker is open.
    BreakerOpen,
    /// A concurrency cap of its circuit breaker is reached. Refused at once: never a reason to fall back.
    Overflow,
}

impl FallbackReason {
    /// All reasons, in the order of their numbers.
    pub const ALL: [Self; 5] = [Self::Absent, Self::Empty, Self::AllUnhealthy, Self::BreakerOpen, Self::Overflow];

    /// Its name in configuration, metrics and logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Empty => "empty",
            Self::AllUnhealthy => "all_unhealthy",
            Self::BreakerOpen => "breaker_open",
            Self::Overflow => "overflow",
        }
    }
}

/// Where requests go whose subset cannot serve.
#[derive(Clone, Debug)]
pub struct Fallback {
    /// The reasons for which to fall back; others are answered with 503.
    pub on: SmallVec<[FallbackReason; 4]>,
    /// Where to.
    pub to: FallbackTo,
    /// The share of a fallback subset's traffic that may be spill.
    pub max_share: BasisPoints,
}

/// Target of a fallback.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FallbackTo {
    /// The first of these subsets that can serve.
    Subsets(SmallVec<[usize; 4]>),
    /// Any instance of the service.
    Any,
    /// Nowhere: 503.
    None,
}

/// Counts how much of a subset's recent traffic spilled into it. Halved every 1,024 requests, so that it follows.
#[derive(Debug, Default)]
pub struct Spill {
    own: AtomicU64,
    spilled: AtomicU64,
}

impl Spill {
    const WINDOW: u64 = 1024;

    /// Counts a request that was meant for the subset.
    pub fn count_own(&self) {
        if self.own.fetch_add(1, Relaxed) + self.spilled.load(Relaxed) >= Self::WINDOW {
            self.halve();
        }
    }

    /// Whether one more spilled request stays within the share; counts it if `count` and it does.
    pub fn admit(&self, max_share: BasisPoints, count: bool) -> bool {
        let (own, spilled) = (self.own.load(Relaxed), self.spilled.load(Relaxed));
        let within = max_share >= 10_000 || (spilled + 1) * 10_000 <= (own + spilled + 1) * u64::from(max_share);
        if within && count {
            self.spilled.fetch_add(1, Relaxed);
            if own + spilled >= Self::WINDOW {
                self.halve();
            }
        }
        within
    }

    fn halve(&self) {
        self.own.store(self.own.load(Relaxed) / 2, Relaxed);
        self.spilled.store(self.spilled.load(Relaxed) / 2, Relaxed);
    }
}

/// Weight in force of a subset, by its position in the service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// Position of the subset in the service.
    pub subset: usize,
    /// Seed of its scores.
    pub seed: u64,
    /// Its weight.
    pub weight: BasisPoints,
}

/// The subset of a bucket, by weighted rendezvous hashing (Schindelhauer and Schomaker 2005, the logarithmic
/// method): every subset scores -ln(u) / weight with u drawn from (bucket, subset), the least score wins. Raising one
/// weight moves users only into that subset; a subset of weight 0 never wins.
#[must_use]
pub fn assign(shares: &[Share], bucket: Bucket) -> Option<usize> {
    let mut positive = shares.iter().filter(|share| share.weight > 0);
    let first = positive.next()?;
    let Some(second) = positive.next() else { return Some(first.subset) };
    let mut best = (score(first, bucket), first.subset);
    for share in std::iter::once(second).chain(positive) {
        let score = score(share, bucket);
        if score < best.0 {
            best = (score, share.subset);
        }
    }
    Some(best.1)
}

fn score(share: &Share, bucket: Bucket) -> f64 {
    let bits = mix(bucket.0 ^ share.seed) >> 11;
    // In (0, 1]: 53 random bits, never 0, so that the logarithm is finite.
    let uniform = (bits + 1) as f64 * (1.0 / (1u64 << 53) as f64);
    -uniform.ln() / f64::from(share.weight)
}

/// The finaliser of SplitMix64 (Steele, Lea and Flood 2014): a bijection that spreads every bit over all.
fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// The exact share of users that move from subset `from` to subset `to` when the weights change from `old` to `new`
/// (both in the same order of subsets, each with a positive sum), under [`assign`].
///
/// Scores are independent exponentials with the weights as rates. With s and t the draws of `from` and `to` and
/// rho = s / t, user moves need rho between the two ratios new/old; integrating over t leaves
/// old\[from\] * new\[to\] / C(rho)^2, where C is linear between the ratios of the others.
#[must_use]
pub fn moved(old: &[f64], new: &[f64], from: usize, to: usize) -> f64 {
    if from == to || old[from] <= 0.0 || new[to] <= 0.0 {
        return 0.0;
    }
    let ratio = |k: usize| if old[k] > 0.0 { new[k] / old[k] } else { f64::INFINITY };
    let (low, high) = (ratio(from), ratio(to));
    if low >= high {
        return 0.0;
    }
    let mut cuts: Vec<f64> = (0..old.len()).map(ratio).filter(|&r| r > low && r < high).collect();
    cuts.push(low);
    cuts.push(high);
    cuts.sort_by(f64::total_cmp);
    let area: f64 = cuts.windows(2).map(|w| segment(old, new, from, to, w[0], w[1])).sum();
    old[from] * new[to] * area
}

/// Integral of 1 / C(rho)^2 over one segment on which C(rho) = base + slope * rho is linear.
fn segment(old: &[f64], new: &[f64], from: usize, to: usize, low: f64, high: f64) -> f64 {
    let (mut base, mut slope) = (new[to], old[from]);
    for k in (0..old.len()).filter(|&k| k != from && k != to) {
        // Above the ratio of k its old rate binds, below it the new one.
        if old[k] > 0.0 && new[k] / old[k] <= low {
            slope += old[k];
        } else {
            base += new[k];
        }
    }
    let upper = if high.is_infinite() { 0.0 } else { 1.0 / (base + slope * high) };
    (1.0 / (base + slope * low) - upper) / slope
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use xxhash_rust::xxh3::xxh3_64;

    use super::*;
    use crate::tag::Bucketing;

    const USERS: u64 = 1_000_000;

    fn shares(weights: &[BasisPoints]) -> Vec<Share> {
        let seed = |subset: usize| xxh3_64(format!("v{subset}").as_bytes());
        weights.iter().enumerate().map(|(subset, &weight)| Share { subset, seed: seed(subset), weight }).collect()
    }

    fn assignments(weights: &[BasisPoints], salt: &str) -> Vec<usize> {
        let (shares, bucketing) = (shares(weights), Bucketing::new(salt, "users"));
        (0..USERS).map(|user| assign(&shares, bucketing.bucket(&format!("user-{user}"))).unwrap()).collect()
    }

    fn count(of: &[usize], subset: usize) -> f64 {
        of.iter().filter(|&&s| s == subset).count() as f64
    }

    #[test]
    fn ten_percent_of_a_million_within_three_sigma() {
        let sigma = (USERS as f64 * 0.1 * 0.9).sqrt();
        let canary = count(&assignments(&[9000, 1000], "s"), 1);
        assert!((canary - 100_000.0).abs() <= 3.0 * sigma, "{canary}");
    }

    #[test]
    fn raising_a_canary_moves_nobody_back() {
        let (before, after) = (assignments(&[9000, 1000], "s"), assignments(&[8000, 2000], "s"));
        assert!(before.iter().zip(&after).all(|(b, a)| *b == 0 || *a == 1));
        assert!((count(&after, 1) - 200_000.0).abs() < 3.0 * 400.0);
    }

    #[test]
    fn three_versions_move_no_more_than_needed() {
        let (before, after) = (assignments(&[8000, 1000, 1000], "s"), assignments(&[7500, 1000, 1500], "s"));
        let moved = before.iter().zip(&after).filter(|(b, a)| b != a).count() as f64 / USERS as f64;
        assert!((0.05 - 0.001..=0.06).contains(&moved), "{moved}");
        assert!(before.iter().zip(&after).all(|(b, a)| b == a || *b != 2), "nobody leaves the one that grows");
    }

    #[test]
    fn two_salts_are_independent() {
        let (a, b) = (assignments(&[9000, 1000], "s"), assignments(&[9000, 1000], "t"));
        let n = USERS as f64;
        let mut chi_square = 0.0;
        for (x, y) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let observed = a.iter().zip(&b).filter(|&(&p, &q)| (p, q) == (x, y)).count() as f64;
            let expected = count(&a, x) * count(&b, y) / n;
            chi_square += (observed - expected).powi(2) / expected;
        }
        // 99.9 % quantile with one degree of freedom.
        assert!(chi_square < 10.83, "{chi_square}");
    }

    #[test]
    fn preview_agrees_with_what_moves() {
        let cases: [(&[BasisPoints], &[BasisPoints]); 4] = [
            (&[9000, 1000], &[8000, 2000]),
            (&[8000, 1000, 1000], &[7500, 1000, 1500]),
            (&[5000, 5000, 0], &[0, 3000, 7000]),
            (&[2500, 2500, 2500, 2500], &[4000, 1000, 3000, 2000]),
        ];
        for (old, new) in cases {
            let (before, after) = (assignments(old, "p"), assignments(new, "p"));
            let rates = |w: &[BasisPoints]| w.iter().map(|&w| f64::from(w) / 10_000.0).collect::<Vec<_>>();
            for (from, to) in (0..old.len()).flat_map(|f| (0..old.len()).map(move |t| (f, t))).filter(|(f, t)| f != t) {
                let seen = before.iter().zip(&after).filter(|&(&b, &a)| (b, a) == (from, to)).count() as f64;
                let said = moved(&rates(old), &rates(new), from, to);
                let sigma = (said * (1.0 - said) / USERS as f64).sqrt();
                let off = (seen / USERS as f64 - said).abs();
                assert!(off <= 4.5 * sigma, "{old:?} -> {new:?}, {from} -> {to}: {said} said, off by {off}");
            }
        }
    }

    proptest! {
        /// What leaves a subset and what enters it make up the difference of its weights, exactly.
        #[test]
        fn moves_balance(pairs in prop::collection::vec((0u32..10_000, 0u32..10_000), 2..6)) {
            let (old, new): (Vec<f64>, Vec<f64>) = pairs.iter().map(|&(a, b)| (f64::from(a), f64::from(b))).unzip();
            let (old_sum, new_sum): (f64, f64) = (old.iter().sum(), new.iter().sum());
            prop_assume!(old_sum > 0.0 && new_sum > 0.0);
            let old: Vec<f64> = old.iter().map(|w| w / old_sum).collect();
            let new: Vec<f64> = new.iter().map(|w| w / new_sum).collect();
            for k in 0..old.len() {
                let entering: f64 = (0..old.len()).map(|j| moved(&old, &new, j, k)).sum();
                let leaving: f64 = (0..old.len()).map(|j| moved(&old, &new, k, j)).sum();
                prop_assert!((entering - leaving - (new[k] - old[k])).abs() < 1e-9);
            }
        }

        #[test]
        fn weight_zero_never_wins(bucket: u64, weight in 1u32..10_000) {
            prop_assert_eq!(assign(&shares(&[0, weight, 0]), Bucket(bucket)), Some(1));
            prop_assert_eq!(assign(&shares(&[0, 0]), Bucket(bucket)), None);
        }
    }

    #[test]
    fn spill_stays_within_its_share() {
        let spill = Spill::default();
        let mut admitted = 0;
        for _ in 0..5_000 {
            spill.count_own();
            admitted += u32::from(spill.admit(2_000, true));
        }
        let share = f64::from(admitted) / f64::from(5_000 + admitted);
        assert!((0.19..=0.205).contains(&share), "{share}");
        assert!(Spill::default().admit(10_000, true), "no cap admits the very first");
    }
}
