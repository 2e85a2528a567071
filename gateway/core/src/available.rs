//! Which instances of a pool may take traffic, and at what share of their weight: looked at again only after something
//! changed, so that a pick in a large pool need not ask every instance.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use rand::Rng;
use smallvec::SmallVec;

use crate::candidates::Candidates;
use crate::instance::{Changes, Health, Instance};

/// How often growing weights are looked at.
const WARMING: Duration = Duration::from_millis(100);
/// Shares are told apart to a hundredth of the strongest one.
const LEVELS: usize = 100;

/// What was seen when the instances were last looked at. Reading it takes no lock. While one request looks again, others
/// go on with what was seen before, or with part of both, which is as good as either.
#[derive(Debug)]
pub struct Available {
    epoch: Option<Instant>,
    changes: SmallVec<[Arc<Changes>; 1]>,
    /// Instances with a weight.
    total: u32,
    healthy: AtomicU32,
    weak: AtomicU32,
    healthy_bits: Box<[AtomicU64]>,
    weak_bits: Box<[AtomicU64]>,
    /// By slot: the share of its weight in force, in hundredths of the strongest one's.
    levels: Box<[AtomicU8]>,
    /// The least of them.
    weakest: AtomicU8,
    /// The weight of all instances at or above a level, added up over the levels.
    steps: Box<[AtomicU64]>,
    /// One more than the changes that are taken in; 0 before the first look.
    seen: AtomicU64,
    /// When to look again whatever has changed, in nanoseconds since `epoch`.
    until: AtomicU64,
    looking: Mutex<()>,
}

/// How many instances of a pool may take traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headcount {
    /// Healthy instances with a weight.
    pub healthy: u32,
    /// Instances with a weight.
    pub total: u32,
}

