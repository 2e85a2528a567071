//! A guarded ramp, as the traffic document keeps it: its rules, which do not change, and where it is.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::scalar::{Guard, Moment, Name, Percent, Span};

/// A guarded ramp: the share of a subset grows step by step for as long as its guards hold.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Ramp {
    /// The subset whose share grows, at the expense of the stable one.
    pub to: Name,
    /// Its shares, ascending.
    #[schemars(length(min = 1))]
    pub steps: Vec<Percent>,
    /// How long a step lasts at least.
    #[serde(default = "every")]
    pub every: Span,
    /// What has to hold: `success_rate >= 99%`, `p99 <= 1.2 x stable`, ...
    #[serde(default)]
    pub guards: Vec<Guard>,
    /// Requests of a step below which nothing is concluded, of the target and of what it is compared with.
    #[serde(default = "min_requests")]
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub min_requests: u64,
    /// Whether it goes on.
    #[serde(default)]
    pub state: RampState,
    /// Position of the step that it is at, counted from 0.
    #[serde(default)]
    pub step: usize,
    /// When that step began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Moment>,
    /// Why it is held, paused or aborted.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

fn every() -> Span {
    Span::from_secs(300)
}

fn min_requests() -> u64 {
    200
}

impl Ramp {
    /// A ramp at its first step.
    #[must_use]
    pub fn new(to: Name, steps: Vec<Percent>) -> Self {
        Self {
            to,
            steps,
            every: every(),
            guards: Vec::new(),
            min_requests: min_requests(),
            state: RampState::Running,
            step: 0,
            since: None,
            reason: String::new(),
        }
    }

    /// The share of the step that it is at.
    #[must_use]
    pub fn share(&self) -> Percent {
        self.steps.get(self.step).copied().unwrap_or_default()
    }

    /// Where it is, in words: `to v2, running, step 2 of 5 (5%)`.
    #[must_use]
    pub fn place(&self) -> String {
        format!("to {}, {}, step {} of {} ({})", self.to, self.state, self.step + 1, self.steps.len(), self.share())
    }
}

/// State of a ramp.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RampState {
    /// It goes on.
    #[default]
    Running,
    /// Somebody stopped it for now; weights stay.
    Paused,
    /// The step has lasted, but there were too few requests to judge it by.
    Held,
    /// It came to its end.
    Done,
    /// A guard was broken, or somebody ended it: everything goes to the stable subset.
    Aborted,
}

impl RampState {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Running, Self::Paused, Self::Held, Self::Done, Self::Aborted];

    /// Its name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Held => "held",
            Self::Done => "done",
            Self::Aborted => "aborted",
        }
    }

    /// Whether it goes on by itself.
    #[must_use]
    pub fn is_active(self) -> bool {
        matches!(self, Self::Running | Self::Held)
    }

    /// Whether it is over.
    #[must_use]
    pub fn is_over(self) -> bool {
        matches!(self, Self::Done | Self::Aborted)
    }
}

impl fmt::Display for RampState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
