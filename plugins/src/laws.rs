//! The laws that every balancer obeys, for the tests of this crate and of anybody else's:
//!
//! ```
//! use serin_core::chain::Balancer;
//! use serin_plugins::laws::{self, Shares};
//!
//! let theirs: &dyn Balancer = &serin_core::chain::RoundRobin::default();
//! laws::check(theirs, Shares::Equal { tolerance: 0.0 }).unwrap();
//! ```

use std::sync::Arc;
use std::time::Instant;

use http::{HeaderMap, Method};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serin_core::candidates::{Candidates, Slot};
use serin_core::chain::{Balancer, PickCx, exclude_tried};
use serin_core::instance::{InFlight, Instance, Vitals};
use serin_core::request::RequestView;

/// What a balancer promises about the shares of an idle pool's instances. A tolerance is relative to the share, and
/// comes on top of five standard deviations.
#[derive(Clone, Copy, Debug)]
pub enum Shares {
    /// In proportion to the weights.
    ByWeight {
        /// Relative tolerance, from 0.
        tolerance: f64,
    },
    /// The same for all candidates.
    Equal {
        /// Relative tolerance, from 0.
        tolerance: f64,
    },
    /// Nothing.
    Free,
}

/// One situation of a balancer.
#[derive(Clone, Debug, Default)]
pub struct Case {
    /// Weights of the pool.
    pub weights: Vec<u32>,
    /// Slots that narrows have taken out; others than the pool's are ignored.
    pub without: Vec<Slot>,
    /// Slots that the request has tried; others than the pool's are ignored.
    pub tried: Vec<Slot>,
    /// Requests in flight per slot; none where this ends.
    pub pending: Vec<u32>,
    /// Seed of the randomness.
    pub seed: u64,
}

/// Picks per case, and per pool when shares are measured.
const PICKS: usize = 16;
const SAMPLES: usize = 10_000;

/// Checks all the laws with the cases of this module.
///
/// # Errors
/// Says which law was broken, and in which case.
pub fn check(balancer: &dyn Balancer, shares: Shares) -> Result<(), String> {
    cases().iter().try_for_each(|case| holds(balancer, case))?;
    idle().iter().try_for_each(|case| keeps_shares(balancer, case, shares))
}

/// Checks what holds in every single case: a candidate is picked if there is one, it is one of them (so it has a
/// weight), and the same seed gives the same picks.
///
/// # Errors
/// Says which law was broken.
pub fn holds(balancer: &dyn Balancer, case: &Case) -> Result<(), String> {
    let pool = pool(&case.weights);
    let _pending = case.put_in_flight(&pool);
    let candidates = case.candidates(&pool);
    let picks = case.picks(balancer, &candidates, PICKS);
    for &pick in &picks {
        match pick {
            None if !candidates.is_empty() => return Err(format!("picks nothing though there is something: {case:?}")),
            Some(slot) if !candidates.contains(slot) => {
                return Err(format!("picks slot {slot}, which is no candidate: {case:?}"));
            }
            Some(slot) if pool[slot].weight == 0 => return Err(format!("picks slot {slot} of weight 0: {case:?}")),
            _ => {}
        }
    }
    match case.picks(balancer, &candidates, PICKS) == picks {
        true => Ok(()),
        false => Err(format!("does not pick the same again with the same seed: {case:?}")),
    }
}

/// Checks the shares of an idle pool's candidates.
///
/// # Errors
/// Says which share is wrong.
pub fn keeps_shares(balancer: &dyn Balancer, case: &Case, shares: Shares) -> Result<(), String> {
    let tolerance = match shares {
        Shares::ByWeight { tolerance } | Shares::Equal { tolerance } => tolerance,
        Shares::Free => return Ok(()),
    };
    let pool = pool(&case.weights);
    let candidates = case.candidates(&pool);
    let part = |instance: &Instance| match shares {
        Shares::ByWeight { .. } => f64::from(instance.weight),
        _ => 1.0,
    };
    let total: f64 = candidates.iter().map(|(_, instance)| part(instance)).sum();
    let mut counts = vec![0.0; pool.len()];
    for slot in case.picks(balancer, &candidates, SAMPLES).into_iter().flatten() {
        counts[slot] += 1.0;
    }
    for (slot, instance) in candidates.iter() {
        let share = part(instance) / total;
        let wanted = share * SAMPLES as f64;
        let allowed = tolerance * wanted + 5.0 * (wanted * (1.0 - share)).sqrt() + 1.0;
        if (counts[slot] - wanted).abs() > allowed {
            let found = counts[slot];
            return Err(format!("picks slot {slot} {found} times instead of {wanted:.0} +- {allowed:.0}: {case:?}"));
        }
    }
    Ok(())
}

