//! Guards of ramps.

use std::fmt;
use std::ops::Deref;
use std::str::FromStr;

use serin_core::ramp;

use super::{Scalar, scalar};

/// What the target of a ramp has to keep: `success_rate >= 99%`, `p99 <= 1.2 x stable`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Guard(ramp::Guard);

impl Deref for Guard {
    type Target = ramp::Guard;

    fn deref(&self) -> &ramp::Guard {
        &self.0
    }
}

impl Scalar for Guard {
    const SCHEMA: &'static str = "Guard";
    const PATTERN: &'static str =
        r"^ *(success_rate|error_rate|p50|p99|mean) *(>=|<=|>|<) *([0-9.]{1,12} *)?(%|ms|s|[x*×]? *stable) *$";
    const EXPECTED: &'static str = ramp::EXPECTED;
}

impl FromStr for Guard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse().map(Self)
    }
}

impl fmt::Display for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

scalar!(Guard);

#[cfg(test)]
mod tests {
    use super::super::tests::agrees;
    use super::*;

    #[test]
    fn guards_match_their_pattern() {
        let cases = [
            ("success_rate >= 99%", Some("success_rate >= 99%")),
            (" p99<=1.2 × stable ", Some("p99 <= 1.2 x stable")),
            ("error_rate <= stable", Some("error_rate <= 1 x stable")),
            ("mean < 1.5 s", Some("mean < 1500ms")),
            ("p95 < 1s", None),
            ("p99 < 1", None),
        ];
        for (text, expected) in cases {
            assert_eq!(agrees::<Guard>(text).as_deref(), expected, "{text}");
        }
    }
}
