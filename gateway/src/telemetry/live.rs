//! Live numbers of all services: the meters by name, which outlive a reload, and the second hand that turns them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serin_core::live::{Meter, REMEMBERED};

/// The meters of the process.
#[derive(Default)]
pub struct Live {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    meters: Vec<Entry>,
    /// Whole seconds that were measured, up to those that are remembered.
    seconds: usize,
}

struct Entry {
    service: Arc<str>,
    /// Empty for requests that had no subset.
    subset: Arc<str>,
    meter: Arc<Meter>,
}

/// The meters of one service.
pub struct ServiceMeters {
    /// By position of the subset; the last one is for requests that had none.
    meters: Box<[Arc<Meter>]>,
}

impl ServiceMeters {
    /// The meter of a subset by its position, or of the requests that had none.
    #[must_use]
    pub fn of(&self, subset: Option<usize>) -> &Meter {
        let none = self.meters.len() - 1;
        &self.meters[subset.unwrap_or(none).min(none)]
    }
}

impl Live {
    /// The meters of a service. A subset that was there before keeps its meter.
    #[must_use]
    pub fn service(&self, service: &Arc<str>, subsets: &[Arc<str>]) -> ServiceMeters {
        let mut state = self.lock();
        let none: Arc<str> = "".into();
        let mut find = |subset: &Arc<str>| {
            let same = |entry: &&Entry| entry.service == *service && entry.subset == *subset;
            if let Some(entry) = state.meters.iter().find(same) {
                return Arc::clone(&entry.meter);
            }
            let meter = Arc::new(Meter::default());
            let (service, subset) = (Arc::clone(service), Arc::clone(subset));
            state.meters.push(Entry { service, subset, meter: Arc::clone(&meter) });
            meter
        };
        ServiceMeters { meters: subsets.iter().chain([&none]).map(&mut find).collect() }
    }

    /// Ends a second. Meters that nobody counts with any more are forgotten.
    pub fn tick(&self) {
        let mut state = self.lock();
        state.meters.retain(|entry| Arc::strong_count(&entry.meter) > 1);
        state.meters.iter().for_each(|entry| entry.meter.tick());
        state.seconds = (state.seconds + 1).min(REMEMBERED);
    }

    /// Reads meters between two ticks, so that their seconds are the same ones. `read` gets the number of whole seconds
    /// that were measured so far.
    pub fn between_ticks<T>(&self, read: impl FnOnce(usize) -> T) -> T {
        let state = self.lock();
        read(state.seconds)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn meters_outlive_a_reload_and_leave_with_their_subset() {
        let live = Live::default();
        let (users, subsets): (Arc<str>, [Arc<str>; 2]) = ("users".into(), ["v1".into(), "v2".into()]);
        let before = live.service(&users, &subsets);
        before.of(Some(1)).record(Duration::from_millis(1), false);
        before.of(None).record(Duration::from_millis(1), false);
        let after = live.service(&users, &subsets[1..]);
        drop(before);
        live.tick();
        assert_eq!(after.of(Some(0)).recent(1).requests, 1, "v2 has another position now");
        assert_eq!(after.of(None).recent(1).requests, 1);
        assert_eq!(live.lock().meters.len(), 2, "v1 is forgotten");
        assert_eq!(live.between_ticks(|seconds| seconds), 1);
    }
}
