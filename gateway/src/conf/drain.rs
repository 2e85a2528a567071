//! How the gateway drains when it is told to stop.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize};

use super::scalar::Span;

/// How long each step of a drain takes. Readiness fails first; then listeners close and every answer closes its
/// connection; then idle connections are closed; what is left is cut in the end.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "DrainSteps")]
pub struct Steps {
    /// How long `/readyz` already fails while connections are still accepted: longer than load balancers take to notice.
    pub readiness: Span,
    /// How long a connection without a request may then wait for one, whose answer closes it, before it is closed.
    pub idle: Span,
    /// How long requests may take to finish from the time at which listeners close.
    pub timeout: Span,
}

impl Default for Steps {
    fn default() -> Self {
        Self { readiness: Span::from_secs(5), idle: Span::from_secs(1), timeout: Span::from_secs(30) }
    }
}

/// The steps of a drain, or a duration that stands for `timeout`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Drain(pub Steps);

impl std::ops::Deref for Drain {
    type Target = Steps;

    fn deref(&self) -> &Steps {
        &self.0
    }
}

/// How long the steps of a drain take, or in short how long requests may take to finish: a duration that stands for
/// `timeout`.
#[derive(Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "Drain")]
enum Written {
    /// The timeout alone.
    Timeout(Span),
    /// Each step.
    Steps(Steps),
}

impl<'de> Deserialize<'de> for Drain {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(match Written::deserialize(deserializer)? {
            Written::Timeout(timeout) => Steps { timeout, ..Steps::default() },
            Written::Steps(steps) => steps,
        }))
    }
}

impl JsonSchema for Drain {
    fn schema_name() -> Cow<'static, str> {
        Written::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        Written::json_schema(generator)
    }
}
