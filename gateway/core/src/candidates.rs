//! The instances of one pool that are still in question for a request: a bit set that never allocates for pools of
//! up to 1,024 instances.

use smallvec::SmallVec;

use crate::instance::Instance;

/// Position of an instance in its pool.
pub type Slot = usize;

/// A set of slots of one pool, made when the pool is prepared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mask(SmallVec<[u64; 16]>);

impl Mask {
    /// The slots whose instances satisfy `keep`.
    #[must_use]
    pub fn of(pool: &[Instance], mut keep: impl FnMut(&Instance) -> bool) -> Self {
        let mut words = SmallVec::from_elem(0, pool.len().div_ceil(64));
        for (slot, instance) in pool.iter().enumerate() {
            if keep(instance) {
                words[slot / 64] |= 1 << (slot % 64);
            }
        }
        Self(words)
    }

    /// Every slot of a pool of `len` instances.
    #[must_use]
    pub fn all(len: usize) -> Self {
        let mut words = SmallVec::from_elem(u64::MAX, len.div_ceil(64));
        if let (Some(last), false) = (words.last_mut(), len.is_multiple_of(64)) {
            *last = (1 << (len % 64)) - 1;
        }
        Self(words)
    }

    /// Whether a slot is in the set.
    #[must_use]
    pub fn contains(&self, slot: Slot) -> bool {
        self.0.get(slot / 64).is_some_and(|word| word >> (slot % 64) & 1 == 1)
    }

    /// Number of slots in the set.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether no slot is in the set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|&word| word == 0)
    }

    fn slots(&self) -> impl Iterator<Item = Slot> + '_ {
        self.0.iter().enumerate().flat_map(|(index, &word)| Bits(word).map(move |bit| index * 64 + bit))
    }

    /// The `n`th slot of the set, in order.
    fn nth(&self, mut n: usize) -> Option<Slot> {
        for (index, &word) in self.0.iter().enumerate() {
            let ones = word.count_ones() as usize;
            if n < ones {
                return Bits(word).nth(n).map(|bit| index * 64 + bit);
            }
            n -= ones;
        }
        None
    }

    /// The first slot of the set at or after `start`.
    fn at_or_after(&self, start: Slot) -> Option<Slot> {
        let first = start / 64;
        let below = (1 << (start % 64)) - 1;
        let mut words = self.0.iter().enumerate().skip(first);
        words.find_map(|(index, &word)| {
            let word = if index == first { word & !below } else { word };
            (word != 0).then(|| index * 64 + word.trailing_zeros() as usize)
        })
    }
}

/// The positions of the set bits of a word, lowest first.
struct Bits(u64);

impl Iterator for Bits {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let bit = self.0.trailing_zeros() as usize;
        self.0 &= self.0 - 1;
        Some(bit)
    }
}

/// The candidates for one request. Instances of weight 0 are never among them, so no pick has to look.
#[derive(Debug)]
pub struct Candidates<'a> {
    pool: &'a [Instance],
    /// `None` while every instance of the pool is in: the common case needs no set at all.
    set: Option<Mask>,
    len: usize,
}

impl<'a> Candidates<'a> {
    /// All instances of a pool that have a weight.
    #[must_use]
    pub fn new(pool: &'a [Instance]) -> Self {
        let mut all = Self { pool, set: None, len: pool.len() };
        all.retain(|_, instance| instance.weight > 0);
        all
    }

    /// All instances of a pool, where `weighted` is what was found when the pool was prepared: `None` if every
    /// instance has a weight, else those that do. Spares the scan of [`Candidates::new`].
    #[must_use]
    pub fn prepared(pool: &'a [Instance], weighted: Option<&Mask>) -> Self {
        let len = weighted.map_or(pool.len(), Mask::len);
        Self { pool, set: weighted.cloned(), len }
    }

