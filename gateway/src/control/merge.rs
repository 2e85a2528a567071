//! Two traffic documents that were made from the same one, by changes on either side, become one.

use indexmap::IndexMap;

use crate::conf::{Abort, Name, ServiceTraffic, Switch, Switches, Traffic};

/// A document with the changes of both sides.
#[derive(Debug, PartialEq)]
pub(super) struct Merged {
    /// The document; its revision is of no account.
    pub(super) traffic: Traffic,
    /// Of which services both sides changed the same thing, so that what was changed here is lost.
    pub(super) overruled: Vec<String>,
}

/// What was changed from `base` to `ours` is changed in `theirs`. Where both changed the same thing, theirs holds - but
/// a rollout that either side aborted is aborted.
pub(super) fn merge(base: &Traffic, ours: &Traffic, theirs: &Traffic) -> Merged {
    let mut overruled = Vec::new();
    let mut services = IndexMap::new();
    let default = ServiceTraffic::default();
    let names = theirs.services.keys().chain(ours.services.keys().filter(|name| !theirs.services.contains_key(*name)));
    for name in names {
        let of = |document: &Traffic| document.services.get(name).cloned();
        let (before, mine, other) = (of(base), of(ours), of(theirs));
        if mine == before {
            services.extend(other.map(|other| (name.clone(), other)));
            continue;
        }
        if other == before {
            services.extend(mine.map(|mine| (name.clone(), mine)));
            continue;
        }
        let [before, mine, other] = [before, mine, other].map(|entry| entry.unwrap_or_else(|| default.clone()));
        let (service, lost) = service(&before, &mine, &other);
        if lost {
            overruled.push(name.to_string());
        }
        services.insert(name.clone(), service);
    }
    let switches = Switches {
        balancer: switch(&base.switches.balancer, &ours.switches.balancer, &theirs.switches.balancer),
        canary: switch(&base.switches.canary, &ours.switches.canary, &theirs.switches.canary),
        limits: pick(&base.switches.limits, ours.switches.limits, theirs.switches.limits),
    };
    Merged { traffic: Traffic { revision: theirs.revision, services, switches }, overruled }
}

/// The value of the side that changed it. Of two values there are no two different changes.
fn pick<T: PartialEq>(base: &T, ours: T, theirs: T) -> T {
    if theirs == *base { ours } else { theirs }
}

fn service(base: &ServiceTraffic, ours: &ServiceTraffic, theirs: &ServiceTraffic) -> (ServiceTraffic, bool) {
    // Weights and ramp belong together: the ramp says what the weights are.
    let split = |entry: &ServiceTraffic| (entry.weights.clone(), entry.ramp.clone());
    let (before, mine, other) = (split(base), split(ours), split(theirs));
    let lost = mine != before && other != before && mine != other;
    let (weights, ramp) = pick(&before, mine, other);
    let abort = match (ours.abort != base.abort, theirs.abort != base.abort) {
        (true, true) => strongest(ours.abort, theirs.abort),
        (true, false) => ours.abort,
        _ => theirs.abort,
    };
    (ServiceTraffic { weights, abort, ramp }, lost)
}

fn strongest(a: Abort, b: Abort) -> Abort {
    match (a, b) {
        (Abort::All, _) | (_, Abort::All) => Abort::All,
        (Abort::Weights, _) | (_, Abort::Weights) => Abort::Weights,
        (Abort::Off, Abort::Off) => Abort::Off,
    }
}

fn switch(base: &Switch, ours: &Switch, theirs: &Switch) -> Switch {
    let all = pick(&base.all, ours.all, theirs.all);
    let names = ours.services.keys().chain(theirs.services.keys());
    let mut services: IndexMap<Name, bool> = IndexMap::new();
    for name in names {
        let value = pick(&base.services.get(name), ours.services.get(name), theirs.services.get(name));
        services.extend(value.filter(|on| **on != all).map(|on| (name.clone(), *on)));
    }
    Switch { all, services }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conf::{self, Source};

    fn document(text: &str) -> Traffic {
        let routing = "{services: {a: {instances: [{address: '127.0.0.1:1'}], subsets: {v1: {v: '1'}, v2: {v: '2'}}, \
                       stable: v1}, b: {instances: [{address: '127.0.0.1:1'}], subsets: {v1: {v: '1'}, v2: {v: '2'}}, \
                       stable: v1}}, routes: []}";
        let node = serin_core::plugin::Node::default();
        let routing = conf::routing(&Source::inline("r", routing), &crate::builtin(), &node).unwrap();
        conf::traffic(&Source::inline("t", format!("{{{text}}}")), &routing).unwrap()
    }

    #[test]
    fn changes_of_both_sides_are_kept() {
        let v2 = |percent: u32| format!("weights: {{v1: {}%, v2: {percent}%}}", 100 - percent);
        let a = |inner: &str| format!("services: {{a: {{{inner}}}}}");
        let (ten, twenty, thirty) = (a(&v2(10)), a(&v2(20)), a(&v2(30)));
        let abort = a(&format!("{}, abort: true", v2(10)));
        let weights = a(&format!("{}, abort: weights", v2(10)));
        let both = format!("services: {{a: {{{}}}, b: {{abort: true}}}}", v2(20));
        let b = format!("services: {{a: {{{}}}, b: {{abort: true}}}}", v2(10));
        let cases = [
            // base, ours, theirs, merged, overruled
            ("", "", "", "", ""),
            (&*ten, &*twenty, &*ten, &*twenty, ""),
            (&ten, &ten, &twenty, &twenty, ""),
            (&ten, &twenty, &twenty, &twenty, ""),
            (&ten, &twenty, &thirty, &thirty, "a"),
            (&ten, &twenty, &b, &both, ""),
            (&ten, &abort, &weights, &abort, ""),
            (&ten, &weights, &abort, &abort, ""),
            ("", &ten, "", &ten, ""),
            (&ten, "", &ten, "", ""),
            ("", "switches: {balancer: true}", &ten, &format!("{ten}, switches: {{balancer: true}}"), ""),
            (
                "switches: {canary: true}",
                "switches: {canary: {all: true, services: {a: false}}}",
                "switches: {canary: {all: true, services: {b: false}}}",
                "switches: {canary: {all: true, services: {a: false, b: false}}}",
                "",
            ),
            ("switches: {canary: true, limits: true}", "switches: {canary: true}", "switches: {limits: true}", "", ""),
        ];
        for (base, ours, theirs, merged, overruled) in cases {
            let got = merge(&document(base), &document(ours), &document(theirs));
            assert_eq!(got.traffic, document(merged), "{base} | {ours} | {theirs}");
            assert_eq!(got.overruled.join(","), overruled, "{base} | {ours} | {theirs}");
        }
    }
}
