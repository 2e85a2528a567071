//! A bench for the unit tests: one balancer or narrow of the catalogue with one pool.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::Value;
use serin_core::candidates::{Candidates, Slot};
use serin_core::chain::{Pick, exclude_tried};
use serin_core::instance::{InFlight, Instance};
use serin_core::plugin::Node;

pub(crate) use crate::laws::pool;
use crate::laws::with_cx;

pub(crate) fn rng(seed: u64) -> StdRng {
    StdRng::seed_from_u64(seed)
}

/// The text with which a balancer refuses a configuration.
pub(crate) fn refusal(balancer: &str, conf: Value) -> String {
    match crate::builtin().balancers.build(balancer, conf, &Node::default()).unwrap() {
        Ok(_) => panic!("{balancer} took it"),
        Err(error) => error.to_string(),
    }
}

/// The slots that a narrow leaves of a whole pool, or the text with which it refuses its configuration.
pub(crate) fn left(narrow: &str, conf: Value, node: &Node, pool: &[Instance]) -> Result<Vec<Slot>, String> {
    let narrow = crate::builtin().narrows.build(narrow, conf, node).unwrap().map_err(|error| error.to_string())?;
    let mut candidates = Candidates::new(pool);
    with_cx(&mut rng(0), 0, &[], |cx| narrow.prepare(pool).narrow(cx, &mut candidates));
    Ok(candidates.slots().collect())
}

pub(crate) struct Bench {
    pub(crate) pool: Vec<Instance>,
    pub(crate) now: Instant,
    pick: Arc<dyn Pick>,
    without: Vec<Slot>,
    tried: Vec<Slot>,
    thinned: bool,
    rng: RefCell<StdRng>,
}

impl Bench {
    pub(crate) fn new(balancer: &str, conf: Value, pool: Vec<Instance>) -> Self {
        let balancer = crate::builtin().balancers.build(balancer, conf, &Node::default()).unwrap().unwrap();
        let pick = balancer.prepare(&pool);
        Self {
            pool,
            now: Instant::now(),
            pick,
            without: vec![],
            tried: vec![],
            thinned: false,
            rng: RefCell::new(rng(7)),
        }
    }

    /// The same pick and pool with its own source of randomness.
    pub(crate) fn fork(&self, seed: u64) -> Self {
        let (pick, rng) = (Arc::clone(&self.pick), RefCell::new(rng(seed)));
        let (without, tried) = (self.without.clone(), self.tried.clone());
        Self { pool: self.pool.clone(), now: self.now, pick, without, tried, thinned: self.thinned, rng }
    }

    /// Narrows these slots away.
    pub(crate) fn without(self, slots: &[Slot]) -> Self {
        Self { without: slots.to_vec(), ..self }
    }

    /// Has these slots tried.
    pub(crate) fn tried(self, slots: &[Slot]) -> Self {
        Self { tried: slots.to_vec(), ..self }
    }

    /// Says that weak ones were left out at random.
    pub(crate) fn thinned(self) -> Self {
        Self { thinned: true, ..self }
    }

    /// Picks for a user.
    pub(crate) fn pick_for(&self, user_hash: u64) -> Slot {
        let mut candidates = Candidates::new(&self.pool);
        exclude_tried(&self.tried, &mut candidates);
        self.without.iter().for_each(|&slot| candidates.remove(slot));
        with_cx(&mut *self.rng.borrow_mut(), user_hash, &self.tried, |cx| {
            (cx.now, cx.thinned) = (self.now, self.thinned);
            self.pick.pick(cx, &candidates).unwrap()
        })
    }

    /// Picks for `n` random users.
    pub(crate) fn picks(&self, n: usize) -> Vec<Slot> {
        let user = || self.rng.borrow_mut().next_u64();
        (0..n).map(|_| self.pick_for(user())).collect()
    }

    /// Picks for a user and counts the request as in flight.
    pub(crate) fn send_for(&self, user_hash: u64) -> InFlight {
        InFlight::start(&self.pool[self.pick_for(user_hash)].vitals)
    }

    /// Picks for a random user and counts the request as in flight.
    pub(crate) fn send(&self) -> InFlight {
        let user = self.rng.borrow_mut().next_u64();
        self.send_for(user)
    }

    /// Puts so many requests in flight per slot.
    pub(crate) fn busy(&self, pending: &[u32]) -> Vec<InFlight> {
        let of =
            |(instance, &n): (&Instance, &u32)| (0..n).map(|_| InFlight::start(&instance.vitals)).collect::<Vec<_>>();
        self.pool.iter().zip(pending).flat_map(of).collect()
    }

    /// Requests in flight per slot.
    pub(crate) fn pending(&self) -> Vec<u32> {
        self.pool.iter().map(|instance| instance.vitals.in_flight()).collect()
    }

    /// Records one latency per slot now.
    pub(crate) fn latencies(&self, latencies: &[Duration]) {
        self.pool.iter().zip(latencies).for_each(|(i, &latency)| i.vitals.record_latency(self.now, latency));
    }
}

/// What became of random users from one bench to another.
pub(crate) struct Moved {
    /// Share of users that are with another instance now.
    pub(crate) share: f64,
    /// Share of users that are with another instance though theirs is still a candidate.
    pub(crate) needlessly: f64,
}

pub(crate) fn moved(before: &Bench, after: &Bench, users: u64) -> Moved {
    let left: Vec<_> =
        (0..after.pool.len()).filter(|slot| !after.without.contains(slot)).map(|s| after.pool[s].address).collect();
    let (mut all, mut needless) = (0.0, 0.0);
    for user in 0..users {
        let old = before.pool[before.pick_for(user)].address;
        if after.pool[after.pick_for(user)].address != old {
            all += 1.0;
            needless += f64::from(u8::from(left.contains(&old)));
        }
    }
    Moved { share: all / users as f64, needlessly: needless / users as f64 }
}
