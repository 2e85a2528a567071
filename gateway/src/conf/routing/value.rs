//! What a header, cookie, query parameter or claim must be like.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// What a value must be like: a text (the whole value), or a mapping with one key.
#[derive(Clone, Debug, PartialEq)]
pub enum ValueMatch {
    /// Exactly this.
    Exact(String),
    /// Begins with this.
    Prefix(String),
    /// The whole value matches this regular expression.
    Regex(String),
    /// One of these.
    In(Vec<String>),
    /// It is there (`true`) or it is not (`false`), whatever the value.
    Present(bool),
}

/// What a value must be like: a text (the whole value), or a mapping with one key.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "ValueMatch")]
enum Written {
    /// Exactly this.
    Text(String),
    /// A rule.
    Rule(Rule),
}

/// A rule for a value.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
enum Rule {
    /// Exactly this.
    Exact(String),
    /// Begins with this.
    Prefix(String),
    /// The whole value matches this regular expression.
    Regex(String),
    /// One of these.
    In(#[schemars(length(min = 1))] Vec<String>),
    /// It is there (`true`) or it is not (`false`), whatever the value.
    Present(bool),
}

impl Serialize for ValueMatch {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.clone() {
            Self::Exact(text) => Written::Text(text),
            Self::Prefix(text) => Written::Rule(Rule::Prefix(text)),
            Self::Regex(text) => Written::Rule(Rule::Regex(text)),
            Self::In(texts) => Written::Rule(Rule::In(texts)),
            Self::Present(there) => Written::Rule(Rule::Present(there)),
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for ValueMatch {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match Written::deserialize(deserializer)? {
            Written::Text(text) | Written::Rule(Rule::Exact(text)) => Self::Exact(text),
            Written::Rule(Rule::Prefix(text)) => Self::Prefix(text),
            Written::Rule(Rule::Regex(text)) => Self::Regex(text),
            Written::Rule(Rule::In(texts)) => Self::In(texts),
            Written::Rule(Rule::Present(there)) => Self::Present(there),
        })
    }
}

impl JsonSchema for ValueMatch {
    fn schema_name() -> Cow<'static, str> {
        Written::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        Written::json_schema(generator)
    }
}
