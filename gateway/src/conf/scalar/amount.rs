//! Shares and lengths of time.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::{Scalar, refuse, scalar};

/// A share of the traffic, exact to a hundredth of a percent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Percent(u32);

impl Percent {
    /// All of the traffic.
    pub const ALL: Self = Self(10_000);
    /// None of it.
    pub const NONE: Self = Self(0);

    /// So many hundredths of a percent; `None` above 10,000 (100 %).
    #[must_use]
    pub fn from_hundredths(hundredths: u32) -> Option<Self> {
        (hundredths <= Self::ALL.0).then_some(Self(hundredths))
    }

    /// So many percent; more than 100 count as 100.
    #[must_use]
    pub const fn of_whole(percent: u32) -> Self {
        Self(if percent < 100 { percent * 100 } else { Self::ALL.0 })
    }

    /// As a share, 0 to 1.
    #[must_use]
    pub fn share(self) -> f64 {
        f64::from(self.0) / f64::from(Self::ALL.0)
    }

    /// Hundredths of a percent, 0 to 10,000.
    #[must_use]
    pub fn hundredths(self) -> u32 {
        self.0
    }
}

impl Scalar for Percent {
    const SCHEMA: &'static str = "Percent";
    const PATTERN: &'static str = r"^(100(\.0{1,2})?|[0-9]{1,2}(\.[0-9]{1,2})?)%$";
    const EXPECTED: &'static str = "a percentage such as `85.5%` (0% to 100%, at most two decimals)";
    const UNIT: &'static str = "%";
}

impl FromStr for Percent {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let (whole, fraction) = text.strip_suffix('%').map(|n| n.split_once('.').unwrap_or((n, "0")))?;
            let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
            if !(1..=3).contains(&whole.len()) || !(1..=2).contains(&fraction.len()) {
                return None;
            }
            if !digits(whole) || !digits(fraction) {
                return None;
            }
            Self::from_hundredths(whole.parse::<u32>().ok()? * 100 + format!("{fraction:0<2}").parse::<u32>().ok()?)
        };
        parse().ok_or_else(|| refuse::<Self>(text))
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&percentage(u64::from(self.0)))
    }
}

/// Writes hundredths of a percent, without needless decimals; sums may be above 100 %.
pub(crate) fn percentage(hundredths: u64) -> String {
    let text = format!("{}.{:02}", hundredths / 100, hundredths % 100);
    format!("{}%", text.trim_end_matches('0').trim_end_matches('.'))
}

scalar!(Percent);

/// A length of time, from 0 to 3,650 days.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(Duration);

const SPAN_UNITS: [(&str, u64); 5] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

impl Span {
    /// The longest one.
    const MAX_MILLIS: u64 = 3_650 * 86_400_000;

    /// So many milliseconds, capped at 3,650 days.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(Duration::from_millis(if millis < Self::MAX_MILLIS { millis } else { Self::MAX_MILLIS }))
    }

    /// So many seconds, capped at 3,650 days.
    #[must_use]
    pub const fn from_secs(secs: u64) -> Self {
        Self::from_millis(secs.saturating_mul(1_000))
    }

    /// As the standard library has it.
    #[must_use]
    pub const fn duration(self) -> Duration {
        self.0
    }
}

impl Scalar for Span {
    const SCHEMA: &'static str = "Span";
    const PATTERN: &'static str = r"^[0-9]{1,12}(ms|s|m|h|d)$";
    const EXPECTED: &'static str = "a duration such as `250ms`, `1s`, `5m`, `2h` or `30d`";
    const UNIT: &'static str = "s";
}

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let end = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(end);
        let factor = SPAN_UNITS.iter().find(|(name, _)| *name == unit).map(|(_, factor)| *factor);
        let (Ok(number), Some(factor)) = (number.parse::<u64>(), factor) else { return Err(refuse::<Self>(text)) };
        match number.checked_mul(factor).filter(|&millis| millis <= Self::MAX_MILLIS) {
            Some(millis) => Ok(Self::from_millis(millis)),
            None => Err(format!("`{text}` is too long: at most `3650d`")),
        }
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_millis() as u64;
        let whole = SPAN_UNITS.iter().rev().find(|(_, factor)| millis > 0 && millis.is_multiple_of(*factor));
        let (unit, factor) = whole.unwrap_or(&SPAN_UNITS[1]);
        write!(f, "{}{unit}", millis / factor)
    }
}

scalar!(Span);

#[cfg(test)]
mod tests {
    use super::super::tests::agrees;
    use super::*;

    #[test]
    fn percentages_are_exact_to_a_hundredth() {
        let cases = [
            ("85.5%", Some((8_550, "85.5%"))),
            ("0%", Some((0, "0%"))),
            ("100%", Some((10_000, "100%"))),
            ("100.00%", Some((10_000, "100%"))),
            ("0.01%", Some((1, "0.01%"))),
            ("14.05%", Some((1_405, "14.05%"))),
            ("10.50%", Some((1_050, "10.5%"))),
            ("100.01%", None),
            ("101%", None),
            ("1.001%", None),
            ("1.%", None),
            (".5%", None),
            ("-1%", None),
            ("+1%", None),
            ("1e1%", None),
            ("10", None),
            ("%", None),
            ("", None),
        ];
        for (text, expected) in cases {
            let shown = agrees::<Percent>(text);
            assert_eq!(shown.as_deref(), expected.map(|(_, shown)| shown), "{text}");
            assert_eq!(text.parse().ok().map(Percent::hundredths), expected.map(|(value, _)| value), "{text}");
        }
        assert_eq!(percentage(10_050), "100.5%");
    }

    #[test]
    fn durations_have_units() {
        let cases = [
            ("250ms", Some((250, "250ms"))),
            ("1s", Some((1_000, "1s"))),
            ("90s", Some((90_000, "90s"))),
            ("60s", Some((60_000, "1m"))),
            ("5m", Some((300_000, "5m"))),
            ("48h", Some((172_800_000, "2d"))),
            ("0s", Some((0, "0s"))),
            ("3650d", Some((315_360_000_000, "3650d"))),
            ("3651d", None),
            ("999999999999d", None),
            ("1.5s", None),
            ("1 s", None),
            ("s", None),
            ("5", None),
            ("-5s", None),
            ("٣s", None),
        ];
        for (text, expected) in cases {
            let shown = agrees::<Span>(text);
            assert_eq!(shown.as_deref(), expected.map(|(_, shown)| shown), "{text}");
            let millis = text.parse::<Span>().ok().map(|span| span.duration().as_millis());
            assert_eq!(millis, expected.map(|(millis, _)| millis), "{text}");
        }
    }
}
