//! `adaptive`: power of two choices by the last 100 calls of an instance and the load it reports.
//!
//! An instance scores
//!
//! ```text
//! score = latency factor x success rate x headroom
//! ```
//!
//! - latency factor: 1 / mean latency of the window (100 calls, none older than 10 s but for the latest eight), where a
//!   failure counts as slow (the gateway's penalty), and what is known fades while there are no calls;
//! - success rate: share of the window that succeeded, as if four more had, and not below 5 %;
//! - headroom: 1 - the utilisation that the instance reports (ORCA), not below 5 %; 1 where it reports none.
//!
//! Of two candidates drawn in proportion to their weights the one with the lower cost, (pending requests + 1) / (score x
//! weight), is taken: Mitzenmacher's power of two choices (2001) with the product of latency and success that Dubbo's
//! adaptive balancer and Finagle's peak EWMA use, over a window instead of an average. One pick in 64 takes the first
//! drawn whatever it costs, so that every instance keeps 1/64 of its share, and one that recovered is found out.

use std::sync::Arc;
use std::time::Instant;

use serin_core::candidates::{Candidates, Slot};
use serin_core::chain::{Balancer, Pick, PickCx};
use serin_core::instance::Instance;
use serin_core::plugin::{BuildError, Node, Plugin};

use crate::Empty;
use crate::draw::{Sampler, below};

/// One pick in so many does not compare.
const EXPLORE: u64 = 64;
/// Success rate and headroom are not below this.
const LEAST: f64 = 0.05;
/// Nanoseconds that an instance counts as having while its first answers are awaited: more than any latency.
const UNKNOWN: f64 = 1e15;

/// Draws two candidates and takes the one that the last calls speak for, in O(1).
#[derive(Debug)]
pub struct Adaptive;

impl Plugin for Adaptive {
    const NAME: &'static str = "adaptive";
    type Conf = Empty;
    type Made = dyn Balancer;

    fn build(_conf: Empty, _node: &Node) -> Result<Arc<dyn Balancer>, BuildError> {
        Ok(Arc::new(Self))
    }
}

impl Balancer for Adaptive {
    fn prepare(&self, pool: &[Instance]) -> Arc<dyn Pick> {
        pool.iter().for_each(|instance| instance.vitals.keep_calls());
        Arc::new(Prepared(Sampler::new(pool)))
    }
}

struct Prepared(Sampler);

impl Pick for Prepared {
    fn pick(&self, cx: &mut PickCx<'_>, candidates: &Candidates<'_>) -> Option<Slot> {
        let (first, second) = self.0.two(cx.rng, candidates)?;
        let Some(second) = second else { return Some(first) };
        let explores = below(cx.rng, EXPLORE) == 0;
        let cost_of = |slot: Slot| cost(candidates.instance(slot), cx.now);
        Some(if !explores && cost_of(second) < cost_of(first) { second } else { first })
    }
}

/// An instance that was never heard of costs nothing, so that it is tried; once one request is on its way there it
/// costs more than any that answers, so that it is not flooded before it has answered.
fn cost(instance: &Instance, now: Instant) -> f64 {
    let vitals = &instance.vitals;
    let pending = f64::from(vitals.in_flight());
    let headroom = vitals.utilization(now).map_or(1.0, |used| (1.0 - used).max(LEAST));
    let share = f64::from(instance.weight) * headroom;
    match vitals.score(now) {
        None => UNKNOWN * pending / share,
        Some(score) => score.latency_nanos * (pending + 1.0) / (score.success.max(LEAST) * share),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use crate::testing::{Bench, pool};

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// Records so many calls per slot now.
    fn calls(bench: &Bench, slot: usize, latency: Duration, good: u32, bad: u32) {
        for at in 0..good + bad {
            bench.pool[slot].vitals.record_call(bench.now, latency, at < good);
        }
    }

    /// The share of picks that slot 1 of two gets.
    fn share(bench: &Bench) -> f64 {
        bench.picks(10_000).iter().filter(|&&slot| slot == 1).count() as f64 / 10_000.0
    }

    #[test]
    fn the_worse_of_two_keeps_a_share_of_one_in_64() {
        // (latency in ms, calls that succeeded, calls that failed) of slot 1; slot 0 has 20 ms and no failure.
        for (what, latency, good, bad) in
            [("slow", 30, 100, 0), ("failing at times", 20, 90, 10), ("failing", 5_000, 0, 100)]
        {
            let bench = Bench::new("adaptive", json!({}), pool(&[1, 1]));
            calls(&bench, 0, ms(20), 100, 0);
            calls(&bench, 1, ms(latency), good, bad);
            let share = share(&bench);
            assert!((0.003..0.015).contains(&share), "{what}: {share}");
        }
    }

    #[test]
    fn pending_requests_count() {
        let bench = Bench::new("adaptive", json!({}), pool(&[1, 1]));
        calls(&bench, 0, ms(20), 100, 0);
        calls(&bench, 1, ms(70), 100, 0);
        let _busy = bench.busy(&[4, 0]);
        assert!(share(&bench) > 0.98);
    }

    #[test]
    fn reported_load_counts() {
        use serin_core::load::{LoadBoard, LoadPolicy, LoadReport};
        let mut bench = Bench::new("adaptive", json!({}), pool(&[1, 1]));
        let policy = LoadPolicy {
            expire_after: ms(5_000),
            update_every: ms(1_000),
            blackout: ms(0),
            error_penalty: 1.0,
            weights: false,
        };
        let board = LoadBoard::new(policy, bench.now);
        for (slot, cpu) in [(0, 0.9), (1, 0.2)] {
            calls(&bench, slot, ms(20), 100, 0);
            let report = LoadReport { cpu, ..LoadReport::default() };
            board.note(&bench.pool, &bench.pool[slot].vitals, report, bench.now);
        }
        assert!(share(&bench) > 0.98);
        bench.now += ms(5_001);
        assert!((0.45..0.55).contains(&share(&bench)), "stale reports are none");
    }

    #[test]
    fn an_unseen_instance_is_tried_at_once_but_not_flooded() {
        let bench = Bench::new("adaptive", json!({}), pool(&[1, 1]));
        calls(&bench, 0, ms(10), 100, 0);
        let _held: Vec<_> = (0..50).map(|_| bench.send()).collect();
        assert!((1..=4).contains(&bench.pending()[1]), "{:?}", bench.pending());
    }
}
