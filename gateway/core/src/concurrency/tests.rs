use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;

/// An upstream with a queue, in made-up time: requests come at random, wait for one of so many workers, and take a
/// random time around `service`.
struct Upstream {
    start: Instant,
    /// Seconds since the start.
    now: f64,
    workers: usize,
    service: f64,
    /// When each worker is free, in nanoseconds since the start.
    free: BinaryHeap<Reverse<u64>>,
    /// When answers come, and when their requests were sent.
    answers: BinaryHeap<Reverse<(u64, u64)>>,
    permits: Vec<Permit>,
    rng: StdRng,
}

/// What came of a stretch of time.
#[derive(Debug)]
struct Seen {
    answered_per_second: f64,
    refused: u32,
    latency: f64,
}

const NANOS: f64 = 1e9;

impl Upstream {
    fn new(workers: usize, service: f64) -> Self {
        Self {
            start: Instant::now(),
            now: 0.0,
            workers,
            service,
            free: (0..workers).map(|_| Reverse(0)).collect(),
            answers: BinaryHeap::new(),
            permits: Vec::new(),
            rng: StdRng::seed_from_u64(7),
        }
    }

    fn capacity(&self) -> f64 {
        self.workers as f64 / self.service
    }

    /// Sends `rate` requests a second for so many seconds.
    fn run(&mut self, limit: &Arc<Concurrency>, rate: f64, seconds: f64) -> Seen {
        let (mut answered, mut refused, mut latencies) = (0, 0, 0.0);
        let end = self.now + seconds;
        while self.now < end {
            self.now += -(1.0 - self.rng.random::<f64>()).ln() / rate;
            let now = (self.now * NANOS) as u64;
            while self.answers.peek().is_some_and(|Reverse((at, _))| *at <= now) {
                let Some(Reverse((at, sent))) = self.answers.pop() else { break };
                drop(self.permits.pop());
                let latency = Duration::from_nanos(at - sent);
                limit.sample(self.start + Duration::from_nanos(at), latency, false);
                answered += 1;
                latencies += latency.as_secs_f64();
            }
            let Some(permit) = limit.admit(false) else {
                refused += 1;
                continue;
            };
            self.permits.push(permit);
            let Some(Reverse(free)) = self.free.pop() else { unreachable!() };
            let took = self.service * (0.5 + self.rng.random::<f64>());
            let done = free.max(now) + (took * NANOS) as u64;
            self.free.push(Reverse(done));
            self.answers.push(Reverse((done, now)));
        }
        Seen {
            answered_per_second: f64::from(answered) / seconds,
            refused,
            latency: latencies / f64::from(answered.max(1)),
        }
    }
}

fn limit() -> Arc<Concurrency> {
    Arc::new(Concurrency::new(10, 2_000))
}

/// Workers and seconds per request of several upstreams.
const UPSTREAMS: [(usize, f64); 4] = [(20, 0.01), (100, 0.05), (16, 0.2), (200, 0.2)];

#[test]
fn three_times_the_capacity_costs_next_to_none_of_it() {
    for (workers, service) in UPSTREAMS {
        let (limit, mut upstream) = (limit(), Upstream::new(workers, service));
        let rate = 3.0 * upstream.capacity();
        upstream.run(&limit, rate, 30.0);
        // For an hour, so that the baseline would have had the time to learn the queue.
        let samples = if workers == 16 { 120 } else { 3 };
        for _ in 0..samples {
            let seen = upstream.run(&limit, rate, 30.0);
            let goodput = seen.answered_per_second / upstream.capacity();
            assert!(goodput > 0.9, "{workers} x {service}: {goodput} at a limit of {}: {seen:?}", limit.limit());
            assert!(seen.latency < 4.0 * service, "{workers} x {service}: {seen:?} at {}", limit.limit());
            assert!(seen.refused > 0);
        }
    }
}

