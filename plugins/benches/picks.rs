//! Time of one pick, per balancer and size of the pool: equal and unequal weights, whole and half the pool.

#![expect(clippy::unwrap_used, reason = "a benchmark may panic")]

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use serde_json::json;
use serin_core::candidates::Candidates;
use serin_core::plugin::Node;
use serin_plugins::laws;

fn picks(criterion: &mut Criterion) {
    let catalogue = serin_plugins::builtin();
    for name in catalogue.balancers.names() {
        let mut group = criterion.benchmark_group(name);
        for (n, weights) in [(3, "equal"), (3, "unequal"), (1000, "equal"), (1000, "unequal")] {
            let weight = |slot: u32| if weights == "equal" { 100 } else { 50 + slot * 37 % 100 };
            let pool = laws::pool(&(0..n).map(weight).collect::<Vec<_>>());
            let pick = catalogue.balancers.build(name, json!({}), &Node::default()).unwrap().unwrap().prepare(&pool);
            for left in ["whole", "half"] {
                let mut candidates = Candidates::new(&pool);
                candidates.retain(|slot, _| left == "whole" || slot % 2 == 0);
                let mut rng = SmallRng::seed_from_u64(1);
                laws::with_cx(&mut rng, 0, &[], |cx| {
                    group.bench_function(BenchmarkId::new(format!("{weights}/{left}"), n), |bencher| {
                        bencher.iter(|| {
                            cx.user_hash = cx.rng.next_u64();
                            pick.pick(cx, &candidates)
                        });
                    });
                });
            }
        }
    }
}

criterion_group!(benches, picks);
criterion_main!(benches);
