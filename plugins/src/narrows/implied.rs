//! `healthy` and `warm`: steps that are part of every chain (see [`decide::pick`]). Naming one says so, and changes nothing.

use std::sync::Arc;

use serin_core::candidates::Candidates;
use serin_core::chain::{Narrow, Narrowing, PickCx};
use serin_core::decide;
use serin_core::instance::Instance;
use serin_core::plugin::{BuildError, Node, Plugin};

use crate::Empty;

/// Takes out the instances that are unhealthy or ejected, unless fewer than `panic_threshold` of the pool are healthy.
/// Every chain begins with it.
#[derive(Debug)]
pub struct Healthy;

/// Instances in slow start, degraded or loaded take part only as often as the share of their weight in force says. Every
/// chain does that before its pick.
#[derive(Debug)]
pub struct Warm;

impl Plugin for Healthy {
    const NAME: &'static str = decide::HEALTHY;
    type Conf = Empty;
    type Made = dyn Narrowing;

    fn build(_conf: Empty, _node: &Node) -> Result<Arc<dyn Narrowing>, BuildError> {
        Ok(Arc::new(Implied))
    }
}

impl Plugin for Warm {
    const NAME: &'static str = decide::WARM;
    type Conf = Empty;
    type Made = dyn Narrowing;

    fn build(_conf: Empty, _node: &Node) -> Result<Arc<dyn Narrowing>, BuildError> {
        Ok(Arc::new(Implied))
    }
}

struct Implied;

impl Narrowing for Implied {
    fn prepare(&self, _pool: &[Instance]) -> Arc<dyn Narrow> {
        Arc::new(Self)
    }
}

impl Narrow for Implied {
    fn narrow(&self, _cx: &mut PickCx<'_>, _candidates: &mut Candidates<'_>) {}
}
