//! When the gateway as a whole sheds load.

use std::num::NonZeroU32;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::scalar::{Memory, OrNone, Percent, Span};

/// When the gateway as a whole is overloaded: new requests then get 503, the admin API still answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Overload {
    /// Resident memory of the process: an amount, or a share of the limit of its cgroup (without such a limit, of the
    /// memory of the machine), or `none`.
    pub memory: OrNone<Memory>,
    /// Open descriptors as a share of what the process may have, or `none`.
    pub descriptors: OrNone<Percent>,
    /// Requests in flight, 1 or more. Default: any number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<NonZeroU32>,
    /// How long work waits for a worker thread, all through half a second, or `none`.
    pub queue_delay: OrNone<Span>,
}

impl Default for Overload {
    fn default() -> Self {
        let share = Percent::from_hundredths(9_000).unwrap_or_default();
        Self {
            memory: OrNone::Some(Memory::Share(share)),
            descriptors: OrNone::Some(share),
            in_flight: None,
            queue_delay: OrNone::Some(Span::from_secs(1)),
        }
    }
}
