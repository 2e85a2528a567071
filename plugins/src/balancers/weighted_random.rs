//! `weighted_random`: any candidate, with a chance in proportion to its weight.

use std::sync::Arc;

use serin_core::candidates::{Candidates, Slot};
use serin_core::chain::{Balancer, Pick, PickCx};
use serin_core::instance::Instance;
use serin_core::plugin::{BuildError, Node, Plugin};

use crate::{Empty, draw};

/// Draws a candidate by a binary search in the cumulative weights.
#[derive(Debug)]
pub struct WeightedRandom;

impl Plugin for WeightedRandom {
    const NAME: &'static str = "weighted_random";
    type Conf = Empty;
    type Made = dyn Balancer;

    fn build(_conf: Empty, _node: &Node) -> Result<Arc<dyn Balancer>, BuildError> {
        Ok(Arc::new(Self))
    }
}

impl Balancer for WeightedRandom {
    fn prepare(&self, pool: &[Instance]) -> Arc<dyn Pick> {
        Arc::new(Cumulative::new(pool))
    }
}

/// The sum of the weights up to and including every slot.
struct Cumulative(Box<[u64]>);

impl Cumulative {
    fn new(pool: &[Instance]) -> Self {
        let mut sum = 0;
        let mut add = |instance: &Instance| {
            sum += u64::from(instance.weight);
            sum
        };
        Self(pool.iter().map(&mut add).collect())
    }

    fn total(&self) -> u64 {
        self.0.last().copied().unwrap_or(0)
    }

    /// The slot whose part of the line from 0 to the total holds `point`.
    fn at(&self, point: u64) -> Slot {
        self.0.partition_point(|&end| end <= point)
    }
}

impl Pick for Cumulative {
    fn pick(&self, cx: &mut PickCx<'_>, candidates: &Candidates<'_>) -> Option<Slot> {
        let total = self.total();
        let table = |rng: &mut dyn rand::Rng| (total > 0).then(|| self.at(draw::below(rng, total)));
        draw::rejecting(cx.rng, candidates, table, |_| true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::pool;

    #[test]
    fn one_two_seven_gives_thirds_that_end_at_a_tenth_three_tenths_and_one() {
        let thirds = Cumulative::new(&pool(&[1, 2, 7]));
        let ends: Vec<_> = thirds.0.iter().map(|&end| end as f64 / thirds.total() as f64).collect();
        assert_eq!(ends, [0.1, 0.3, 1.0]);
        let slots: Vec<_> = (0..10).map(|point| thirds.at(point)).collect();
        assert_eq!(slots, [0, 1, 1, 2, 2, 2, 2, 2, 2, 2]);
    }

    #[test]
    fn no_point_belongs_to_a_weight_of_zero() {
        let cumulative = Cumulative::new(&pool(&[0, 1, 0, 0, 2, 0]));
        assert_eq!((0..3).map(|point| cumulative.at(point)).collect::<Vec<_>>(), [1, 4, 4]);
    }
}
