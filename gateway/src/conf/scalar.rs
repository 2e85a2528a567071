//! The values that a configuration writes as one piece of text: names, percentages, durations, addresses. Each knows
//! its pattern (for the JSON schema) and how to say in words what was expected.

mod amount;
mod endpoint;
mod guard;
mod host_port;
mod memory;
mod moment;
mod name;
mod rate;
mod redis_url;
mod size;
mod spiffe;
mod word;
mod wrapped;

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use serde::de::Visitor;

pub(crate) use self::amount::percentage;
pub use self::amount::{Percent, Span};
pub use self::endpoint::Endpoint;
pub use self::guard::Guard;
pub use self::host_port::{BaseUrl, HostPort};
pub use self::memory::Memory;
pub use self::moment::Moment;
pub use self::name::{CookieName, Name};
pub use self::rate::Rate;
pub use self::redis_url::RedisUrl;
pub use self::size::{ByteRate, Size};
pub use self::spiffe::SpiffeId;
pub use self::word::{LogTarget, OrNone};
pub use self::wrapped::{Address, Cidr, HeaderName, Method};
use super::routing::RetryOn;

/// A value that is written as text.
pub(crate) trait Scalar: FromStr<Err = String> + fmt::Display {
    /// Its name in the JSON schema.
    const SCHEMA: &'static str;
    /// Regular expression that every valid text matches (not every match is valid).
    const PATTERN: &'static str;
    /// What was expected, in words.
    const EXPECTED: &'static str;
    /// What people forget to write at the end.
    const UNIT: &'static str = "";
    /// Words that are among the valid texts.
    const WORDS: &'static [&'static str] = &[];
    /// Whether two texts that differ only in case are the same value.
    const IGNORES_CASE: bool = false;

    /// Whether a text may be one at all, where the parser of another crate allows more than makes sense here.
    fn is_plausible(_text: &str) -> bool {
        true
    }
}

/// A scalar, as it is known to what checks documents.
pub(crate) struct Known {
    /// What was expected, in words.
    pub(crate) expected: &'static str,
    /// What people forget to write at the end.
    pub(crate) unit: &'static str,
    /// Words that are among the valid texts.
    pub(crate) words: &'static [&'static str],
    /// Whether two texts that differ only in case are the same value.
    pub(crate) ignores_case: bool,
    /// Why a text is refused.
    pub(crate) check: fn(&str) -> Result<(), String>,
}

/// The scalar whose pattern a schema has: all that a schema says of a text, and all it can say of a map's keys.
pub(crate) fn by_pattern(pattern: &str) -> Option<Known> {
    fn entry<T: Scalar>() -> (&'static str, Known) {
        let known = Known {
            expected: T::EXPECTED,
            unit: T::UNIT,
            words: T::WORDS,
            ignores_case: T::IGNORES_CASE,
            check: |text| text.parse::<T>().map(drop),
        };
        (T::PATTERN, known)
    }
    let all = [
        entry::<Percent>(),
        entry::<Span>(),
        entry::<Address>(),
        entry::<Cidr>(),
        entry::<HeaderName>(),
        entry::<Method>(),
        entry::<Name>(),
        entry::<CookieName>(),
        entry::<LogTarget>(),
        entry::<RetryOn>(),
        entry::<Rate>(),
        entry::<Memory>(),
        entry::<Guard>(),
        entry::<Moment>(),
        entry::<Size>(),
        entry::<ByteRate>(),
        entry::<HostPort>(),
        entry::<BaseUrl>(),
        entry::<SpiffeId>(),
        entry::<Endpoint>(),
        entry::<RedisUrl>(),
    ];
    all.into_iter().find(|(known, _)| *known == pattern).map(|(_, known)| known)
}

/// Makes a [`Scalar`] known to serde and schemars.
macro_rules! scalar {
    ($type:ty) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_str($crate::conf::scalar::Parse::<Self>::new())
            }
        }

        impl schemars::JsonSchema for $type {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                <$type as $crate::conf::scalar::Scalar>::SCHEMA.into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({
                    "type": "string",
                    "pattern": <$type as $crate::conf::scalar::Scalar>::PATTERN,
                })
            }
        }
    };
}

pub(crate) use scalar;

/// Parses a scalar from whatever text serde has, without a copy of it.
pub(crate) struct Parse<T>(PhantomData<T>);

impl<T> Parse<T> {
    pub(crate) fn new() -> Self {
        Self(PhantomData)
    }
}

impl<T: Scalar> Visitor<'_> for Parse<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::EXPECTED)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }
}

/// The message for a text that is not at all what was expected.
pub(crate) fn refuse<T: Scalar>(text: &str) -> String {
    format!("expected {}, got `{text}`", T::EXPECTED)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What is parsed from a text as it is written again; whatever is parsed must match the pattern.
    pub(super) fn agrees<T: Scalar>(text: &str) -> Option<String> {
        let parsed = text.parse::<T>().ok();
        let matches = regex::Regex::new(T::PATTERN).unwrap().is_match(text);
        assert!(matches || parsed.is_none(), "{text} is parsed but does not match {}", T::PATTERN);
        parsed.map(|value| value.to_string())
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn whatever_is_parsed_matches_the_pattern_and_is_written_so_that_it_is_parsed_again(text in r"\PC{0,24}") {
            fn check<T: Scalar + PartialEq + fmt::Debug>(text: &str) {
                if let Some(shown) = agrees::<T>(text) {
                    assert_eq!(shown.parse::<T>(), text.parse::<T>());
                }
            }
            check::<Percent>(&text);
            check::<Span>(&text);
            check::<Address>(&text);
            check::<Cidr>(&text);
            check::<HeaderName>(&text);
            check::<Method>(&text);
            check::<Name>(&text);
            check::<CookieName>(&text);
            check::<Rate>(&text);
            check::<Memory>(&text);
            check::<Guard>(&text);
            check::<Moment>(&text);
            check::<Size>(&text);
            check::<ByteRate>(&text);
            check::<HostPort>(&text);
            check::<SpiffeId>(&text);
            check::<BaseUrl>(&text);
            check::<Endpoint>(&text);
            check::<RedisUrl>(&text);
        }

        #[test]
        fn every_percentage_survives_the_round_trip(hundredths in 0..=10_000_u32) {
            let percent = Percent::from_hundredths(hundredths).unwrap();
            prop_assert_eq!(agrees::<Percent>(&percent.to_string()).unwrap().parse(), Ok(percent));
        }
    }
}
