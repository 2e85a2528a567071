//! Makes ramps go on: looks at the live numbers several times a second, asks the core for its verdict, and flips.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use serin_core::live::{Meter, Tally};
use serin_core::ramp::{Bound, Guard, Plan, Seen, StepClock, Verdict, judge};

use super::{Act, RampChange, disturbed};
use crate::conf::{Moment, Percent, Ramp, RampState};
use crate::control::Control;
use crate::control::change::{Actor, Change};
use crate::control::generation::Generation;

/// Seconds that are looked at by themselves, besides the step as a whole.
const RECENT: u64 = 10;

/// What the gateway itself knows of ramps under way: it is lost at a restart, after which a step is judged by what came
/// since then.
#[derive(Default)]
pub struct Ramps {
    steps: Mutex<HashMap<String, Step>>,
}

/// A step that is under way.
#[derive(Clone)]
struct Step {
    /// What tells it from others: the ramp, up to the reason for its state.
    ramp: Ramp,
    clock: StepClock,
    taken_up: Instant,
    /// What the meters showed when it was taken up.
    target: Tally,
    stable: Tally,
    /// What the stable subset measured in the step before, for a step that leaves it nothing.
    baseline: Option<Tally>,
}

/// How a step stands.
#[derive(Clone, Debug, Default)]
pub struct Standing {
    /// How long it has lasted.
    pub elapsed: Duration,
    /// Requests of the target.
    pub target: Seen,
    /// Requests of the stable subset; of the step before, if this one leaves it none.
    pub stable: Seen,
    /// Whether there is anything that the stable subset measured, or could.
    comparable: bool,
}

/// The rules of a ramp, as the core has them. In a step that leaves the stable subset nothing, and of which it is not
/// known what there was before (the process began with it), guards that compare with it have nothing to say.
#[must_use]
pub fn plan(ramp: &Ramp, standing: &Standing) -> Plan {
    let applies = |guard: &Guard| standing.comparable || !matches!(guard.bound, Bound::Stable(_));
    Plan {
        steps: ramp.steps.len(),
        every: ramp.every.duration(),
        guards: ramp.guards.iter().map(|guard| **guard).filter(applies).collect(),
        min_requests: ramp.min_requests,
    }
}

impl Ramps {
    /// How the ramp of a service stands, if it is under way.
    #[must_use]
    pub fn standing(&self, generation: &Generation, service: &str, now: Instant) -> Option<Standing> {
        let entry = generation.traffic.services.get(service)?;
        let ramp = entry.ramp.as_ref().filter(|ramp| ramp.state.is_active())?;
        let step = self.lock().get(service).filter(|step| step.is_of(ramp)).cloned()?;
        let (target, stable) = meters(generation, service, ramp)?;
        Some(step.standing(target, stable, now))
    }

    /// Looks at every ramp once, and says what is to be done.
    fn look(&self, generation: &Generation, now: Instant, wall: Moment) -> Vec<(String, Act)> {
        let mut acts = Vec::new();
        let mut steps = self.lock();
        steps.retain(|service, _| active(generation, service).is_some());
        for service in generation.traffic.services.keys() {
            let Some(ramp) = active(generation, service) else { continue };
            let Some(act) = self.look_at(&mut steps, generation, service, ramp, now, wall) else { continue };
            acts.push((service.to_string(), act));
        }
        acts
    }

