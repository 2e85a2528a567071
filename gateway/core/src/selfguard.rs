//! The gateway guards itself against a service's chain: one that panics, or whose decisions take too long for long, is
//! out until an operator arms it again. Plain round robin takes its place.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Parts that the time of a budget is divided into.
const PARTS: u32 = 10;

/// Why a chain is out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Trip {
    /// It panicked.
    Panicked,
    /// Its decisions took longer than their budget.
    Slow,
}

impl Trip {
    /// All reasons, in the order of their numbers.
    pub const ALL: [Self; 2] = [Self::Panicked, Self::Slow];

    /// Its name in the API and in metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Panicked => "panicked",
            Self::Slow => "slow",
        }
    }

    /// What it did, in words.
    #[must_use]
    pub fn as_words(self) -> &'static str {
        match self {
            Self::Panicked => "panicked",
            Self::Slow => "taken too long to decide",
        }
    }
}

/// How long decisions may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// The 99th percentile of a decision's time may be so much.
    pub decision: Duration,
    /// A chain that is above that all of this time is out; more than 0.
    pub sustained: Duration,
}

impl Default for Budget {
    fn default() -> Self {
        Self { decision: Duration::from_millis(1), sustained: Duration::from_secs(10) }
    }
}

/// The guard of one service's chain. A decision within the budget costs it one addition.
#[derive(Debug)]
pub struct SelfGuard {
    budget: Budget,
    epoch: Instant,
    /// Nanoseconds of a part; more than 0.
    length: u64,
    tripped: AtomicU8,
    /// Number of the part of time that is being counted.
    part: AtomicU64,
    decisions: AtomicU32,
    slow: AtomicU32,
    /// Parts in a row, leaving out those without a decision, in which more than 1 % of the decisions were slow.
    slow_parts: AtomicU32,
}

impl SelfGuard {
    /// An armed guard.
    #[must_use]
    pub fn new(budget: Budget, now: Instant) -> Self {
        Self {
            budget,
            epoch: now,
            length: nanos(budget.sustained / PARTS).max(1),
            tripped: AtomicU8::new(0),
            part: AtomicU64::new(0),
            decisions: AtomicU32::new(0),
            slow: AtomicU32::new(0),
            slow_parts: AtomicU32::new(0),
        }
    }

    /// The budget that it keeps.
    #[must_use]
    pub fn budget(&self) -> Budget {
        self.budget
    }

    /// Why the chain is out; `None` while it is armed.
    #[must_use]
    pub fn tripped(&self) -> Option<Trip> {
        let at = self.tripped.load(Relaxed).checked_sub(1)?;
        Trip::ALL.get(usize::from(at)).copied()
    }

    /// The chain panicked. True for the one call that takes it out.
    pub fn panicked(&self) -> bool {
        self.trip(Trip::Panicked)
    }

    /// A decision that ended at `now` took so long. True for the one call that takes the chain out.
    pub fn note(&self, now: Instant, took: Duration) -> bool {
        let part = nanos(now.saturating_duration_since(self.epoch)) / self.length;
        let before = self.part.load(Relaxed);
        let ended = part > before && self.part.compare_exchange(before, part, Relaxed, Relaxed).is_ok();
        let out = ended && self.end_part();
        self.decisions.fetch_add(1, Relaxed);
        if took > self.budget.decision {
            self.slow.fetch_add(1, Relaxed);
        }
        out && self.trip(Trip::Slow)
    }

    /// Arms it again. Says why the chain was out, if it was.
    pub fn rearm(&self) -> Option<Trip> {
        let was = self.tripped();
        self.slow_parts.store(0, Relaxed);
        self.decisions.store(0, Relaxed);
        self.slow.store(0, Relaxed);
        self.tripped.store(0, Relaxed);
        was
    }

    /// Whether the part that ended was one too many.
    fn end_part(&self) -> bool {
        let (decisions, slow) = (self.decisions.swap(0, Relaxed), self.slow.swap(0, Relaxed));
        if decisions == 0 {
            return false;
        }
        if u64::from(slow) * 100 <= u64::from(decisions) {
            self.slow_parts.store(0, Relaxed);
            return false;
        }
        self.slow_parts.fetch_add(1, Relaxed) + 1 >= PARTS
    }

    fn trip(&self, why: Trip) -> bool {
        self.tripped.compare_exchange(0, why as u8 + 1, Relaxed, Relaxed).is_ok()
    }
}

/// Whole nanoseconds, for 584 years.
fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAST: Duration = Duration::from_micros(5);
    const SLOW: Duration = Duration::from_millis(3);

    /// When the guard trips, in ms, if decision number n takes `took(n)` and there are `rate` of them a second, for 60 s.
    fn trips_at(rate: u64, took: impl Fn(u64) -> Duration) -> Option<u64> {
        let start = Instant::now();
        let guard = SelfGuard::new(Budget::default(), start);
        (0..rate * 60).find_map(|n| {
            let at = n * 1_000 / rate;
            guard.note(start + Duration::from_millis(at), took(n)).then_some(at)
        })
    }

    #[test]
    fn only_what_is_slow_for_long_trips() {
        type Case = (&'static str, u64, fn(u64) -> Duration, Option<u64>);
        let cases: [Case; 7] = [
            ("all slow", 1_000, |_| SLOW, Some(10_000)),
            ("two in a hundred", 1_000, |n| if n % 50 == 0 { SLOW } else { FAST }, Some(10_000)),
            ("all slow, few requests", 1, |_| SLOW, Some(10_000)),
            ("one in a hundred", 1_000, |n| if n % 100 == 0 { SLOW } else { FAST }, None),
            ("a good second in between", 1_000, |n| if n / 1_000 % 10 == 9 { FAST } else { SLOW }, None),
            ("one hiccup of many", 10, |n| if n % 100 == 0 { SLOW } else { FAST }, None),
            ("all fast", 1_000, |_| FAST, None),
        ];
        for (what, rate, took, expected) in cases {
            assert_eq!(trips_at(rate, took), expected, "{what}");
        }
    }

    #[test]
    fn trips_once_and_is_armed_again() {
        let start = Instant::now();
        let guard = SelfGuard::new(Budget::default(), start);
        assert_eq!(guard.tripped(), None);
        assert_eq!(guard.rearm(), None);
        assert!(guard.panicked() && !guard.panicked());
        assert_eq!(guard.tripped(), Some(Trip::Panicked));
        assert_eq!((guard.rearm(), guard.tripped()), (Some(Trip::Panicked), None));
        let slow = |second| guard.note(start + Duration::from_secs(second), SLOW);
        assert!(!(0..10).any(slow) && slow(10));
        assert_eq!(guard.rearm(), Some(Trip::Slow));
        assert!(!(11..20).any(slow), "counts anew");
    }
}
