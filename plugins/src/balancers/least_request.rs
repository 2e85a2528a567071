//! `least_request`: the candidate with the fewest pending requests for its weight, of all or of a random few.

use std::sync::Arc;

use rand::Rng;
use serde::de::Error;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serin_core::candidates::{Candidates, Slot};
use serin_core::chain::{Balancer, Pick, PickCx};
use serin_core::instance::Instance;
use serin_core::plugin::{BuildError, Node, Plugin};

use crate::balancers::p2c::lighter;
use crate::draw::{self, Sampler};

/// Takes the candidate with the fewest pending requests for its weight. Ties are broken at random in proportion to the
/// weights.
#[derive(Debug)]
pub struct LeastRequest(Conf);

/// Configuration.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Conf {
    /// How many candidates are compared [16].
    #[serde(default)]
    pub choices: Choices,
}

/// How many candidates are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choices {
    /// All of them, in O(candidates): some microseconds for a thousand.
    All,
    /// So many that are drawn in proportion to their weights, 2 to 64; all if there are no more than that.
    Few(u64),
}

impl Default for Choices {
    fn default() -> Self {
        Self::Few(16)
    }
}

impl<'de> Deserialize<'de> for Choices {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(from)?;
        match (value.as_u64(), value.as_str()) {
            (Some(few @ 2..=64), _) => Ok(Self::Few(few)),
            (_, Some("all")) => Ok(Self::All),
            _ => Err(D::Error::custom(format!("choices: expected 2 to 64 or `all`, found {value}"))),
        }
    }
}

impl Plugin for LeastRequest {
    const NAME: &'static str = "least_request";
    type Conf = Conf;
    type Made = dyn Balancer;

    fn build(conf: Conf, _node: &Node) -> Result<Arc<dyn Balancer>, BuildError> {
        Ok(Arc::new(Self(conf)))
    }
}

impl Balancer for LeastRequest {
    fn prepare(&self, pool: &[Instance]) -> Arc<dyn Pick> {
        let choices = match self.0.choices {
            Choices::All => usize::MAX,
            Choices::Few(few) => few as usize,
        };
        Arc::new(Prepared { sampler: Sampler::new(pool), choices })
    }
}

struct Prepared {
    sampler: Sampler,
    choices: usize,
}

impl Pick for Prepared {
    fn pick(&self, cx: &mut PickCx<'_>, candidates: &Candidates<'_>) -> Option<Slot> {
        if self.choices >= candidates.len() {
            return least_of_all(cx.rng, candidates);
        }
        // The first of equals wins, and the order of the draws follows the weights.
        let mut best = self.sampler.one(cx.rng, candidates)?;
        for _ in 1..self.choices {
            let other = self.sampler.one(cx.rng, candidates)?;
            if lighter(candidates.instance(other), candidates.instance(best)) {
                best = other;
            }
        }
        Some(best)
    }
}

fn least_of_all(rng: &mut dyn Rng, candidates: &Candidates<'_>) -> Option<Slot> {
    let mut all = candidates.iter().map(|(slot, instance)| (slot, Load::of(instance)));
    let (mut best, mut least) = all.next()?;
    let mut ties = least.weight;
    for (slot, load) in all {
        if load.is_below(least) {
            (best, least, ties) = (slot, load, load.weight);
        } else if !least.is_below(load) {
            ties += load.weight;
        }
    }
    if ties == least.weight {
        return Some(best);
    }
    // Requests may have come and gone since the first pass; then its best is still a good one.
    let mut left = draw::below(rng, ties);
    let mut tied = candidates.iter().map(|(slot, i)| (slot, Load::of(i))).filter(|(_, load)| !least.is_below(*load));
    let drawn = tied.find(|(_, load)| left.checked_sub(load.weight).map(|rest| left = rest).is_none());
    Some(drawn.map_or(best, |(slot, _)| slot))
}

#[derive(Clone, Copy)]
struct Load {
    pending: u64,
    weight: u64,
}

impl Load {
    fn of(instance: &Instance) -> Self {
        Self { pending: instance.vitals.in_flight().into(), weight: instance.weight.into() }
    }

    fn is_below(self, other: Self) -> bool {
        self.pending * other.weight < other.pending * self.weight
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::testing::{Bench, pool, refusal};

    #[test]
    fn the_least_loaded_for_its_weight_is_taken() {
        let bench = Bench::new("least_request", json!({}), pool(&[1, 4, 1, 0]));
        let _busy = bench.busy(&[2, 5, 3, 0]);
        assert_eq!(bench.picks(20), [1; 20]);
    }

    #[test]
    fn all_of_a_large_pool_are_compared_if_so_configured() {
        let bench = Bench::new("least_request", json!({ "choices": "all" }), pool(&[1; 300]));
        let _busy = bench.busy(&(0..300).map(|slot| u32::from(slot != 123)).collect::<Vec<_>>());
        assert_eq!(bench.picks(20), [123; 20]);
    }

    #[test]
    fn only_the_tied_are_drawn() {
        let bench = Bench::new("least_request", json!({}), pool(&[1, 1, 3, 1]));
        let _busy = bench.busy(&[1, 0, 0, 1]);
        let picks = bench.picks(4000);
        let heavy = picks.iter().filter(|&&slot| slot == 2).count();
        assert!(picks.iter().all(|slot| [1, 2].contains(slot)) && (2850..3150).contains(&heavy), "{heavy}");
    }

    #[test]
    fn a_few_choices_rarely_meet_the_most_loaded() {
        let bench = Bench::new("least_request", json!({ "choices": 3 }), pool(&[1; 10]));
        let _busy = bench.busy(&[9, 1, 1, 1, 1, 1, 1, 1, 1, 1]);
        // All three draws have to be the loaded one: 1 of 1,000.
        assert!(bench.picks(10_000).iter().filter(|&&slot| slot == 0).count() < 40);
    }

    #[test]
    fn refusals_say_what_was_expected() {
        for choices in [json!(1), json!(65), json!(-2), json!("most")] {
            let wanted = format!("choices: expected 2 to 64 or `all`, found {choices}");
            assert_eq!(refusal("least_request", json!({ "choices": choices })), wanted);
        }
        assert!(
            refusal("least_request", json!({ "choice": 2 })).contains("unknown field `choice`, expected `choices`")
        );
    }
}
