//! Live numbers of a subset: how many requests, how many failed, how long they took. A request adds to three atomics;
//! whoever wants the numbers of a while compares two readings.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// Buckets per doubling of the latency: a quantile is off by at most 1/16, by far less where there are many requests.
const SUB: usize = 16;
/// Buckets in all: 1 us to about 134 s; what takes longer counts as that.
const BUCKETS: usize = 24 * SUB;
/// Seconds that a [`Meter`] remembers one by one.
pub const REMEMBERED: usize = 300;

/// The bucket of a latency in microseconds.
fn bucket(micros: u64) -> usize {
    if micros < SUB as u64 {
        return micros as usize;
    }
    let exponent = micros.ilog2() as usize;
    let within = (micros >> (exponent - 4)) as usize & (SUB - 1);
    ((exponent - 3) * SUB + within).min(BUCKETS - 1)
}

/// The least latency of a bucket and its width, in microseconds.
fn bounds(bucket: usize) -> (f64, f64) {
    if bucket < SUB {
        return (bucket as f64, 1.0);
    }
    let width = (1_u64 << (bucket / SUB - 1)) as f64;
    ((SUB + bucket % SUB) as f64 * width, width)
}

/// Numbers of some requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Requests that the subset served, or failed to.
    pub requests: u64,
    /// Failed ones among them.
    pub errors: u64,
    /// Requests that were meant for the subset and that another one served, or none.
    pub missed: u64,
    /// Their latencies together, in microseconds.
    pub micros: u64,
    /// Requests by latency: bucket and count, ascending, without those that have none.
    latencies: Vec<(u16, u64)>,
}

impl Tally {
    /// What came after an earlier reading of the same meter.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut before = earlier.latencies.iter().peekable();
        let left = |&(at, count): &(u16, u64)| {
            while before.next_if(|(other, _)| *other < at).is_some() {}
            let known = before.next_if(|(other, _)| *other == at).map_or(0, |(_, count)| *count);
            Some((at, count.saturating_sub(known))).filter(|(_, count)| *count > 0)
        };
        let latencies: Vec<_> = self.latencies.iter().filter_map(left).collect();
        Self {
            requests: latencies.iter().map(|(_, count)| count).sum(),
            errors: self.errors.saturating_sub(earlier.errors),
            missed: self.missed.saturating_sub(earlier.missed),
            micros: self.micros.saturating_sub(earlier.micros),
            latencies,
        }
    }

    /// Adds other requests.
    pub fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.errors += other.errors;
        self.missed += other.missed;
        self.micros += other.micros;
        let mut merged = Vec::with_capacity(self.latencies.len().max(other.latencies.len()));
        let (mut a, mut b) = (self.latencies.iter().peekable(), other.latencies.iter().peekable());
        loop {
            let next = match (a.peek(), b.peek()) {
                (Some(&&(x, n)), Some(&&(y, m))) if x == y => {
                    a.next();
                    b.next();
                    (x, n + m)
                }
                (Some(&&(x, n)), Some(&&(y, _))) if x < y => {
                    a.next();
                    (x, n)
                }
                (Some(&&one), None) => {
                    a.next();
                    one
                }
                (_, Some(&&one)) => {
                    b.next();
                    one
                }
                (None, None) => break,
            };
            merged.push(next);
        }
        self.latencies = merged;
    }

    /// Share that failed, 0 to 1; none without requests.
    #[must_use]
    pub fn error_rate(&self) -> Option<f64> {
        (self.requests > 0).then(|| self.errors as f64 / self.requests as f64)
    }

    /// The latency in milliseconds that a share of the requests, 0 to 1, does not exceed; none without requests.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let rank = share.clamp(0.0, 1.0) * self.requests as f64;
        let mut before = 0.0;
        for &(at, count) in &self.latencies {
            let (least, width) = bounds(usize::from(at));
            let after = before + count as f64;
            if after >= rank {
                return Some((least + width * (rank - before) / count as f64) / 1e3);
            }
            before = after;
        }
        None
    }

    /// Mean latency in milliseconds; none without requests.
    #[must_use]
    pub fn mean(&self) -> Option<f64> {
        (self.requests > 0).then(|| self.micros as f64 / self.requests as f64 / 1e3)
    }
}

/// Counts the requests of one subset for as long as the gateway runs, and remembers the last seconds one by one. A
/// subset without requests takes up next to nothing.
#[derive(Debug, Default)]
pub struct Meter {
    cells: OnceLock<Box<Cells>>,
    seconds: Mutex<Seconds>,
}

#[derive(Debug)]
struct Cells {
    errors: AtomicU64,
    missed: AtomicU64,
    micros: AtomicU64,
    latencies: [AtomicU64; BUCKETS],
}

#[derive(Debug, Default)]
struct Seconds {
    /// The reading at the end of the latest second.
    last: Tally,
    /// Oldest first.
    each: VecDeque<Tally>,
}

impl Meter {
    fn cells(&self) -> &Cells {
        self.cells.get_or_init(|| {
            Box::new(Cells {
                errors: AtomicU64::new(0),
                missed: AtomicU64::new(0),
                micros: AtomicU64::new(0),
                latencies: [const { AtomicU64::new(0) }; BUCKETS],
            })
        })
    }

