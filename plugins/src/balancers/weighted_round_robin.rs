//! `weighted_round_robin`: the smooth one of nginx. Weights 5:1:1 give a,a,b,a,c,a,a rather than a,a,a,a,a,b,c.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use rand::Rng;
use serin_core::candidates::{Candidates, Slot};
use serin_core::chain::{Balancer, Pick, PickCx};
use serin_core::instance::Instance;
use serin_core::plugin::{BuildError, Node, Plugin};

use crate::{Empty, draw};

/// Longest sequence of a pool of up to 4,096 instances; a larger pool may have 8 turns per instance.
const MAX_TURNS: u64 = 1 << 15;

/// How many turns are passed over for want of a candidate before one is drawn at random.
const SKIPS: usize = 32;

/// Takes turns in a sequence that was laid out beforehand, so that picks share nothing but a counter. Weights whose
/// sum is too large for a sequence, after division by their greatest common divisor, are rounded to a smaller sum.
#[derive(Debug)]
pub struct WeightedRoundRobin;

impl Plugin for WeightedRoundRobin {
    const NAME: &'static str = "weighted_round_robin";
    type Conf = Empty;
    type Made = dyn Balancer;

    fn build(_conf: Empty, _node: &Node) -> Result<Arc<dyn Balancer>, BuildError> {
        Ok(Arc::new(Self))
    }
}

impl Balancer for WeightedRoundRobin {
    fn prepare(&self, pool: &[Instance]) -> Arc<dyn Pick> {
        let weights: Vec<_> = pool.iter().map(|instance| u64::from(instance.weight)).collect();
        Arc::new(Turns { sequence: smooth(&shortened(&weights)), next: AtomicUsize::new(0) })
    }
}

struct Turns {
    sequence: Box<[u32]>,
    next: AtomicUsize,
}

impl Pick for Turns {
    fn pick(&self, cx: &mut PickCx<'_>, candidates: &Candidates<'_>) -> Option<Slot> {
        if candidates.is_empty() {
            return None;
        }
        // A retry takes no turn: if it did, what follows a broken instance in the sequence would get all its retries.
        // Nor does a pick that weak instances were left out of by chance: their turns would wait for them.
        let skips = if cx.tried.is_empty() && !cx.thinned { SKIPS } else { 0 };
        let dry_run = cx.dry_run;
        let turn = |ahead| if dry_run { self.next.load(Relaxed) + ahead } else { self.next.fetch_add(1, Relaxed) };
        let mut turns = (0..skips).map(|ahead| turn(ahead) % self.sequence.len());
        let mine = turns.find_map(|turn| Some(self.sequence[turn] as Slot).filter(|&slot| candidates.contains(slot)));
        mine.or_else(|| {
            let any = |rng: &mut dyn Rng| {
                let turn = draw::below(rng, self.sequence.len() as u64) as usize;
                self.sequence.get(turn).map(|&slot| slot as Slot)
            };
            draw::rejecting(cx.rng, candidates, any, |_| true)
        })
    }
}

