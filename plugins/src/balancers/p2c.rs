//! `p2c`: the power of two choices (Mitzenmacher 2001). Of two distinct random candidates, the one with fewer pending
//! requests for its weight.

use std::sync::Arc;

use serin_core::candidates::{Candidates, Slot};
use serin_core::chain::{Balancer, Pick, PickCx};
use serin_core::instance::Instance;
use serin_core::plugin::{BuildError, Node, Plugin};

use crate::Empty;
use crate::draw::Sampler;

/// Draws two candidates in proportion to their weights and takes the less loaded one, in O(1). On a tie it takes the
/// first one drawn, so that the shares of an idle pool are those of the weights.
#[derive(Debug)]
pub struct P2c;

impl Plugin for P2c {
    const NAME: &'static str = "p2c";
    type Conf = Empty;
    type Made = dyn Balancer;

    fn build(_conf: Empty, _node: &Node) -> Result<Arc<dyn Balancer>, BuildError> {
        Ok(Arc::new(Self))
    }
}

impl Balancer for P2c {
    fn prepare(&self, pool: &[Instance]) -> Arc<dyn Pick> {
        Arc::new(Prepared(Sampler::new(pool)))
    }
}

struct Prepared(Sampler);

impl Pick for Prepared {
    fn pick(&self, cx: &mut PickCx<'_>, candidates: &Candidates<'_>) -> Option<Slot> {
        let (first, second) = self.0.two(cx.rng, candidates)?;
        let lighter = |&other: &Slot| lighter(candidates.instance(other), candidates.instance(first));
        Some(second.filter(lighter).unwrap_or(first))
    }
}

/// Whether `a` has fewer pending requests for its weight than `b`.
pub(crate) fn lighter(a: &Instance, b: &Instance) -> bool {
    let pending = |instance: &Instance| u64::from(instance.vitals.in_flight());
    pending(a) * u64::from(b.weight) < pending(b) * u64::from(a.weight)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::testing::{Bench, pool};

    #[test]
    fn the_more_loaded_of_two_is_never_taken() {
        // With three candidates the most loaded one loses against either other one.
        let bench = Bench::new("p2c", json!({}), pool(&[1, 1, 1]));
        let _busy = bench.busy(&[2, 5, 3]);
        assert!(bench.picks(500).iter().all(|&slot| slot != 1));
    }

    #[test]
    fn load_is_measured_by_weight() {
        let bench = Bench::new("p2c", json!({}), pool(&[1, 10]));
        let _busy = bench.busy(&[1, 9]);
        assert_eq!(bench.picks(100), [1; 100]);
    }

    #[test]
    fn pending_requests_settle_in_proportion_to_the_weights() {
        let bench = Bench::new("p2c", json!({}), pool(&[1, 2, 7]));
        let _held: Vec<_> = (0..1000).map(|_| bench.send()).collect();
        for (slot, wanted) in [100, 200, 700].into_iter().enumerate() {
            let pending = bench.pool[slot].vitals.in_flight();
            assert!(pending.abs_diff(wanted) <= 20, "{slot}: {pending} for {wanted}");
        }
    }
}
