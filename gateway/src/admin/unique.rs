//! Whether every key of an object is there once. Readers differ in which of two they take (RFC 8259 section 4), so the one
//! that an operator did not mean could come into force.

use std::collections::HashSet;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// Looks through sound JSON.
///
/// # Errors
/// Naming the first key that is there twice, and its place.
pub(super) fn check(json: &[u8]) -> Result<(), serde_json::Error> {
    serde_json::from_slice::<Unique>(json).map(drop)
}

/// Any value whose objects have every key once.
struct Unique;

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Look)
    }
}

struct Look;

impl<'de> Visitor<'de> for Look {
    type Value = Unique;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Unique, E> {
        Ok(Unique)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Unique, E> {
        Ok(Unique)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Unique, E> {
        Ok(Unique)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Unique, E> {
        Ok(Unique)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Unique, E> {
        Ok(Unique)
    }

    fn visit_str<E>(self, _: &str) -> Result<Unique, E> {
        Ok(Unique)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Unique, A::Error> {
        while list.next_element::<Unique>()?.is_some() {}
        Ok(Unique)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Unique, A::Error> {
        let mut seen = HashSet::new();
        while let Some(key) = map.next_key::<String>()? {
            if seen.contains(&key) {
                return Err(A::Error::custom(format!("the key {key:?} is there twice")));
            }
            map.next_value::<Unique>()?;
            seen.insert(key);
        }
        Ok(Unique)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_is_there_twice_is_found_at_any_depth() {
        let cases = [
            (r#"{"a": 1, "b": [{"c": null}, {"c": -1.5}], "c": "a"}"#, None),
            (r#"{"a": 1, "a": 1}"#, Some("the key \"a\" is there twice")),
            (r#"[{"x": {"v1": "1%", "v2": true, "v1": "2%"}}]"#, Some("the key \"v1\"")),
            ("7", None),
        ];
        for (json, wanted) in cases {
            let found = check(json.as_bytes()).err().map(|error| error.to_string());
            assert_eq!(found.is_some(), wanted.is_some(), "{json}: {found:?}");
            assert!(found.zip(wanted).is_none_or(|(found, wanted)| found.contains(wanted)), "{json}");
        }
    }
}
