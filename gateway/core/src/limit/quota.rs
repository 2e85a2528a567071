//! How much a key may spend.

use std::num::NonZeroU32;
use std::time::Duration;

use http::HeaderValue;

/// Fastest rate, in units a second: beyond it, whole nanoseconds are too coarse for an exactness of 1 %.
const FASTEST: u32 = 10_000_000;
/// Longest time in which a burst comes back.
const LONGEST: Duration = Duration::from_secs(366 * 86_400);

/// So many units per period, and so many at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quota {
    units: u32,
    per: Duration,
    gcra: governor::Quota,
    policy: Option<HeaderValue>,
}

/// What makes no quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuotaError {
    /// Nothing at all, or in no time.
    #[error("a limit and its burst are at least 1")]
    Nothing,
    /// More than can be told apart.
    #[error("a limit is at most {FASTEST} a second")]
    TooFast,
    /// A burst that takes more than a year to come back.
    #[error("a burst of {0} would take more than a year to come back at this limit")]
    TooSlow(u32),
}

impl Quota {
    /// `units` per period `per`, at most `burst` of them at once.
    ///
    /// # Errors
    /// If one of them is 0, the rate is above 10,000,000 a second, or the burst takes over a year to come back.
    pub fn new(units: u32, per: Duration, burst: u32) -> Result<Self, QuotaError> {
        let most = NonZeroU32::new(burst).filter(|_| units > 0 && !per.is_zero()).ok_or(QuotaError::Nothing)?;
        let interval = per / units;
        if interval < Duration::from_secs(1) / FASTEST {
            return Err(QuotaError::TooFast);
        }
        if interval.checked_mul(burst).is_none_or(|time| time > LONGEST) {
            return Err(QuotaError::TooSlow(burst));
        }
        let gcra = governor::Quota::with_period(interval).ok_or(QuotaError::TooFast)?.allow_burst(most);
        Ok(Self { units, per, gcra, policy: None })
    }

    /// Units at once.
    #[must_use]
    pub fn burst(&self) -> u32 {
        self.gcra.burst_size().get()
    }

    /// Units per period.
    #[must_use]
    pub fn units(&self) -> u32 {
        self.units
    }

    /// The period.
    #[must_use]
    pub fn per(&self) -> Duration {
        self.per
    }

    /// Time in which so many units come back.
    #[must_use]
    pub fn time_for(&self, units: u32) -> Duration {
        self.interval().saturating_mul(units)
    }

    /// Time in which one unit comes back.
    #[must_use]
    pub fn interval(&self) -> Duration {
        self.gcra.replenish_interval()
    }

    /// The quota of one of so many who share it, which still lets through what costs `cost`.
    pub(super) fn shared(&self, replicas: u32, cost: NonZeroU32) -> governor::Quota {
        if replicas <= 1 {
            return self.gcra;
        }
        let burst = NonZeroU32::new(self.burst() / replicas).map_or(cost, |burst| burst.max(cost));
        let interval = self.interval().saturating_mul(replicas);
        // Longer than the interval of the whole, which is not 0.
        governor::Quota::with_period(interval).unwrap_or(self.gcra).allow_burst(burst)
    }

    /// What tells it from other quotas.
    pub(super) fn identity(&self) -> [u8; 16] {
        let interval = self.interval().as_nanos();
        (interval << 32 | u128::from(self.burst())).to_le_bytes()
    }

    /// The same as part of a rule, whose name clients are told.
    #[must_use]
    pub fn named(self, rule: &str) -> Self {
        let burst = if self.burst() == self.units { String::new() } else { format!(";burst={}", self.burst()) };
        let policy = format!("\"{rule}\";q={};w={}{burst}", self.units, self.per.as_secs());
        Self { policy: HeaderValue::try_from(policy).ok(), ..self }
    }

    /// The member of `RateLimit-Policy`, if it is named: `q` units per window of `w` seconds. `burst` is a parameter of
    /// this gateway's, where it is not the same as `q`.
    #[must_use]
    pub fn policy(&self) -> Option<&HeaderValue> {
        self.policy.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_are_bounded() {
        let (second, day) = (Duration::from_secs(1), Duration::from_secs(86_400));
        let cases = [
            ((100, second, 200), Ok((200, Duration::from_secs(2)))),
            ((1, day, 366), Ok((366, Duration::from_secs(366 * 86_400)))),
            ((10_000_000, second, 1), Ok((1, Duration::from_nanos(100)))),
            ((1, day, 367), Err(QuotaError::TooSlow(367))),
            ((1, day, u32::MAX), Err(QuotaError::TooSlow(u32::MAX))),
            ((10_000_001, second, 1), Err(QuotaError::TooFast)),
            ((0, second, 1), Err(QuotaError::Nothing)),
            ((1, second, 0), Err(QuotaError::Nothing)),
            ((1, Duration::ZERO, 1), Err(QuotaError::Nothing)),
        ];
        for ((units, per, burst), expected) in cases {
            let got = Quota::new(units, per, burst).map(|quota| (quota.burst(), quota.time_for(burst)));
            assert_eq!(got, expected, "{units} per {per:?}, {burst} at once");
        }
    }

    #[test]
    fn policies_are_structured_fields() {
        let cases = [((100, 1, 100), "\"a.b\";q=100;w=1"), ((5, 3_600, 9), "\"a.b\";q=5;w=3600;burst=9")];
        for ((units, seconds, burst), expected) in cases {
            let quota = Quota::new(units, Duration::from_secs(seconds), burst).unwrap();
            assert_eq!(quota.policy(), None);
            assert_eq!(quota.named("a.b").policy().unwrap(), expected);
        }
    }
}
