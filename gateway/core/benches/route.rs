//! Finding a route, and indexing the routes of a document.
#![expect(clippy::expect_used, reason = "a bench that cannot be set up has nothing to measure")]

use std::hint::black_box;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use http::{HeaderMap, HeaderValue, Method};
use serin_core::matcher::{Condition, PathMatch, ValueMatch};
use serin_core::request::RequestView;
use serin_core::route::{Action, HeaderEdits, HostMatch, Rewrite, Route, RouteTable};

/// `count` routes: on one host or spread over a thousand, of each kind of path, a third of them with conditions.
fn routes(count: usize, hosts: usize) -> Vec<Route> {
    (0..count)
        .map(|i| {
            let path = match i % 10 {
                0..=4 => PathMatch::prefix(&format!("/api/v{}/service-{i}", i % 3)),
                5 | 6 => PathMatch::exact(&format!("/api/v{}/status-{i}", i % 3)),
                7 | 8 => PathMatch::template(&format!("/api/v1/shop-{i}/{{id}}/orders")),
                _ => PathMatch::regex(&format!("/api/v1/re-{i}/[0-9]+")),
            };
            let host = if i % 4 == 3 {
                format!("*.h{}.example.org", i % hosts)
            } else {
                format!("h{}.example.com", i % hosts)
            };
            let conditions = match i % 3 {
                0 => vec![
                    Condition::Method(vec![Method::GET, Method::POST]),
                    Condition::Header(http::header::ACCEPT, ValueMatch::Present(true)),
                ],
                _ => Vec::new(),
            };
            Route {
                name: format!("route-{i}").into(),
                hosts: vec![HostMatch::parse(&host).expect("a host")],
                path: path.expect("a path"),
                conditions,
                action: Action::Service(i),
                rewrite: Rewrite::default(),
                request_headers: HeaderEdits::default(),
                response_headers: HeaderEdits::default(),
            }
        })
        .collect()
}

/// One request for each of `count` routes, as host and path, in an order that no cache foresees.
fn targets(count: usize, hosts: usize) -> Vec<(String, String)> {
    let target = |i: usize| {
        let path = match i % 10 {
            0..=4 => format!("/api/v{}/service-{i}/users/7", i % 3),
            5 | 6 => format!("/api/v{}/status-{i}", i % 3),
            7 | 8 => format!("/api/v1/shop-{i}/4711/orders"),
            _ => format!("/api/v1/re-{i}/4711"),
        };
        let host =
            if i % 4 == 3 { format!("eu.h{}.example.org", i % hosts) } else { format!("h{}.example.com", i % hosts) };
        (host, path)
    };
    (0..count).map(|i| target(i * 7919 % count)).collect()
}

fn bench(c: &mut Criterion) {
    let headers = HeaderMap::from_iter([
        (http::header::ACCEPT, HeaderValue::from_static("*/*")),
        (http::header::USER_AGENT, HeaderValue::from_static("bench")),
    ]);
    for (count, hosts) in [(10, 1), (10_000, 1), (10_000, 1_000)] {
        let table = RouteTable::new(routes(count, hosts));
        let targets = targets(count, hosts);
        let views: Vec<_> = targets
            .iter()
            .map(|(host, path)| RequestView {
                method: &Method::GET,
                host,
                path,
                query: None,
                headers: &headers,
                client_ip: [127, 0, 0, 1].into(),
                from_trusted_proxy: false,
                claims: None,
                unix_time: 0,
            })
            .collect();
        assert!(views.iter().all(|view| table.find(view).is_some()), "every request has its route");
        // One request of each kind of path, and one for each route: there every node is found cold.
        for (kind, views) in [("10 requests", &views[..10]), ("a request per route", &views)] {
            let mut next = views.iter().cycle();
            c.bench_function(&format!("find/{count} routes/{hosts} hosts/{kind}"), |b| {
                b.iter(|| table.find(black_box(next.next().expect("a cycle"))));
            });
        }
        c.bench_function(&format!("build/{count} routes/{hosts} hosts"), |b| {
            b.iter_batched(|| table.routes().to_vec(), RouteTable::new, BatchSize::LargeInput);
        });
    }
}

criterion_group!(benches, bench);
criterion_main!(benches);
