//! `ring_hash`: consistent hashing on a ring of points (ketama), so that a key stays with its instance while others
//! come and go.

use std::sync::Arc;

use serde::Deserialize;
use serin_core::candidates::{Candidates, Slot};
use serin_core::chain::{Balancer, Pick, PickCx};
use serin_core::instance::Instance;
use serin_core::plugin::{BuildError, Node, Plugin};

use crate::affinity::{Affinity, hash};
use crate::key::Key;
use crate::overload::Factor;

/// Takes the candidate whose point follows the key's hash on the ring. An instance has points in proportion to its
/// weight; their number depends on no other instance as long as the greatest weight keeps its order of magnitude.
#[derive(Debug)]
pub struct RingHash(Conf);

/// Configuration.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Conf {
    /// What requests are hashed by [the user].
    #[serde(default)]
    pub key: Key,
    /// Bound on the pending requests of an instance, relative to its fair part; none by default.
    #[serde(default)]
    pub bounded_load: Option<Factor>,
    /// Points of the heaviest instance, up to twice as many, 1 to 10,000 [128]. More points even the shares out.
    #[serde(default = "default_points")]
    pub points: u64,
}

fn default_points() -> u64 {
    128
}

impl Plugin for RingHash {
    const NAME: &'static str = "ring_hash";
    type Conf = Conf;
    type Made = dyn Balancer;

    fn build(conf: Conf, _node: &Node) -> Result<Arc<dyn Balancer>, BuildError> {
        if !(1..=10_000).contains(&conf.points) {
            return Err(BuildError(format!("points: expected 1 to 10000, found {}", conf.points)));
        }
        Ok(Arc::new(Self(conf)))
    }
}

impl Balancer for RingHash {
    fn prepare(&self, pool: &[Instance]) -> Arc<dyn Pick> {
        let affinity = Affinity::new(&self.0.key, self.0.bounded_load, pool);
        Arc::new(Ring::new(affinity, pool, self.0.points))
    }
}

struct Ring {
    affinity: Affinity,
    /// Positions of the points in ascending order.
    positions: Box<[u64]>,
    /// The slot of each point.
    slots: Box<[u32]>,
    /// The first point of each of 2^n equal arcs, about as many as there are points, and one past the last: spares the
    /// better part of a binary search, which would miss the cache at every step.
    arcs: Box<[u32]>,
}

impl Ring {
    fn new(affinity: Affinity, pool: &[Instance], points: u64) -> Self {
        let heaviest = pool.iter().map(|instance| u64::from(instance.weight)).max().unwrap_or(0);
        // The greatest weight counts as a power of two, so that the others keep their points when it changes a little.
        let scale = heaviest.next_power_of_two();
        let points_of = |instance: &Instance| match u64::from(instance.weight) {
            0 => 0,
            weight => (2 * points * weight / scale).max(1),
        };
        let mut ring: Vec<(u64, u32)> = Vec::new();
        for (slot, instance) in pool.iter().enumerate() {
            ring.extend((0..points_of(instance)).map(|n| (hash(instance, n), slot as u32)));
        }
        ring.sort_unstable();
        let (positions, slots): (Vec<_>, Vec<_>) = ring.into_iter().unzip();
        let count = positions.len().next_power_of_two() as u64;
        let mut arcs = vec![0; count as usize + 1];
        positions.iter().for_each(|&position| arcs[arc_of(position, count) as usize + 1] += 1);
        (1..arcs.len()).for_each(|arc| arcs[arc] += arcs[arc - 1]);
        Self { affinity, positions: positions.into(), slots: slots.into(), arcs: arcs.into() }
    }

    /// The first point at or after a position; their number if there is none.
    fn at_or_after(&self, position: u64) -> usize {
        let arc = arc_of(position, self.arcs.len() as u64 - 1) as usize;
        let (start, end) = (self.arcs[arc] as usize, self.arcs[arc + 1] as usize);
        start + self.positions[start..end].partition_point(|&point| point < position)
    }
}

/// Which of `count` equal arcs of the ring holds a position.
fn arc_of(position: u64, count: u64) -> u64 {
    ((u128::from(position) * u128::from(count)) >> 64) as u64
}

