//! Runs every balancer of the catalogue through the laws.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};
use serin_core::chain::Balancer;
use serin_core::plugin::Node;
use serin_plugins::laws::{self, Case, Shares};

/// What every balancer promises, with every configuration that has its own path.
fn promises() -> Vec<(&'static str, Value, Shares)> {
    let by_weight = Shares::ByWeight { tolerance: 0.0 };
    let ring = Shares::ByWeight { tolerance: 0.4 };
    let maglev = Shares::ByWeight { tolerance: 0.02 };
    let equal = Shares::Equal { tolerance: 0.0 };
    vec![
        ("adaptive", json!({}), by_weight),
        ("first", json!({}), Shares::Free),
        ("least_request", json!({}), by_weight),
        ("least_request", json!({ "choices": 2 }), by_weight),
        ("least_request", json!({ "choices": "all" }), by_weight),
        ("maglev", json!({}), maglev),
        ("maglev", json!({ "bounded_load": "125%", "table_size": 1009 }), Shares::Free),
        ("p2c", json!({}), by_weight),
        ("peak_ewma", json!({}), by_weight),
        ("random", json!({}), equal),
        ("ring_hash", json!({}), ring),
        ("ring_hash", json!({ "bounded_load": "125%", "points": 10 }), Shares::Free),
        ("round_robin", json!(null), equal),
        ("weighted_random", json!({}), by_weight),
        ("weighted_round_robin", json!({}), by_weight),
    ]
}

fn build(name: &str, conf: &Value) -> Result<Arc<dyn Balancer>, String> {
    let built = serin_plugins::builtin().balancers.build(name, conf.clone(), &Node::default());
    built.ok_or("unknown")?.map_err(|error| error.to_string())
}

#[test]
fn every_balancer_has_a_promise() {
    let mut promised: Vec<_> = promises().into_iter().map(|(name, ..)| name).collect();
    promised.dedup();
    assert!(serin_plugins::builtin().balancers.names().eq(promised));
}

#[test]
fn every_balancer_obeys_the_laws() {
    for (name, conf, shares) in promises() {
        let checked = build(name, &conf).and_then(|balancer| laws::check(&*balancer, shares));
        checked.unwrap_or_else(|broken| panic!("{name} {conf} {broken:.400}"));
    }
}

fn case() -> impl Strategy<Value = Case> {
    let weight = prop_oneof![2 => Just(0), 4 => 1..200u32, 1 => any::<u32>()];
    (1..90usize).prop_flat_map(move |n| {
        let slots = proptest::collection::vec(0..n, 0..n);
        let few = proptest::collection::vec(0..n, 0..4);
        let weights = proptest::collection::vec(weight.clone(), n);
        let pending = proptest::collection::vec(0..6u32, n);
        (weights, slots, few, pending, any::<u64>()).prop_map(|(weights, without, tried, pending, seed)| Case {
            weights,
            without,
            tried,
            pending,
            seed,
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_balancer_obeys_the_laws_in_any_case(case in case()) {
        for (name, conf, _) in promises() {
            let held = build(name, &conf).and_then(|balancer| laws::holds(&*balancer, &case));
            prop_assert!(held.is_ok(), "{name} {conf} {held:?}");
        }
    }
}

/// A law that cannot be broken is none.
mod offenders {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use serin_core::candidates::{Candidates, Slot};
    use serin_core::chain::{Pick, PickCx};
    use serin_core::instance::Instance;

    use super::*;

    #[derive(Clone)]
    struct Offender(fn(&mut PickCx<'_>, &Candidates<'_>) -> Option<Slot>);

    impl Balancer for Offender {
        fn prepare(&self, _pool: &[Instance]) -> Arc<dyn Pick> {
            Arc::new(self.clone())
        }
    }

    impl Pick for Offender {
        fn pick(&self, cx: &mut PickCx<'_>, candidates: &Candidates<'_>) -> Option<Slot> {
            (self.0)(cx, candidates)
        }
    }

    #[test]
    fn are_found_out() {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let cases = [
            (Offender(|_, _| None), "picks nothing though"),
            (Offender(|_, c| (!c.is_empty()).then_some(0)), "which is no candidate"),
            (Offender(|_, c| c.next_from(COUNT.fetch_add(1, Relaxed))), "not pick the same again"),
            (Offender(|cx, c| c.nth(cx.rng.next_u64() as usize % c.len().max(1))), "times instead of"),
        ];
        for (offender, wanted) in cases {
            let broken = laws::check(&offender, Shares::ByWeight { tolerance: 0.0 }).unwrap_err();
            assert!(broken.contains(wanted), "{wanted}: {broken:.400}");
        }
    }
}
