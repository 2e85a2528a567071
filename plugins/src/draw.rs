//! Drawing a candidate at random in proportion to the weights.

use rand::Rng;
use serin_core::candidates::{Candidates, Slot};
use serin_core::instance::Instance;

/// How often a table made for the whole pool is asked before the candidates are gone through one by one.
const ATTEMPTS: usize = 16;

/// The same where the exact draw is cheap.
const UNIFORM_ATTEMPTS: usize = 4;

/// A number below `n`, or 0 if `n` is 0. One call of the generator; the bias is below `n` / 2^64.
pub(crate) fn below(rng: &mut dyn Rng, n: u64) -> u64 {
    ((u128::from(rng.next_u64()) * u128::from(n)) >> 64) as u64
}

/// One candidate, all being equally likely. Few draws from the whole pool are cheaper than to count candidates off.
pub(crate) fn uniform(rng: &mut dyn Rng, candidates: &Candidates<'_>) -> Option<Slot> {
    let n = candidates.pool().len() as u64;
    let mut drawn = (0..UNIFORM_ATTEMPTS).map(|_| below(rng, n) as usize);
    let hit = drawn.find(|&slot| candidates.contains(slot));
    hit.or_else(|| candidates.nth(below(rng, candidates.len() as u64) as usize))
}

/// Two distinct candidates, all pairs being equally likely; the second is `None` if there is only one.
fn uniform_pair(rng: &mut dyn Rng, candidates: &Candidates<'_>) -> Option<(Slot, Option<Slot>)> {
    let first = uniform(rng, candidates)?;
    if candidates.len() == 1 {
        return Some((first, None));
    }
    let n = candidates.pool().len() as u64;
    let mut drawn = (0..UNIFORM_ATTEMPTS).map(|_| below(rng, n) as usize);
    let hit = drawn.find(|&slot| slot != first && candidates.contains(slot));
    let second = hit.or_else(|| {
        let nth = below(rng, candidates.len() as u64 - 1) as usize;
        candidates.nth(nth).and_then(|slot| if slot < first { Some(slot) } else { candidates.nth(nth + 1) })
    });
    Some((first, second))
}

/// Draws by going through the candidates that satisfy `keep`: exact, and O(candidates).
pub(crate) fn scan(rng: &mut dyn Rng, candidates: &Candidates<'_>, keep: impl Fn(Slot) -> bool) -> Option<Slot> {
    let weights = || candidates.iter().filter(|&(slot, _)| keep(slot)).map(|(slot, i)| (slot, u64::from(i.weight)));
    let mut left = below(rng, weights().map(|(_, weight)| weight).sum());
    weights().find(|&(_, weight)| left.checked_sub(weight).map(|rest| left = rest).is_none()).map(|(slot, _)| slot)
}

/// Takes the first of a few draws from a table for the whole pool that satisfies `keep`, and else draws by scanning,
/// so that the shares are exact however few candidates are left.
pub(crate) fn rejecting(
    rng: &mut dyn Rng,
    candidates: &Candidates<'_>,
    table: impl Fn(&mut dyn Rng) -> Option<Slot>,
    keep: impl Fn(Slot) -> bool,
) -> Option<Slot> {
    for _ in 0..ATTEMPTS {
        match table(rng) {
            Some(slot) if candidates.contains(slot) && keep(slot) => return Some(slot),
            Some(_) => {}
            None => break,
        }
    }
    scan(rng, candidates, keep)
}

/// Draws slots in proportion to the weights of a pool, in O(1).
#[derive(Debug)]
pub(crate) struct Sampler(Option<Alias>);

impl Sampler {
    pub(crate) fn new(pool: &[Instance]) -> Self {
        let equal = pool.windows(2).all(|pair| pair[0].weight == pair[1].weight);
        Self((!equal).then(|| Alias::new(pool)))
    }

    /// One candidate.
    pub(crate) fn one(&self, rng: &mut dyn Rng, candidates: &Candidates<'_>) -> Option<Slot> {
        match &self.0 {
            None => uniform(rng, candidates),
            Some(alias) => rejecting(rng, candidates, |rng| alias.draw(rng), |_| true),
        }
    }

    /// Two distinct candidates, the second drawn from what the first leaves; `None` if that is nothing.
    pub(crate) fn two(&self, rng: &mut dyn Rng, candidates: &Candidates<'_>) -> Option<(Slot, Option<Slot>)> {
        let Some(alias) = &self.0 else { return uniform_pair(rng, candidates) };
        let first = self.one(rng, candidates)?;
        let second = match candidates.len() {
            1 => None,
            2 => candidates.slots().find(|&slot| slot != first),
            _ => rejecting(rng, candidates, |rng| alias.draw(rng), |slot| slot != first),
        };
        Some((first, second))
    }
}

/// Walker's alias table by Vose's method, in integers: every column holds its own slot below the threshold and
/// another one above it.
#[derive(Debug)]
struct Alias(Box<[Column]>);

