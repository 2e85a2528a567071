//! `healthy`: takes out the instances that are unhealthy or ejected, unless fewer than `panic_threshold` of the pool are
//! healthy. Every chain begins with it anyway; naming it says so, and changes nothing.

use std::sync::Arc;

use serin_core::candidates::Candidates;
use serin_core::chain::{Narrow, Narrowing, PickCx};
use serin_core::decide;
use serin_core::instance::Instance;
use serin_core::plugin::{BuildError, Node, Plugin};

use crate::Empty;

/// Names the step that every chain begins with: see [`decide::pick`].
#[derive(Debug)]
pub struct Healthy;

impl Plugin for Healthy {
    const NAME: &'static str = decide::HEALTHY;
    type Conf = Empty;
    type Made = dyn Narrowing;

    fn build(_conf: Empty, _node: &Node) -> Result<Arc<dyn Narrowing>, BuildError> {
        Ok(Arc::new(Self))
    }
}

impl Narrowing for Healthy {
    fn prepare(&self, _pool: &[Instance]) -> Arc<dyn Narrow> {
        Arc::new(Self)
    }
}

impl Narrow for Healthy {
    fn narrow(&self, _cx: &mut PickCx<'_>, _candidates: &mut Candidates<'_>) {}
}
