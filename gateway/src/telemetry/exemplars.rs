//! Exemplars: the trace of a request that went into a bucket of a histogram, so that a dashboard leads from a slow bucket to
//! what was slow. The latest one of each bucket is kept, of requests whose spans are sent, and nobody waits to note one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use opentelemetry::trace::{SpanId, TraceId};
use prometheus::proto::LabelPair;

use super::in_force::InForce;
use super::names;

/// A request that went into a bucket.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Exemplar {
    /// Its trace.
    pub trace_id: TraceId,
    /// Its span.
    pub span_id: SpanId,
    /// What was observed.
    pub value: f64,
    /// When.
    pub at: SystemTime,
}

/// The exemplars of one histogram, by bucket.
pub struct Slots {
    bounds: &'static [f64],
    latest: Mutex<Vec<Option<Exemplar>>>,
}

impl Slots {
    /// Notes an exemplar, unless somebody else is noting one right now.
    pub fn note(&self, exemplar: Exemplar) {
        let Ok(mut latest) = self.latest.try_lock() else { return };
        latest.resize(self.bounds.len() + 1, None);
        latest[self.bounds.partition_point(|bound| *bound < exemplar.value)] = Some(exemplar);
    }

    fn all(&self) -> Vec<Option<Exemplar>> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The exemplars of request durations, by service and subset.
#[derive(Default)]
pub struct Exemplars(Mutex<HashMap<[Arc<str>; 2], Arc<Slots>>>);

impl Exemplars {
    /// Those of a service's subset.
    #[must_use]
    pub fn slots(&self, service: &Arc<str>, subset: &str, bounds: &'static [f64]) -> Arc<Slots> {
        let key = [Arc::clone(service), subset.into()];
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Arc::new(Slots { bounds, latest: Mutex::default() });
        Arc::clone(all.entry(key).or_insert_with(new))
    }

    /// Drops those of what left the configuration.
    pub fn sweep(&self, in_force: &InForce) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|[service, subset], _| {
            in_force.keeps(names::REQUEST_SECONDS, |label| match label {
                "service" => Some(&**service),
                "subset" => Some(&**subset),
                _ => None,
            })
        });
    }

    /// By bucket, those of a series; none if there are none.
    #[must_use]
    pub fn of(&self, family: &str, labels: &[LabelPair]) -> Vec<Option<Exemplar>> {
        if family != names::REQUEST_SECONDS {
            return Vec::new();
        }
        let label = |name: &str| labels.iter().find(|label| label.name() == name).map(|label| label.value().into());
        let (Some(service), Some(subset)) = (label("service"), label("subset")) else { return Vec::new() };
        let slots = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&[service, subset]).cloned();
        slots.map_or_else(Vec::new, |slots| slots.all())
    }
}
