//! Guarded ramps on the traffic document. What happens to a ramp is a change like any other; `yield_to` is what keeps
//! a ramp from fighting operators, and [`driver`] is what makes it go on.

pub mod driver;
#[cfg(test)]
mod tests;

use std::fmt;

use indexmap::IndexMap;

use super::change::FlipError;
use crate::conf::{Abort, Moment, Name, Percent, Ramp, RampState, Routing, Service, ServiceTraffic, Traffic};

/// What happens to the ramp of a service.
#[derive(Clone, Debug, PartialEq)]
pub struct RampChange {
    /// The service.
    pub service: String,
    /// What happens.
    pub act: Act,
    /// Who does it.
    pub by: String,
    /// When.
    pub at: Moment,
}

/// What may happen to a ramp.
#[derive(Clone, Debug, PartialEq)]
pub enum Act {
    /// It begins, at its first step.
    Start(Box<Ramp>),
    /// It stops for now.
    Pause(String),
    /// It goes on with its step, whose time begins anew.
    Resume,
    /// It ends, and everything goes to the stable subset: why.
    Abort(String),
    /// The next step begins.
    Advance,
    /// There is too little to judge by: what is missing.
    Hold(String),
    /// It came to its end.
    Finish,
}

impl fmt::Display for RampChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ramp {} ", self.service)?;
        match &self.act {
            Act::Start(ramp) => write!(f, "start to {} at {}", ramp.to, ramp.share()),
            Act::Pause(_) => f.write_str("pause"),
            Act::Resume => f.write_str("resume"),
            Act::Abort(_) => f.write_str("abort"),
            Act::Advance => f.write_str("next step"),
            Act::Hold(_) => f.write_str("hold"),
            Act::Finish => f.write_str("done"),
        }
    }
}

impl RampChange {
    /// Applies it to a service.
    ///
    /// # Errors
    /// If it does not fit the state that ramp and service are in.
    pub(super) fn apply(&self, traffic: &mut Traffic, name: Name, service: &Service) -> Result<(), FlipError> {
        let canary_off = traffic.switches.canary.is_on(&name);
        let entry = traffic.services.entry(name).or_default();
        match &self.act {
            Act::Start(ramp) => self.start(ramp, entry, service, canary_off),
            act => {
                let Some(mut ramp) = entry.ramp.take() else {
                    return Err(FlipError::Ramp(format!("{} has no ramp", self.service)));
                };
                self.change(act, &mut ramp, entry, service.stable(), canary_off)?;
                entry.ramp = Some(ramp);
                Ok(())
            }
        }
    }

    fn start(
        &self,
        ramp: &Ramp,
        entry: &mut ServiceTraffic,
        service: &Service,
        canary_off: bool,
    ) -> Result<(), FlipError> {
        let before = entry.ramp.as_ref();
        if let Some(before) = before.filter(|before| !before.state.is_over()) {
            let place = before.place();
            return Err(FlipError::Ramp(format!("{} has a ramp already, {place}: abort it first", self.service)));
        }
        // The abort with which the last ramp ended is over with the next one.
        let after_abort = before.is_some_and(|before| before.state == RampState::Aborted);
        if after_abort {
            entry.abort = Abort::Off;
        }
        self.check_in_force(entry, canary_off)?;
        let started = Ramp { step: 0, state: RampState::Running, since: Some(self.at), ..ramp.clone() };
        // A target that cannot be one is told of with the rest of what is wrong with the document.
        if service.subsets.contains_key(ramp.to.as_str()) && *ramp.to != *service.stable() {
            self.put_weights(entry, &started, service.stable())?;
        }
        entry.ramp = Some(Ramp { reason: String::new(), ..started });
        Ok(())
    }

    fn change(
        &self,
        act: &Act,
        ramp: &mut Ramp,
        entry: &mut ServiceTraffic,
        stable: &str,
        canary_off: bool,
    ) -> Result<(), FlipError> {
        let fits = match act {
            Act::Pause(_) | Act::Advance | Act::Hold(_) | Act::Finish => ramp.state.is_active(),
            Act::Resume => ramp.state == RampState::Paused,
            Act::Abort(_) => !ramp.state.is_over(),
            Act::Start(_) => false,
        };
        if !fits {
            return Err(FlipError::Ramp(format!("the ramp of {} is {}", self.service, ramp.state)));
        }
        match act {
            Act::Pause(why) => (ramp.state, ramp.reason) = (RampState::Paused, why.clone()),
            Act::Hold(why) => (ramp.state, ramp.reason) = (RampState::Held, why.clone()),
            Act::Finish => (ramp.state, ramp.reason) = (RampState::Done, String::new()),
            Act::Abort(why) => {
                (ramp.state, ramp.reason) = (RampState::Aborted, why.clone());
                entry.weights = shares(&entry.weights, &ramp.to, Percent::NONE, stable);
                entry.abort = Abort::All;
            }
            Act::Advance | Act::Resume | Act::Start(_) => {
                self.check_in_force(entry, canary_off)?;
                if *act == Act::Advance {
                    ramp.step = (ramp.step + 1).min(ramp.steps.len().saturating_sub(1));
                }
                (ramp.state, ramp.since) = (RampState::Running, Some(self.at));
                ramp.reason = String::new();
                self.put_weights(entry, ramp, stable)?;
            }
        }
        Ok(())
    }