impl Pick for Ring {
    fn pick(&self, cx: &mut PickCx<'_>, candidates: &Candidates<'_>) -> Option<Slot> {
        self.affinity.pick(cx, candidates, |key| {
            let next = self.at_or_after(key);
            self.slots[next..].iter().chain(&self.slots[..next]).map(|&slot| slot as Slot)
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::key::mix;
    use crate::testing::{Bench, moved, pool, refusal};

    fn ring(weights: &[u32]) -> Bench {
        Bench::new("ring_hash", json!({}), pool(weights))
    }

    #[test]
    fn the_arcs_find_what_a_search_of_the_whole_ring_finds() {
        for weights in [vec![], vec![0], vec![1], vec![1, 2, 3], vec![7; 40]] {
            let pool = pool(&weights);
            let ring = Ring::new(Affinity::new(&Key::User, None, &pool), &pool, 16);
            let around = ring.positions.iter().flat_map(|&point| [point - 1, point, point + 1]);
            for position in (0..1000).map(mix).chain(around).chain([0, u64::MAX]) {
                let wanted = ring.positions.partition_point(|&point| point < position);
                assert_eq!(ring.at_or_after(position), wanted, "{position} of {weights:?}");
            }
        }
    }

    #[test]
    fn more_points_even_the_shares_out() {
        for (points, tolerance) in [(128, 0.25), (8192, 0.05)] {
            let bench = Bench::new("ring_hash", json!({ "points": points }), pool(&[100, 300, 600]));
            let picks = bench.picks(50_000);
            for (slot, wanted) in [5_000.0, 15_000.0, 30_000.0].into_iter().enumerate() {
                let found = picks.iter().filter(|&&pick| pick == slot).count() as f64;
                assert!((found / wanted - 1.0).abs() < tolerance, "{points} points: {found} for {wanted}");
            }
        }
    }

    #[test]
    fn only_the_keys_of_a_removed_instance_move() {
        for weights in [vec![100; 10], vec![100, 50, 70, 100, 10]] {
            let gone = 3;
            let (before, mut left) = (ring(&weights), pool(&weights));
            left.remove(gone);
            let moved = moved(&before, &Bench::new("ring_hash", json!({}), left), 20_000);
            let wanted = f64::from(weights[gone]) / f64::from(weights.iter().sum::<u32>());
            assert_eq!(moved.needlessly, 0.0, "{weights:?}");
            assert!((moved.share / wanted - 1.0).abs() < 0.3, "{weights:?}: {} for {wanted}", moved.share);
        }
    }

    #[test]
    fn a_narrowed_instance_is_as_good_as_removed() {
        let weights = [100; 10];
        let mut left = pool(&weights);
        left.remove(3);
        let moved = moved(&ring(&weights).without(&[3]), &Bench::new("ring_hash", json!({}), left), 20_000);
        assert_eq!(moved.share, 0.0);
    }

    #[test]
    fn a_hot_key_spills_at_the_bound() {
        let bench = Bench::new("ring_hash", json!({ "bounded_load": "125%" }), pool(&[1, 1, 2]));
        let held: Vec<_> = (0..200).map(|_| bench.send_for(42)).collect();
        let most = [62.5, 62.5, 125.0_f64];
        let pending = bench.pending();
        assert!(pending.iter().zip(most).all(|(&pending, most)| f64::from(pending) <= most.ceil()), "{pending:?}");
        drop(held);
        assert_eq!(bench.pick_for(42), ring(&[1, 1, 2]).pick_for(42));
    }

    #[test]
    fn without_a_bound_a_hot_key_stays() {
        let bench = ring(&[1, 1, 2]);
        let _held: Vec<_> = (0..200).map(|_| bench.send_for(42)).collect();
        assert!(bench.pending().contains(&200));
    }

    #[test]
    fn refusals_say_what_was_expected() {
        assert_eq!(refusal("ring_hash", json!({ "points": 0 })), "points: expected 1 to 10000, found 0");
        assert!(refusal("ring_hash", json!({ "bounded_load": "80%" })).contains("such as 125%"));
        assert!(refusal("ring_hash", json!({ "keys": "path" })).contains("expected one of `key`, `bounded_load`"));
    }
}
