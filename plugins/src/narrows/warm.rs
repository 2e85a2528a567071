//! `warm`: instances in slow start, degraded or loaded take part only as often as the share of their weight that is in force
//! says. Every chain does that before its pick anyway; naming it says so, and changes nothing.

use std::sync::Arc;

use serin_core::candidates::Candidates;
use serin_core::chain::{Narrow, Narrowing, PickCx};
use serin_core::decide;
use serin_core::instance::Instance;
use serin_core::plugin::{BuildError, Node, Plugin};

use crate::Empty;

/// Names the step before every pick: see [`decide::pick`].
#[derive(Debug)]
pub struct Warm;

impl Plugin for Warm {
    const NAME: &'static str = decide::WARM;
    type Conf = Empty;
    type Made = dyn Narrowing;

    fn build(_conf: Empty, _node: &Node) -> Result<Arc<dyn Narrowing>, BuildError> {
        Ok(Arc::new(Self))
    }
}

impl Narrowing for Warm {
    fn prepare(&self, _pool: &[Instance]) -> Arc<dyn Narrow> {
        Arc::new(Self)
    }
}

impl Narrow for Warm {
    fn narrow(&self, _cx: &mut PickCx<'_>, _candidates: &mut Candidates<'_>) {}
}