    /// Weights that are kept out of force cannot be ramped.
    fn check_in_force(&self, entry: &ServiceTraffic, canary_off: bool) -> Result<(), FlipError> {
        let service = &self.service;
        if canary_off {
            return Err(FlipError::Ramp(format!("the canary switch is on for {service}: turn it off first")));
        }
        if entry.abort != Abort::Off {
            let message = format!("the rollout of {service} is aborted: `serin canary resume {service}` first");
            return Err(FlipError::Ramp(message));
        }
        Ok(())
    }

    fn put_weights(&self, entry: &mut ServiceTraffic, ramp: &Ramp, stable: &str) -> Result<(), FlipError> {
        let other =
            |(name, weight): &(&Name, &Percent)| weight.hundredths() > 0 && ***name != *stable && ***name != *ramp.to;
        if let Some((name, weight)) = entry.weights.iter().find(other) {
            let (service, to) = (&self.service, &ramp.to);
            let message = format!("{name} has {weight} of {service}: a ramp to {to} needs all but {to} on {stable}");
            return Err(FlipError::Ramp(message));
        }
        entry.weights = shares(&entry.weights, &ramp.to, ramp.share(), stable);
        Ok(())
    }
}

/// Weights of a service with a share for the target of a ramp and the rest for the stable subset.
fn shares(before: &IndexMap<Name, Percent>, to: &Name, share: Percent, stable: &str) -> IndexMap<Name, Percent> {
    let rest = Percent::from_hundredths(Percent::ALL.hundredths() - share.hundredths()).unwrap_or_default();
    let mut weights: IndexMap<Name, Percent> = before.keys().map(|name| (name.clone(), Percent::NONE)).collect();
    if let Ok(stable) = stable.parse() {
        weights.insert(stable, rest);
    }
    weights.insert(to.clone(), share);
    weights
}

/// Why the traffic of a service is not what its ramp made it; none if it is.
#[must_use]
pub fn disturbed(ramp: &Ramp, entry: &ServiceTraffic, stable: &str, canary_off: bool) -> Option<&'static str> {
    let weight = |name: &str| entry.weights.get(name).map_or(0, |weight| weight.hundredths());
    let share = ramp.share().hundredths();
    if canary_off {
        Some("the canary switch was turned on")
    } else if entry.abort != Abort::Off {
        Some("the rollout was aborted")
    } else if weight(&ramp.to) != share || weight(stable) != Percent::ALL.hundredths() - share {
        Some("the weights were changed")
    } else {
        None
    }
}

/// Pauses the ramps that a change of somebody else's touches: an operator has the last word. A document that knows
/// nothing of a ramp that is under way does not end it either.
pub(super) fn yield_to(by: &str, rollback: Option<u64>, before: &Traffic, after: &mut Traffic, routing: &Routing) {
    let went_back = rollback.map(|revision| format!("{by} went back to revision {revision}"));
    for (name, service) in &routing.services {
        let old = before.services.get(name).and_then(|entry| entry.ramp.as_ref());
        let active = old.filter(|ramp| ramp.state.is_active());
        let canary_off = after.switches.canary.is_on(name);
        if after.services.get(name).is_none_or(|entry| entry.ramp.is_none()) && active.is_some() {
            after.services.entry(name.clone()).or_default().ramp = old.cloned();
        }
        let Some(entry) = after.services.get_mut(name) else { continue };
        let Some(mut ramp) = entry.ramp.take() else { continue };
        if ramp.state.is_active() {
            let other = active.is_some_and(|active| *active != ramp).then_some("the ramp was replaced");
            let why = other.or_else(|| disturbed(&ramp, entry, service.stable(), canary_off));
            let why = went_back.clone().or_else(|| why.map(|why| format!("{why} by {by}")));
            if let Some(why) = why {
                (ramp.state, ramp.reason) = (RampState::Paused, why);
            }
        }
        entry.ramp = Some(ramp);
    }
}
