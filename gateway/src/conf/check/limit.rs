//! Checks of rate limits and concurrency limits.

use super::super::problem::At;
use super::super::routing::{Concurrency, LimitKey, LimitScope, RateLimit};
use super::Report;
use super::service::NO_JWT;

/// Checks the rate limits of a service or a route. `has_jwt` says whether tokens are verified there.
pub(super) fn limits(limits: &[RateLimit], has_jwt: bool, at: &At<'_>, report: &mut Report<'_>) {
    report.unique(at, "name", limits.iter().map(|limit| &limit.name), |name| format!("the rate limit `{name}`"));
    for (index, each) in limits.iter().enumerate() {
        limit(each, has_jwt, &at.index(index), report);
    }
}

fn limit(limit: &RateLimit, has_jwt: bool, at: &At<'_>, report: &mut Report<'_>) {
    let keys = at.key("key");
    for (index, key) in limit.key.iter().enumerate() {
        if matches!(key, LimitKey::Claim(_)) && !has_jwt {
            report.say(&keys.index(index), NO_JWT);
        }
    }
    if limit.key.is_empty() && !limit.overrides.is_empty() {
        report.say(&at.key("overrides"), "needs a `key`, by the first part of which it is looked up");
    }
    if limit.fail_closed && limit.scope == LimitScope::Gateway {
        report.say(&at.key("fail_closed"), "there is nothing to fail: expected it with `scope: fleet`");
    }
    let cost = limit.cost.as_ref().map_or(1, |cost| cost.max);
    if let Some(quota) = report.told(&at.key("limit"), limit.quota()).filter(|quota| cost > quota.burst()) {
        let message =
            format!("is above the burst, which is {}: such requests would never be let through", quota.burst());
        report.say(&at.key("cost").key("max"), message);
    }
    let overrides = at.key("overrides");
    for (value, rate) in &limit.overrides {
        let at = overrides.key(value);
        if let Some(quota) = report.told(&at, limit.quota_of(*rate)).filter(|quota| cost > quota.burst()) {
            let message = format!("has a burst of {}, which is below `cost.max`", quota.burst());
            report.say(&at, message);
        }
    }
}

/// Checks the concurrency limit of a service.
pub(super) fn concurrency(limit: Concurrency, at: &At<'_>, report: &mut Report<'_>) {
    let bounds = limit.adaptive;
    if bounds.min > bounds.max {
        report.say(&at.key("adaptive").key("min"), format!("is above `max`, which is {}", bounds.max));
    }
}