impl Available {
    /// Nothing is looked at yet.
    #[must_use]
    pub fn new(pool: &[Instance]) -> Self {
        let mut changes: SmallVec<[Arc<Changes>; 1]> = SmallVec::new();
        for instance in pool {
            if !changes.iter().any(|known| Arc::ptr_eq(known, instance.vitals.changes())) {
                changes.push(Arc::clone(instance.vitals.changes()));
            }
        }
        let words = || (0..pool.len().div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Self {
            epoch: pool.first().map(|instance| instance.vitals.epoch()),
            changes,
            total: pool.iter().filter(|instance| instance.weight > 0).count().try_into().unwrap_or(u32::MAX),
            healthy: AtomicU32::new(0),
            weak: AtomicU32::new(0),
            healthy_bits: words(),
            weak_bits: words(),
            levels: pool.iter().map(|_| AtomicU8::new(LEVELS as u8)).collect(),
            weakest: AtomicU8::new(LEVELS as u8),
            steps: (0..LEVELS).map(|_| AtomicU64::new(0)).collect(),
            seen: AtomicU64::new(0),
            until: AtomicU64::new(0),
            looking: Mutex::new(()),
        }
    }

    /// The headcount at `now`. `pool` is the one that this was made for.
    pub fn look(&self, pool: &[Instance], now: Instant) -> Headcount {
        let seen = self.seen.load(Acquire);
        if seen != self.version() || self.has_run_out(now) {
            self.look_again(pool, now, seen == 0);
        }
        Headcount { healthy: self.healthy.load(Relaxed), total: self.total }
    }

    /// Narrows the candidates to healthy ones, unless none is or all are; whether that took any out.
    pub fn keep_healthy(&self, candidates: &mut Candidates<'_>) -> bool {
        if self.healthy.load(Relaxed) == self.total {
            return false;
        }
        candidates.retain_words(self.healthy_bits.iter().map(|word| word.load(Relaxed)))
    }

    /// Takes the candidates out whose share of their weight in force is below a random bound, unless none would be left.
    /// Whether it took any.
    ///
    /// The bound is drawn with a density in proportion to the weight of all that are above it. So whoever then picks in
    /// proportion to the weights picks in proportion to weight times share: of all u up to its share, an instance of
    /// weight w gets the integral of w / W(u) times W(u). (To a hundredth; among candidates of a narrowed pool about so.)
    pub fn thin(&self, rng: &mut dyn Rng, candidates: &mut Candidates<'_>) -> bool {
        if self.weak.load(Relaxed) == 0 || candidates.len() < 2 {
            return false;
        }
        let all = self.steps[LEVELS - 1].load(Relaxed);
        let drawn = ((u128::from(rng.next_u64()) * u128::from(all)) >> 64) as u64;
        let bound = self.steps.partition_point(|step| step.load(Relaxed) <= drawn) + 1;
        if bound <= usize::from(self.weakest.load(Relaxed)) {
            return false;
        }
        if self.keep_from(bound, candidates) {
            return true;
        }
        // All the strong ones were narrowed out: a bound that some of the others reach.
        if candidates.slots().any(|slot| self.level(slot) >= bound) {
            return false;
        }
        let strongest = candidates.slots().map(|slot| self.level(slot)).max().unwrap_or(0) as u64;
        strongest > 0 && self.keep_from(1 + (rng.next_u64() % strongest) as usize, candidates)
    }

    fn keep_from(&self, bound: usize, candidates: &mut Candidates<'_>) -> bool {
        let words = self.weak_bits.iter().enumerate().map(|(index, word)| {
            let (mut left, mut stay) = (word.load(Relaxed), u64::MAX);
            while left != 0 {
                let bit = left.trailing_zeros() as usize;
                left &= left - 1;
                if self.level(index * 64 + bit) < bound {
                    stay &= !(1 << bit);
                }
            }
            stay
        });
        candidates.retain_words(words)
    }

    fn level(&self, slot: usize) -> usize {
        usize::from(self.levels[slot].load(Relaxed))
    }

    fn version(&self) -> u64 {
        self.changes.iter().map(|changes| changes.count()).sum::<u64>() + 1
    }

    fn has_run_out(&self, now: Instant) -> bool {
        let until = self.until.load(Relaxed);
        until != u64::MAX && self.since_epoch(now) >= until
    }

    fn since_epoch(&self, now: Instant) -> u64 {
        let since = self.epoch.map_or(Duration::ZERO, |epoch| now.saturating_duration_since(epoch));
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    }

    fn look_again(&self, pool: &[Instance], now: Instant, first: bool) {
        let _looking = match (first, self.looking.try_lock()) {
            (_, Ok(guard)) => guard,
            (_, Err(TryLockError::Poisoned(poisoned))) => poisoned.into_inner(),
            (false, Err(TryLockError::WouldBlock)) => return,
            (true, Err(TryLockError::WouldBlock)) => self.looking.lock().unwrap_or_else(PoisonError::into_inner),
        };
        // What changes while we look is seen the next time.
        let version = self.version();
        let next = pool.iter().filter_map(|instance| instance.vitals.settle(now)).min();
        let factor = |i: &Instance| i.vitals.factor(now);
        let healthy = |i: &Instance| i.weight > 0 && i.vitals.health() == Health::Healthy;
        let strongest = pool.iter().filter(|i| healthy(i)).map(factor).fold(0.0, f64::max);
        let (mut all_healthy, mut all_weak, mut warming, mut weakest) = (0, 0, false, LEVELS);
        let mut weights = [0u64; LEVELS + 1];
        for (at, chunk) in pool.chunks(64).enumerate() {
            let (mut healthy_word, mut weak_word) = (0u64, 0u64);
            for (bit, instance) in chunk.iter().enumerate().filter(|(_, i)| healthy(i)) {
                healthy_word |= 1 << bit;
                let own = factor(instance);
                warming |= own < 1.0;
                let level = level(own, strongest);
                weights[level] += u64::from(instance.weight);
                weak_word |= u64::from(level < LEVELS) << bit;
                weakest = weakest.min(level);
                self.levels[at * 64 + bit].store(level as u8, Relaxed);
            }
            all_healthy += healthy_word.count_ones();
            all_weak += weak_word.count_ones();
            self.healthy_bits[at].store(healthy_word, Relaxed);
            self.weak_bits[at].store(weak_word, Relaxed);
        }
        let (mut above, mut step) = (weights[1..].iter().sum::<u64>(), 0);
        for (cell, here) in self.steps.iter().zip(&weights[1..]) {
            step += above;
            above -= here;
            cell.store(step, Relaxed);
        }
        self.weakest.store(weakest as u8, Relaxed);
        self.healthy.store(all_healthy, Relaxed);
        self.weak.store(all_weak, Relaxed);
        let next = if warming { Some(next.map_or(now + WARMING, |next| next.min(now + WARMING))) } else { next };
        self.until.store(next.map_or(u64::MAX, |next| self.since_epoch(next)), Relaxed);
        self.seen.store(version, Release);
    }
}

/// A share in hundredths of the strongest; only 0 is 0.
fn level(share: f64, strongest: f64) -> usize {
    if share <= 0.0 || strongest <= 0.0 {
        return 0;
    }
    ((share / strongest * LEVELS as f64).round() as usize).clamp(1, LEVELS)
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;
    use crate::instance::Vitals;
    use crate::outlier::Cause;
    use crate::outlier::tests::policy;
    use crate::slow_start::SlowStart;

    fn pool(start: Instant, weights: &[u32]) -> Vec<Instance> {
        let changes = Arc::default();
        let instance = |(index, &weight): (usize, &u32)| Instance {
            index: index as u32,
            address: ([127, 0, 0, 1], 9000 + index as u16).into(),
            labels: Arc::default(),
            zone: None,
            cluster: None,
            weight,
            vitals: Arc::new(Vitals::among(start, &changes)),
        };
        weights.iter().enumerate().map(instance).collect()
    }

    fn healthy(available: &Available, pool: &[Instance], now: Instant) -> Vec<usize> {
        available.look(pool, now);
        let mut candidates = Candidates::new(pool);
        available.keep_healthy(&mut candidates);
        candidates.slots().collect()
    }

    #[test]
    fn what_changes_is_seen_at_once_and_what_ends_at_its_time() {
        let start = Instant::now();
        let after = |secs| start + Duration::from_secs(secs);
        let pool = pool(start, &[1, 1, 0, 1]);
        let available = Available::new(&pool);
        assert_eq!(available.look(&pool, start), Headcount { healthy: 3, total: 3 });
        pool[1].vitals.eject(&policy(), start, Cause::Consecutive5xx);
        assert_eq!(healthy(&available, &pool, start), [0, 3]);
        pool[0].vitals.set_checked(false);
        assert_eq!(healthy(&available, &pool, after(29)), [3]);
        assert_eq!(healthy(&available, &pool, after(30)), [1, 3]);
        pool[1].vitals.set_checked(false);
        pool[3].vitals.set_checked(false);
        assert_eq!(healthy(&available, &pool, after(31)), [0, 1, 3], "none is healthy, all are kept");
        assert_eq!(available.look(&pool, after(31)).healthy, 0);
    }

    #[test]
    fn vitals_of_different_services_are_all_watched() {
        let start = Instant::now();
        let mixed: Vec<_> = pool(start, &[1]).into_iter().chain(pool(start, &[1])).collect();
        let available = Available::new(&mixed);
        for instance in &mixed {
            let before = available.look(&mixed, start).healthy;
            instance.vitals.set_checked(false);
            assert_eq!(available.look(&mixed, start).healthy, before - 1);
        }
    }

    /// The shares that a uniform pick has after thinning.
    fn shares(available: &Available, pool: &[Instance], now: Instant) -> Vec<f64> {
        let (mut rng, mut counts) = (StdRng::seed_from_u64(1), vec![0.0; pool.len()]);
        available.look(pool, now);
        const DRAWS: usize = 40_000;
        for _ in 0..DRAWS {
            let mut candidates = Candidates::new(pool);
            available.thin(&mut rng, &mut candidates);
            let mut left = rng.next_u64() % candidates.iter().map(|(_, i)| u64::from(i.weight)).sum::<u64>();
            let picked = candidates.iter().find(|(_, i)| {
                let here = left < u64::from(i.weight);
                left = left.saturating_sub(u64::from(i.weight));
                here
            });
            counts[picked.unwrap().0] += 1.0 / DRAWS as f64;
        }
        counts
    }

    #[test]
    fn weak_instances_get_their_share_of_the_pool() {
        let start = Instant::now();
        let far = start + Duration::from_secs(3_600);
        let cases: [&[(u32, f64)]; 8] = [
            &[(1, 1.0), (1, 1.0)],
            &[(1, 0.5), (1, 0.5)],
            &[(1, 0.5), (1, 1.0)],
            &[(1, 0.1), (1, 0.2)],
            &[(1, 0.0), (1, 1.0), (1, 1.0)],
            &[(1, 0.5), (1, 0.5), (1, 1.0)],
            &[(1, 1.0), (1, 0.1), (1, 0.1), (1, 0.1), (1, 0.1)],
            &[(10, 0.5), (30, 0.25), (5, 1.0), (20, 0.75)],
        ];
        for case in cases {
            let pool = pool(start, &case.iter().map(|(weight, _)| *weight).collect::<Vec<_>>());
            pool.iter().zip(case).for_each(|(instance, (_, share))| instance.vitals.set_load_share(*share, far));
            let got = shares(&Available::new(&pool), &pool, start);
            let all: f64 = case.iter().map(|(weight, share)| f64::from(*weight) * share).sum();
            for (got, (weight, share)) in got.iter().zip(case) {
                let expected = f64::from(*weight) * share / all;
                assert!((got - expected).abs() < 0.012, "{case:?}: {got} for {expected}");
            }
        }
    }

    #[test]
    fn narrowed_to_weak_ones_the_stronger_of_them_gets_more() {
        let start = Instant::now();
        let far = start + Duration::from_secs(3_600);
        let pool = pool(start, &[1, 1, 1]);
        pool[1].vitals.set_load_share(0.4, far);
        pool[2].vitals.set_load_share(0.1, far);
        let available = Available::new(&pool);
        available.look(&pool, start);
        let mut rng = StdRng::seed_from_u64(1);
        let mut alone = [0; 3];
        for _ in 0..1_000 {
            let mut candidates = Candidates::new(&pool);
            candidates.remove(0);
            available.thin(&mut rng, &mut candidates);
            assert!(!candidates.is_empty());
            if candidates.len() == 1 {
                alone[candidates.nth(0).unwrap()] += 1;
            }
        }
        assert!(alone[1] > 500 && alone[2] == 0, "{alone:?}");
    }

    #[test]
    fn slow_start_grows_without_any_other_change() {
        let start = Instant::now();
        let pool = pool(start, &[1, 1]);
        let slow_start = Some(SlowStart { window: Duration::from_secs(10), initial: 0.2, aggression: 1.0 });
        pool.iter().for_each(|instance| instance.vitals.set_slow_start(slow_start));
        pool[0].vitals.start_warming();
        let available = Available::new(&pool);
        for (secs, factor) in [(0, 0.2), (5, 0.6), (10, 1.0)] {
            let got = shares(&available, &pool, start + Duration::from_secs(secs))[0];
            let expected = factor / (factor + 1.0);
            assert!((got - expected).abs() < 0.01, "after {secs} s: {got} for {expected}");
        }
        assert_eq!(available.until.load(Relaxed), u64::MAX, "all warm: nothing to look for");
    }
}
