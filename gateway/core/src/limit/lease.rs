//! Fleet-wide limits. The units of a key are with a bank that the gateways of a fleet share, and a gateway takes them from
//! there in leases, so that most requests are decided without asking it. A lease is as large as what the gateway is
//! going to need in the next moments, judging by the last ones: busy gateways get more, and whoever has hardly any
//! traffic takes one unit at a time and leaves nothing unused. What is left of a lease is void soon after.
//!
//! Nothing here asks the bank: [`Leases::prepare`] says what has to be asked, and [`Leases::settle`] takes the answer.

#[cfg(test)]
mod tests;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use governor::nanos::Nanos;
use sha2::{Digest, Sha256};
use smallvec::SmallVec;

use super::quota::Quota;
use super::store::{Settled, Slot, Store};

/// The demand that a lease is for.
const HORIZON: Duration = Duration::from_millis(50);
/// How long a lease holds. At most what comes back to the bank in this time is spent later than it was counted.
const LASTS: Duration = Duration::from_millis(200);
/// Share of the burst that a lease is at most, so that no gateway hoards what others need.
const SHARE: u32 = 4;
/// How long the bank is not asked again after it had nothing, if the burst does not come back sooner.
const PAUSE: Duration = Duration::from_millis(5);
/// How long a key that has to wait longer is refused without asking again.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// What a gateway knows of its fleet.
#[derive(Debug)]
pub struct Fleet {
    up: AtomicBool,
    replicas: AtomicU32,
}

impl Fleet {
    /// A fleet of so many gateways, whose bank nobody has reached yet.
    #[must_use]
    pub fn new(replicas: NonZeroU32) -> Self {
        Self { up: AtomicBool::new(false), replicas: AtomicU32::new(replicas.get()) }
    }

    /// Whether the bank answers in time. If not, limits are local.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.up.load(Relaxed)
    }

    /// Notes whether the bank answers in time.
    pub fn set_up(&self, up: bool) {
        self.up.store(up, Relaxed);
    }

    /// How many gateways there are, as far as it was last known.
    #[must_use]
    pub fn replicas(&self) -> u32 {
        self.replicas.load(Relaxed)
    }

    /// Notes how many gateways there are.
    pub fn set_replicas(&self, replicas: u32) {
        self.replicas.store(replicas.max(1), Relaxed);
    }
}

/// What a request needs of a rule, to ask about it more than once.
#[derive(Clone, Debug)]
pub struct Claim {
    bytes: SmallVec<[u8; 128]>,
    slot: Slot,
    cost: u32,
    terms: Terms,
}

/// What to ask the bank for. Every ask has to be settled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// What the bank knows the key by: the first bytes of a SHA-256, so that nobody can make up a key that is counted
    /// together with another one.
    pub key: [u8; 16],
    /// Fewest units that are of any use.
    pub need: u32,
    /// Units that are wanted.
    pub want: u32,
    /// Time in which one unit comes back.
    pub interval: Duration,
    /// Units at once.
    pub burst: u32,
    slot: Slot,
    /// Whether it is for a bucket that keys share.
    full: bool,
}

/// What the bank answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Units that are the gateway's now; either none, or at least those that were needed.
    pub granted: u32,
    /// Time until the quota is whole again.
    pub whole_in: Duration,
}

/// What a request has of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// What it costs: it is spent.
    Spent {
        /// Units that are left in the fleet.
        remaining: u32,
        /// Time until all are there again.
        wait: Duration,
    },
    /// Nothing: the bank has not enough.
    Refused {
        /// Time until it has.
        wait: Duration,
    },
}

/// Whether a request can be decided.
#[derive(Debug)]
pub enum Prepared {
    /// By this gateway alone: nobody shares the rule, or the bank is lost.
    Alone,
    /// At once. If the lease runs out, another one should be asked for.
    Now(Hold, Option<Ask>),
    /// When the bank has answered: what is asked here, or what was asked already.
    Later(Claim, Option<Ask>),
}

/// How much may be spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Terms {
    /// Nanoseconds.
    interval: u64,
    burst: u32,
}

/// The leases of one rule.
#[derive(Debug)]
pub struct Leases {
    fleet: Arc<Fleet>,
    identity: Box<[u8]>,
    store: Store<Lease>,
}

/// What a gateway has of a key. All times are nanoseconds of the store.
#[derive(Debug)]
struct Lease {
    /// Units that may be spent without asking, until they are void.
    units: u32,
    void_at: u64,
    /// What was wanted last, and below what number of units more is asked for ahead.
    want: u32,
    low: u32,
    /// What requests have needed since then.
    demand: u32,
    since: u64,
    asking: bool,
    /// Units that the bank did not have; it is not asked for as many again before a time.
    refused: u32,
    refused_until: u64,
    /// When the quota is whole again, as far as the bank has said.
    whole_at: u64,
}