    /// Counts a finished request.
    pub fn record(&self, latency: Duration, failed: bool) {
        let micros = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        let cells = self.cells();
        cells.latencies[bucket(micros)].fetch_add(1, Relaxed);
        cells.micros.fetch_add(micros, Relaxed);
        if failed {
            cells.errors.fetch_add(1, Relaxed);
        }
    }

    /// Counts a request that was meant for this subset and was not served by it.
    pub fn miss(&self) {
        self.cells().missed.fetch_add(1, Relaxed);
    }

    /// All requests so far.
    #[must_use]
    pub fn read(&self) -> Tally {
        let Some(cells) = self.cells.get() else { return Tally::default() };
        // Errors first, so that there are never more of them than requests.
        let (errors, missed, micros) =
            (cells.errors.load(Relaxed), cells.missed.load(Relaxed), cells.micros.load(Relaxed));
        let counts = cells.latencies.iter().map(|cell| cell.load(Relaxed)).enumerate();
        let latencies: Vec<_> = counts.filter(|(_, count)| *count > 0).map(|(at, count)| (at as u16, count)).collect();
        Tally { requests: latencies.iter().map(|(_, count)| count).sum(), errors, missed, micros, latencies }
    }

    /// Ends a second: what came since the last call is that second's.
    pub fn tick(&self) {
        if self.cells.get().is_none() {
            return;
        }
        let now = self.read();
        let mut seconds = self.seconds();
        let second = now.since(&seconds.last);
        if seconds.each.len() == REMEMBERED {
            seconds.each.pop_front();
        }
        seconds.each.push_back(second);
        seconds.last = now;
    }

    /// The requests of the latest `count` whole seconds.
    #[must_use]
    pub fn recent(&self, count: usize) -> Tally {
        let seconds = self.seconds();
        let mut sum = Tally::default();
        for second in seconds.each.iter().rev().take(count) {
            sum.add(second);
        }
        sum
    }

    /// The latest `count` whole seconds, oldest first; those from before the first request have none.
    #[must_use]
    pub fn series(&self, count: usize) -> Vec<Tally> {
        let seconds = self.seconds();
        let known = seconds.each.len().min(count);
        let blank = std::iter::repeat_n(Tally::default(), count - known);
        blank.chain(seconds.each.iter().skip(seconds.each.len() - known).cloned()).collect()
    }

    fn seconds(&self) -> MutexGuard<'_, Seconds> {
        self.seconds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn meter(millis: impl IntoIterator<Item = u64>) -> Meter {
        let meter = Meter::default();
        millis.into_iter().for_each(|millis| meter.record(Duration::from_millis(millis), false));
        meter
    }

    fn is_near(got: Option<f64>, wanted: f64) -> bool {
        got.is_some_and(|got| (got - wanted).abs() <= wanted / 16.0)
    }

    #[test]
    fn figures_of_known_requests() {
        let tally = meter(1..=1_000).read();
        assert_eq!(tally.requests, 1_000);
        for (share, wanted) in [(0.5, 500.0), (0.9, 900.0), (0.99, 990.0), (1.0, 1_000.0)] {
            assert!(is_near(tally.quantile(share), wanted), "{share}: {:?}", tally.quantile(share));
        }
        assert!(is_near(tally.mean(), 500.5), "{:?}", tally.mean());
        assert_eq!((tally.error_rate(), Tally::default().error_rate()), (Some(0.0), None));
        assert_eq!((Tally::default().quantile(0.5), Tally::default().mean()), (None, None));
    }

    #[test]
    fn seconds_are_remembered_one_by_one() {
        let meter = Meter::default();
        meter.tick();
        for second in 1..=3_u64 {
            (0..second).for_each(|_| meter.record(Duration::from_millis(10), second == 3));
            meter.tick();
        }
        meter.record(Duration::from_millis(10), true);
        let requests = |count| meter.series(count).iter().map(|second| second.requests).collect::<Vec<_>>();
        assert_eq!(requests(5), [0, 0, 1, 2, 3], "the running second is left out");
        assert_eq!(requests(2), [2, 3]);
        assert_eq!((meter.recent(2).requests, meter.recent(2).errors), (5, 3));
        assert_eq!((meter.recent(9).requests, meter.read().requests), (6, 7));
        (0..1_000).for_each(|_| meter.tick());
        assert_eq!(meter.seconds().each.len(), REMEMBERED);
        assert_eq!(meter.recent(REMEMBERED).requests, 0);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn every_latency_is_within_its_bucket(micros in 0..134_000_000_u64) {
            let (least, width) = bounds(bucket(micros));
            prop_assert!((least..least + width).contains(&(micros as f64)), "{micros}: {least} + {width}");
            prop_assert!(width <= (least / 16.0).max(1.0));
        }

        #[test]
        fn readings_subtract_and_add(
            first in prop::collection::vec(0..100_000_u64, 0..50),
            second in prop::collection::vec(0..100_000_u64, 0..50),
        ) {
            let meter = meter(first.iter().copied());
            let before = meter.read();
            second.iter().for_each(|&millis| meter.record(Duration::from_millis(millis), millis % 2 == 0));
            let after = meter.read();
            let between = after.since(&before);
            prop_assert_eq!(between.requests, second.len() as u64);
            prop_assert_eq!(between.errors, second.iter().filter(|millis| *millis % 2 == 0).count() as u64);
            let mut again = before;
            again.add(&between);
            prop_assert_eq!(again, after);
        }
    }

    #[test]
    fn anything_has_a_bucket() {
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
        meter([0]).record(Duration::MAX, true);
    }
}
