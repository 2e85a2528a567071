//! No balancer allocates when it picks, on a whole pool or on what narrows have left of it.

use rand::SeedableRng;
use rand::rngs::StdRng;
use serde_json::json;
use serin_core::candidates::Candidates;
use serin_core::plugin::Node;
use serin_plugins::laws;

#[test]
fn no_pick_allocates() {
    let catalogue = serin_plugins::builtin();
    let pool = laws::pool(&(0..1000).map(|slot| slot % 5 * 20).collect::<Vec<_>>());
    for name in catalogue.balancers.names() {
        let confs = match name {
            "ring_hash" | "maglev" => vec![json!({}), json!({ "bounded_load": "125%" })],
            "least_request" => vec![json!({}), json!({ "choices": "all" })],
            _ => vec![json!({})],
        };
        for conf in confs {
            let pick = catalogue.balancers.build(name, conf.clone(), &Node::default()).unwrap().unwrap().prepare(&pool);
            for step in [1, 2, 400] {
                let mut candidates = Candidates::new(&pool);
                candidates.retain(|slot, _| (slot + 3) % step == 0);
                let mut rng = StdRng::seed_from_u64(1);
                let counted = allocation_counter::measure(|| {
                    for user in 0..50 {
                        let picked = laws::with_cx(&mut rng, user << 50, &[], |cx| pick.pick(cx, &candidates));
                        assert!(picked.is_some());
                    }
                });
                assert_eq!(counted.count_total, 0, "{name} {conf}, every {step}");
            }
        }
    }
}

#[test]
fn no_narrow_allocates() {
    let catalogue = serin_plugins::builtin();
    let mut pool = laws::pool(&[100; 1000]);
    pool.iter_mut().step_by(3).for_each(|instance| instance.zone = Some("a".into()));
    let node = Node { zone: Some("a".into()), ..Node::default() };
    for name in catalogue.narrows.names() {
        let conf = match name {
            "labels" => json!({ "version": "v1" }),
            "ip_family" => json!({ "only": "v4" }),
            _ => json!({}),
        };
        let narrow = catalogue.narrows.build(name, conf, &node).unwrap().unwrap().prepare(&pool);
        let mut rng = StdRng::seed_from_u64(1);
        let counted = allocation_counter::measure(|| {
            let mut candidates = Candidates::new(&pool);
            laws::with_cx(&mut rng, 0, &[5, 6], |cx| narrow.narrow(cx, &mut candidates));
            assert!(!candidates.is_empty());
        });
        assert_eq!(counted.count_total, 0, "{name}");
    }
}
