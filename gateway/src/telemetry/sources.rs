//! How old what is in force is: for every document, when it came into force and when its source was last seen to hold it.
//! A source that is unreadable, or holds something that was refused, grows old.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use prometheus::GaugeVec;

use super::metrics::Families;
use super::names::{self, ROUTING, TRAFFIC};

/// The sources there are.
const ALL: [&str; 2] = [ROUTING, TRAFFIC];

#[derive(Clone, Copy)]
struct Times {
    loaded: Instant,
    confirmed: Instant,
}

/// Ages of all sources.
pub struct Sources {
    times: Mutex<[Option<Times>; ALL.len()]>,
    loaded: GaugeVec,
    confirmed: GaugeVec,
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
        })
    }

    /// A document of this source came into force.
    pub fn loaded(&self, source: &str, now: Instant) {
        self.note(source, |_| Times { loaded: now, confirmed: now });
    }

    /// The source was looked at and holds what is in force.
    pub fn confirmed(&self, source: &str, now: Instant) {
        self.note(source, |times| Times { confirmed: now, ..times.unwrap_or(Times { loaded: now, confirmed: now }) });
    }

    fn note(&self, source: &str, times: impl FnOnce(Option<Times>) -> Times) {
        let mut all = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = ALL.iter().position(|known| *known == source) {
            all[at] = Some(times(all[at]));
        }
    }

    /// Brings the gauges up to date.
    pub fn refresh(&self, now: Instant) {
        let all = *self.times.lock().unwrap_or_else(PoisonError::into_inner);
        let age = |since: Instant| now.saturating_duration_since(since).as_secs_f64();
        for (source, times) in ALL.iter().zip(all) {
            let Some(times) = times else { continue };
            self.loaded.with_label_values(&[source]).set(age(times.loaded));
            self.confirmed.with_label_values(&[source]).set(age(times.confirmed));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::telemetry::metrics::Metrics;

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
