//! How old what is in force is: for every document, when it came into force and when its source was last seen to hold it.
//! A source that is unreadable, or holds something that was refused, grows old.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use prometheus::{GaugeVec, IntCounterVec, IntGaugeVec};

use super::metrics::Families;
use super::names;

#[derive(Clone, Copy)]
struct Times {
    loaded: Instant,
    confirmed: Instant,
}

/// Ages of all sources: documents, and registries as `registry:NAME`.
pub struct Sources {
    times: Mutex<BTreeMap<String, Times>>,
    loaded: GaugeVec,
    confirmed: GaugeVec,
    reachable: IntGaugeVec,
    held: IntGaugeVec,
    unreadable: IntCounterVec,
}

impl Sources {
    /// Registers the families.
    ///
    /// # Errors
    /// Only if a name is registered twice.
    pub(super) fn new(families: &Families<'_>) -> Result<Self, prometheus::Error> {
        Ok(Self {
            times: Mutex::default(),
            loaded: families.float_gauges(
                names::SOURCE_LOADED,
                "Time since what is in force of a source came into force.",
                &["source"],
            )?,
            confirmed: families.float_gauges(
                names::SOURCE_CONFIRMED,
                "Time since a source was last seen to hold what is in force.",
                &["source"],
            )?,
            reachable: families.gauges(
                names::SOURCE_REACHABLE,
                "1 while a config center or a registry can be reached.",
                &["source"],
            )?,
            held: families.gauges(
                names::SOURCE_HELD,
                "Lists of a registry that are held back because too many instances left at once.",
                &["source"],
            )?,
            unreadable: families.counters(
                names::SOURCE_UNREADABLE,
                "Entries of a registry that were left out because they could not be read.",
                &["source"],
            )?,
        })
    }

    /// What this source holds came into force.
    pub fn loaded(&self, source: &str, now: Instant) {
        self.note(source, |_| Times { loaded: now, confirmed: now });
    }

    /// The source was looked at and holds what is in force.
    pub fn confirmed(&self, source: &str, now: Instant) {
        self.note(source, |times| Times { confirmed: now, ..times.unwrap_or(Times { loaded: now, confirmed: now }) });
    }

    /// Whether a source that is elsewhere can be reached.
    pub fn reachable(&self, source: &str, reachable: bool) {
        self.reachable.with_label_values(&[source]).set(i64::from(reachable));
    }

    /// How many lists of a registry are held back.
    pub fn held(&self, source: &str, lists: usize) {
        self.held.with_label_values(&[source]).set(i64::try_from(lists).unwrap_or(i64::MAX));
    }

    /// A registry has an entry that cannot be read.
    pub fn unreadable(&self, source: &str) {
        self.unreadable.with_label_values(&[source]).inc();
    }

    fn note(&self, source: &str, times: impl FnOnce(Option<Times>) -> Times) {
        let mut all = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        match all.get_mut(source) {
            Some(known) => *known = times(Some(*known)),
            None => drop(all.insert(source.to_owned(), times(None))),
        }
    }

    /// Brings the gauges up to date.
    pub fn refresh(&self, now: Instant) {
        let all = self.times.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let age = |since: Instant| now.saturating_duration_since(since).as_secs_f64();
        for (source, times) in &all {
            self.loaded.with_label_values(&[source.as_str()]).set(age(times.loaded));
            self.confirmed.with_label_values(&[source.as_str()]).set(age(times.confirmed));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::telemetry::metrics::Metrics;
    use crate::telemetry::names::ROUTING;

    #[test]
    fn a_source_is_as_old_as_the_last_look_that_found_it_good() {
        let metrics = Metrics::new().unwrap();
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let told = |now| {
            metrics.sources.refresh(now);
            let page = metrics.render().unwrap();
            let of = |family: &str| {
                let line = page.lines().find(|line| line.starts_with(&format!("{family}{{source=\"routing\"}}")));
                line.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap())
            };
            (of(names::SOURCE_LOADED), of(names::SOURCE_CONFIRMED))
        };
        assert_eq!(told(start), (None, None), "what was never loaded has no age");
        metrics.sources.loaded(ROUTING, start);
        assert_eq!(told(start + 5 * second), (Some(5.0), Some(5.0)));
        metrics.sources.confirmed(ROUTING, start + 4 * second);
        assert_eq!(told(start + 6 * second), (Some(6.0), Some(2.0)));
        metrics.sources.loaded(ROUTING, start + 7 * second);
        assert_eq!(told(start + 7 * second), (Some(0.0), Some(0.0)));
    }
}
