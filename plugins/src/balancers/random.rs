//! `random`: any candidate, all being equally likely whatever their weights.

use std::sync::Arc;

use serin_core::candidates::{Candidates, Slot};
use serin_core::chain::{Balancer, Pick, PickCx};
use serin_core::instance::Instance;
use serin_core::plugin::{BuildError, Node, Plugin};

use crate::{Empty, draw};

/// Draws a candidate, each with the same chance.
#[derive(Debug)]
pub struct Random;

impl Plugin for Random {
    const NAME: &'static str = "random";
    type Conf = Empty;
    type Made = dyn Balancer;

    fn build(_conf: Empty, _node: &Node) -> Result<Arc<dyn Balancer>, BuildError> {
        Ok(Arc::new(Self))
    }
}

impl Balancer for Random {
    fn prepare(&self, _pool: &[Instance]) -> Arc<dyn Pick> {
        Arc::new(Self)
    }
}

impl Pick for Random {
    fn pick(&self, cx: &mut PickCx<'_>, candidates: &Candidates<'_>) -> Option<Slot> {
        draw::uniform(cx.rng, candidates)
    }
}
