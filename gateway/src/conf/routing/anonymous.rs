//! What decides for users who are not known.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::super::scalar::{CookieName, Span};

/// What decides for a request without a user's key.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Anonymous {
    /// Chance, for every request anew.
    #[default]
    Random,
    /// The client's address.
    Ip,
    /// A cookie that the gateway issues.
    Cookie(AnonymousCookie),
    /// Nothing: it goes to the stable subset.
    Stable,
}

/// The cookie that the gateway issues to anonymous users.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AnonymousCookie {
    /// Its name.
    pub name: CookieName,
    /// How long browsers keep it.
    pub max_age: Span,
}

impl Default for AnonymousCookie {
    #[expect(clippy::expect_used, reason = "the text is a cookie name, which a test sees")]
    fn default() -> Self {
        Self { name: "serin-id".parse().expect("a cookie name"), max_age: Span::from_secs(365 * 86_400) }
    }
}

/// What decides for a request without a user's key: `random`, `ip` (the client's address), `cookie` (one that the
/// gateway issues) or `stable` (it goes to the stable subset).
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "Anonymous")]
enum WrittenAnonymous {
    /// A word.
    Word(AnonymousWord),
    /// A word with settings.
    With(AnonymousWith),
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
enum AnonymousWord {
    Random,
    Ip,
    Cookie,
    Stable,
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
enum AnonymousWith {
    /// A cookie that the gateway issues.
    Cookie(AnonymousCookie),
}

impl Serialize for Anonymous {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Random => WrittenAnonymous::Word(AnonymousWord::Random),
            Self::Ip => WrittenAnonymous::Word(AnonymousWord::Ip),
            Self::Stable => WrittenAnonymous::Word(AnonymousWord::Stable),
            Self::Cookie(cookie) => WrittenAnonymous::With(AnonymousWith::Cookie(cookie.clone())),
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Anonymous {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match WrittenAnonymous::deserialize(deserializer)? {
            WrittenAnonymous::Word(AnonymousWord::Random) => Self::Random,
            WrittenAnonymous::Word(AnonymousWord::Ip) => Self::Ip,
            WrittenAnonymous::Word(AnonymousWord::Cookie) => Self::Cookie(AnonymousCookie::default()),
            WrittenAnonymous::Word(AnonymousWord::Stable) => Self::Stable,
            WrittenAnonymous::With(AnonymousWith::Cookie(cookie)) => Self::Cookie(cookie),
        })
    }
}

impl JsonSchema for Anonymous {
    fn schema_name() -> Cow<'static, str> {
        WrittenAnonymous::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        WrittenAnonymous::json_schema(generator)
    }
}
