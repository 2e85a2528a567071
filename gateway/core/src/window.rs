//! Sums over the recent past, in buckets that are forgotten one by one.

use std::time::{Duration, Instant};

const BUCKETS: usize = 10;

/// Sums of `N` values over the last `length`, exact to a tenth of it. A sample from before the newest one counts as new.
#[derive(Clone, Debug)]
pub struct Rolling<const N: usize> {
    epoch: Instant,
    bucket_nanos: u128,
    tick: u64,
    rows: [[u64; N]; BUCKETS],
    sums: [u64; N],
}

impl<const N: usize> Rolling<N> {
    /// Nothing seen yet. A `length` under 10 ns counts as 10 ns.
    #[must_use]
    pub fn new(now: Instant, length: Duration) -> Self {
        let bucket_nanos = (length.as_nanos() / BUCKETS as u128).max(1);
        Self { epoch: now, bucket_nanos, tick: 0, rows: [[0; N]; BUCKETS], sums: [0; N] }
    }

    /// Adds a sample and gives the sums with it.
    pub fn add(&mut self, now: Instant, sample: [u64; N]) -> [u64; N] {
        self.advance(now);
        let row = &mut self.rows[bucket(self.tick)];
        for ((cell, sum), value) in row.iter_mut().zip(&mut self.sums).zip(sample) {
            *cell += value;
            *sum += value;
        }
        self.sums
    }

    /// The sums as they are at `now`.
    pub fn sums(&mut self, now: Instant) -> [u64; N] {
        self.advance(now);
        self.sums
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.rows = [[0; N]; BUCKETS];
        self.sums = [0; N];
    }

    fn advance(&mut self, now: Instant) {
        let tick = now.saturating_duration_since(self.epoch).as_nanos() / self.bucket_nanos;
        let tick = u64::try_from(tick).unwrap_or(u64::MAX);
        if tick <= self.tick {
            return;
        }
        if tick - self.tick >= BUCKETS as u64 {
            self.clear();
        } else {
            for passed in self.tick + 1..=tick {
                let row = std::mem::replace(&mut self.rows[bucket(passed)], [0; N]);
                self.sums.iter_mut().zip(row).for_each(|(sum, value)| *sum -= value);
            }
        }
        self.tick = tick;
    }
}

fn bucket(tick: u64) -> usize {
    (tick % BUCKETS as u64) as usize
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The sum is that of a plain list of samples, to the bucket.
        #[test]
        fn sums_are_those_of_a_list(steps in prop::collection::vec((0u64..400, 0u64..9), 1..200)) {
            let start = Instant::now();
            let mut rolling = Rolling::new(start, Duration::from_millis(1000));
            let (mut list, mut at) = (Vec::new(), 0);
            for (wait, value) in steps {
                at += wait;
                list.push((at / 100, value));
                let expected: u64 = list.iter().filter(|(tick, _)| tick + 10 > at / 100).map(|(_, value)| value).sum();
                prop_assert_eq!(rolling.add(start + Duration::from_millis(at), [value]), [expected]);
            }
        }
    }
}
