//! The retry budget of a service: retries are a share of the requests, so that a service that fails altogether gets
//! little more load than one that works.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::subset::BasisPoints;
use crate::window::Rolling;

/// Seconds that the budget looks back.
const WINDOW: u64 = 10;
const CELLS: usize = WINDOW as usize;

/// How many retries a service may make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetPolicy {
    /// Retries in 10 s as a share of the requests in 10 s.
    pub percent: BasisPoints,
    /// Retries per second that may be made on top of that, counted over 10 s as well: services with little traffic could
    /// make none otherwise.
    pub min_per_second: u32,
}

/// Counts requests and retries. A request adds to one atomic number; only a retry takes a lock.
#[derive(Debug)]
pub struct RetryBudget {
    policy: BudgetPolicy,
    epoch: Instant,
    /// Requests by second modulo the window: the second in the upper half, their number in the lower one.
    requests: [AtomicU64; CELLS],
    retries: Mutex<Rolling<1>>,
}

impl RetryBudget {
    /// A budget without a past.
    #[must_use]
    pub fn new(policy: BudgetPolicy, now: Instant) -> Self {
        let retries = Mutex::new(Rolling::new(now, Duration::from_secs(WINDOW)));
        Self { policy, epoch: now, requests: Default::default(), retries }
    }

    /// What it was made for.
    #[must_use]
    pub fn policy(&self) -> BudgetPolicy {
        self.policy
    }

    /// Counts a request (not a retry of one).
    pub fn count_request(&self, now: Instant) {
        let second = self.second(now);
        let cell = &self.requests[(second % WINDOW) as usize];
        let old = cell.load(Relaxed);
        if old >> 32 == second {
            cell.fetch_add(1, Relaxed);
        } else if cell.compare_exchange(old, second << 32 | 1, Relaxed, Relaxed).is_err() {
            // Somebody else began the second.
            cell.fetch_add(1, Relaxed);
        }
    }

    /// Whether one more retry may be made; takes it off the budget if so.
    pub fn spend(&self, now: Instant) -> bool {
        let second = self.second(now);
        let recent = |cell: &AtomicU64| {
            let value = cell.load(Relaxed);
            if (value >> 32) + WINDOW > second { value & u64::from(u32::MAX) } else { 0 }
        };
        let requests: u64 = self.requests.iter().map(recent).sum();
        // In hundredths of a percent of a retry.
        let allowed =
            requests * u64::from(self.policy.percent) + u64::from(self.policy.min_per_second) * WINDOW * 10_000;
        let mut retries = self.retries.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = (retries.sums(now)[0] + 1) * 10_000 <= allowed;
        if fits {
            retries.add(now, [1]);
        }
        fits
    }

    fn second(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.epoch).as_secs() & u64::from(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Retries out of `per_second` requests for so many seconds, all of which want one.
    fn retries(policy: BudgetPolicy, per_second: u64, seconds: u64) -> u64 {
        let start = Instant::now();
        let budget = RetryBudget::new(policy, start);
        let mut made = 0;
        for number in 0..per_second * seconds {
            let now = start + Duration::from_micros(number * 1_000_000 / per_second);
            budget.count_request(now);
            made += u64::from(budget.spend(now));
        }
        made
    }

    #[test]
    fn retries_are_a_share_of_requests() {
        let share = |percent, min_per_second| BudgetPolicy { percent, min_per_second };
        let cases = [
            (share(2_000, 0), 100, 60, 1_200),
            (share(0, 0), 100, 60, 0),
            (share(0, 10), 1_000, 60, 600),
            (share(2_000, 10), 1_000, 60, 12_600),
            (share(10_000, 0), 50, 20, 1_000),
        ];
        for (policy, per_second, seconds, expected) in cases {
            let got = retries(policy, per_second, seconds) as f64;
            assert!((got - expected as f64).abs() <= expected as f64 * 0.02, "{policy:?}: {got} for {expected}");
            assert!(got <= expected as f64 * 1.02);
        }
    }

    #[test]
    fn old_requests_allow_nothing() {
        let start = Instant::now();
        let budget = RetryBudget::new(BudgetPolicy { percent: 2_000, min_per_second: 0 }, start);
        (0..100).for_each(|_| budget.count_request(start));
        assert!(budget.spend(start + Duration::from_secs(9)));
        assert!(!budget.spend(start + Duration::from_secs(11)));
    }
}
