//! Fault 30: millions of keys stay within the memory that `max_keys` bounds.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{HeaderMap, Method};
use serin_core::limit::{KeyPart, Limiter, Quota, Rule, Store, Subject};
use serin_core::request::RequestView;

/// Bytes per key, table growth included.
const BYTES_PER_KEY: u64 = 40;

fn limiter(max_keys: usize, quota: Quota, now: Instant) -> Limiter {
    let rule = Rule {
        name: "per-client".into(),
        key: vec![KeyPart::ClientIp],
        quota,
        overrides: HashMap::new(),
        cost: None,
        dry_run: false,
    };
    Limiter { rule, store: Arc::new(Store::new(max_keys, 7, now)) }
}

/// Sends one request of each of `keys` clients; how many were let through and how many found the store full.
fn flood(limiter: &Limiter, keys: u32, now: Instant) -> (usize, usize) {
    let headers = HeaderMap::new();
    let (mut within, mut full) = (0, 0);
    for key in 0..keys {
        let request = RequestView {
            method: &Method::GET,
            host: "",
            path: "/",
            query: None,
            headers: &headers,
            client_ip: Ipv4Addr::from_bits(key).into(),
            from_trusted_proxy: false,
            claims: None,
            unix_time: 0,
        };
        let standing = limiter.take(&Subject { request, route: "", service: "", subset: "" }, now);
        within += usize::from(standing.within);
        full += usize::from(standing.full);
    }
    (within, full)
}

#[test]
fn five_million_keys_stay_within_the_bound() {
    for (keys, max_keys) in [(5_000_000, 5_100_000), (500_000, 100_000)] {
        let now = Instant::now();
        let mut seen = (0, 0);
        let mut held = 0;
        let memory = allocation_counter::measure(|| {
            let quota = Quota::new(1, Duration::from_secs(3_600), 1).unwrap();
            let limiter = limiter(max_keys, quota, now);
            seen = flood(&limiter, keys, now);
            held = limiter.store.len();
        });
        let bound = max_keys as u64 * BYTES_PER_KEY;
        println!("{max_keys}: {held} keys in {} bytes, {seen:?}", memory.bytes_max);
        assert!(memory.bytes_max <= bound, "{} bytes for at most {max_keys} keys", memory.bytes_max);
        // One shared bucket per shard on top of the bound.
        assert!(held <= max_keys + 64, "{held}");
        let sent = keys as usize;
        match sent <= max_keys {
            true => assert_eq!(seen, (sent, 0)),
            false => assert!(seen.0 < max_keys + 200 && seen.1 > sent - max_keys - 200, "{seen:?}"),
        }
    }
}
