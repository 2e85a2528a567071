//! Outlier detection: when an instance loses weight or is taken out for what its answers say.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::scalar::{OrNone, Percent, Span};

/// When an instance loses weight (is degraded) or is taken out for a while (ejected). It is always degraded first.
/// What a breaker or a limit refuses never counts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OutlierDetection {
    /// Server errors (5xx, or a gRPC status that stands for one) in a row that eject, 1 to 1,000. Half of them degrade.
    #[schemars(range(min = 1, max = 1_000))]
    pub consecutive_5xx: u32,
    /// Attempts in a row without an answer (no connection, connection broke, timeout) that eject, 1 to 1,000.
    #[schemars(range(min = 1, max = 1_000))]
    pub consecutive_local: u32,
    /// Success rate in the window below which an instance is degraded to half of its weight, or `none`.
    pub success_rate: OrNone<Percent>,
    /// Share of failures in the window from which an instance that is degraded is ejected, or `none`.
    pub failure_percentage: OrNone<Percent>,
    /// Mean latency in the window above which the weight is cut in proportion, to a tenth at least; or `none`.
    pub mean_latency: OrNone<Span>,
    /// How far rates and means look back.
    pub window: Span,
    /// Requests in the window below which rates and means say nothing.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub min_requests: u32,
    /// Length of the first ejection; the second in a row lasts twice as long, and so on. One is forgotten per such time.
    pub base_ejection: Span,
    /// Length of the longest ejection.
    pub max_ejection: Span,
    /// Share of a subset's instances that may be ejected at once, rounded down but at least one.
    pub max_ejection_percent: Percent,
}

impl Default for OutlierDetection {
    fn default() -> Self {
        Self {
            consecutive_5xx: 5,
            consecutive_local: 3,
            success_rate: OrNone::Some(Percent::of_whole(95)),
            failure_percentage: OrNone::Some(Percent::of_whole(85)),
            mean_latency: OrNone::Some(Span::from_millis(500)),
            window: Span::from_secs(10),
            min_requests: 20,
            base_ejection: Span::from_secs(30),
            max_ejection: Span::from_secs(300),
            max_ejection_percent: Percent::of_whole(30),
        }
    }
}
