//! `peak_ewma`: latency-aware power of two choices, after finagle and tower. A failure attracts nothing because the
//! gateway records a penalty as its latency. `tests/slow_upstream.rs` holds what it makes of a slow instance.

use std::sync::Arc;
use std::time::Instant;

use serin_core::candidates::{Candidates, Slot};
use serin_core::chain::{Balancer, Pick, PickCx};
use serin_core::instance::Instance;
use serin_core::plugin::{BuildError, Node, Plugin};

use crate::Empty;
use crate::draw::Sampler;

/// Nanoseconds that an instance counts as having while its first answers are awaited: more than any latency.
const UNKNOWN: f64 = 1e15;

/// Draws two candidates in proportion to their weights and takes the one with the lower cost, in O(1). The cost is
/// latency average x (pending requests + 1) / weight.
#[derive(Debug)]
pub struct PeakEwma;

impl Plugin for PeakEwma {
    const NAME: &'static str = "peak_ewma";
    type Conf = Empty;
    type Made = dyn Balancer;

    fn build(_conf: Empty, _node: &Node) -> Result<Arc<dyn Balancer>, BuildError> {
        Ok(Arc::new(Self))
    }
}

impl Balancer for PeakEwma {
    fn prepare(&self, pool: &[Instance]) -> Arc<dyn Pick> {
        Arc::new(Prepared(Sampler::new(pool)))
    }
}

struct Prepared(Sampler);

impl Pick for Prepared {
    fn pick(&self, cx: &mut PickCx<'_>, candidates: &Candidates<'_>) -> Option<Slot> {
        let (first, second) = self.0.two(cx.rng, candidates)?;
        let cost_of = |slot: Slot| cost(candidates.instance(slot), cx.now);
        Some(second.filter(|&other| cost_of(other) < cost_of(first)).unwrap_or(first))
    }
}

/// An instance that was never heard of costs nothing, so that it is tried; once one request is on its way there it
/// costs more than any that answers, so that it is not flooded before it has answered.
fn cost(instance: &Instance, now: Instant) -> f64 {
    let pending = f64::from(instance.vitals.in_flight());
    let (latency, pending) = match instance.vitals.ewma_nanos(now) {
        0.0 => (UNKNOWN, pending),
        latency => (latency, pending + 1.0),
    };
    latency * pending / f64::from(instance.weight)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use crate::testing::{Bench, pool};

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn the_slower_of_two_is_taken_once_the_faster_has_its_share_pending() {
        let bench = Bench::new("peak_ewma", json!({}), pool(&[1, 1]));
        bench.latencies(&[ms(10), ms(35)]);
        let mut held = Vec::new();
        for _ in 0..3 {
            held.push(bench.send());
        }
        assert_eq!(bench.pending(), [3, 0]);
        held.push(bench.send());
        assert_eq!(bench.pending(), [3, 1]);
    }

    #[test]
    fn an_unseen_instance_is_tried_at_once_but_not_flooded() {
        let bench = Bench::new("peak_ewma", json!({}), pool(&[1, 1]));
        bench.latencies(&[ms(10)]);
        let _held: Vec<_> = (0..50).map(|_| bench.send()).collect();
        assert_eq!(bench.pending(), [49, 1]);
    }

    #[test]
    fn a_pool_that_was_never_heard_of_is_filled_evenly() {
        let bench = Bench::new("peak_ewma", json!({}), pool(&[1, 3]));
        let _held: Vec<_> = (0..80).map(|_| bench.send()).collect();
        assert_eq!(bench.pending(), [20, 60]);
    }

    #[test]
    fn an_instance_that_was_slow_is_tried_again() {
        let mut bench = Bench::new("peak_ewma", json!({}), pool(&[1, 1]));
        bench.latencies(&[ms(20), ms(2000)]);
        assert!(!bench.picks(100).contains(&1));
        bench.now += Duration::from_secs(60);
        bench.latencies(&[ms(20)]);
        assert_eq!(bench.picks(100), [1; 100]);
    }
}
