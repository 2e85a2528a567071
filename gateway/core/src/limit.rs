//! Rate limits (GCRA, by the `governor` crate; what a fleet shares is in [`Leases`]). A rule says whose requests are counted together (its key), how
//! many units they may spend (its quota), and what a request costs. The state of all keys of a rule is in one [`Store`];
//! which quota a key is under is part of its hash, so that a quota that changes begins afresh and all others go on.

mod fields;
mod key;
mod lease;
mod quota;
mod store;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use governor::RateLimiter;
use governor::clock::Clock;
use governor::middleware::StateInformationMiddleware;
use governor::nanos::Nanos;
use http::HeaderName;
use smallvec::SmallVec;

pub use fields::{Fields, fields, seconds};
pub use key::{KeyPart, Subject};
pub use lease::{Answer, Ask, Claim, Fleet, Hold, Leases, Prepared};
pub use quota::{Quota, QuotaError};
pub use store::{Settled, Store};

use store::{Access, Slot};

/// When to come again where everything is refused as the bank is lost.
const CLOSED: Duration = Duration::from_secs(1);

/// What a rule says.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Name, unique among the rules of its service or route.
    pub name: Arc<str>,
    /// Requests that agree in all of these are counted together. None: all requests are.
    pub key: Vec<KeyPart>,
    /// The quota of a key.
    pub quota: Quota,
    /// Other quotas, by the value of the key's first part.
    pub overrides: HashMap<Box<str>, Quota>,
    /// What requests cost; 1 each without.
    pub cost: Option<Cost>,
    /// Only count what would be refused.
    pub dry_run: bool,
    /// Of a fleet-wide rule: refuse everything while the bank is lost, instead of limiting locally.
    pub fail_closed: bool,
}

/// What requests cost, by a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cost {
    /// The header. Without it, or if it is no number, a request costs 1.
    pub header: HeaderName,
    /// Highest cost; higher ones are cut to it.
    pub max: NonZeroU32,
}

/// A rule with the state of its keys.
#[derive(Debug)]
pub struct Limiter {
    /// The rule.
    pub rule: Rule,
    /// The state, which generations share.
    pub store: Arc<Store>,
    /// What is leased of a fleet-wide limit; `store` is then for when the bank is lost.
    pub leases: Option<Arc<Leases>>,
}

/// What a standing is by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    /// A limit of this gateway alone.
    Local,
    /// The fleet's bank.
    Fleet,
    /// This gateway's share of a fleet-wide limit, as the bank did not say.
    Fallback,
}

/// How a key stands with one rule, for or after one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing<'a> {
    /// The quota that holds for the key.
    pub quota: &'a Quota,
    /// Whether the request is within it.
    pub within: bool,
    /// Units that are left at once, after the request if it is within.
    pub remaining: u32,
    /// Time until the whole burst is there again, or if the request is not within, until it would be.
    pub wait: Duration,
    /// Whether the store was full, so that the key shares a bucket with others that found no room.
    pub full: bool,
    /// What it is by.
    pub basis: Basis,
}

/// What becomes of a request, for all rules that hold for it.
#[derive(Clone, Debug, Default)]
pub struct Judgement<'a> {
    /// The standing with each rule, in their order. Where a rule refuses, nothing was taken from any other.
    pub standings: SmallVec<[Standing<'a>; 4]>,
    /// Position of the rule that refuses the request.
    pub refused_by: Option<usize>,
}

/// Governor's clock: it says what it was told. The limiter that has it lives for one decision.
struct Told(Cell<Nanos>);

impl Clock for Told {
    type Instant = Nanos;

    fn now(&self) -> Nanos {
        self.0.get()
    }
}

