//! Values that are a word or something else.

use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Scalar, refuse, scalar};

/// A value, or the word `none` for doing without.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum OrNone<T> {
    /// Without.
    #[default]
    None,
    /// With this.
    Some(T),
}

impl<T> OrNone<T> {
    /// As an option.
    #[must_use]
    pub fn as_option(&self) -> Option<&T> {
        match self {
            Self::None => None,
            Self::Some(value) => Some(value),
        }
    }
}

impl<T: fmt::Display> Serialize for OrNone<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::None => serializer.serialize_str("none"),
            Self::Some(value) => serializer.collect_str(value),
        }
    }
}

impl<'de, T: FromStr<Err = String>> Deserialize<'de> for OrNone<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match &*Cow::<'de, str>::deserialize(deserializer)? {
            "none" => Ok(Self::None),
            text => text.parse().map(Self::Some).map_err(serde::de::Error::custom),
        }
    }
}

impl<T: JsonSchema> JsonSchema for OrNone<T> {
    fn schema_name() -> Cow<'static, str> {
        format!("{}OrNone", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({"anyOf": [generator.subschema_for::<T>(), {"type": "string", "const": "none"}]})
    }
}

/// Where log lines go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LogTarget {
    /// Standard output.
    #[default]
    Stdout,
    /// Standard error.
    Stderr,
    /// Appended to a file.
    File(PathBuf),
}

impl Scalar for LogTarget {
    const SCHEMA: &'static str = "LogTarget";
    const PATTERN: &'static str = r"^.+$";
    const EXPECTED: &'static str = "`stdout`, `stderr` or the path of a file";
}

impl FromStr for LogTarget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "stdout" => Ok(Self::Stdout),
            "stderr" => Ok(Self::Stderr),
            "" => Err(refuse::<Self>(text)),
            path => Ok(Self::File(path.into())),
        }
    }
}

impl fmt::Display for LogTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stdout => f.write_str("stdout"),
            Self::Stderr => f.write_str("stderr"),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

scalar!(LogTarget);
