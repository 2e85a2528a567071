//! Points in time.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{Scalar, refuse, scalar};

/// A point in time by the wall clock, to the millisecond, from 1970 to 9999.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(u64);

impl Moment {
    /// The millisecond of a time.
    #[must_use]
    pub fn of(time: SystemTime) -> Self {
        let millis = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
        Self(u64::try_from(millis).unwrap_or(u64::MAX).min(253_402_300_799_999))
    }

    /// How long ago it was at `now`; nothing if it is yet to come.
    #[must_use]
    pub fn elapsed(self, now: Self) -> Duration {
        Duration::from_millis(now.0.saturating_sub(self.0))
    }
}

impl Scalar for Moment {
    const SCHEMA: &'static str = "Moment";
    const PATTERN: &'static str = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?Z$";
    const EXPECTED: &'static str = "a time in UTC such as `2026-11-30T08:15:00Z`";
}

impl FromStr for Moment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let plain = text.bytes().all(|byte| byte.is_ascii_digit() || b"-:.TZ".contains(&byte));
        let parsed = humantime::parse_rfc3339(text).ok().filter(|_| plain && text.len() <= 30);
        parsed.map(Self::of).ok_or_else(|| refuse::<Self>(text))
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_millis(self.0)).fmt(f)
    }
}

scalar!(Moment);

#[cfg(test)]
mod tests {
    use super::super::tests::agrees;
    use super::*;

    #[test]
    fn moments_are_exact_to_the_millisecond() {
        let cases = [
            ("2026-11-30T08:15:00Z", Some("2026-11-30T08:15:00.000Z")),
            ("2026-11-30T08:15:00.1239Z", Some("2026-11-30T08:15:00.123Z")),
            ("2026-11-30T08:15:00", None),
            ("2026-11-30 08:15:00Z", None),
            ("2026-13-30T08:15:00Z", None),
            ("soon", None),
        ];
        for (text, expected) in cases {
            assert_eq!(agrees::<Moment>(text).as_deref(), expected, "{text}");
        }
        let moment = |text: &str| text.parse::<Moment>().unwrap();
        let (early, late) = (moment("2026-11-30T08:15:00Z"), moment("2026-11-30T08:15:01.5Z"));
        assert_eq!(early.elapsed(late), Duration::from_millis(1_500));
        assert_eq!(late.elapsed(early), Duration::ZERO);
    }
}
