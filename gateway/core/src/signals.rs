//! What some chains and services want to know of an instance beyond its common vitals. It is allocated where somebody
//! asks for it, and costs a pointer elsewhere.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::calls::{Calls, Score};
use crate::instance::Vitals;
use crate::load::{LoadReport, Reported};

/// The parts that are there if they are wanted.
#[derive(Debug, Default)]
pub struct Signals {
    calls: OnceLock<Box<Calls>>,
    reported: OnceLock<Box<Reported>>,
}

impl Vitals {
    /// Has the last calls kept from now on. A pick that wants them says so when it is prepared.
    pub fn keep_calls(&self) {
        self.signals().calls.get_or_init(|| Box::new(Calls::new(self.epoch())));
    }

    /// What the last calls say at `now`; `None` if they are not kept or there was none.
    #[must_use]
    pub fn score(&self, now: Instant) -> Option<Score> {
        self.signals().calls.get()?.score(now)
    }

    /// Records an attempt that ended: its latency, where a failure counts as slow, and whether it succeeded.
    pub fn record_call(&self, now: Instant, latency: Duration, ok: bool) {
        self.record_latency(now, latency);
        if let Some(calls) = self.signals().calls.get() {
            calls.record(now, latency, ok);
        }
    }

    /// What the instance reports of its load, from the first report on.
    pub fn reported(&self) -> &Reported {
        self.signals().reported.get_or_init(|| Box::new(Reported::new(self.epoch())))
    }

    /// The last load report and when it came; `None` if there is none that holds at `now`.
    #[must_use]
    pub fn load_report(&self, now: Instant) -> Option<(LoadReport, Instant)> {
        self.signals().reported.get()?.report(now)
    }

    /// Utilisation by its last report; `None` if there is none that holds at `now`.
    #[must_use]
    pub fn utilization(&self, now: Instant) -> Option<f64> {
        self.signals().reported.get()?.utilization(now)
    }
}
