//! Time of a whole decision: route, subset, pool, instance. The bars: 300 ns with 10 routes and 3 instances, 1 us with
//! 10,000 routes and 1,000 instances.

#![expect(clippy::unwrap_used, reason = "a benchmark may panic")]

#[path = "../tests/common/mod.rs"]
mod common;

use std::hint::black_box;
use std::time::Instant;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use http::HeaderMap;

fn decisions(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("decide");
    for (routes, instances) in [(10, 3), (10_000, 1_000)] {
        let snapshot = common::snapshot(routes, instances);
        let requests: Vec<(HeaderMap, String)> = (0..64)
            .map(|user| {
                let mut headers = HeaderMap::new();
                headers.insert("accept", "*/*".parse().unwrap());
                headers.insert("user-agent", "curl/8".parse().unwrap());
                headers.insert("x-user-id", format!("user-{user}").parse().unwrap());
                (headers, format!("/api/{}/users/{user}", user * 149 % routes))
            })
            .collect();
        let (mut rng, now, mut turn) = (common::rng(), Instant::now(), 0);
        group.bench_function(BenchmarkId::new(format!("{routes} routes"), instances), |bencher| {
            bencher.iter(|| {
                turn = (turn + 1) % requests.len();
                let (headers, path) = &requests[turn];
                let decision = common::decide(&snapshot, common::view(headers, path), now, &mut rng, &mut ());
                black_box(decision.is_some_and(|(_, picked)| picked.is_ok()))
            });
        });
    }
}

criterion_group!(benches, decisions);
criterion_main!(benches);
