//! The pick behind the self-guard: a chain that panics costs the one decision its choice and no request its answer, and
//! a chain that is out is not run at all.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use rand::Rng;
use serin_core::decide::{self, Attempt, Location, Recorder};
use serin_core::instance::Instance;
use serin_core::selfguard::Trip;
use serin_core::snapshot::ServiceTraffic;

use crate::control::generation::ServiceSide;

/// Step 4 of the decision. A chain that panics is taken out; plain round robin takes its place, for this request too.
pub(super) fn pick<'a>(
    side: &ServiceSide,
    location: &Location<'a>,
    traffic: &ServiceTraffic,
    attempt: Attempt<'_>,
    rng: &mut dyn Rng,
) -> Option<&'a Instance> {
    if side.guard.tripped().is_some() {
        return decide::pick_plainly(location, attempt, rng, &mut ());
    }
    // What a plug-in leaves half done is its own: nothing of the gateway's is changed while it runs.
    let run = AssertUnwindSafe(|| decide::pick(location, traffic, attempt, rng, &mut ()));
    match catch_unwind(run) {
        Ok(picked) => picked,
        Err(_) => {
            if side.guard.panicked() {
                tell(side, Trip::Panicked);
            }
            decide::pick_plainly(location, attempt, rng, &mut ())
        }
    }
}

/// Step 4 of a decision that is only explained, and whether the chain panicked, which then is not held against it.
pub fn explained<'a, R: Recorder>(
    side: &ServiceSide,
    location: &Location<'a>,
    traffic: &ServiceTraffic,
    attempt: Attempt<'_>,
    rng: &mut dyn Rng,
    recorder: &mut R,
) -> (Option<&'a Instance>, bool) {
    if side.guard.tripped().is_some() {
        return (decide::pick_plainly(location, attempt, rng, recorder), false);
    }
    let run = AssertUnwindSafe(|| decide::pick(location, traffic, attempt, rng, &mut *recorder));
    match catch_unwind(run) {
        Ok(picked) => (picked, false),
        Err(_) => (decide::pick_plainly(location, attempt, rng, recorder), true),
    }
}

/// Notes how long a decision took.
pub(super) fn note(side: &ServiceSide, now: Instant, took: Duration) {
    if side.guard.note(now, took) {
        tell(side, Trip::Slow);
    }
}

fn tell(side: &ServiceSide, why: Trip) {
    side.metrics.tripped.set(1);
    side.metrics.trips[why as usize].inc();
    let budget = side.guard.budget();
    tracing::error!(
        service = %side.name,
        why = why.as_str(),
        budget = ?budget.decision,
        sustained = ?budget.sustained,
        "the balancer chain is out: plain round robin takes its place until `serin rearm {}`",
        side.name,
    );
}
