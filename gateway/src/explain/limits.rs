//! How the request stands with rate limits and the concurrency limit. Nothing is taken.

use std::time::Instant;

use serin_core::limit::{Basis, Subject};
use serin_core::request::RequestView;
use serin_core::route::Route;

use super::{ConcurrencySeen, LimitSeen, OwnAnswer, Way};
use crate::limits::{Outcome, RateLimit};

impl Way<'_> {
    /// Writes down the standings; what the gateway would answer if one of them refuses the request.
    pub(super) fn limits(
        &mut self,
        route: &Route,
        service: usize,
        subset: usize,
        view: &RequestView<'_>,
    ) -> Option<OwnAnswer> {
        let generation = self.generation;
        let (core, side) = (&generation.core.services[service], &generation.services[service]);
        let of_route = generation.core.routes.routes().iter().position(|other| std::ptr::eq(other, route));
        let of_route = of_route.and_then(|at| generation.routes.get(at)).map_or(&[][..], |side| &side.rate_limits);
        let subset = &core.subsets[subset].name;
        let subject = Subject { request: *view, route: &route.name, service: &core.name, subset };
        let (observe, now) = (generation.traffic.switches.limits, Instant::now());
        let of_service = side.rate_limits.iter().map(|limit| ("service", limit));
        let all = of_service.chain(of_route.iter().map(|limit| ("route", limit)));
        self.into.rate_limits = all.map(|(scope, limit)| seen(scope, limit, &subject, now, observe)).collect();
        let concurrency = side.concurrency.as_ref().map(|concurrency| &concurrency.limit);
        self.into.concurrency =
            concurrency.map(|limit| ConcurrencySeen { limit: limit.limit(), in_flight: limit.in_flight() });
        let limited = self.into.rate_limits.iter().find(|limit| limit.verdict == Outcome::Limited.as_str());
        if let Some(limit) = limited {
            return Some(OwnAnswer::new(
                429,
                format!("the rate limit {} of the {} is used up", limit.rule, limit.scope),
            ));
        }
        let busy = self.into.concurrency.is_some_and(|seen| !observe && seen.in_flight >= seen.limit);
        busy.then(|| OwnAnswer::new(503, "the concurrency limit of the service is reached"))
    }
}

fn seen(scope: &str, limit: &RateLimit, subject: &Subject<'_>, now: Instant, observe: bool) -> LimitSeen {
    let limiter = &limit.limiter;
    let standing = limiter.peek(subject, now);
    LimitSeen {
        rule: limiter.rule.name.to_string(),
        scope: scope.to_owned(),
        key: limiter
            .rule
            .key
            .iter()
            .map(|part| (part.to_string(), part.text(subject).map(|text| text.into_owned())))
            .collect(),
        limit: standing.quota.units(),
        per_seconds: standing.quota.per().as_secs(),
        burst: standing.quota.burst(),
        cost: limiter.cost(subject).get(),
        verdict: limit.outcome(&standing, observe).as_str().to_owned(),
        remaining: standing.remaining,
        wait_ms: u64::try_from(standing.wait.as_millis()).unwrap_or(u64::MAX),
        store_full: standing.full,
        fleet: limiter.leases.is_some().then(|| by(standing.basis).to_owned()),
    }
}

/// Who decided.
fn by(basis: Basis) -> &'static str {
    if basis == Basis::Fleet { "redis" } else { "local" }
}
