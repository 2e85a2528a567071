//! Rates.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::{Scalar, refuse, scalar};

/// So many units per period: `100/s`, `60/m`, `1000/h`, `5000/d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    units: u32,
    per: Period,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Period {
    Second,
    Minute,
    Hour,
    Day,
}

impl Period {
    const ALL: [(&str, Self); 4] = [("s", Self::Second), ("m", Self::Minute), ("h", Self::Hour), ("d", Self::Day)];

    fn seconds(self) -> u64 {
        match self {
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 3_600,
            Self::Day => 86_400,
        }
    }
}

impl Rate {
    /// Units per period.
    #[must_use]
    pub fn units(self) -> u32 {
        self.units
    }

    /// The period.
    #[must_use]
    pub fn per(self) -> Duration {
        Duration::from_secs(self.per.seconds())
    }

    /// Units per second.
    #[must_use]
    pub fn per_second(self) -> f64 {
        f64::from(self.units) / self.per.seconds() as f64
    }
}

impl Scalar for Rate {
    const SCHEMA: &'static str = "Rate";
    const PATTERN: &'static str = r"^[1-9][0-9]{0,8}/(s|m|h|d)$";
    const EXPECTED: &'static str = "a rate such as `100/s`, `60/m`, `1000/h` or `5000/d`";
    const UNIT: &'static str = "/s";
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let (units, per) = text.split_once('/')?;
            let digits = (1..=9).contains(&units.len()) && units.bytes().all(|byte| byte.is_ascii_digit());
            let (_, per) = Period::ALL.into_iter().find(|(name, _)| *name == per)?;
            Some(Self { units: units.parse().ok().filter(|_| digits && !units.starts_with('0'))?, per })
        };
        parse().ok_or_else(|| refuse::<Self>(text))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Period::ALL.iter().find(|(_, per)| *per == self.per).map_or("s", |(name, _)| name);
        write!(f, "{}/{name}", self.units)
    }
}

scalar!(Rate);

#[cfg(test)]
mod tests {
    use super::super::tests::agrees;
    use super::*;

    #[test]
    fn rates_have_a_period() {
        let cases = [
            ("100/s", Some((100, 1))),
            ("60/m", Some((60, 60))),
            ("1000/h", Some((1_000, 3_600))),
            ("999999999/d", Some((999_999_999, 86_400))),
            ("0/s", None),
            ("01/s", None),
            ("1000000000/s", None),
            ("1.5/s", None),
            ("-1/s", None),
            ("1 / s", None),
            ("1/w", None),
            ("1/sec", None),
            ("100", None),
            ("/s", None),
        ];
        for (text, expected) in cases {
            let shown = agrees::<Rate>(text);
            assert_eq!(shown.as_deref(), expected.map(|_| text), "{text}");
            let rate = text.parse::<Rate>().ok().map(|rate| (rate.units(), rate.per().as_secs()));
            assert_eq!(rate, expected, "{text}");
        }
    }
}
