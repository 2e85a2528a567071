//! `maglev`: consistent hashing by the look-up table of Maglev (Eisenbud et al., NSDI 2016): even shares and a look-up
//! in O(1), for slightly more moved keys than a ring when instances come and go.

use std::sync::Arc;

use serde::Deserialize;
use serin_core::candidates::{Candidates, Slot};
use serin_core::chain::{Balancer, Pick, PickCx};
use serin_core::instance::Instance;
use serin_core::plugin::{BuildError, Node, Plugin};

use crate::affinity::{Affinity, hash};
use crate::key::{Key, mix};
use crate::overload::Factor;

/// Takes the candidate in the entry of the key's hash. Instances have entries in proportion to their weights.
#[derive(Debug)]
pub struct Maglev(Conf);

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
    /// Entries of the table, a prime up to 5,000,011 as in Envoy [65537]; should be 100 times the instances.
    #[serde(default = "default_size")]
    pub table_size: u64,
}

fn default_size() -> u64 {
    65_537
}

impl Plugin for Maglev {
    const NAME: &'static str = "maglev";
    type Conf = Conf;
    type Made = dyn Balancer;

    fn build(conf: Conf, _node: &Node) -> Result<Arc<dyn Balancer>, BuildError> {
        let size = conf.table_size;
        if size > 5_000_011 || !is_prime(size) {
            return Err(BuildError(format!("table_size: expected a prime up to 5000011, found {size}")));
        }
        Ok(Arc::new(Self(conf)))
    }
}

fn is_prime(n: u64) -> bool {
    n >= 2 && (2..).take_while(|d| d * d <= n).all(|d| !n.is_multiple_of(d))
}

impl Balancer for Maglev {
    fn prepare(&self, pool: &[Instance]) -> Arc<dyn Pick> {
        let affinity = Affinity::new(&self.0.key, self.0.bounded_load, pool);
        Arc::new(Table { affinity, entries: entries(pool, self.0.table_size) })
    }
}

struct Table {
    affinity: Affinity,
    entries: Box<[u32]>,
}

impl Pick for Table {
    fn pick(&self, cx: &mut PickCx<'_>, candidates: &Candidates<'_>) -> Option<Slot> {
        self.affinity.pick(cx, candidates, |key| {
            // The key again and again hashed: what an instance that is no candidate leaves goes to all the others.
            let hashes = std::iter::successors(Some(key), |&hash| Some(mix(hash.wrapping_add(1))));
            hashes.map_while(|hash| {
                let entry = (u128::from(hash) * self.entries.len() as u128) >> 64;
                self.entries.get(entry as usize).map(|&slot| slot as Slot)
            })
        })
    }
}

/// One instance's preferences: a permutation of the entries, and how many turns it has had for its weight.
struct Turns {
    slot: u32,
    weight: u64,
    next: u64,
    skip: u64,
    due: u64,
}

/// Lets the instances take turns at claiming the free entry that they prefer, the lighter ones missing some turns.
fn entries(pool: &[Instance], size: u64) -> Box<[u32]> {
    const FREE: u32 = u32::MAX;
    let turns_of = |(slot, instance): (usize, &Instance)| Turns {
        slot: slot as u32,
        weight: instance.weight.into(),
        next: hash(instance, 0) % size,
        skip: hash(instance, 1) % (size - 1).max(1) + 1,
        due: 0,
    };
    let mut turns: Vec<_> = pool.iter().enumerate().filter(|(_, i)| i.weight > 0).map(turns_of).collect();
    let Some(heaviest) = turns.iter().map(|turns| turns.weight).max() else { return Box::default() };
    let mut entries = vec![FREE; size as usize];
    let mut left = size;
    for round in 1.. {
        for turns in turns.iter_mut().filter(|turns| round * turns.weight >= turns.due) {
            while entries[turns.next as usize] != FREE {
                turns.next = (turns.next + turns.skip) % size;
            }
            entries[turns.next as usize] = turns.slot;
            turns.due += heaviest;
            left -= 1;
            if left == 0 {
                return entries.into();
            }
        }
    }
    entries.into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::entries;
    use crate::testing::{Bench, moved, pool, refusal};

    fn maglev(weights: &[u32]) -> Bench {
        Bench::new("maglev", json!({}), pool(weights))
    }

    #[test]
    fn entries_are_in_proportion_to_the_weights() {
        for weights in [vec![100; 3], vec![1, 2, 7], vec![0, 5, 1, 1], vec![1; 1000], vec![u32::MAX, 1 << 30]] {
            let (table, total) = (entries(&pool(&weights), 65_537), weights.iter().map(|&w| f64::from(w)).sum::<f64>());
            for (slot, &weight) in weights.iter().enumerate() {
                let found = table.iter().filter(|&&entry| entry as usize == slot).count() as f64;
                let wanted = f64::from(weight) / total * 65_537.0;
                assert!((found - wanted).abs() <= 2.0, "{slot} of {}: {found} for {wanted}", weights.len());
            }
        }
    }

    #[test]
    fn little_more_moves_than_the_keys_of_a_removed_instance() {
        for (n, gone) in [(3, 1), (10, 3), (100, 50)] {
            let mut left = pool(&vec![100; n]);
            left.remove(gone);
            let moved = moved(&maglev(&vec![100; n]), &Bench::new("maglev", json!({}), left), 20_000);
            let wanted = 1.0 / n as f64;
            assert!((0.85 * wanted..wanted + 0.05).contains(&moved.share), "{n}: {}", moved.share);
            assert!(moved.needlessly < 0.03, "{n}: {}", moved.needlessly);
        }
    }

    #[test]
    fn narrowing_moves_only_the_keys_of_what_it_takes_away() {
        let moved = moved(&maglev(&[100; 10]), &maglev(&[100; 10]).without(&[3]), 20_000);
        assert!(moved.needlessly == 0.0 && (0.09..0.11).contains(&moved.share), "{}", moved.share);
    }

    #[test]
    fn a_hot_key_spills_at_the_bound() {
        let bench = Bench::new("maglev", json!({ "bounded_load": "150%" }), pool(&[1; 100]));
        let _held: Vec<_> = (0..1000).map(|_| bench.send_for(42)).collect();
        let most = bench.pending().into_iter().max();
        assert!(most.is_some_and(|most| (10..=17).contains(&most)), "{most:?}");
    }

    #[test]
    fn refusals_say_what_was_expected() {
        for size in [0, 1, 65_536, 5_000_077] {
            let wanted = format!("table_size: expected a prime up to 5000011, found {size}");
            assert_eq!(refusal("maglev", json!({ "table_size": size })), wanted);
        }
    }
}
