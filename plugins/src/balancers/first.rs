//! `first`: the first candidate in the order of addresses, for a primary with stand-bys.

use std::sync::Arc;

use serin_core::candidates::{Candidates, Slot};
use serin_core::chain::{Balancer, Pick, PickCx};
use serin_core::instance::Instance;
use serin_core::plugin::{BuildError, Node, Plugin};

use crate::Empty;

/// Takes the first candidate; the others are only used once it was tried or narrowed away.
#[derive(Debug)]
pub struct First;

impl Plugin for First {
    const NAME: &'static str = "first";
    type Conf = Empty;
    type Made = dyn Balancer;

    fn build(_conf: Empty, _node: &Node) -> Result<Arc<dyn Balancer>, BuildError> {
        Ok(Arc::new(Self))
    }
}

impl Balancer for First {
    fn prepare(&self, _pool: &[Instance]) -> Arc<dyn Pick> {
        Arc::new(Self)
    }
}

impl Pick for First {
    fn pick(&self, _cx: &mut PickCx<'_>, candidates: &Candidates<'_>) -> Option<Slot> {
        candidates.nth(0)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::testing::{Bench, pool};

    #[test]
    fn stand_bys_step_in_for_what_was_tried() {
        let bench = Bench::new("first", json!({}), pool(&[0, 1, 1]));
        assert_eq!(bench.picks(3), [1, 1, 1]);
        assert_eq!(bench.tried(&[1]).picks(2), [2, 2]);
    }
}
