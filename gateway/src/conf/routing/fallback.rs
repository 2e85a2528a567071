//! What to do if a subset cannot serve.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::scalar::{Name, OrNone, Percent};

/// What to do if the chosen subset cannot serve.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Fallback {
    /// When to leave the chosen subset; `[]` is never.
    pub on: Vec<FallbackOn>,
    /// Where to go instead: a list of subsets in order, `stable`, `any` (every instance) or `none` (status 503).
    pub to: FallbackTo,
    /// Largest share of the fallback's traffic that may be spilled to it, or `none` for no bound.
    pub max_share: OrNone<Percent>,
}

impl Default for Fallback {
    fn default() -> Self {
        let on = vec![FallbackOn::Absent, FallbackOn::Empty, FallbackOn::AllUnhealthy, FallbackOn::BreakerOpen];
        Self { on, to: FallbackTo::default(), max_share: OrNone::None }
    }
}

/// Why a subset cannot serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FallbackOn {
    /// No instance has its labels.
    Absent,
    /// No instance of it may take traffic (all weights are 0).
    Empty,
    /// No instance of it is healthy.
    AllUnhealthy,
    /// Its circuit breaker is open.
    BreakerOpen,
}

/// Where to go instead of the chosen subset.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(from = "WrittenFallbackTo", into = "WrittenFallbackTo")]
#[schemars(with = "WrittenFallbackTo")]
pub enum FallbackTo {
    /// The stable subset.
    #[default]
    Stable,
    /// Every instance of the service.
    Any,
    /// Nowhere: status 503.
    None,
    /// The first of these subsets that can serve.
    Subsets(Vec<Name>),
}

/// Where to go instead: a list of subsets in order, `stable`, `any` (every instance) or `none` (status 503).
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "FallbackTo", extend("x-expected" = "a list of subsets, `stable`, `any` or `none`"))]
enum WrittenFallbackTo {
    /// Subsets in order.
    Subsets(#[schemars(length(min = 1))] Vec<Name>),
    /// A word.
    Word(FallbackWord),
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
enum FallbackWord {
    Stable,
    Any,
    None,
}

impl From<WrittenFallbackTo> for FallbackTo {
    fn from(written: WrittenFallbackTo) -> Self {
        match written {
            WrittenFallbackTo::Subsets(names) => Self::Subsets(names),
            WrittenFallbackTo::Word(FallbackWord::Stable) => Self::Stable,
            WrittenFallbackTo::Word(FallbackWord::Any) => Self::Any,
            WrittenFallbackTo::Word(FallbackWord::None) => Self::None,
        }
    }
}

impl From<FallbackTo> for WrittenFallbackTo {
    fn from(to: FallbackTo) -> Self {
        match to {
            FallbackTo::Subsets(names) => Self::Subsets(names),
            FallbackTo::Stable => Self::Word(FallbackWord::Stable),
            FallbackTo::Any => Self::Word(FallbackWord::Any),
            FallbackTo::None => Self::Word(FallbackWord::None),
        }
    }
}
