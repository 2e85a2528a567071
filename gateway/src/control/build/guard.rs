//! The guards of a service, built. Breakers and budgets that are made for the same are carried over with what they know.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serin_core::breaker::{Breaker, BreakerPolicy, CallWindow};
use serin_core::guard::Guards;
use serin_core::outlier::OutlierPolicy;
use serin_core::retry::{Backoff, BudgetPolicy, RetryBudget};
use serin_core::slow_start::SlowStart;
use serin_core::snapshot::Service;

use crate::conf::{self, OrNone, Percent, Span};
use crate::telemetry::guard::GuardMetrics;

/// Builds the guards.
pub(super) fn build(
    conf: &conf::Service,
    before: Option<&Service>,
    metrics: &Arc<GuardMetrics>,
    now: Instant,
) -> Guards {
    let policy = conf.circuit_breaker.as_ref().map(breaker_policy);
    let breaker = |at: usize, name: &str| {
        let policy = policy.clone()?;
        let known = before.and_then(|service| service.subsets.iter().find(|subset| &*subset.name == name));
        let on_turn = metrics.on_turn(at);
        Some(match known.and_then(|subset| subset.breaker.as_ref()) {
            Some(breaker) if *breaker.policy() == policy => Arc::clone(breaker),
            Some(breaker) => Arc::new(Breaker::after(breaker, policy, now, on_turn)),
            None => Arc::new(Breaker::new(policy, now, on_turn)),
        })
    };
    Guards {
        outlier: conf.outlier_detection.as_ref().map(outlier_policy),
        panic_threshold: conf.panic_threshold.hundredths(),
        breakers: conf.subsets.keys().enumerate().map(|(at, name)| breaker(at, name)).collect(),
        budget: (conf.retry.attempts > 1).then(|| budget(conf.retry.budget, before, now)),
        backoff: backoff(conf.retry.backoff),
        slow_start: conf.slow_start.as_ref().map(slow_start),
        events: Arc::clone(metrics) as Arc<_>,
        ..Guards::default()
    }
}

fn budget(conf: conf::RetryBudget, before: Option<&Service>, now: Instant) -> Arc<RetryBudget> {
    let policy = BudgetPolicy { percent: conf.percent.hundredths(), min_per_second: conf.min_per_second };
    let known = before.and_then(|service| service.guards.budget.clone()).filter(|budget| budget.policy() == policy);
    known.unwrap_or_else(|| Arc::new(RetryBudget::new(policy, now)))
}

fn backoff(conf: conf::Backoff) -> Option<Backoff> {
    let (base, max) = (conf.base.duration(), conf.max.duration());
    (base > Duration::ZERO).then_some(Backoff { base, max })
}

fn slow_start(conf: &conf::SlowStart) -> SlowStart {
    SlowStart { window: conf.window.duration(), initial: conf.initial.share(), aggression: conf.aggression }
}

fn share(percent: &OrNone<Percent>) -> Option<u32> {
    percent.as_option().map(|percent| percent.hundredths())
}

fn time(span: &OrNone<Span>) -> Option<Duration> {
    span.as_option().map(|span| span.duration())
}

fn outlier_policy(conf: &conf::OutlierDetection) -> OutlierPolicy {
    OutlierPolicy {
        consecutive_5xx: Some(conf.consecutive_5xx),
        consecutive_local: Some(conf.consecutive_local),
        success_rate: share(&conf.success_rate),
        failure_percentage: share(&conf.failure_percentage),
        mean_latency: time(&conf.mean_latency),
        window: conf.window.duration(),
        min_requests: conf.min_requests,
        base_ejection: conf.base_ejection.duration(),
        max_ejection: conf.max_ejection.duration(),
        max_ejection_percent: conf.max_ejection_percent.hundredths(),
    }
}

fn breaker_policy(conf: &conf::CircuitBreaker) -> BreakerPolicy {
    BreakerPolicy {
        failure_rate: share(&conf.failure_rate),
        slow_call: time(&conf.slow_call),
        slow_rate: conf.slow_rate.hundredths(),
        min_calls: conf.min_calls,
        window: conf.window_calls.map_or(CallWindow::Time(conf.window.duration()), CallWindow::Calls),
        open: conf.open.duration(),
        max_open: conf.max_open.duration(),
        half_open_probes: conf.half_open_probes,
        max_connections: conf.max_connections,
        max_pending: conf.max_pending,
        max_requests: conf.max_requests,
    }
}
