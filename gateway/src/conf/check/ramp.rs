//! Checks of ramps.

use super::super::problem::At;
use super::super::ramp::Ramp;
use super::super::routing::Service;
use super::super::scalar::Name;
use super::Report;

/// Checks a ramp, and what it refers to if the service is known. One that is over may name what is no longer there.
pub(super) fn ramp(ramp: &Ramp, service: Option<&Service>, at: &At<'_>, report: &mut Report<'_>) {
    let (steps, to) = (at.key("steps"), at.key("to"));
    for (index, pair) in ramp.steps.windows(2).enumerate() {
        if pair[0] >= pair[1] {
            let message = format!("{} comes after {}: expected steps that ascend", pair[1], pair[0]);
            report.say(&steps.index(index + 1), message);
        }
    }
    if ramp.steps.first().is_some_and(|first| first.hundredths() == 0) {
        report.say(&steps.index(0), "is nothing: expected a first step above 0%");
    }
    if ramp.step >= ramp.steps.len() && !ramp.steps.is_empty() {
        let last = ramp.steps.len() - 1;
        report.say(&at.key("step"), format!("there is no step {}: expected 0 to {last}", ramp.step));
    }
    if ramp.every.duration().is_zero() {
        report.say(&at.key("every"), "is no time: expected a duration such as `5m`");
    }
    let Some(service) = service.filter(|_| !ramp.state.is_over()) else { return };
    if !service.subsets.contains_key(ramp.to.as_str()) {
        report.unknown(&to, "subset", &ramp.to, service.subsets.keys().map(Name::as_str));
    } else if *ramp.to == *service.stable() {
        report.say(&to, format!("`{}` is the stable subset: expected another one", ramp.to));
    }
}