impl Case {
    fn candidates<'a>(&self, pool: &'a [Instance]) -> Candidates<'a> {
        let mut candidates = Candidates::new(pool);
        self.without.iter().for_each(|&slot| candidates.remove(slot));
        exclude_tried(&self.tried, &mut candidates);
        candidates
    }

    fn put_in_flight(&self, pool: &[Instance]) -> Vec<InFlight> {
        let slots = pool.iter().zip(&self.pending);
        slots.flat_map(|(instance, &n)| (0..n).map(|_| InFlight::start(&instance.vitals))).collect()
    }

    /// Prepares the balancer and picks `n` times, for a random user each.
    fn picks(&self, balancer: &dyn Balancer, candidates: &Candidates<'_>, n: usize) -> Vec<Option<Slot>> {
        let pick = balancer.prepare(candidates.pool());
        let mut rng = StdRng::seed_from_u64(self.seed);
        let mut once = || {
            let user = rng.next_u64();
            with_cx(&mut rng, user, &self.tried, |cx| pick.pick(cx, candidates))
        };
        (0..n).map(|_| once()).collect()
    }
}

/// An idle pool with these weights, at 10.0.0.0:8080 and the following addresses.
#[must_use]
pub fn pool(weights: &[u32]) -> Vec<Instance> {
    let (now, changes) = (Instant::now(), Arc::default());
    let instance = |(index, &weight): (u32, &u32)| Instance {
        index,
        address: ((0x0a00_0000 + index).to_be_bytes(), 8080).into(),
        labels: Arc::default(),
        zone: None,
        cluster: None,
        weight,
        vitals: Arc::new(Vitals::among(now, &changes)),
    };
    (0..).zip(weights).map(instance).collect()
}

/// Lends the context of a plain request.
pub fn with_cx<R>(rng: &mut dyn Rng, user_hash: u64, tried: &[Slot], run: impl FnOnce(&mut PickCx<'_>) -> R) -> R {
    let headers = HeaderMap::new();
    let request = RequestView {
        method: &Method::GET,
        host: "api.example.com",
        path: "/users/7",
        query: None,
        headers: &headers,
        client_ip: [192, 0, 2, 1].into(),
        from_trusted_proxy: false,
        claims: None,
        unix_time: 1_800_000_000,
    };
    run(&mut PickCx { request, user_hash, tried, thinned: false, now: Instant::now(), dry_run: false, rng })
}

/// Pools of all sizes (those of 1,000 and 2,000 are on either side of what a set of candidates holds inline), each
/// whole, thinned out, almost and quite empty, idle and busy.
fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (seed, n) in (0..).zip([0, 1, 2, 3, 10, 64, 65, 1000, 2000]) {
        for weights in [vec![100; n], vec![0; n], (0..n as u32).map(|i| i % 4).collect(), uneven(n)] {
            let case = Case { weights, seed, ..Case::default() };
            let every = |step: usize| (0..n).step_by(step).collect::<Vec<_>>();
            let pending = (0..n as u32).map(|i| i * 7 % 5).collect();
            cases.extend([
                Case { without: every(2), tried: vec![1, 1], ..case.clone() },
                Case { without: (1..n).collect(), ..case.clone() },
                Case { without: every(1), ..case.clone() },
                Case { tried: every(1), ..case.clone() },
                Case { pending, tried: vec![0], ..case.clone() },
                case,
            ]);
        }
    }
    cases
}

/// Weights from 1 to the greatest there is.
fn uneven(n: usize) -> Vec<u32> {
    (0..n).map(|slot| u32::MAX >> (slot * 11 % 32)).collect()
}

fn idle() -> Vec<Case> {
    let whole = |weights: &[u32]| Case { weights: weights.to_vec(), seed: 11, ..Case::default() };
    let without = |weights: &[u32], without: &[Slot]| Case { without: without.to_vec(), ..whole(weights) };
    let many: Vec<_> = (0..1000).map(|slot| slot % 3 * 50).collect();
    vec![
        whole(&[1]),
        whole(&[1, 2, 7]),
        whole(&[5, 1, 1]),
        whole(&[100; 5]),
        whole(&[0, 30, 0, 97, 200, 0]),
        whole(&many),
        without(&[1, 2, 7, 4], &[2]),
        without(&[100; 6], &[0, 1, 5]),
        without(&many, &(40..1000).collect::<Vec<_>>()),
        Case { tried: vec![1], ..whole(&[100, 300, 200]) },
    ]
}
