//! Amounts of bytes, and of bytes in a second.

use std::fmt;
use std::str::FromStr;

use super::{Scalar, refuse, scalar};

/// Units of amounts of bytes.
const UNITS: [(&str, u64); 4] = [("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];
/// The most digits that a number has.
const DIGITS: usize = 9;

/// So many bytes, at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Size(u64);

impl Size {
    /// So many bytes; 0 counts as 1.
    #[must_use]
    pub const fn of_bytes(bytes: u64) -> Self {
        Self(if bytes == 0 { 1 } else { bytes })
    }

    /// In bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

impl Scalar for Size {
    const SCHEMA: &'static str = "Size";
    const PATTERN: &'static str = r"^[1-9][0-9]{0,8}(B|KiB|MiB|GiB)$";
    const EXPECTED: &'static str = "an amount of bytes such as `512B`, `8KiB` or `10MiB`";
    const UNIT: &'static str = "KiB";
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse(text, DIGITS).map(Self).ok_or_else(|| refuse::<Self>(text))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show(self.0, f)
    }
}

scalar!(Size);

/// So many bytes in a second, at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteRate(Size);

impl ByteRate {
    /// So many bytes in a second; 0 counts as 1.
    #[must_use]
    pub const fn of_bytes(bytes: u64) -> Self {
        Self(Size::of_bytes(bytes))
    }

    /// Bytes in a second.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.0.bytes()
    }
}

impl Scalar for ByteRate {
    const SCHEMA: &'static str = "ByteRate";
    const PATTERN: &'static str = r"^[1-9][0-9]{0,8}(B|KiB|MiB|GiB)/s$";
    const EXPECTED: &'static str = "bytes in a second such as `240B/s`, `1KiB/s` or `2MiB/s`";
    const UNIT: &'static str = "/s";
}

impl FromStr for ByteRate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bytes = text.strip_suffix("/s").and_then(|amount| parse(amount, DIGITS));
        bytes.map(|bytes| Self(Size(bytes))).ok_or_else(|| refuse::<Self>(text))
    }
}

impl fmt::Display for ByteRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/s", self.0)
    }
}

scalar!(ByteRate);

/// Reads an amount whose number has at most so many digits.
pub(super) fn parse(text: &str, digits: usize) -> Option<u64> {
    let (number, unit) = text.split_at(text.bytes().take_while(u8::is_ascii_digit).count());
    let (_, factor) = UNITS.iter().find(|(name, _)| *name == unit)?;
    let number = Some(number).filter(|number| number.len() <= digits && !number.starts_with('0'))?;
    number.parse::<u64>().ok()?.checked_mul(*factor)
}

/// Writes an amount in the largest unit that it is a multiple of.
pub(super) fn show(bytes: u64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let whole = UNITS.iter().rev().find(|(_, factor)| bytes.is_multiple_of(*factor));
    let (unit, factor) = whole.unwrap_or(&UNITS[0]);
    write!(f, "{}{unit}", bytes / factor)
}

#[cfg(test)]
mod tests {
    use super::super::tests::agrees;
    use super::*;

    #[test]
    fn amounts_have_units() {
        let cases = [
            ("1B", Some((1, "1B"))),
            ("1500B", Some((1_500, "1500B"))),
            ("2048B", Some((2_048, "2KiB"))),
            ("60KiB", Some((60 << 10, "60KiB"))),
            ("10MiB", Some((10 << 20, "10MiB"))),
            ("999999999GiB", Some((999_999_999 << 30, "999999999GiB"))),
            ("0B", None),
            ("01B", None),
            ("8KB", None),
            ("1.5MiB", None),
            ("90%", None),
            ("8", None),
            ("1000000000B", None),
        ];
        for (text, expected) in cases {
            assert_eq!(agrees::<Size>(text).as_deref(), expected.map(|(_, shown)| shown), "{text}");
            assert_eq!(text.parse().ok().map(Size::bytes), expected.map(|(bytes, _)| bytes), "{text}");
            let rate = format!("{text}/s");
            let shown = expected.map(|(_, shown)| format!("{shown}/s"));
            assert_eq!(agrees::<ByteRate>(&rate), shown, "{rate}");
            assert_eq!(rate.parse().ok().map(ByteRate::bytes), expected.map(|(bytes, _)| bytes), "{rate}");
        }
        assert_eq!([agrees::<ByteRate>("8KiB"), agrees::<ByteRate>("8KiB/m")], [None, None]);
    }
}