/// The weights divided by their greatest common divisor, and rounded if their sum is still too large; none of them
/// becomes 0.
fn shortened(weights: &[u64]) -> Vec<u64> {
    let divisor = weights.iter().copied().fold(0, gcd).max(1);
    let sum = weights.iter().sum::<u64>() / divisor;
    let most = MAX_TURNS.max(8 * weights.len() as u64);
    let shorten = |&weight: &u64| match weight / divisor {
        0 => 0,
        weight if sum > most => ((weight as f64 * most as f64 / sum as f64).round() as u64).max(1),
        weight => weight,
    };
    weights.iter().map(shorten).collect()
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Instances of the same weight: they have their turns in order.
#[derive(Default)]
struct Class {
    members: Vec<u32>,
    turns: usize,
}

impl Class {
    fn next(&self) -> u32 {
        self.members[self.turns % self.members.len()]
    }

    /// Turns that the next member has had.
    fn rounds(&self) -> i64 {
        (self.turns / self.members.len()) as i64
    }
}

/// One period of the smooth sequence. At every turn each instance gains its weight, the one with the most has the turn
/// and pays the sum of all weights. Only the next one of each distinct weight has to be looked at.
fn smooth(weights: &[u64]) -> Box<[u32]> {
    let total: u64 = weights.iter().sum();
    let mut classes = BTreeMap::<u64, Class>::new();
    for (slot, &weight) in weights.iter().enumerate().filter(|(_, weight)| **weight > 0) {
        classes.entry(weight).or_default().members.push(slot as u32);
    }
    let mut classes: Vec<_> = classes.into_iter().map(|(weight, class)| (weight as i64, class)).collect();
    let mut turn = |now: i64| {
        let gained = |(weight, class): &(i64, Class)| now * weight - class.rounds() * total as i64;
        let (_, class) = classes.iter_mut().max_by_key(|class| (gained(class), Reverse(class.1.next())))?;
        let slot = class.next();
        class.turns += 1;
        Some(slot)
    };
    (1..=total as i64).map_while(&mut turn).collect()
}

#[cfg(test)]
mod tests {
    use std::thread;

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::testing::{Bench, pool};

    /// The definition of nginx, word for word.
    fn nginx(weights: &[u64]) -> Vec<u32> {
        let total: i64 = weights.iter().sum::<u64>() as i64;
        let mut current = vec![0; weights.len()];
        let mut turn = || {
            current.iter_mut().zip(weights).for_each(|(current, &weight)| *current += weight as i64);
            let weighted = (0..weights.len()).filter(|&slot| weights[slot] > 0);
            let best = weighted.max_by_key(|&slot| (current[slot], Reverse(slot))).unwrap();
            current[best] -= total;
            best as u32
        };
        (0..total).map(|_| turn()).collect()
    }

    proptest! {
        #[test]
        fn the_sequence_is_that_of_nginx(weights in proptest::collection::vec(0..12u64, 1..40)) {
            prop_assert_eq!(smooth(&weights).to_vec(), nginx(&weights));
        }

        #[test]
        fn awkward_weights_are_rounded_to_a_bounded_sum(
            weights in proptest::collection::vec(prop_oneof![Just(0), any::<u32>().prop_map(u64::from)], 1..2000)
        ) {
            let short = shortened(&weights);
            prop_assert!(short.iter().sum::<u64>() <= MAX_TURNS + weights.len() as u64);
            prop_assert!(short.iter().zip(&weights).all(|(&short, &weight)| (short == 0) == (weight == 0)));
        }
    }

    #[test]
    fn five_one_one_is_smooth() {
        let bench = Bench::new("weighted_round_robin", json!({}), pool(&[500, 100, 100]));
        assert_eq!(bench.picks(14), [[0, 0, 1, 0, 2, 0, 0]; 2].concat());
    }

    #[test]
    fn shares_of_awkward_weights_are_close() {
        let weights = [1_000_003, 999_983, 17_011];
        let sequence = smooth(&shortened(&weights));
        for (slot, &weight) in weights.iter().enumerate() {
            let share = sequence.iter().filter(|&&s| s as usize == slot).count() as f64 / sequence.len() as f64;
            assert!((share * 2_016_997.0 / weight as f64 - 1.0).abs() < 0.01, "{slot}: {share}");
        }
    }

    #[test]
    fn the_turns_of_what_is_no_candidate_are_passed_over() {
        let bench = Bench::new("weighted_round_robin", json!({}), pool(&[1, 1, 1, 1])).without(&[2, 3]);
        assert_eq!(bench.picks(6), [0, 1, 0, 1, 0, 1]);
    }

    #[test]
    fn a_pick_without_the_weak_ones_takes_no_turn() {
        let all = Bench::new("weighted_round_robin", json!({}), pool(&[1, 1]));
        let thinned = all.fork(1).without(&[1]).thinned();
        let mut picks = Vec::new();
        for _ in 0..4 {
            picks.extend(all.picks(1));
            assert_eq!(thinned.picks(2), [0, 0]);
        }
        assert_eq!(picks, [0, 1, 0, 1]);
    }

    #[test]
    fn retries_spread_by_weight_and_take_no_turn() {
        let fresh = Bench::new("weighted_round_robin", json!({}), pool(&[1, 1, 3]));
        let retry = fresh.fork(1).tried(&[0]);
        let (mut first, mut second) = ([0; 3], [0; 3]);
        for _ in 0..10_000 {
            let slot = fresh.picks(1)[0];
            first[slot] += 1;
            if slot == 0 {
                second[retry.picks(1)[0]] += 1;
            }
        }
        assert_eq!(first, [2000, 2000, 6000]);
        assert!(second[0] == 0 && (420..580).contains(&second[1]), "{second:?}");
    }

    #[test]
    fn threads_share_the_turns_exactly() {
        let bench = Bench::new("weighted_round_robin", json!({}), pool(&[5, 1, 1]));
        let picks: Vec<_> = thread::scope(|scope| {
            let workers: Vec<_> = (0..4)
                .map(|seed| {
                    scope.spawn({
                        let bench = bench.fork(seed);
                        move || bench.picks(700)
                    })
                })
                .collect();
            workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
        });
        assert_eq!([0, 1, 2].map(|slot| picks.iter().filter(|&&s| s == slot).count()), [2000, 400, 400]);
    }
}