/// What has to happen for a request.
enum Step {
    Decide(Hold),
    Prefetch(Hold, Order),
    Wait,
    Fetch(Order),
}

/// Units to ask for.
#[derive(Clone, Copy)]
struct Order {
    need: u32,
    want: u32,
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Terms {
    fn of(quota: &Quota) -> Self {
        Self { interval: nanos(quota.interval()), burst: quota.burst() }
    }

    /// Most units that are leased before somebody needs them. What of them is not spent is lost, which has to be hardly
    /// anything: no more than comes back in a second, or a thousandth of the burst.
    fn most_ahead(&self) -> u32 {
        let in_a_second = 1_000_000_000_u64.checked_div(self.interval).unwrap_or(0);
        u32::try_from(in_a_second).unwrap_or(u32::MAX).max(self.burst / 1_000).min(self.burst / SHARE)
    }

    fn time_for(&self, units: u32) -> u64 {
        self.interval.saturating_mul(units.into())
    }
}

impl Leases {
    /// No leases yet. Rules of equal `identity` are one rule, wherever they are.
    #[must_use]
    pub fn new(fleet: Arc<Fleet>, identity: &[u8], max_keys: usize, seed: u64, now: Instant) -> Self {
        Self { fleet, identity: identity.into(), store: Store::new(max_keys, seed, now) }
    }

    /// The fleet.
    #[must_use]
    pub fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    /// Keys of which something is known.
    #[must_use]
    pub fn len(&self) -> usize {
        self.store.len()
    }

    /// Whether nothing is known of any key.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.store.is_empty()
    }

    /// Drops what is known of keys of which there is nothing to know any more.
    pub fn sweep(&self, now: Instant) {
        self.store.sweep(now);
    }

    /// Spends what a request costs, or says what has to be asked before.
    pub(super) fn prepare(
        &self,
        bytes: SmallVec<[u8; 128]>,
        quota: &Quota,
        cost: NonZeroU32,
        now: Instant,
    ) -> Prepared {
        let claim = Claim { slot: self.slot(&bytes, quota), bytes, cost: cost.get(), terms: Terms::of(quota) };
        match self.step(&claim, now, true) {
            (Step::Decide(hold), _) => Prepared::Now(hold, None),
            (Step::Prefetch(hold, order), full) => Prepared::Now(hold, Some(self.ask(&claim, full, order))),
            (Step::Wait, _) => Prepared::Later(claim, None),
            (Step::Fetch(order), full) => {
                let ask = self.ask(&claim, full, order);
                Prepared::Later(claim, Some(ask))
            }
        }
    }

    /// Spends what a claim is for, if it is there by now. It may have to be asked for again, if others have spent it.
    ///
    /// # Errors
    /// If it is not there: with what to ask.
    pub fn recheck(&self, claim: &Claim, now: Instant) -> Result<(Hold, Option<Ask>), Option<Ask>> {
        match self.step(claim, now, false) {
            (Step::Decide(hold), _) => Ok((hold, None)),
            (Step::Prefetch(hold, order), full) => Ok((hold, Some(self.ask(claim, full, order)))),
            (Step::Wait, _) => Err(None),
            (Step::Fetch(order), full) => Err(Some(self.ask(claim, full, order))),
        }
    }

    /// Takes an answer; none if there is none.
    pub fn settle(&self, ask: &Ask, answer: Option<Answer>, now: Instant) {
        let (at, terms) = (self.store.nanos(now).as_u64(), Terms { interval: nanos(ask.interval), burst: ask.burst });
        self.store.look_again(ask.slot, ask.full, |lease| lease.settle(ask, terms, answer, at));
    }

    /// What a request would have; none if the bank has not said.
    pub(super) fn peek(&self, bytes: &[u8], quota: &Quota, cost: NonZeroU32, now: Instant) -> Option<Hold> {
        let (slot, terms, at) = (self.slot(bytes, quota), Terms::of(quota), self.store.nanos(now).as_u64());
        self.store.look(slot, |lease| lease.peek(cost.get(), terms, at)).flatten()
    }

    /// Gives back what a request has spent and does not need.
    pub(super) fn give_back(&self, bytes: &[u8], quota: &Quota, cost: NonZeroU32, now: Instant) {
        let at = self.store.nanos(now).as_u64();
        let give_back = |lease: &mut Lease| lease.units = lease.units(at).saturating_add(cost.get());
        self.store.look(self.slot(bytes, quota), give_back);
    }

    fn step(&self, claim: &Claim, now: Instant, is_new: bool) -> (Step, bool) {
        let now = self.store.nanos(now);
        let step = |lease: &mut Lease| lease.step(claim.cost, claim.terms, now.as_u64(), is_new);
        self.store.with(claim.slot, now, Lease::fresh(now.as_u64()), step)
    }

    fn slot(&self, bytes: &[u8], quota: &Quota) -> Slot {
        Slot { key: self.store.hash(bytes), spill: self.store.hash(&quota.identity()) }
    }

