//! Checks of the traffic document.

use super::super::problem::At;
use super::super::routing::Routing;
use super::super::scalar::{Name, Percent, percentage};
use super::super::traffic::{ServiceTraffic, Switch, Traffic};
use super::Report;
use super::ramp::ramp;

/// Largest revision that a document may state: every JSON reader can tell it from the next one (RFC 8259 section 6), and
/// no gateway lives long enough to count from there to the end.
const MAX_REVISION: u64 = (1 << 53) - 1;

/// Checks a traffic document, and what it refers to in a routing document if there is one.
pub(in super::super) fn traffic(document: &Traffic, routing: Option<&Routing>, report: &mut Report<'_>) {
    if document.revision > MAX_REVISION {
        report.say(&At::ROOT.key("revision"), format!("expected a number up to {MAX_REVISION}"));
    }
    let services = At::ROOT.key("services");
    for (name, each) in &document.services {
        let at = services.key(name);
        known_service(name, routing, &at, report);
        weights(name, each, routing, &at.key("weights"), report);
        if let Some(conf) = &each.ramp {
            ramp(conf, routing.and_then(|routing| Some(&**routing.services.get(name)?)), &at.key("ramp"), report);
        }
    }
    let switches = At::ROOT.key("switches");
    switch(&document.switches.balancer, routing, &switches.key("balancer"), report);
    switch(&document.switches.canary, routing, &switches.key("canary"), report);
}

fn known_service(name: &str, routing: Option<&Routing>, at: &At<'_>, report: &mut Report<'_>) {
    if let Some(routing) = routing.filter(|routing| !routing.services.contains_key(name)) {
        report.unknown(at, "service", name, routing.services.keys().map(Name::as_str));
    }
}

fn weights(name: &str, traffic: &ServiceTraffic, routing: Option<&Routing>, at: &At<'_>, report: &mut Report<'_>) {
    if let Some(service) = routing.and_then(|routing| routing.services.get(name)) {
        for subset in traffic.weights.keys().filter(|subset| !service.subsets.contains_key(subset.as_str())) {
            let known = service.subsets.keys().map(Name::as_str);
            report.unknown(&at.key(subset), "subset", subset, known);
        }
    }
    let sum: u64 = traffic.weights.values().map(|weight| u64::from(weight.hundredths())).sum();
    if !traffic.weights.is_empty() && sum != u64::from(Percent::ALL.hundredths()) {
        report.say(at, format!("the weights add up to {}: expected exactly 100%", percentage(sum)));
    }
}

fn switch(switch: &Switch, routing: Option<&Routing>, at: &At<'_>, report: &mut Report<'_>) {
    let services = at.key("services");
    for name in switch.services.keys() {
        known_service(name, routing, &services.key(name), report);
    }
}
