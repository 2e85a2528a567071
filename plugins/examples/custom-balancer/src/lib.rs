//! Example of a balancer from outside Serin's repository. It needs serin-core only; see `main.rs` for a gateway with it.
//!
//! `sticky_least` keeps every user with one instance, for the sake of its caches, as long as that instance is not much
//! busier than the least busy one:
//!
//! ```yaml
//! balancer: [ { sticky_least: { slack: 8 } } ]
//! ```

use std::sync::Arc;

use serde::Deserialize;
use serin_core::candidates::{Candidates, Slot};
use serin_core::chain::{Balancer, Pick, PickCx};
use serin_core::instance::Instance;
use serin_core::plugin::{BuildError, Node, Plugin};

/// Takes the user's own instance, or the least busy one if the own has too many more requests in flight. Weights only
/// matter in that an instance of weight 0 gets nothing.
#[derive(Clone, Copy, Debug)]
pub struct StickyLeast {
    slack: u32,
}

/// Configuration.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Conf {
    /// How many more requests than the least busy instance the user's own may have in flight, from 1 [8].
    #[serde(default = "default_slack")]
    pub slack: u32,
}

fn default_slack() -> u32 {
    8
}

impl Plugin for StickyLeast {
    const NAME: &'static str = "sticky_least";
    type Conf = Conf;
    type Made = dyn Balancer;

    fn build(conf: Conf, _node: &Node) -> Result<Arc<dyn Balancer>, BuildError> {
        match conf.slack {
            0 => Err(BuildError("slack: expected at least 1, found 0".into())),
            slack => Ok(Arc::new(Self { slack })),
        }
    }
}

impl Balancer for StickyLeast {
    fn prepare(&self, pool: &[Instance]) -> Arc<dyn Pick> {
        let hashes = pool.iter().map(|instance| fnv1a(instance.address.to_string().as_bytes())).collect();
        Arc::new(Prepared { slack: self.slack, hashes })
    }
}

/// Hashes the addresses beforehand, as a pick must not allocate.
struct Prepared {
    slack: u32,
    hashes: Box<[u64]>,
}

impl Pick for Prepared {
    fn pick(&self, cx: &mut PickCx<'_>, candidates: &Candidates<'_>) -> Option<Slot> {
        let pending = |slot: Slot| candidates.instance(slot).vitals.in_flight();
        // Rendezvous hashing: when an instance goes, only its own users move.
        let own = candidates.slots().max_by_key(|&slot| mix(cx.user_hash ^ self.hashes[slot]))?;
        let least = candidates.slots().min_by_key(|&slot| pending(slot))?;
        Some(if pending(own) > pending(least).saturating_add(self.slack) { least } else { own })
    }
}

/// FNV-1a: the same on every gateway and with every compiler.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Finaliser of MurmurHash3.
fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let x = (x ^ (x >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ (x >> 33)
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::StdRng;
    use serde_json::json;
    use serin_core::instance::InFlight;
    use serin_plugins::laws::{self, Shares};

    use super::*;

    fn pick(slack: u32, pool: &[Instance], user_hash: u64) -> Slot {
        let pick = StickyLeast { slack }.prepare(pool);
        laws::with_cx(&mut StdRng::seed_from_u64(0), user_hash, &[], |cx| {
            pick.pick(cx, &Candidates::new(pool)).unwrap()
        })
    }

    #[test]
    fn obeys_the_laws() {
        laws::check(&StickyLeast { slack: 8 }, Shares::Equal { tolerance: 0.05 }).unwrap();
    }

    #[test]
    fn a_user_stays_until_the_own_instance_is_too_busy() {
        let pool = laws::pool(&[100; 4]);
        let own = pick(2, &pool, 77);
        let mut held = Vec::new();
        for _ in 0..3 {
            assert_eq!(pick(2, &pool, 77), own);
            held.push(InFlight::start(&pool[own].vitals));
        }
        assert_ne!(pick(2, &pool, 77), own);
        held.pop();
        assert_eq!(pick(2, &pool, 77), own);
    }

    #[test]
    fn stands_beside_the_built_in_ones() {
        let catalogue = serin_plugins::builtin().with_balancer::<StickyLeast>();
        assert!(catalogue.balancers.knows("sticky_least") && catalogue.balancers.knows("p2c"));
        let build = |conf| catalogue.balancers.build("sticky_least", conf, &Node::default()).unwrap().map(|_| ());
        assert!(build(json!({})).is_ok() && build(json!({ "slack": 3 })).is_ok());
        assert_eq!(build(json!({ "slack": 0 })).unwrap_err().to_string(), "slack: expected at least 1, found 0");
        assert!(build(json!({ "slak": 3 })).unwrap_err().to_string().contains("expected `slack`"));
    }
}
