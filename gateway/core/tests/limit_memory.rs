//! Fault 30: millions of keys stay within the memory that `max_keys` bounds.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{HeaderMap, Method};
use serin_core::limit::{Answer, Fleet, Hold, KeyPart, Leases, Limiter, Prepared, Quota, Rule, Store, Subject, judge};
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
        fail_closed: false,
    };
    Limiter { rule, store: Arc::new(Store::new(max_keys, 7, now)), leases: None }
}

fn request<R>(headers: &HeaderMap, client: u32, act: impl FnOnce(&Subject<'_>) -> R) -> R {
    let request = RequestView {
        method: &Method::GET,
        host: "",
        path: "/",
        query: None,
        headers,
        client_ip: Ipv4Addr::from_bits(client).into(),
        from_trusted_proxy: false,
        claims: None,
        unix_time: 0,
    };
    act(&Subject { request, route: "", service: "", subset: "" })
}

/// Sends one request of each of `keys` clients; how many were let through and how many found the store full.
fn flood(limiter: &Limiter, keys: u32, now: Instant) -> (usize, usize) {
    let headers = HeaderMap::new();
    let (mut within, mut full) = (0, 0);
    for key in 0..keys {
        let standing = request(&headers, key, |subject| limiter.take(subject, now, None));
        within += usize::from(standing.within);
        full += usize::from(standing.full);
    }
    (within, full)
}

/// What is known of the keys of a limit that a fleet shares is bounded as well, and what was leased is spent without
/// asking for memory.
#[test]
fn leases_stay_within_the_bound_and_are_spent_without_memory() {
    const BYTES_PER_LEASE: u64 = 160;
    let (now, headers, max_keys) = (Instant::now(), HeaderMap::new(), 200_000);
    let memory = allocation_counter::measure(|| {
        let fleet = Arc::new(Fleet::new(NonZeroU32::MIN));
        fleet.set_up(true);
        let leases = Arc::new(Leases::new(fleet, b"rule", max_keys, 7, now));
        let mut limiter = limiter(max_keys, Quota::new(1_000, Duration::from_secs(1), 1_000).unwrap(), now);
        limiter.leases = Some(Arc::clone(&leases));
        for key in 0..1_000_000 {
            let prepared = request(&headers, key, |subject| limiter.prepare(subject, now));
            if let Prepared::Later(_, Some(ask)) = prepared {
                let answer = Answer { granted: 100, whole_in: Duration::from_millis(100) };
                leases.settle(&ask, Some(answer), now);
            }
        }
        assert!(leases.len() <= max_keys + 64, "{}", leases.len());
        let spent = allocation_counter::measure(|| {
            for _ in 0..50 {
                request(&headers, 5, |subject| {
                    let Prepared::Now(hold @ Hold::Spent { .. }, _) = limiter.prepare(subject, now) else { panic!() };
                    assert!(judge(&[&limiter], &[Some(hold)], subject, now, false).refused_by.is_none());
                });
            }
        });
        assert_eq!(spent.count_total, 0);
    });
    let bound = max_keys as u64 * BYTES_PER_LEASE;
    println!("{max_keys} keys in {} bytes", memory.bytes_max);
    assert!(memory.bytes_max <= bound, "{} bytes", memory.bytes_max);
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
