//! The strict check of a request's head, which every request over HTTP/1 goes through.
#![expect(clippy::expect_used, reason = "a bench that cannot be set up has nothing to measure")]

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use serin_core::path::{self, PathPolicy};
use serin_core::strict::{self, Policy};

/// What a browser sends, about 500 bytes.
const BROWSER: &str = "GET /api/users/42?expand=orders HTTP/1.1\r\n\
    Host: api.example.com\r\n\
    User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0\r\n\
    Accept: application/json, text/plain, */*\r\n\
    Accept-Language: en-US,en;q=0.5\r\n\
    Accept-Encoding: gzip, deflate, br, zstd\r\n\
    Origin: https://app.example.com\r\n\
    Referer: https://app.example.com/orders\r\n\
    X-User-Id: 1234567890\r\n\
    Cookie: uid=8d2f4e6a0b1c3d5e7f90; theme=dark; consent=yes\r\n\
    Connection: keep-alive\r\n\r\n";
/// What `wrk` sends.
const SHORT: &str = "GET /api/users/42 HTTP/1.1\r\nHost: api.example.com\r\n\r\n";

fn heads(bench: &mut Criterion) {
    let policy = Policy::default();
    let mut group = bench.benchmark_group("head");
    for (name, head) in [("browser", BROWSER), ("short", SHORT)] {
        group.throughput(Throughput::Bytes(head.len() as u64));
        group.bench_function(name, |b| {
            b.iter(|| {
                let bytes = black_box(head.as_bytes());
                let end = strict::end(bytes, 0, &policy.limits).expect("sound").expect("whole");
                black_box(strict::check(&bytes[..end], &policy).expect("sound"))
            });
        });
    }
    group.finish();
}

fn paths(bench: &mut Criterion) {
    let policy = PathPolicy::default();
    for (name, path) in [("path/normal", "/api/users/42/orders"), ("path/dots", "/api//users/%34%32/./x/../orders")] {
        bench.bench_function(name, |b| b.iter(|| black_box(path::normal(black_box(path), &policy)).map(drop)));
    }
}

criterion_group!(benches, heads, paths);
criterion_main!(benches);
