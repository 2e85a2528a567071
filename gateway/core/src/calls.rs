//! The last calls of one instance, for picks that look back further than an average does.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Calls that are kept.
pub const WINDOW: usize = 100;
/// Calls that are older are forgotten, so that an instance that recovered is not held to its past...
const OLDEST: Duration = Duration::from_secs(10);
/// ...but for the latest few, without which nothing would be known of one that gets little traffic.
const KEPT: usize = 8;
/// What is known fades with this time constant while there are no calls at all.
const FADING: Duration = Duration::from_secs(30);
/// Calls that are taken to have succeeded beforehand: one failure of one call is not the whole truth.
const PRIOR: f64 = 4.0;

/// The last [`WINDOW`] calls of an instance: 800 bytes behind a lock that is held for a push. What picks read of it are
/// two atomics.
#[derive(Debug)]
pub struct Calls {
    epoch: Instant,
    window: Mutex<Window>,
    latency: AtomicU64,
    success: AtomicU64,
    /// Nanoseconds from `epoch` to the last call, and 1; 0 before the first.
    stamp: AtomicU64,
}

#[derive(Debug)]
struct Window {
    calls: VecDeque<Call>,
    micros: u64,
    failures: u32,
}

/// One call in 8 bytes.
#[derive(Clone, Copy, Debug)]
struct Call {
    /// Milliseconds since the epoch; wraps after 49 days.
    at: u32,
    /// Microseconds, at most 35 minutes, and in the lowest bit whether it failed.
    packed: u32,
}

impl Call {
    const LONGEST: u64 = (u32::MAX >> 1) as u64;

    fn micros(self) -> u64 {
        u64::from(self.packed >> 1)
    }

    fn failed(self) -> bool {
        self.packed & 1 == 1
    }
}

/// What the last calls say.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Score {
    /// Mean latency in nanoseconds, over failures too; more than 0.
    pub latency_nanos: f64,
    /// Share of calls that succeeded, smoothed as if four more had; from 0 to 1.
    pub success: f64,
}

impl Calls {
    /// No calls yet of an instance that was first seen at `epoch`.
    #[must_use]
    pub fn new(epoch: Instant) -> Self {
        Self {
            epoch,
            window: Mutex::new(Window { calls: VecDeque::with_capacity(WINDOW), micros: 0, failures: 0 }),
            latency: AtomicU64::new(0),
            success: AtomicU64::new(0),
            stamp: AtomicU64::new(0),
        }
    }

    /// Adds a call that ended at `now`.
    pub fn record(&self, now: Instant, latency: Duration, ok: bool) {
        let since = now.saturating_duration_since(self.epoch);
        let micros = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX).clamp(1, Call::LONGEST) as u32;
        let call = Call { at: since.as_millis() as u32, packed: micros << 1 | u32::from(!ok) };
        // A push leaves the sums right or panics before it touched them.
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        window.push(call);
        let n = window.calls.len() as f64;
        let mean = window.micros as f64 * 1e3 / n;
        let success = (n - f64::from(window.failures) + PRIOR) / (n + PRIOR);
        self.latency.store(mean.to_bits(), Relaxed);
        self.success.store(success.to_bits(), Relaxed);
        self.stamp.store(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX).saturating_add(1), Relaxed);
    }

    /// What the last calls say at `now`; `None` before the first.
    #[must_use]
    pub fn score(&self, now: Instant) -> Option<Score> {
        let stamp = self.stamp.load(Relaxed).checked_sub(1)?;
        let idle = now.saturating_duration_since(self.epoch).saturating_sub(Duration::from_nanos(stamp));
        let keep = (-idle.as_secs_f64() / FADING.as_secs_f64()).exp();
        let success = f64::from_bits(self.success.load(Relaxed));
        Some(Score {
            latency_nanos: (f64::from_bits(self.latency.load(Relaxed)) * keep).max(1.0),
            success: 1.0 - (1.0 - success) * keep,
        })
    }
}

impl Window {
    fn push(&mut self, call: Call) {
        let old = |first: &Call| u128::from(call.at.wrapping_sub(first.at)) > OLDEST.as_millis();
        while let Some(first) = self.calls.front().copied()
            && (self.calls.len() >= WINDOW || (self.calls.len() >= KEPT && old(&first)))
        {
            self.calls.pop_front();
            self.micros -= first.micros();
            self.failures -= u32::from(first.failed());
        }
        self.micros += call.micros();
        self.failures += u32::from(call.failed());
        self.calls.push_back(call);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn the_last_hundred_count() {
        let start = Instant::now();
        let calls = Calls::new(start);
        assert_eq!(calls.score(start), None);
        for at in 0..300 {
            calls.record(start + ms(at), if at < 200 { ms(500) } else { ms(10) }, at >= 200);
        }
        let score = calls.score(start + ms(299)).unwrap();
        assert_eq!((score.latency_nanos, score.success), (1e7, 1.0));
    }

    #[test]
    fn success_is_smoothed() {
        let start = Instant::now();
        for (good, bad, expected) in
            [(0, 1, 0.8), (0, 4, 0.5), (1, 0, 1.0), (50, 50, 54.0 / 104.0), (0, 100, 4.0 / 104.0)]
        {
            let calls = Calls::new(start);
            (0..good + bad).for_each(|at| calls.record(start, ms(1), at < good));
            let success = calls.score(start).unwrap().success;
            assert!((success - expected).abs() < 1e-12, "{good} good, {bad} bad: {success}");
        }
    }

    #[test]
    fn old_calls_are_forgotten_but_for_the_latest() {
        let start = Instant::now();
        let calls = Calls::new(start);
        (0..50).for_each(|at| calls.record(start + ms(at), ms(200), false));
        calls.record(start + ms(20_000), ms(20), true);
        let score = calls.score(start + ms(20_000)).unwrap();
        assert_eq!(score.latency_nanos, (7.0 * 2e8 + 2e7) / 8.0);
        (0..7).for_each(|at| calls.record(start + ms(20_001 + at), ms(20), true));
        assert_eq!(calls.score(start + ms(20_008)).unwrap().success, 1.0);
    }

    #[test]
    fn what_is_known_fades_without_calls() {
        let start = Instant::now();
        let calls = Calls::new(start);
        (0..100).for_each(|_| calls.record(start, ms(5_000), false));
        let before = calls.score(start).unwrap();
        let after = calls.score(start + ms(300_000)).unwrap();
        assert!(before.latency_nanos == 5e9 && before.success < 0.05);
        assert!(after.latency_nanos < 5e6 && after.success > 0.99, "{after:?}");
    }

    #[test]
    fn extremes_fit() {
        let start = Instant::now();
        let calls = Calls::new(start);
        calls.record(start, Duration::MAX, true);
        assert!(calls.score(start).unwrap().latency_nanos > 2e12);
        let calls = Calls::new(start);
        calls.record(start, Duration::ZERO, true);
        assert!(calls.score(start).unwrap().latency_nanos > 0.0);
    }
}