#[test]
fn nothing_is_refused_below_the_capacity() {
    for (workers, service) in UPSTREAMS {
        let (limit, mut upstream) = (limit(), Upstream::new(workers, service));
        let rate = 0.7 * upstream.capacity();
        let first = upstream.run(&limit, rate, 5.0).refused;
        // The widest has more in flight than the limit begins with, until it has doubled a few times.
        let allowed = if workers > 100 { rate } else { 0.0 };
        assert!(f64::from(first) <= allowed, "{workers} x {service}: {first}");
        let seen = upstream.run(&limit, rate, 30.0);
        assert_eq!(seen.refused, 0, "{workers} x {service} at a limit of {}: {seen:?}", limit.limit());
    }
}

#[test]
fn the_limit_follows_the_capacity() {
    let (limit, mut upstream) = (limit(), Upstream::new(100, 0.02));
    upstream.run(&limit, 15_000.0, 30.0);
    let wide = limit.limit();
    // Nine of ten workers are gone.
    upstream.free = (0..10).map(|_| Reverse((upstream.now * NANOS) as u64)).collect();
    upstream.workers = 10;
    let seen = upstream.run(&limit, 15_000.0, 30.0);
    let narrow = limit.limit();
    assert!((100..250).contains(&wide) && (10..40).contains(&narrow), "{wide}, then {narrow}: {seen:?}");
    upstream.free = (0..100).map(|_| Reverse((upstream.now * NANOS) as u64)).collect();
    upstream.workers = 100;
    upstream.run(&limit, 15_000.0, 30.0);
    assert!((100..250).contains(&limit.limit()), "{}", limit.limit());
}

#[test]
fn an_upstream_that_refuses_is_asked_less() {
    let (limit, start) = (limit(), Instant::now());
    let permits: Vec<_> = (0..80).map(|_| limit.admit(false)).collect();
    for millis in 0..5_000 {
        // Refusals are quick, which must not pass for a sign of health.
        limit.sample(start + Duration::from_millis(millis), Duration::from_millis(1), millis % 2 == 0);
    }
    assert!(limit.limit() < 60, "{}", limit.limit());
    drop(permits);
    assert_eq!(limit.in_flight(), 0);
}

#[test]
fn permits_are_bounded_and_given_back() {
    let limit = Arc::new(Concurrency::new(3, 3));
    let permits: Vec<_> = (0..3).map(|_| limit.admit(false).unwrap()).collect();
    assert!(limit.admit(false).is_none());
    assert_eq!(limit.in_flight(), 3, "who is refused is not counted");
    let over = limit.admit(true).unwrap();
    assert_eq!(limit.in_flight(), 4, "an observer is let in all the same");
    drop((permits, over));
    assert_eq!(limit.in_flight(), 0);
    assert!(limit.admit(false).is_some());
}

#[test]
fn a_limit_that_grew_past_the_load_does_not_learn_the_queue() {
    let mut gradient = Gradient::new(4, 500);
    for _ in 0..5 {
        gradient.end_window(0.04, 0.0, 24.0, 600.0);
    }
    // The load rises faster than the queue: the limit doubles once more, and is then twice what is in flight.
    gradient.end_window(0.05, 0.0, 100.0, 600.0);
    assert!(gradient.limit > 150.0, "{gradient:?}");
    for _ in 0..15 {
        gradient.end_window(0.5, 0.0, 100.0, 600.0);
    }
    assert!(gradient.limit < 50.0 && gradient.baseline < 0.05, "{gradient:?}");
}

#[test]
fn a_service_that_becomes_slower_is_not_overloaded() {
    let mut gradient = Gradient::new(4, 500);
    for _ in 0..5 {
        gradient.end_window(0.008, 0.0, 5.0, 300.0);
    }
    for _ in 0..30 {
        gradient.end_window(0.03, 0.0, 9.0, 300.0);
    }
    assert!(gradient.limit >= 100.0 && gradient.baseline > 0.025, "{gradient:?}");
}
