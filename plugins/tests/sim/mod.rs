//! Virtual time: clients that send through the real pick to instances whose answers are made up, and the real
//! [`Vitals`](serin_core::instance::Vitals) in between, fed as the gateway feeds them.
#![allow(dead_code, clippy::unwrap_used, reason = "a fixture that several test binaries use in part")]

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serin_core::candidates::{Candidates, Slot};
use serin_core::chain::Pick;
use serin_core::instance::{InFlight, Instance};
use serin_core::plugin::Node;
use serin_plugins::laws;

/// Most that a failure counts as, as in the gateway (`gateway/src/proxy/failure.rs`).
const PENALTY: Duration = Duration::from_secs(5);

pub(crate) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// How an instance answers a request that it gets.
pub(crate) enum Answer {
    /// After this time, well.
    Ok(Duration),
    /// After this time, with an error.
    Failed(Duration),
}

/// A request that ended.
pub(crate) struct Done {
    pub(crate) slot: Slot,
    pub(crate) sent: Duration,
}

struct Flight {
    slot: Slot,
    sent: Duration,
    failed: bool,
    _counted: InFlight,
}

/// One pick, one pool, one clock.
pub(crate) struct Sim<'a> {
    pub(crate) pool: Vec<Instance>,
    pick: Arc<dyn Pick>,
    behaviour: &'a dyn Fn(Slot, Duration) -> Answer,
    start: Instant,
    rng: StdRng,
    /// When each request ends, with a number that keeps simultaneous ones apart.
    ends: BinaryHeap<Reverse<(Duration, u64)>>,
    flights: BTreeMap<u64, Flight>,
    next: u64,
    pub(crate) done: Vec<Done>,
}

impl<'a> Sim<'a> {
    pub(crate) fn new(pick: &str, weights: &[u32], seed: u64, behaviour: &'a dyn Fn(Slot, Duration) -> Answer) -> Self {
        let pool = laws::pool(weights);
        let built = serin_plugins::builtin().balancers.build(pick, serde_json::json!({}), &Node::default());
        let pick = built.unwrap().unwrap().prepare(&pool);
        Self {
            pool,
            pick,
            behaviour,
            start: Instant::now() + ms(1),
            rng: StdRng::seed_from_u64(seed),
            ends: BinaryHeap::new(),
            flights: BTreeMap::new(),
            next: 0,
            done: Vec::new(),
        }
    }

    /// `clients` send one request after the other from `from` on; at `to` they hang up on what is still pending.
    pub(crate) fn closed_loop(&mut self, clients: usize, from: Duration, to: Duration) {
        for _ in 0..clients {
            self.send(from);
        }
        while let Some(at) = self.finish_next(to) {
            self.send(at);
        }
        self.hang_up(to);
    }

    /// So many requests a second from `from` to `to`, evenly, whatever the answers take.
    pub(crate) fn open_loop(&mut self, per_second: u32, from: Duration, to: Duration) {
        let gap = Duration::from_secs(1) / per_second;
        let mut at = from;
        while at < to {
            while self.finish_next(at).is_some() {}
            self.send(at);
            at += gap;
        }
    }

    /// The share that each slot has of the requests that were sent between `from` and `to`.
    pub(crate) fn shares(&self, from: Duration, to: Duration) -> Vec<f64> {
        let mut counts = vec![0.0; self.pool.len()];
        let pending = self.flights.values().map(|flight| (flight.slot, flight.sent));
        for (slot, sent) in self.done.iter().map(|done| (done.slot, done.sent)).chain(pending) {
            if (from..to).contains(&sent) {
                counts[slot] += 1.0;
            }
        }
        let all: f64 = counts.iter().sum();
        counts.into_iter().map(|count| count / all).collect()
    }

    fn send(&mut self, at: Duration) {
        let (pick, now) = (Arc::clone(&self.pick), self.start + at);
        let user = self.rng.next_u64();
        let slot = laws::with_cx(&mut self.rng, user, &[], |cx| {
            cx.now = now;
            pick.pick(cx, &Candidates::new(&self.pool)).unwrap()
        });
        let (takes, failed) = match (self.behaviour)(slot, at) {
            Answer::Ok(takes) => (takes, false),
            Answer::Failed(takes) => (takes, true),
        };
        self.next += 1;
        self.ends.push(Reverse((at + takes, self.next)));
        let flight = Flight { slot, sent: at, failed, _counted: InFlight::start(&self.pool[slot].vitals) };
        self.flights.insert(self.next, flight);
    }

    /// Ends the next request that ends before `limit`, and says when that is.
    fn finish_next(&mut self, limit: Duration) -> Option<Duration> {
        let &Reverse((at, number)) = self.ends.peek().filter(|Reverse((at, _))| *at < limit)?;
        self.ends.pop();
        let flight = self.flights.remove(&number)?;
        let (now, took) = (self.start + at, at - flight.sent);
        let vitals = &self.pool[flight.slot].vitals;
        let latency = if flight.failed { vitals.penalty(took, PENALTY) } else { took };
        vitals.record_call(now, latency, !flight.failed);
        self.done.push(Done { slot: flight.slot, sent: flight.sent });
        Some(at)
    }

    fn hang_up(&mut self, at: Duration) {
        for flight in std::mem::take(&mut self.flights).into_values() {
            self.pool[flight.slot].vitals.record_abandoned(self.start + at, at - flight.sent);
        }
        self.ends.clear();
    }
}
