//! What clients are told: `RateLimit-Policy` and `RateLimit` (draft-ietf-httpapi-ratelimit-headers-10), both lists of
//! structured fields (RFC 9651), and `Retry-After` (RFC 9110 section 10.2.3).

use std::fmt::Write as _;
use std::time::Duration;

use http::HeaderValue;

use super::{Judgement, Limiter};

/// Values of the two fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fields {
    /// Of `RateLimit-Policy`: the rules, with quota and window.
    pub policy: HeaderValue,
    /// Of `RateLimit`: per rule, units that are left (`r`), and seconds (`t`) until all of them are there again, or for
    /// the rule that refuses, until the request would be let through.
    pub state: HeaderValue,
}

/// The fields for the rules that are enforced; none if none is.
#[must_use]
pub fn fields(limiters: &[&Limiter], judgement: &Judgement<'_>, observe: bool) -> Option<Fields> {
    let (mut policy, mut state) = (None::<HeaderValue>, String::new());
    for (limiter, standing) in limiters.iter().zip(&judgement.standings) {
        if observe || limiter.rule.dry_run {
            continue;
        }
        let name = &limiter.rule.name;
        let next = standing.quota.policy()?;
        policy = Some(match policy {
            None => next.clone(),
            Some(before) => HeaderValue::from_bytes(&[before.as_bytes(), next.as_bytes()].join(&b", "[..])).ok()?,
        });
        let comma = if state.is_empty() { "" } else { ", " };
        // Writing to memory cannot fail.
        let _ = write!(state, "{comma}\"{name}\";r={};t={}", standing.remaining, seconds(standing.wait));
    }
    Some(Fields { policy: policy?, state: HeaderValue::try_from(state).ok()? })
}

/// A length of time in whole seconds, rounded up, so that who waits that long does not come too early.
#[must_use]
pub fn seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}