    fn ask(&self, claim: &Claim, full: bool, order: Order) -> Ask {
        // Keys that share a bucket here share one in the fleet. It is that of the quota, with which `bytes` begin.
        let bytes = if full { &claim.bytes[..16] } else { &claim.bytes[..] };
        let (Terms { interval, burst }, Order { need, want }) = (claim.terms, order);
        let mut key = [0; 16];
        let hash = Sha256::new().chain_update((self.identity.len() as u64).to_le_bytes());
        let hash = hash.chain_update(&self.identity).chain_update(bytes).finalize();
        key.copy_from_slice(&hash[..16]);
        Ask { key, need, want, interval: Duration::from_nanos(interval), burst, slot: claim.slot, full }
    }
}

impl Lease {
    fn fresh(now: u64) -> Self {
        Self {
            units: 0,
            void_at: 0,
            want: 0,
            low: 0,
            demand: 0,
            since: now,
            asking: false,
            refused: 0,
            refused_until: 0,
            whole_at: 0,
        }
    }

    fn units(&self, now: u64) -> u32 {
        if now < self.void_at { self.units } else { 0 }
    }

    fn step(&mut self, cost: u32, terms: Terms, now: u64, is_new: bool) -> Step {
        self.demand = self.demand.saturating_add(if is_new { cost } else { 0 });
        let known = self.peek(cost, terms, now);
        match known {
            Some(hold @ Hold::Spent { .. }) => {
                self.units = self.units(now) - cost;
                if self.asking || self.units >= self.low || now < self.refused_until {
                    return Step::Decide(hold);
                }
                Step::Prefetch(hold, self.order(1, terms, now))
            }
            _ if self.asking => Step::Wait,
            Some(hold) => Step::Decide(hold),
            None => Step::Fetch(self.order(cost - self.units(now), terms, now)),
        }
    }

    fn order(&mut self, need: u32, terms: Terms, now: u64) -> Order {
        let want = self.size(need, terms, now);
        (self.asking, self.demand, self.since) = (true, 0, now);
        // Who wants no more than a request needs has no use for anything ahead.
        (self.want, self.low) = (want, (want - need) / 4);
        Order { need, want }
    }

    /// What is going to be needed, judging by what was. It grows twofold at most, or to what was needed since the last
    /// time, for some requests in a row are no rate.
    fn size(&self, need: u32, terms: Terms, now: u64) -> u32 {
        let elapsed = now.saturating_sub(self.since).max(1);
        let expected = u128::from(self.demand) * HORIZON.as_nanos() / u128::from(elapsed);
        let most = self.want.saturating_mul(2).max(self.demand).min(terms.most_ahead());
        u32::try_from(expected).unwrap_or(u32::MAX).min(most).max(need)
    }

    fn settle(&mut self, ask: &Ask, terms: Terms, answer: Option<Answer>, now: u64) {
        self.asking = false;
        let Some(Answer { granted, whole_in }) = answer else { return };
        let whole_in = nanos(whole_in);
        self.whole_at = now.saturating_add(whole_in);
        if granted > 0 {
            (self.units, self.void_at) = (self.units(now).saturating_add(granted), now + nanos(LASTS));
        }
        // Less than what was wanted is all that there was: who finds nothing left of it need not ask.
        self.refused = if granted > 0 { 1 } else { ask.need };
        self.refused_until = 0;
        if granted < ask.want {
            let pause = nanos(PAUSE).min(terms.time_for(terms.burst) / u64::from(SHARE));
            let wait = (whole_in + terms.time_for(self.refused)).saturating_sub(terms.time_for(terms.burst));
            self.refused_until = now + wait.max(pause).min(nanos(LONGEST_PAUSE));
        }
    }

    fn peek(&self, cost: u32, terms: Terms, now: u64) -> Option<Hold> {
        let units = self.units(now);
        let whole = terms.time_for(terms.burst);
        let whole_in = self.whole_at.saturating_sub(now).min(whole);
        if let Some(left) = units.checked_sub(cost) {
            let free = (whole - whole_in).checked_div(terms.interval).unwrap_or(0);
            let remaining = u32::try_from(free).unwrap_or(u32::MAX).saturating_add(left).min(terms.burst);
            return Some(Hold::Spent {
                remaining,
                wait: Duration::from_nanos(terms.time_for(terms.burst - remaining)),
            });
        }
        let missing = cost - units;
        let wait = (whole_in + terms.time_for(missing)).saturating_sub(whole);
        let refused = now < self.refused_until && missing >= self.refused;
        refused.then(|| Hold::Refused { wait: Duration::from_nanos(wait.max(self.refused_until - now)) })
    }
}

impl Settled for Lease {
    fn is_settled(&self, now: Nanos) -> bool {
        let now = now.as_u64();
        !self.asking && self.units(now) == 0 && self.refused_until.max(self.whole_at) <= now
    }
}
