//! Bounded load for consistent hashing (Mirrokni, Thorup, Zadimoghaddam 2016): no instance gets more than its fair
//! part of the pending requests times a factor.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use serde::{Deserialize, Deserializer, de::Error};
use serin_core::candidates::Candidates;
use serin_core::instance::Instance;

/// Up to this many candidates are counted anew for every pick.
const COUNT_ALWAYS: usize = 64;

/// How far an instance may be above its fair part: at least 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Factor(f64);

impl<'de> Deserialize<'de> for Factor {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let percent = text.strip_suffix('%').and_then(|number| number.trim().parse().ok());
        match percent.filter(|percent| (100.0..=10_000.0).contains(percent)) {
            Some(percent) => Ok(Self(percent / 100.0)),
            None => Err(D::Error::custom(format!(
                "bounded_load: expected a percentage from 100% to 10000%, such as 125%, found {text:?}"
            ))),
        }
    }
}

/// Keeps the bound for one pool.
#[derive(Debug)]
pub(crate) struct Bound {
    factor: f64,
    /// Pending requests per weight, as the bits of an `f64`.
    mean: AtomicU64,
    picks: AtomicUsize,
}

impl Bound {
    pub(crate) fn new(Factor(factor): Factor) -> Self {
        Self { factor, mean: AtomicU64::new(0), picks: AtomicUsize::new(0) }
    }

    /// The room that the instances have for the request at hand. In a large pool the pending requests are counted
    /// only so often that a pick looks at 16 instances on average.
    pub(crate) fn room(&self, candidates: &Candidates<'_>) -> Room {
        let n = candidates.len();
        let count = n <= COUNT_ALWAYS || self.picks.fetch_add(1, Relaxed).is_multiple_of(n / 16);
        if !count {
            return Room(self.factor * f64::from_bits(self.mean.load(Relaxed)));
        }
        let (pending, weight) = candidates.iter().fold((1, 0), |(pending, weight), (_, instance)| {
            (pending + u64::from(instance.vitals.in_flight()), weight + u64::from(instance.weight))
        });
        let mean = pending as f64 / weight as f64;
        self.mean.store(mean.to_bits(), Relaxed);
        Room(self.factor * mean)
    }
}

/// Pending requests per weight that an instance may have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room(f64);

impl Room {
    /// Whether an instance may get one more request.
    pub(crate) fn fits(self, instance: &Instance) -> bool {
        f64::from(instance.vitals.in_flight()) < (self.0 * f64::from(instance.weight)).ceil()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn factors_are_percentages() {
        let cases = [("125%", Some(1.25)), ("100 %", Some(1.0)), ("99%", None), ("1.25", None), ("x%", None)];
        for (text, wanted) in cases {
            let found = serde_json::from_value::<Factor>(json!(text));
            match (&found, wanted) {
                (Ok(Factor(factor)), Some(wanted)) => assert_eq!(*factor, wanted),
                (Err(error), None) => assert!(error.to_string().contains("such as 125%, found"), "{error}"),
                _ => panic!("{text}: {found:?}"),
            }
        }
    }
}
