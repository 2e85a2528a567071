//! Checks of what keeps a service up: outlier detection, breaker, slow start, retries.

use super::super::problem::At;
use super::super::routing::{CircuitBreaker, OutlierDetection, Retry, Service, SlowStart};
use super::super::scalar::{OrNone, Percent, Span};
use super::Report;
use super::service::positive;

/// Checks the guards of one service.
pub(super) fn guards(service: &Service, at: &At<'_>, report: &mut Report<'_>) {
    if let Some(conf) = &service.outlier_detection {
        outlier(conf, &at.key("outlier_detection"), report);
    }
    if let Some(conf) = &service.circuit_breaker {
        breaker(conf, &at.key("circuit_breaker"), report);
    }
    if let Some(conf) = &service.slow_start {
        slow_start(conf, &at.key("slow_start"), report);
    }
    retry(&service.retry, &at.key("retry"), report);
}

fn outlier(conf: &OutlierDetection, at: &At<'_>, report: &mut Report<'_>) {
    positive(Some(conf.window), &at.key("window"), report);
    positive(Some(conf.base_ejection), &at.key("base_ejection"), report);
    positive(conf.mean_latency.as_option().copied(), &at.key("mean_latency"), report);
    share(conf.failure_percentage.as_option(), &at.key("failure_percentage"), report);
    at_least(conf.max_ejection, conf.base_ejection, "base_ejection", &at.key("max_ejection"), report);
}

fn breaker(conf: &CircuitBreaker, at: &At<'_>, report: &mut Report<'_>) {
    for (name, span) in [("window", Some(conf.window)), ("open", Some(conf.open))] {
        positive(span, &at.key(name), report);
    }
    positive(conf.slow_call.as_option().copied(), &at.key("slow_call"), report);
    share(conf.failure_rate.as_option(), &at.key("failure_rate"), report);
    share(Some(&conf.slow_rate), &at.key("slow_rate"), report);
    at_least(conf.max_open, conf.open, "open", &at.key("max_open"), report);
    if let Some(calls) = conf.window_calls.filter(|&calls| calls < conf.min_calls) {
        let message = format!("the last {calls} calls are never the {} that `min_calls` wants", conf.min_calls);
        report.say(&at.key("window_calls"), message);
    }
    if conf.failure_rate == OrNone::None && conf.slow_call == OrNone::None && conf.window_calls.is_some() {
        report.say(&at.key("window_calls"), "has no effect with neither `failure_rate` nor `slow_call`");
    }
}

fn slow_start(conf: &SlowStart, at: &At<'_>, report: &mut Report<'_>) {
    positive(Some(conf.window), &at.key("window"), report);
    share(Some(&conf.initial), &at.key("initial"), report);
}

fn retry(conf: &Retry, at: &At<'_>, report: &mut Report<'_>) {
    at_least(conf.backoff.max, conf.backoff.base, "base", &at.key("backoff").key("max"), report);
    positive(conf.hedge_after, &at.key("hedge_after"), report);
    if conf.hedge_after.is_some() && conf.attempts < 2 {
        report.say(&at.key("hedge_after"), "has no effect with `attempts: 1`");
    }
}

/// A share that would always be reached if it was 0.
fn share(percent: Option<&Percent>, at: &At<'_>, report: &mut Report<'_>) {
    if percent == Some(&Percent::NONE) {
        report.say(at, "must be more than 0%");
    }
}

fn at_least(most: Span, least: Span, name: &str, at: &At<'_>, report: &mut Report<'_>) {
    if most < least {
        report.say(at, format!("`{most}` is less than `{name}`, which is `{least}`"));
    }
}
