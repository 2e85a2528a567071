//! How long connections to an instance are used: all of those that were made in one epoch are left together when it
//! ends, so that none is older than an epoch is long. Every instance has its own phase, so that epochs do not end
//! everywhere at once.

use std::time::Duration;

/// The epochs of one instance's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    length: Duration,
    phase: Duration,
}

impl Lifetime {
    /// Epochs of a length of more than 0. `unit` is a random number from 0 to 1: the phase.
    #[must_use]
    pub fn new(length: Duration, unit: f64) -> Self {
        let length = length.max(Duration::from_nanos(1));
        Self { length, phase: length.mul_f64(unit.clamp(0.0, 1.0)) }
    }

    /// The epoch at an age of the instance.
    #[must_use]
    pub fn epoch(&self, age: Duration) -> u64 {
        nanos(age + self.phase) / nanos(self.length).max(1)
    }
}

/// Nanoseconds, up to 584 years: 128 bits would take longer to divide.
fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn epochs_end_where_the_phase_says() {
        let (hour, minute) = (Duration::from_secs(3600), Duration::from_secs(60));
        // Phase as a share of two hours, age, and how many epochs have ended.
        let cases = [
            (0.0, hour, 0),
            (0.0, 2 * hour - minute, 0),
            (0.0, 2 * hour, 1),
            (0.5, hour - minute, 0),
            (0.5, hour, 1),
            (0.5, 3 * hour, 2),
            (0.0, 20 * hour, 10),
        ];
        for (phase, age, expected) in cases {
            assert_eq!(Lifetime::new(2 * hour, phase).epoch(age), expected, "{phase} {age:?}");
        }
    }

    proptest! {
        #[test]
        fn no_connection_of_an_epoch_is_older_than_the_lifetime(
            millis in 1..10_000_000_u64, unit in 0.0..1.0_f64, made in 0..100_000_000_u64, later in 0..20_000_000_u64,
        ) {
            let length = Duration::from_millis(millis);
            let lifetime = Lifetime::new(length, unit);
            let (made, later) = (Duration::from_millis(made), Duration::from_millis(later));
            if lifetime.epoch(made) == lifetime.epoch(made + later) {
                prop_assert!(later <= length);
            }
        }
    }
}