    fn look_at(
        &self,
        steps: &mut HashMap<String, Step>,
        generation: &Generation,
        service: &str,
        ramp: &Ramp,
        now: Instant,
        wall: Moment,
    ) -> Option<Act> {
        let (conf, entry) = (generation.routing.services.get(service)?, generation.traffic.services.get(service)?);
        let canary_off = generation.traffic.switches.canary.is_on(service);
        if let Some(why) = disturbed(ramp, entry, conf.stable(), canary_off) {
            // Only a file that was edited while nobody looked gets here: flips are seen to at once.
            return Some(Act::Pause(why.to_owned()));
        }
        let (target, stable) = meters(generation, service, ramp)?;
        if !steps.get(service).is_some_and(|step| step.is_of(ramp)) {
            let baseline = steps.get(service).and_then(|before| before.leaves_to(ramp, stable));
            steps.insert(service.to_owned(), Step { baseline, ..Step::take_up(ramp, target, stable, now, wall) });
        }
        let standing = steps.get(service)?.standing(target, stable, now);
        match judge(&plan(ramp, &standing), ramp.step, standing.elapsed, &standing.target, &standing.stable) {
            Verdict::Hold(why) => (ramp.state == RampState::Running).then_some(Act::Hold(why)),
            Verdict::Wait => None,
            Verdict::Advance => Some(Act::Advance),
            Verdict::Done => Some(Act::Finish),
            Verdict::Breach(why) => Some(Act::Abort(why)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Step>> {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Step {
    fn take_up(ramp: &Ramp, target: &Meter, stable: &Meter, now: Instant, wall: Moment) -> Self {
        let before = ramp.since.map_or(Duration::ZERO, |since| since.elapsed(wall)).min(ramp.every.duration());
        Self {
            ramp: ramp.clone(),
            clock: StepClock::new(now, before),
            taken_up: now,
            target: target.read(),
            stable: stable.read(),
            baseline: None,
        }
    }

    /// What the stable subset measured in this step, if `next` is the one that follows and leaves it nothing.
    fn leaves_to(&self, next: &Ramp, stable: &Meter) -> Option<Tally> {
        let follows = next.step == self.ramp.step + 1 && next.steps == self.ramp.steps && next.to == self.ramp.to;
        (follows && takes_all(next)).then(|| stable.read().since(&self.stable))
    }

    fn is_of(&self, ramp: &Ramp) -> bool {
        let rules = |ramp: &Ramp| (ramp.step, ramp.since, ramp.every, ramp.min_requests);
        let same = rules(&self.ramp) == rules(ramp) && self.ramp.to == ramp.to;
        same && self.ramp.steps == ramp.steps && self.ramp.guards == ramp.guards
    }

    fn standing(&self, target: &Meter, stable: &Meter, now: Instant) -> Standing {
        // Whole seconds that are surely of this step.
        let whole = now.saturating_duration_since(self.taken_up).as_secs().saturating_sub(1).min(RECENT) as usize;
        let seen = |meter: &Meter, from: &Tally| Seen { step: meter.read().since(from), recent: meter.recent(whole) };
        let stable = match &self.baseline {
            Some(baseline) => Seen { step: baseline.clone(), recent: baseline.clone() },
            None => seen(stable, &self.stable),
        };
        Standing {
            elapsed: self.clock.elapsed(now),
            target: seen(target, &self.target),
            stable,
            comparable: self.baseline.is_some() || !takes_all(&self.ramp),
        }
    }
}

/// Whether the step that a ramp is at leaves the stable subset nothing.
fn takes_all(ramp: &Ramp) -> bool {
    ramp.share() == Percent::ALL
}

fn active<'a>(generation: &'a Generation, service: &str) -> Option<&'a Ramp> {
    generation.traffic.services.get(service)?.ramp.as_ref().filter(|ramp| ramp.state.is_active())
}

/// The meters of a ramp's target and of the stable subset.
fn meters<'a>(generation: &'a Generation, service: &str, ramp: &Ramp) -> Option<(&'a Meter, &'a Meter)> {
    let position = generation.service(service)?;
    let (core, live) = (&generation.core.services[position], &generation.services[position].metrics.live);
    let target = core.subsets.iter().position(|subset| *subset.name == *ramp.to)?;
    Some((live.of(Some(target)), live.of(Some(core.stable))))
}

/// Whether any ramp is under way.
#[must_use]
pub fn any(generation: &Generation) -> bool {
    let mut ramps = generation.traffic.services.values().filter_map(|entry| entry.ramp.as_ref());
    ramps.any(|ramp| ramp.state.is_active())
}

/// Looks at every ramp and flips what is to be flipped. May wait for the disk, and for a config center. Of the gateways of
/// a fleet one leads; what must not wait, that a guard broke, is anybody's.
pub fn tick(control: &Control, now: Instant, wall: SystemTime) {
    let wall = Moment::of(wall);
    let leads = control.leads(now);
    // A flip begins a step, which is taken up by the second look.
    for _ in 0..2 {
        let generation = control.current();
        let mut acts = control.ramps().look(&generation, now, wall);
        acts.retain(|(_, act)| leads || matches!(act, Act::Abort(_)));
        if acts.is_empty() {
            return;
        }
        for (service, act) in acts {
            flip(control, &service, act, wall);
        }
    }
}

fn flip(control: &Control, service: &str, act: Act, at: Moment) {
    let actor = Actor { by: "ramp".to_owned(), from: "ramp".to_owned(), token: None };
    let current = control.current();
    let reason = reason(&current, service, &act);
    let aborts = matches!(act, Act::Abort(_));
    let change = Change::Ramp(RampChange { service: service.to_owned(), act, by: actor.by.clone(), at });
    match control.flip(&actor, &change, &reason, Some(current.traffic_revision)) {
        Ok(_) if aborts => tracing::warn!(service, reason, "a ramp is aborted: everything goes to the stable subset"),
        Ok(_) => tracing::info!(service, reason, "{change}"),
        // Somebody else was faster, or the step is another one by now: the next look will tell.
        Err(error) => tracing::info!(service, %error, "a ramp could not be changed"),
    }
}

/// Why, for the history.
fn reason(generation: &Generation, service: &str, act: &Act) -> String {
    let entry = generation.traffic.services.get(service);
    let Some(ramp) = entry.and_then(|entry| entry.ramp.as_ref()) else { return String::new() };
    match act {
        Act::Abort(why) | Act::Hold(why) | Act::Pause(why) => why.clone(),
        Act::Advance => {
            let next = ramp.steps.get(ramp.step + 1).copied().unwrap_or_default();
            format!("step {} of {}: {} to {}", ramp.step + 2, ramp.steps.len(), next, ramp.to)
        }
        Act::Finish => format!("all {} steps have lasted with every guard good", ramp.steps.len()),
        Act::Start(_) | Act::Resume => String::new(),
    }
}
