//! The parts of a balancer chain, of which only the names are known here.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

/// One part of a balancer chain: a plug-in's name and its settings. Written `{ name: { settings } }`, or as the bare
/// name if there are no settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Link {
    /// Name of a narrow or a pick.
    pub name: String,
    /// Its settings: an object unless the plug-in is odd.
    pub conf: Value,
}

/// The chain of a service that has none.
#[must_use]
pub fn default_chain() -> Vec<Link> {
    vec![Link { name: serin_core::chain::RoundRobin::NAME.to_owned(), conf: Value::Object(Map::new()) }]
}

impl Serialize for Link {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map([(&self.name, &self.conf)])
    }
}

impl<'de> Deserialize<'de> for Link {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let empty = || Value::Object(Map::new());
        let (name, conf) = match Value::deserialize(deserializer)? {
            Value::String(name) => (name, empty()),
            Value::Object(object) if object.len() == 1 => object.into_iter().next().unwrap_or_default(),
            _ => {
                return Err(D::Error::custom(
                    "expected the name of a narrow or a pick, or a mapping with that one key",
                ));
            }
        };
        Ok(Self { name, conf: if conf.is_null() { empty() } else { conf } })
    }
}

impl JsonSchema for Link {
    fn schema_name() -> Cow<'static, str> {
        "Link".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A narrow or a pick: `{ name: { settings } }`, or the bare name.",
            "anyOf": [
                {"type": "string", "minLength": 1},
                {"type": "object", "additionalProperties": true, "minProperties": 1, "maxProperties": 1},
            ],
            "x-expected": "the name of a narrow or a pick, or a mapping such as `{ p2c: {} }`",
        })
    }
}