impl Limiter {
    /// How the key of a request would stand; nothing is taken. The bank is not asked: what it has not said of a key yet
    /// is taken to be whole.
    #[must_use]
    pub fn peek(&self, subject: &Subject<'_>, now: Instant) -> Standing<'_> {
        let leases = self.leases.as_ref().filter(|leases| leases.fleet().is_up());
        let Some(leases) = leases else { return self.ask(subject, now, None, true) };
        let (quota, cost) = (self.quota(subject), self.cost(subject));
        let remaining = quota.burst().saturating_sub(cost.get());
        let whole = Hold::Spent { remaining, wait: quota.time_for(cost.get()) };
        let hold = leases.peek(&self.bytes(subject, quota), quota, cost, now).unwrap_or(whole);
        self.ask(subject, now, Some(hold), true)
    }

    /// What a request has of a limit that a fleet shares, or what has to be asked for it before.
    #[must_use]
    pub fn prepare(&self, subject: &Subject<'_>, now: Instant) -> Prepared {
        match &self.leases {
            Some(leases) if leases.fleet().is_up() => {
                let quota = self.quota(subject);
                leases.prepare(self.bytes(subject, quota), quota, self.cost(subject), now)
            }
            _ => Prepared::Alone,
        }
    }

    /// Takes what a request costs from its key's quota, if it is within it. `hold` is what it has of a limit that a fleet
    /// shares; without, this gateway decides by its share.
    #[must_use]
    pub fn take(&self, subject: &Subject<'_>, now: Instant, hold: Option<Hold>) -> Standing<'_> {
        self.ask(subject, now, hold, false)
    }

    /// What a request costs, in units.
    #[must_use]
    pub fn cost(&self, subject: &Subject<'_>) -> NonZeroU32 {
        let Some(cost) = &self.rule.cost else { return NonZeroU32::MIN };
        let asked = subject.request.header(&cost.header).and_then(|text| text.trim().parse::<u64>().ok());
        let asked = asked.map_or(1, |asked| u32::try_from(asked).unwrap_or(u32::MAX));
        NonZeroU32::new(asked).unwrap_or(NonZeroU32::MIN).min(cost.max)
    }

    /// The quota that holds for a request.
    #[must_use]
    pub fn quota(&self, subject: &Subject<'_>) -> &Quota {
        let rule = &self.rule;
        if rule.overrides.is_empty() {
            return &rule.quota;
        }
        let value = rule.key.first().and_then(|part| part.text(subject));
        value.and_then(|value| rule.overrides.get(&*value)).unwrap_or(&rule.quota)
    }

    fn ask(&self, subject: &Subject<'_>, now: Instant, hold: Option<Hold>, peek: bool) -> Standing<'_> {
        let quota = self.quota(subject);
        let by_bank =
            |within, remaining, wait| Standing { quota, within, remaining, wait, full: false, basis: Basis::Fleet };
        let Some(leases) = &self.leases else { return self.local(subject, quota, now, peek, 1) };
        match hold {
            Some(Hold::Spent { remaining, wait }) => by_bank(true, remaining, wait),
            Some(Hold::Refused { wait }) => by_bank(false, 0, wait),
            None if self.rule.fail_closed => Standing { basis: Basis::Fallback, ..by_bank(false, 0, CLOSED) },
            None => {
                let standing = self.local(subject, quota, now, peek, leases.fleet().replicas());
                Standing { basis: Basis::Fallback, ..standing }
            }
        }
    }

    fn give_back(&self, subject: &Subject<'_>, now: Instant) {
        if let Some(leases) = &self.leases {
            let quota = self.quota(subject);
            leases.give_back(&self.bytes(subject, quota), quota, self.cost(subject), now);
        }
    }

    /// By what this gateway alone has counted, as one of so many who share the quota.
    fn local<'a>(
        &self,
        subject: &Subject<'_>,
        quota: &'a Quota,
        now: Instant,
        peek: bool,
        replicas: u32,
    ) -> Standing<'a> {
        let (bytes, cost) = (self.bytes(subject, quota), self.cost(subject));
        let most = self.rule.cost.as_ref().map_or(NonZeroU32::MIN, |cost| cost.max);
        let gcra = quota.shared(replicas, most);
        let slot = Slot { key: self.store.hash(&bytes), spill: self.store.hash(&quota.identity()) };
        let now = self.store.nanos(now);
        let start = Told(Cell::new(Nanos::new(0)));
        let limiter = RateLimiter::<Slot, _, _, StateInformationMiddleware>::new(
            gcra,
            Access::new(&self.store, now, peek),
            start,
        );
        limiter.clock().0.set(now);
        let burst = gcra.burst_size().get();
        let time_for = |units: u32| gcra.replenish_interval().saturating_mul(units);
        let (within, remaining, wait) = match limiter.check_key_n(&slot, cost) {
            Ok(Ok(state)) => {
                let remaining = state.remaining_burst_capacity().min(burst);
                (true, remaining, time_for(burst - remaining))
            }
            Ok(Err(refused)) => (false, 0, refused.wait_time_from(now)),
            // A cost above the burst, which the checks of documents rule out.
            Err(_) => (false, 0, time_for(cost.get())),
        };
        let full = limiter.into_state_store().was_full();
        Standing { quota, within, remaining, wait, full, basis: Basis::Local }
    }

    /// What tells the key of a request from others; the first 16 bytes tell its quota.
    fn bytes(&self, subject: &Subject<'_>, quota: &Quota) -> SmallVec<[u8; 128]> {
        let mut bytes: SmallVec<[u8; 128]> = SmallVec::new();
        bytes.extend_from_slice(&quota.identity());
        for part in &self.rule.key {
            part.write(subject, &mut bytes);
        }
        bytes
    }
}

/// Judges one request by all rules that hold for it. If one refuses it, nothing is taken from the others, so that who
/// is over one limit does not use up what others share. `holds` are what it has of those that a fleet shares, under their
/// positions; it may be shorter. With `observe`, every rule is a dry run.
#[must_use]
pub fn judge<'a>(
    limiters: &[&'a Limiter],
    holds: &[Option<Hold>],
    subject: &Subject<'_>,
    now: Instant,
    observe: bool,
) -> Judgement<'a> {
    let enforced = |limiter: &Limiter| !observe && !limiter.rule.dry_run;
    let hold = |at: usize| holds.get(at).copied().flatten();
    let refusal = |standings: &[Standing<'_>]| {
        standings.iter().zip(limiters).position(|(standing, limiter)| !standing.within && enforced(limiter))
    };
    let all = |peek| limiters.iter().enumerate().map(move |(at, limiter)| limiter.ask(subject, now, hold(at), peek));
    if limiters.len() > 1 {
        let standings: SmallVec<_> = all(true).collect();
        if let Some(refused_by) = refusal(&standings) {
            let spent = |at| matches!(hold(at), Some(Hold::Spent { .. }));
            limiters.iter().enumerate().filter(|(at, _)| spent(*at)).for_each(|(_, l)| l.give_back(subject, now));
            return Judgement { standings, refused_by: Some(refused_by) };
        }
    }
    let standings: SmallVec<_> = all(false).collect();
    let refused_by = refusal(&standings);
    Judgement { standings, refused_by }
}
