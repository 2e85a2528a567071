//! The load that a service's instances report of themselves.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::scalar::{Percent, Span};

/// What is done with the load that instances report in the response header or trailer `endpoint-load-metrics` (ORCA).
/// The pick `adaptive` and the narrow `zone_affinity` see it as well.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LoadReports {
    /// Give each instance the part of its weight that it has by requests per second and utilisation (gRFC A58), with any
    /// pick.
    pub weights: bool,
    /// A report that is older is none; more than 0.
    pub expire_after: Span,
    /// How often weights are made from reports, at most; more than 0.
    pub update_every: Span,
    /// How long an instance must have reported before its reports make its weight.
    pub blackout: Span,
    /// How much of an error rate counts as utilisation.
    pub error_penalty: Percent,
    /// Pass reports on to clients instead of taking them out of responses.
    pub forward: bool,
}

impl Default for LoadReports {
    fn default() -> Self {
        Self {
            weights: true,
            expire_after: Span::from_secs(180),
            update_every: Span::from_secs(1),
            blackout: Span::from_secs(10),
            error_penalty: Percent::ALL,
            forward: false,
        }
    }
}

/// When a service's chain is taken out because its decisions take too long. One that panics is taken out at once.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SelfGuard {
    /// The 99th percentile of a decision's time may be so much; more than 0.
    pub decision_p99: Span,
    /// A chain that is above that for all of this time is out, until somebody arms it again; more than 0.
    pub sustained: Span,
}

impl Default for SelfGuard {
    fn default() -> Self {
        Self { decision_p99: Span::from_millis(1), sustained: Span::from_secs(10) }
    }
}