    /// The whole pool, with those that are no candidates.
    #[must_use]
    pub fn pool(&self) -> &'a [Instance] {
        self.pool
    }

    /// The instance in a slot.
    ///
    /// # Panics
    /// If the slot is not one of this pool.
    #[must_use]
    pub fn instance(&self, slot: Slot) -> &'a Instance {
        &self.pool[slot]
    }

    /// Number of candidates.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no candidate is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether every instance of the pool is a candidate, so that tables made for the whole pool hold as they are.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.len == self.pool.len()
    }

    /// Whether a slot is a candidate.
    #[must_use]
    pub fn contains(&self, slot: Slot) -> bool {
        slot < self.pool.len() && self.set.as_ref().is_none_or(|set| set.contains(slot))
    }

    /// The candidates in order of their slots.
    pub fn slots(&self) -> impl Iterator<Item = Slot> + '_ {
        let all = if self.set.is_none() { 0..self.pool.len() } else { 0..0 };
        all.chain(self.set.iter().flat_map(Mask::slots))
    }

    /// The candidates with their instances, in order of their slots.
    pub fn iter(&self) -> impl Iterator<Item = (Slot, &'a Instance)> + '_ {
        self.slots().map(|slot| (slot, &self.pool[slot]))
    }

    /// The `n`th candidate in order of the slots; for drawing one uniformly.
    #[must_use]
    pub fn nth(&self, n: usize) -> Option<Slot> {
        match &self.set {
            None => (n < self.pool.len()).then_some(n),
            Some(set) => set.nth(n),
        }
    }

    /// The first candidate at or after `start`, wrapping around, in O(pool / 64); for rotating through them.
    #[must_use]
    pub fn next_from(&self, start: Slot) -> Option<Slot> {
        let start = start.checked_rem(self.pool.len())?;
        match &self.set {
            None => Some(start),
            Some(set) => set.at_or_after(start).or_else(|| set.at_or_after(0)),
        }
    }

    /// Keeps the candidates for which `keep` holds. Does not allocate for pools of up to 1,024 instances.
    pub fn retain(&mut self, mut keep: impl FnMut(Slot, &Instance) -> bool) {
        for slot in 0..self.pool.len() {
            if self.contains(slot) && !keep(slot, &self.pool[slot]) {
                self.remove(slot);
            }
        }
    }

    /// Keeps the candidates that are in a mask made for this pool.
    pub fn retain_mask(&mut self, mask: &Mask) {
        match &mut self.set {
            None => self.set = Some(mask.clone()),
            Some(set) => set.0.iter_mut().zip(&mask.0).for_each(|(word, &wanted)| *word &= wanted),
        }
        self.len = self.set.as_ref().map_or(0, Mask::len);
    }

    /// Keeps the candidates whose bits are set in `words`, 64 slots each, unless none would be left. Whether any went.
    pub fn retain_words(&mut self, words: impl Iterator<Item = u64>) -> bool {
        let mut kept = self.set.clone().unwrap_or_else(|| Mask::all(self.pool.len()));
        kept.0.iter_mut().zip(words).for_each(|(word, wanted)| *word &= wanted);
        let len = kept.len();
        if len == 0 || len == self.len {
            return false;
        }
        (self.set, self.len) = (Some(kept), len);
        true
    }

    /// Whether any candidate is in a mask made for this pool.
    #[must_use]
    pub fn intersects(&self, mask: &Mask) -> bool {
        match &self.set {
            None => !mask.is_empty(),
            Some(set) => set.0.iter().zip(&mask.0).any(|(a, b)| a & b != 0),
        }
    }

    /// Takes one candidate out.
    pub fn remove(&mut self, slot: Slot) {
        if self.contains(slot) {
            let set = self.set.get_or_insert_with(|| Mask::all(self.pool.len()));
            set.0[slot / 64] &= !(1 << (slot % 64));
            self.len -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;
    use std::time::Instant;

    use proptest::prelude::*;

    use super::*;
    use crate::instance::Vitals;

    fn pool(weights: &[u32]) -> Vec<Instance> {
        let vitals = Arc::new(Vitals::new(Instant::now()));
        let instance = |(index, &weight): (usize, &u32)| Instance {
            index: index as u32,
            address: ([127, 0, 0, 1], 9000).into(),
            labels: Arc::default(),
            zone: None,
            cluster: None,
            weight,
            vitals: Arc::clone(&vitals),
        };
        weights.iter().enumerate().map(instance).collect()
    }

    /// Every question about a set of candidates has the answer that a plain set of slots gives.
    fn same(candidates: &Candidates<'_>, model: &BTreeSet<Slot>) {
        let n = candidates.pool().len();
        assert!(candidates.slots().eq(model.iter().copied()));
        assert!(candidates.iter().all(|(slot, instance)| instance.index as usize == slot));
        assert_eq!((candidates.len(), candidates.is_empty()), (model.len(), model.is_empty()));
        assert_eq!(candidates.is_full(), model.len() == n);
        for slot in 0..n + 70 {
            assert_eq!(candidates.contains(slot), model.contains(&slot));
            assert_eq!(candidates.nth(slot), model.iter().nth(slot).copied());
            let wrapped = slot.checked_rem(n).unwrap_or(0);
            let next = model.range(wrapped..).next().or_else(|| model.first()).copied();
            assert_eq!(candidates.next_from(slot), next, "next from {slot} of {n}");
        }
    }

    #[derive(Clone, Debug)]
    enum Op {
        Remove(Slot),
        Retain(usize),
        Mask(u32),
        Words(u64),
    }

    fn ops() -> impl Strategy<Value = Vec<Op>> {
        let op = prop_oneof![
            (0..300usize).prop_map(Op::Remove),
            (2..5usize).prop_map(Op::Retain),
            (2..5u32).prop_map(Op::Mask),
            any::<u64>().prop_map(Op::Words)
        ];
        proptest::collection::vec(op, 0..8)
    }

    proptest! {
        #[test]
        fn behaves_as_a_set_of_slots(weights in proptest::collection::vec(0..4u32, 0..200), ops in ops()) {
            let pool = pool(&weights);
            let mut candidates = Candidates::new(&pool);
            let mut model: BTreeSet<_> = (0..pool.len()).filter(|&slot| weights[slot] > 0).collect();
            same(&candidates, &model);
            for op in ops {
                match op {
                    Op::Remove(slot) => {
                        candidates.remove(slot);
                        model.remove(&slot);
                    }
                    Op::Retain(step) => {
                        candidates.retain(|slot, _| !slot.is_multiple_of(step));
                        model.retain(|&slot| !slot.is_multiple_of(step));
                    }
                    Op::Mask(step) => {
                        let mask = Mask::of(&pool, |instance| instance.index % step == 0);
                        let meets = model.iter().any(|&slot| mask.contains(slot));
                        prop_assert_eq!(candidates.intersects(&mask), meets);
                        candidates.retain_mask(&mask);
                        model.retain(|&slot| mask.contains(slot));
                    }
                    Op::Words(word) => {
                        let kept: BTreeSet<_> = model.iter().copied().filter(|slot| word >> (slot % 64) & 1 == 1).collect();
                        let some_go = !kept.is_empty() && kept.len() < model.len();
                        prop_assert_eq!(candidates.retain_words(std::iter::repeat(word)), some_go);
                        model = if some_go { kept } else { model };
                    }
                }
                same(&candidates, &model);
            }
        }
    }

    #[test]
    fn a_mask_of_all_is_a_mask_of_each() {
        for n in [0, 1, 63, 64, 65, 128, 1025] {
            assert_eq!(Mask::all(n), Mask::of(&pool(&vec![1; n]), |_| true), "{n}");
        }
    }

    #[test]
    fn prepared_candidates_are_those_of_a_scan() {
        for weights in [vec![], vec![0, 0], vec![1, 0, 3], vec![5; 70]] {
            let pool = pool(&weights);
            let mask = Mask::of(&pool, |instance| instance.weight > 0);
            let weighted = weights.contains(&0).then_some(&mask);
            assert!(Candidates::prepared(&pool, weighted).slots().eq(Candidates::new(&pool).slots()));
        }
    }
}
