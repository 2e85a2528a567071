//! Amounts of memory.

use std::fmt;
use std::str::FromStr;

use super::{Percent, Scalar, refuse, scalar, size};

/// An amount of memory, or a share of what there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Memory {
    /// So many bytes.
    Bytes(u64),
    /// A share of what the process may use.
    Share(Percent),
}

/// The most digits that a number of bytes has.
const DIGITS: usize = 12;

impl Memory {
    /// In bytes, of so many that there are; `None` if that is not known and a share is asked for.
    #[must_use]
    pub fn of(self, available: Option<u64>) -> Option<u64> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            // A hundredth of a percent of it at a time, so that nothing overflows.
            Self::Share(share) => available.map(|available| available / 10_000 * u64::from(share.hundredths())),
        }
    }
}

impl Scalar for Memory {
    const SCHEMA: &'static str = "Memory";
    const PATTERN: &'static str = r"^([1-9][0-9]{0,11}(B|KiB|MiB|GiB)|(100(\.0{1,2})?|[0-9]{1,2}(\.[0-9]{1,2})?)%)$";
    const EXPECTED: &'static str = "an amount of memory such as `512MiB`, `2GiB` or `90%`";
    const UNIT: &'static str = "MiB";
}

impl FromStr for Memory {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(share) = text.parse() {
            return Ok(Self::Share(share));
        }
        size::parse(text, DIGITS).map(Self::Bytes).ok_or_else(|| refuse::<Self>(text))
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Share(share) => share.fmt(f),
            Self::Bytes(bytes) => size::show(*bytes, f),
        }
    }
}

scalar!(Memory);

#[cfg(test)]
mod tests {
    use super::super::tests::agrees;
    use super::*;

    #[test]
    fn amounts_of_memory() {
        let cases = [
            ("1B", Some((1, "1B"))),
            ("1024KiB", Some((1 << 20, "1MiB"))),
            ("512MiB", Some((512 << 20, "512MiB"))),
            ("2GiB", Some((2 << 30, "2GiB"))),
            ("90%", Some((900_000, "90%"))),
            ("12.5%", Some((125_000, "12.5%"))),
            ("0B", None),
            ("012B", None),
            ("1GB", None),
            ("1.5GiB", None),
            ("101%", None),
            ("512", None),
            ("999999999999GiB", None),
        ];
        for (text, expected) in cases {
            let shown = agrees::<Memory>(text);
            assert_eq!(shown.as_deref(), expected.map(|(_, shown)| shown), "{text}");
            let bytes = text.parse::<Memory>().ok().and_then(|memory| memory.of(Some(1_000_000)));
            assert_eq!(bytes, expected.map(|(bytes, _)| bytes), "{text}");
        }
        assert_eq!("50%".parse::<Memory>().unwrap().of(None), None);
    }
}
