//! `round_robin`: one candidate after the other, whatever their weights. The behaviour is the core's, which also needs
//! it as the default and for the kill switch.

use std::sync::Arc;

use serin_core::chain::{self, Balancer};
use serin_core::plugin::{BuildError, Node, Plugin};

use crate::Empty;

/// Names the core's [`chain::RoundRobin`].
#[derive(Debug)]
pub struct RoundRobin;

impl Plugin for RoundRobin {
    const NAME: &'static str = chain::RoundRobin::NAME;
    type Conf = Empty;
    type Made = dyn Balancer;

    fn build(_conf: Empty, _node: &Node) -> Result<Arc<dyn Balancer>, BuildError> {
        Ok(Arc::new(chain::RoundRobin::default()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::testing::{Bench, pool};

    #[test]
    fn goes_round() {
        assert_eq!(Bench::new("round_robin", json!({}), pool(&[1, 9, 0, 1])).picks(6), [0, 1, 3, 0, 1, 3]);
    }
}
