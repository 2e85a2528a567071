//! Operators change the traffic document. With a file, a change is in force before it is written. With a config center
//! it is in force once the center has it, so that all replicas agree on the order of changes; if the center does not
//! answer, it is in force here at once and is brought to the center later.

use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use rand::RngExt;
use serin_core::selfguard::Trip;

use super::change::{self, Actor, Change, FlipError};
use super::fleet::Link;
use super::generation::Generation;
use super::history::Entry;
use super::{Control, DocumentState, Local, State, Unwritten, ramp, signature};
use crate::conf::{self, Problems, Routing, Source, Traffic};
use crate::sources::{PublishError, Version};
use crate::telemetry::access_log::Timestamp;
use crate::telemetry::names::TRAFFIC;

/// How often a change is made again after somebody else was faster, and the longest pauses before that.
const TRIES: u32 = 32;
const PAUSES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(32)];

/// A change that is in force.
pub struct Flipped {
    /// The traffic document in force.
    pub traffic: Traffic,
    /// What operators should know besides: the document could not be written where it is kept.
    pub warning: Option<String>,
}

/// A change that was made, but is not in force yet.
struct Prepared {
    traffic: Traffic,
    entry: Entry,
}

impl Control {
    /// Changes the traffic document: checks it, puts it in force, writes it where it is kept, and notes who did it and
    /// why. With `expected`, only if that is the revision in force. A refused change is noted as well. May wait for the
    /// disk, and for a config center.
    ///
    /// # Errors
    /// If the revision is another one, the change names something unknown, or the result is no sound document.
    pub fn flip(
        &self,
        actor: &Actor,
        change: &Change,
        reason: &str,
        expected: Option<u64>,
    ) -> Result<Flipped, FlipError> {
        let mut state = self.lock();
        let began = Instant::now();
        let result = match (&self.fleet.traffic, self.bootstrap.traffic.file()) {
            (Some(link), _) => self.flip_in_center(link, &mut state, (actor, change, reason), expected),
            (None, file) => self.flip_in_file(file, &mut state, (actor, change, reason), expected),
        };
        self.metrics().count_document(TRAFFIC, result.is_ok(), began.elapsed());
        match &result {
            Ok(_) => self.metrics().sources.loaded(TRAFFIC, began),
            Err(error) => {
                state.history.append(Entry::refused(TRAFFIC, actor, &change.to_string(), reason, error.problems()));
            }
        }
        result
    }

    fn flip_in_file(
        &self,
        file: Option<&Path>,
        state: &mut State,
        what: (&Actor, &Change, &str),
        expected: Option<u64>,
    ) -> Result<Flipped, FlipError> {
        // What somebody just edited is not overwritten unseen.
        if let Some(read) = file.map(Source::read).filter(Result::is_ok) {
            self.take_traffic(state, &read);
        }
        let current = self.current();
        let Prepared { traffic, entry } = self.prepare(state, &current, what, expected)?;
        // In force first: a disk that is full must not keep an operator from pulling a switch.
        self.publish(self.workshop.reflow(&current, traffic.clone()));
        let text = change::to_yaml(&traffic);
        let written = file.map_or(Ok(()), |file| change::write_atomically(file, &text));
        let why = written.err().map(|error| error.to_string());
        let before = state.unwritten.take().map_or_else(|| state.traffic.text.clone(), |earlier| earlier.before);
        state.unwritten = why.clone().map(|why| Unwritten { text: text.clone(), before, why });
        match &why {
            None => state.traffic = DocumentState::of(text, None),
            Some(why) => tracing::error!(why, "in force, but its file could not be written; it is tried again"),
        }
        state.history.append(entry);
        let warning = why.map(|why| format!("in force, but its file could not be written: {why}"));
        Ok(Flipped { traffic, warning })
    }

    fn flip_in_center(
        &self,
        link: &Link,
        state: &mut State,
        what: (&Actor, &Change, &str),
        expected: Option<u64>,
    ) -> Result<Flipped, FlipError> {
        if state.local.as_ref().is_some_and(|local| local.published.is_some()) {
            self.settle(state, &[], &self.current().traffic);
        }
        for attempt in 0..TRIES {
            // What the center holds is not known just after a start, and after somebody else was faster.
            if state.traffic.version.is_none()
                && (link.is_up() || link.is_fresh())
                && let Ok(seen) = self.fleet.read(link)
            {
                self.take_traffic_of(link, state, seen);
            }
            let current = self.current();
            let Prepared { traffic, entry } = self.prepare(state, &current, what, expected)?;
            let version = state.traffic.version.clone().filter(|_| link.is_up() && state.local.is_none());
            let Some(version) = version else {
                return Ok(self.flip_locally(link, state, &current, Prepared { traffic, entry }));
            };
            let text = signature::signed(&traffic, &entry);
            match self.fleet.publish(link, &text, &version) {
                Ok(version) => {
                    self.publish(self.workshop.reflow(&current, traffic.clone()));
                    state.history.append(entry);
                    self.share(state, text, version, &traffic);
                    return Ok(Flipped { traffic, warning: None });
                }
                Err(PublishError::Stale) => match self.fleet.read(link) {
                    Ok(seen) => {
                        self.take_traffic_of(link, state, seen);
                        let longest = PAUSES[1].min(PAUSES[0] * 2_u32.saturating_pow(attempt));
                        std::thread::sleep(rand::rng().random_range(Duration::ZERO..=longest));
                    }
                    Err(_) => return Ok(self.flip_locally(link, state, &current, Prepared { traffic, entry })),
                },
                Err(PublishError::Lost(_)) => {
                    return Ok(self.flip_locally(link, state, &current, Prepared { traffic, entry }));
                }
            }
        }
        Err(FlipError::Contended(TRIES))
    }

