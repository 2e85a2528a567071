//! The traffic document: what operators flip. Small, versioned, and written by the gateway itself.

use std::fmt;

use indexmap::IndexMap;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::ramp::Ramp;
use super::scalar::{Name, Percent};

/// Traffic document of Serin: per service the weights of its versions and aborts, and the kill switches.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Traffic {
    /// Number of this revision; every flip raises it.
    pub revision: u64,
    /// Traffic of services by name. A service that is not here sends everything to its stable subset.
    pub services: IndexMap<Name, ServiceTraffic>,
    /// Kill switches.
    pub switches: Switches,
}

/// Traffic of one service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ServiceTraffic {
    /// Shares of subsets by name; together exactly 100 %. Default: everything to the stable subset.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub weights: IndexMap<Name, Percent>,
    /// Whether the rollout is aborted.
    pub abort: Abort,
    /// A guarded ramp, under way or ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ramp: Option<Ramp>,
}

/// Whether a rollout is aborted: `false` (it goes on), `true` (everything goes to the stable subset, tagged or not) or
/// `weights` (weighted traffic goes to the stable subset, tagged traffic still follows its tag).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Abort {
    /// It goes on.
    #[default]
    Off,
    /// Everything goes to the stable subset.
    All,
    /// Weighted traffic goes to the stable subset.
    Weights,
}

/// How an abort is written.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum RawAbort {
    Flag(bool),
    Word(AbortWord),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum AbortWord {
    Weights,
}

impl Serialize for Abort {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Off => RawAbort::Flag(false),
            Self::All => RawAbort::Flag(true),
            Self::Weights => RawAbort::Word(AbortWord::Weights),
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Abort {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match RawAbort::deserialize(deserializer)? {
            RawAbort::Flag(false) => Self::Off,
            RawAbort::Flag(true) => Self::All,
            RawAbort::Word(AbortWord::Weights) => Self::Weights,
        })
    }
}

impl JsonSchema for Abort {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Abort".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "anyOf": [{"type": "boolean"}, {"type": "string", "const": "weights"}],
            "x-expected": "`false`, `true` or `weights`",
        })
    }
}

impl fmt::Display for Abort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Off => "false",
            Self::All => "true",
            Self::Weights => "weights",
        })
    }
}

/// The kill switches.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Switches {
    /// On: every chain is plain round robin over the chosen subset.
    pub balancer: Switch,
    /// On: all traffic goes to the stable subset.
    pub canary: Switch,
    /// On: rate limits and concurrency limits of services only count, and refuse nothing.
    pub limits: bool,
}

/// A kill switch: `true` or `false` for all services, or with overrides of single services.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Switch {
    /// On for every service.
    pub all: bool,
    /// On or off for single services, whatever `all` says.
    pub services: IndexMap<Name, bool>,
}

impl Switch {
    /// Whether the switch is on for a service.
    #[must_use]
    pub fn is_on(&self, service: &str) -> bool {
        self.services.get(service).copied().unwrap_or(self.all)
    }
}

/// A kill switch: `true` or `false` for all services, or with overrides of single services.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "Switch", extend("x-expected" = "`true`, `false` or a mapping with `all` and `services`"))]
enum RawSwitch {
    /// For all services.
    Flag(bool),
    /// With single services.
    Each(EachSwitch),
}

/// A switch with single services.
#[derive(Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct EachSwitch {
    /// On for every service.
    all: bool,
    /// On or off for single services, whatever `all` says.
    services: IndexMap<Name, bool>,
}

impl Serialize for Switch {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.services.is_empty() {
            return serializer.serialize_bool(self.all);
        }
        EachSwitch { all: self.all, services: self.services.clone() }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Switch {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match RawSwitch::deserialize(deserializer)? {
            RawSwitch::Flag(all) => Self { all, services: IndexMap::new() },
            RawSwitch::Each(EachSwitch { all, services }) => Self { all, services },
        })
    }
}

impl JsonSchema for Switch {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        RawSwitch::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        RawSwitch::json_schema(generator)
    }
}
