//! Slow start of instances that are new or come back.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::scalar::{Percent, Span};

/// An instance that is new or comes back takes less than its share for a while. Those that are there when the gateway
/// starts, or when the service is first named, do not.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SlowStart {
    /// How long it lasts.
    pub window: Span,
    /// Share of its weight that the instance begins with, above 0%.
    pub initial: Percent,
    /// Bend of the curve, 0.01 to 100. With 1.0 the share grows on a straight line from `initial` to all of the weight;
    /// with any other it is Envoy's `max(initial, (age / window) ^ (1 / aggression))`: above 1 fast at first, below 1
    /// slow at first.
    #[schemars(range(min = 0.01, max = 100))]
    pub aggression: f64,
}

impl Default for SlowStart {
    fn default() -> Self {
        Self { window: Span::from_secs(300), initial: Percent::of_whole(50), aggression: 1.0 }
    }
}
