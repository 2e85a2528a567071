//! Active health checks as a state machine: results in a row against two thresholds, and when the next check is due.

use std::time::Duration;

/// How many results in a row change what is thought of an instance. Both are at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Thresholds {
    /// Failures in a row after which it is unhealthy.
    pub unhealthy_after: u32,
    /// Passes in a row after which it is healthy again.
    pub healthy_after: u32,
}

/// What the checks of one instance came to so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Streak {
    healthy: bool,
    last: Option<bool>,
    run: u32,
}

impl Streak {
    /// An instance that was not checked yet. A new one begins as healthy: traffic need not wait for the first check,
    /// and an instance that is down is found by its first requests.
    #[must_use]
    pub fn new(healthy: bool) -> Self {
        Self { healthy, last: None, run: 0 }
    }

    /// Whether it may take traffic.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        self.healthy
    }

    /// How often in a row the latest result came.
    #[must_use]
    pub fn in_a_row(&self) -> u32 {
        self.run
    }

    /// Notes a result. `Some` is what is thought of the instance from now on, if that changed.
    pub fn note(&mut self, passed: bool, thresholds: Thresholds) -> Option<bool> {
        self.run = if self.last == Some(passed) { self.run.saturating_add(1) } else { 1 };
        self.last = Some(passed);
        let enough = if passed { thresholds.healthy_after } else { thresholds.unhealthy_after };
        if passed == self.healthy || self.run < enough {
            return None;
        }
        self.healthy = passed;
        Some(passed)
    }
}

/// Time to the first check: anywhere in the interval, so that instances that arrive together are not checked together.
/// `unit` is a random number from 0 to 1.
#[must_use]
pub fn first_delay(interval: Duration, unit: f64) -> Duration {
    interval.mul_f64(unit.clamp(0.0, 1.0))
}

/// Time from the begin of one check to the begin of the next: the interval, a tenth more or less, so that checks that
/// fell together do not stay together. `unit` is a random number from 0 to 1.
#[must_use]
pub fn next_delay(interval: Duration, unit: f64) -> Duration {
    interval.mul_f64(0.9 + 0.2 * unit.clamp(0.0, 1.0))
}

/// A time that a check is due at, put off to the next tick of 100 ms that all checks share: to wake up once for twenty of
/// them costs little more than for one. Intervals of less than a second are kept as they are.
#[must_use]
pub fn on_tick(due: Duration, interval: Duration) -> Duration {
    const TICK: Duration = Duration::from_millis(100);
    if interval < 10 * TICK {
        return due;
    }
    let ticks = due.as_nanos().div_ceil(TICK.as_nanos());
    TICK * u32::try_from(ticks).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const THREE_TWO: Thresholds = Thresholds { unhealthy_after: 3, healthy_after: 2 };

    #[test]
    fn checks_share_ticks() {
        let ms = Duration::from_millis;
        for (due, interval, at) in
            [(0, 5_000, 0), (1, 5_000, 100), (100, 1_000, 100), (101, 1_000, 200), (101, 999, 101)]
        {
            assert_eq!(on_tick(ms(due), ms(interval)), ms(at), "{due} {interval}");
        }
    }

    #[test]
    fn results_in_a_row_change_the_state() {
        // Results (`-` failed, `+` passed) and the state after each (`.` healthy, `x` not), from healthy on.
        let cases = [
            (THREE_TWO, "---", "..x"),
            (THREE_TWO, "--+--+--", "........"),
            (THREE_TWO, "----++", "..xxx."),
            (THREE_TWO, "---+-++", "..xxxx."),
            (THREE_TWO, "---++---", "..xx...x"),
            (Thresholds { unhealthy_after: 1, healthy_after: 1 }, "-+-+", "x.x."),
            (Thresholds { unhealthy_after: 1, healthy_after: 3 }, "-++-+++", "xxxxxx."),
        ];
        for (thresholds, results, states) in cases {
            let mut streak = Streak::new(true);
            let mut seen = String::new();
            for result in results.chars() {
                let before = streak.is_healthy();
                let change = streak.note(result == '+', thresholds);
                assert_eq!(change, (streak.is_healthy() != before).then_some(streak.is_healthy()), "{results}");
                seen.push(if streak.is_healthy() { '.' } else { 'x' });
            }
            assert_eq!(seen, states, "{results} {thresholds:?}");
        }
    }

    #[test]
    fn the_row_is_counted_and_broken() {
        let mut streak = Streak::new(false);
        let rows: Vec<_> = [false, false, true, true, true, false]
            .into_iter()
            .map(|passed| {
                streak.note(passed, THREE_TWO);
                streak.in_a_row()
            })
            .collect();
        assert_eq!(rows, [1, 2, 1, 2, 3, 1]);
        assert!(streak.is_healthy());
    }

    proptest! {
        #[test]
        fn delays_stay_within_their_bounds(millis in 1..600_000_u64, unit in 0.0..1.0_f64) {
            let interval = Duration::from_millis(millis);
            prop_assert!(first_delay(interval, unit) <= interval);
            let next = next_delay(interval, unit);
            prop_assert!(next >= interval.mul_f64(0.9) && next <= interval.mul_f64(1.1));
        }
    }
}