#[derive(Clone, Copy, Debug)]
struct Column {
    /// In units of 2^-64 of the column; 0 for a slot without weight, which is therefore never drawn.
    threshold: u64,
    other: u32,
}

impl Alias {
    fn new(pool: &[Instance]) -> Self {
        let total: u128 = pool.iter().map(|instance| u128::from(instance.weight)).sum();
        if total == 0 {
            return Self(Box::default());
        }
        // A column holds `total`, and all of them together `total` times the number of columns.
        let mut parts: Vec<u128> = pool.iter().map(|i| u128::from(i.weight) * pool.len() as u128).collect();
        let mut columns: Vec<_> =
            (0..pool.len()).map(|slot| Column { threshold: u64::MAX, other: slot as u32 }).collect();
        let (mut small, mut large): (Vec<_>, Vec<_>) = (0..pool.len()).partition(|&slot| parts[slot] < total);
        while let (Some(low), Some(&high)) = (small.pop(), large.last()) {
            columns[low] = Column { threshold: ((parts[low] << 64) / total) as u64, other: high as u32 };
            parts[high] -= total - parts[low];
            if parts[high] < total {
                large.pop();
                small.push(high);
            }
        }
        Self(columns.into())
    }

    fn draw(&self, rng: &mut dyn Rng) -> Option<Slot> {
        let product = u128::from(rng.next_u64()) * self.0.len() as u128;
        let slot = (product >> 64) as usize;
        let column = self.0.get(slot)?;
        Some(if (product as u64) < column.threshold { slot } else { column.other as usize })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serin_core::candidates::Candidates;

    use super::*;
    use crate::testing::{pool, rng};

    /// The share of every slot in an alias table, to 2^-60.
    fn shares(alias: &Alias) -> Vec<f64> {
        let mut shares = vec![0.0; alias.0.len()];
        for (slot, column) in alias.0.iter().enumerate() {
            let own = column.threshold as f64 / 2f64.powi(64);
            shares[slot] += own / alias.0.len() as f64;
            shares[column.other as usize] += (1.0 - own) / alias.0.len() as f64;
        }
        shares
    }

    proptest! {
        #[test]
        fn an_alias_table_has_the_shares_of_the_weights(
            weights in proptest::collection::vec(prop_oneof![Just(0), 1..10u32, any::<u32>()], 1..300)
        ) {
            let total: f64 = weights.iter().map(|&weight| f64::from(weight)).sum();
            let alias = Alias::new(&pool(&weights));
            for (slot, share) in shares(&alias).into_iter().enumerate() {
                let wanted = f64::from(weights[slot]) / total;
                prop_assert!((share - wanted).abs() < 1e-9, "{slot}: {share} for {wanted}");
                prop_assert!(weights[slot] > 0 || share == 0.0);
            }
        }

        #[test]
        fn two_are_distinct_candidates(
            weights in proptest::collection::vec(prop_oneof![0..10u32, Just(u32::MAX)], 0..100), step in 1..5usize, seed: u64
        ) {
            let pool = pool(&weights);
            let mut candidates = Candidates::new(&pool);
            candidates.retain(|slot, _| slot % step == 0);
            match Sampler::new(&pool).two(&mut rng(seed), &candidates) {
                None => prop_assert!(candidates.is_empty()),
                Some((first, None)) => prop_assert!(candidates.len() == 1 && candidates.contains(first)),
                Some((first, Some(second))) => {
                    prop_assert!(first != second && candidates.contains(first) && candidates.contains(second));
                }
            }
        }
    }

    #[test]
    fn all_pairs_of_equals_are_equally_likely() {
        for (n, step) in [(4, 1), (400, 100)] {
            let pool = pool(&vec![1; n]);
            let mut candidates = Candidates::new(&pool);
            candidates.retain(|slot, _| slot % step == 0);
            let (sampler, mut rng) = (Sampler::new(&pool), rng(3));
            let mut counts = std::collections::BTreeMap::new();
            for _ in 0..12_000 {
                *counts.entry(sampler.two(&mut rng, &candidates)).or_insert(0) += 1;
            }
            assert_eq!(counts.len(), 12);
            assert!(counts.values().all(|count| (850..1150).contains(count)), "{counts:?}");
        }
    }

    #[test]
    fn few_candidates_of_many_keep_their_shares() {
        let pool = pool(&(0..1000).map(|slot| slot % 7 + 1).collect::<Vec<_>>());
        let mut candidates = Candidates::new(&pool);
        candidates.retain(|slot, _| slot == 70 || slot == 702); // weights 1 and 3
        let (sampler, mut rng) = (Sampler::new(&pool), rng(1));
        let light = (0..10_000).filter(|_| sampler.one(&mut rng, &candidates) == Some(70)).count();
        assert!((2_350..2_650).contains(&light), "{light}");
    }
}
