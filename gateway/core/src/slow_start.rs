//! Slow start: a new or recovered instance takes less than its share for a while.

use std::time::Duration;

/// How the share of an instance's weight grows.
///
/// With an `aggression` of exactly 1.0 it grows on a straight line from `initial` to all of it:
/// `initial + (1 - initial) * age / window` (50 % and 10 % more every minute with `initial` 0.5 and a window of 5 min).
/// With any other it follows Envoy's formula (`slow_start_config`): `max(initial, (age / window) ^ (1 / aggression))`:
/// above 1 the growth is fast at first, below 1 slow at first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlowStart {
    /// How long it lasts.
    pub window: Duration,
    /// The share at its beginning, above 0 and at most 1.
    pub initial: f64,
    /// Bend of the curve, above 0.
    pub aggression: f64,
}

impl SlowStart {
    /// The share of its weight that an instance has so long after it came or came back, in 0..=1.
    #[must_use]
    pub fn share(&self, age: Duration) -> f64 {
        if age >= self.window {
            return 1.0;
        }
        let passed = age.as_secs_f64() / self.window.as_secs_f64();
        let share = if (self.aggression - 1.0).abs() < f64::EPSILON {
            self.initial + (1.0 - self.initial) * passed
        } else {
            passed.powf(self.aggression.recip()).max(self.initial)
        };
        share.clamp(0.0, 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules() {
        let minute = Duration::from_secs(60);
        let line = SlowStart { window: 5 * minute, initial: 0.5, aggression: 1.0 };
        let (fast, slow) = (SlowStart { aggression: 2.0, initial: 0.1, ..line }, SlowStart { aggression: 0.5, ..line });
        let cases = [
            (line, 0, 0.5),
            (line, 1, 0.6),
            (line, 2, 0.7),
            (line, 4, 0.9),
            (line, 5, 1.0),
            (line, 500, 1.0),
            (fast, 0, 0.1),
            (fast, 1, 0.447_213_595),
            (fast, 4, 0.894_427_191),
            (slow, 1, 0.5),
            (slow, 4, 0.64),
            (slow, 5, 1.0),
        ];
        for (slow_start, minutes, share) in cases {
            let got = slow_start.share(minutes * minute);
            assert!((got - share).abs() < 1e-6, "{slow_start:?} after {minutes} min: {got}");
        }
    }
}