    /// Puts a change in force on this gateway only.
    fn flip_locally(&self, link: &Link, state: &mut State, current: &Generation, made: Prepared) -> Flipped {
        let Prepared { traffic, entry } = made;
        self.publish(self.workshop.reflow(current, traffic.clone()));
        let base = state.shared.get_or_insert_with(|| Traffic::clone(&current.traffic));
        let base_revision = base.revision;
        let fresh =
            || Local { since: Timestamp(SystemTime::now()), base_revision, changes: Vec::new(), published: None };
        let what = format!("revision {}: {} by {}", traffic.revision, entry.action, entry.actor.by);
        let why = if entry.reason.is_empty() { String::new() } else { format!(" ({})", entry.reason) };
        state.local.get_or_insert_with(fresh).changes.push(what + &why);
        self.fleet.store.keep_local(&change::to_yaml(&traffic));
        state.history.append(entry);
        let why = link.problem().unwrap_or_else(|| "it holds changes that are not settled yet".to_owned());
        tracing::warn!(center = link.name(), why, "a change is in force on this gateway only");
        let warning = format!(
            "in force on this gateway only, as {} cannot be written to ({why}); it goes there when it is back",
            link.name()
        );
        Flipped { traffic, warning: Some(warning) }
    }

    /// Notes what the config center holds.
    pub(super) fn share(&self, state: &mut State, text: String, version: Version, traffic: &Traffic) {
        self.fleet.store.keep(TRAFFIC, &text);
        state.traffic = DocumentState::of(text, Some(version));
        state.shared = Some(traffic.clone());
    }

    /// Puts a service's chain back in force that the gateway took out, and notes who did it and why. Says why it was
    /// out, if it was; `None` if there is no such service.
    pub fn rearm(&self, actor: &Actor, service: &str, reason: &str) -> Option<Option<Trip>> {
        let mut state = self.lock();
        let current = self.current();
        let side = &current.services[current.service(service)?];
        let was = side.guard.rearm();
        side.metrics.tripped.set(0);
        let action = match was {
            Some(why) => format!("rearm {service}, which had {}", why.as_words()),
            None => format!("rearm {service}, which was armed"),
        };
        let applied = Entry::applied(TRAFFIC, 0, actor, &action, reason, None);
        state.history.append(Entry { revision: None, ..applied });
        tracing::warn!(service, by = %actor.by, "the balancer chain is in force again");
        Some(was)
    }

    fn prepare(
        &self,
        state: &State,
        current: &Generation,
        (actor, change, reason): (&Actor, &Change, &str),
        expected: Option<u64>,
    ) -> Result<Prepared, FlipError> {
        if let Some(expected) = expected.filter(|expected| *expected != current.traffic_revision) {
            return Err(FlipError::Stale { expected, current: current.traffic_revision });
        }
        let mut traffic =
            change.apply(&current.traffic, &current.routing, |revision| state.history.traffic(revision))?;
        let rollback = if let Change::Rollback(revision) = change { Some(*revision) } else { None };
        if !matches!(change, Change::Ramp(_)) {
            ramp::yield_to(&actor.by, rollback, &current.traffic, &mut traffic, &current.routing);
        }
        recheck(&traffic, &current.routing).map_err(FlipError::Invalid)?;
        traffic.revision = current.traffic_revision + 1;
        let entry = Entry::flip(actor, &change.to_string(), reason, &current.traffic, &traffic);
        Ok(Prepared { traffic, entry })
    }
}

/// Checks a traffic document that comes from no file as if it did: its text is what would be written.
///
/// # Errors
/// Everything that is wrong with it.
pub(crate) fn recheck(traffic: &Traffic, routing: &Routing) -> Result<(), Problems> {
    conf::traffic(&Source::inline("traffic", change::to_yaml(traffic)), routing).map(drop)
}
