//! Local rate limits (GCRA, by the `governor` crate). A rule says whose requests are counted together (its key), how
//! many units they may spend (its quota), and what a request costs. The state of all keys of a rule is in one [`Store`];
//! which quota a key is under is part of its hash, so that a quota that changes begins afresh and all others go on.

mod fields;
mod key;
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
pub use quota::{Quota, QuotaError};
pub use store::Store;

use store::{Access, Slot};

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
    /// How the key of a request would stand; nothing is taken.
    #[must_use]
    pub fn peek(&self, subject: &Subject<'_>, now: Instant) -> Standing<'_> {
        self.ask(subject, now, true)
    }

    /// Takes what a request costs from its key's quota, if it is within it.
    #[must_use]
    pub fn take(&self, subject: &Subject<'_>, now: Instant) -> Standing<'_> {
        self.ask(subject, now, false)
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

    fn ask(&self, subject: &Subject<'_>, now: Instant, peek: bool) -> Standing<'_> {
        let (quota, cost) = (self.quota(subject), self.cost(subject));
        let slot = self.slot(subject, quota);
        let now = self.store.nanos(now);
        let start = Told(Cell::new(Nanos::new(0)));
        let limiter = RateLimiter::<Slot, _, _, StateInformationMiddleware>::new(
            quota.gcra(),
            Access::new(&self.store, now, peek),
            start,
        );
        limiter.clock().0.set(now);
        let (within, remaining, wait) = match limiter.check_key_n(&slot, cost) {
            Ok(Ok(state)) => {
                let remaining = state.remaining_burst_capacity();
                (true, remaining, quota.time_for(quota.burst() - remaining.min(quota.burst())))
            }
            Ok(Err(refused)) => (false, 0, refused.wait_time_from(now)),
            // A cost above the burst, which the checks of documents rule out.
            Err(_) => (false, 0, quota.time_for(cost.get())),
        };
        Standing { quota, within, remaining, wait, full: limiter.into_state_store().was_full() }
    }

    fn slot(&self, subject: &Subject<'_>, quota: &Quota) -> Slot {
        let mut bytes: SmallVec<[u8; 128]> = SmallVec::new();
        bytes.extend_from_slice(&quota.identity());
        let spill = self.store.hash(&bytes);
        for part in &self.rule.key {
            part.write(subject, &mut bytes);
        }
        Slot { key: self.store.hash(&bytes), spill }
    }
}

/// Judges one request by all rules that hold for it. If one refuses it, nothing is taken from the others, so that who
/// is over one limit does not use up what others share. With `observe`, every rule is a dry run.
#[must_use]
pub fn judge<'a>(limiters: &[&'a Limiter], subject: &Subject<'_>, now: Instant, observe: bool) -> Judgement<'a> {
    let enforced = |limiter: &Limiter| !observe && !limiter.rule.dry_run;
    let refusal = |standings: &[Standing<'_>]| {
        standings.iter().zip(limiters).position(|(standing, limiter)| !standing.within && enforced(limiter))
    };
    if limiters.len() > 1 {
        let standings: SmallVec<_> = limiters.iter().map(|limiter| limiter.peek(subject, now)).collect();
        if let Some(refused_by) = refusal(&standings) {
            return Judgement { standings, refused_by: Some(refused_by) };
        }
    }
    let standings: SmallVec<_> = limiters.iter().map(|limiter| limiter.take(subject, now)).collect();
    let refused_by = refusal(&standings);
    Judgement { standings, refused_by }
}
