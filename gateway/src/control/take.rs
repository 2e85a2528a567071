//! Documents come in: from watched files, and from config centers. What is refused is looked at again when the other
//! document became another one, for it may fit now; two files that changed together come into force together.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use super::change::{self, Actor};
use super::history::{Entry, History};
use super::{Control, DocumentState, Refusal, State, ramp, recheck};
use crate::conf::{self, Problems, Source};
use crate::registries::discovery;
use crate::sources::Version;
use crate::telemetry::access_log::Timestamp;
use crate::telemetry::names::{ROUTING, TRAFFIC};

impl Control {
    /// Looks at the files of both documents.
    pub fn reload(&self) {
        self.write_again();
        self.reload_both();
        self.reload_traffic();
        self.reload_routing();
        // Routing may have become one that a refused traffic document fits.
        self.reload_traffic();
    }

    /// Takes both documents over at once if the files of both hold something else than what is in force, and fit each
    /// other. Whatever is wrong is said when they are looked at one by one.
    fn reload_both(&self) {
        let (Some(routing), Some(traffic)) = (self.bootstrap.routing.file(), self.bootstrap.traffic.file()) else {
            return;
        };
        let (routing, traffic) = (Source::read(routing), Source::read(traffic));
        let mut state = self.lock();
        let news = !state.routing.has_seen(&routing) || !state.traffic.has_seen(&traffic);
        let (Ok(routing), Ok(traffic)) = (routing, traffic) else { return };
        if news && !state.routing.holds(&routing) && !state.traffic.holds(&traffic) {
            // What does not fit says so below.
            let _ = self.take_both(&mut state, &routing, &traffic);
        }
    }

    fn take_both(&self, state: &mut State, routing: &Source, traffic: &Source) -> Result<(), Problems> {
        let (began, current, from) = (Instant::now(), self.current(), Actor::file());
        let (routing_text, traffic_text) = (routing.text.clone(), traffic.text.clone());
        let mut document = conf::routing_of(&self.bootstrap, routing, &self.workshop.catalogue)?;
        let mut flipped = conf::traffic(traffic, &document)?;
        flipped.revision = flipped.revision.max(current.traffic_revision + 1);
        ramp::yield_to("an edit of the file", None, &current.traffic, &mut flipped, &document);
        self.populate_first(&mut document);
        let revision = state.history.routing_revision(&routing_text).max(current.routing_revision + 1);
        let revisions = (revision, flipped.revision);
        let entry = Entry::flip(&from, "edit", "", &current.traffic, &flipped);
        let built = self.workshop.build(&Arc::new(document), &Arc::new(flipped), revisions, Some(&current));
        let generation = built.map_err(|problem| {
            self.discovery.want(&current.routing);
            Problems::whole(&routing.name, problem)
        })?;
        self.publish(generation);
        state.history.note_routing(&routing_text);
        state.history.append(Entry::applied(ROUTING, revision, &from, "reload", "", None));
        state.history.append(entry);
        state.routing = DocumentState::of(routing_text, None);
        state.traffic = DocumentState::of(traffic_text, None);
        for name in [ROUTING, TRAFFIC] {
            self.metrics().sources.loaded(name, Instant::now());
            self.conclude(name, began, Ok(()))?;
        }
        Ok(())
    }

    /// Writes what could not be written when it came into force, unless somebody edited the file since.
    fn write_again(&self) {
        let Some(file) = self.bootstrap.traffic.file() else { return };
        let mut state = self.lock();
        let Some(unwritten) = &state.unwritten else { return };
        let untouched = Source::read(file).map_or(true, |source| source.text == unwritten.before);
        if !untouched {
            tracing::warn!("the traffic file was edited while what is in force could not be written to it");
            state.unwritten = None;
        } else if change::write_atomically(file, &unwritten.text).is_ok() {
            tracing::info!("the traffic file holds what is in force again");
            if let Some(unwritten) = state.unwritten.take() {
                state.traffic = DocumentState::of(unwritten.text, None);
            }
        }
    }

    /// Has the registries asked for the instances of a document, and waits a while for them.
    fn populate_first(&self, routing: &mut conf::Routing) {
        self.discovery.want(routing);
        self.discovery.await_answers(discovery::RELOAD);
        self.discovery.fill(routing);
    }

    /// Reads the routing document again, if its file changed.
    pub fn reload_routing(&self) {
        if let Some(file) = self.bootstrap.routing.file() {
            self.take_routing(Source::read(file), &Actor::file(), None);
        }
    }

    /// Takes a routing document over that was read somewhere; false if it is not sound.
    pub(super) fn take_routing(&self, read: Result<Source, Problems>, from: &Actor, version: Option<Version>) -> bool {
        let mut state = self.lock();
        let began = Instant::now();
        let against = self.current().traffic_revision;
        if state.routing.has_seen(&read) && state.routing.is_judged_against(against) {
            state.routing.version = version;
            self.confirm(ROUTING, &state.routing, began);
            return state.routing.refused.is_none();
        }
        let text = read.as_ref().map_or_else(|_| String::new(), |source| source.text.clone());
        let built = read.and_then(|source| {
            let mut routing = conf::routing_of(&self.bootstrap, &source, &self.workshop.catalogue)?;
            let current = self.current();
            // What operators flipped must fit the new routing as well, or neither is taken.
            recheck(&current.traffic, &routing)?;
            self.populate_first(&mut routing);
            let revision = state.history.routing_revision(&source.text).max(current.routing_revision + 1);
            let revisions = (revision, current.traffic_revision);
            let built = self.workshop.build(&Arc::new(routing), &current.traffic, revisions, Some(&current));
            built.map_err(|problem| {
                self.discovery.want(&current.routing);
                Problems::whole(&source.name, problem)
            })
        });
        if built.as_ref().is_err_and(|problems| state.routing.is_refused_for(problems)) {
            state.routing.against = against;
            return false;
        }
        let result = built.map(|generation| {
            state.routing = DocumentState::of(text.clone(), version.clone());
            let State { history, routing, .. } = &mut *state;
            history.note_routing(&routing.text);
            let revision = generation.routing_revision;
            // In force before it is noted: a slow disk delays no change.
            self.publish(generation);
            self.metrics().sources.loaded(ROUTING, Instant::now());
            history.append(Entry::applied(ROUTING, revision, from, "reload", "", None));
        });
        let result = self.conclude(ROUTING, began, result);
        let sound = result.is_ok();
        if let Err(problems) = result {
            let State { history, routing, .. } = &mut *state;
            refuse(history, routing, (text, version, against), ROUTING, from, problems);
        }
        sound
    }

    /// Reads the traffic document again, if its file changed.
    pub fn reload_traffic(&self) {
        if let Some(file) = self.bootstrap.traffic.file() {
            self.take_traffic(&mut self.lock(), Source::read(file));
        }
    }

    /// Takes a traffic document over that was read from its file.
    pub(super) fn take_traffic(&self, state: &mut State, read: Result<Source, Problems>) {
        let (began, current) = (Instant::now(), self.current());
        let against = current.routing_revision;
        if state.traffic.has_seen(&read) && state.traffic.is_judged_against(against) {
            if state.unwritten.is_none() {
                self.confirm(TRAFFIC, &state.traffic, began);
            }
            return;
        }
        let text = read.as_ref().map_or_else(|_| String::new(), |source| source.text.clone());
        let parsed = read.and_then(|source| conf::traffic(&source, &current.routing));
        if parsed.as_ref().is_err_and(|problems| state.traffic.is_refused_for(problems)) {
            state.traffic.against = against;
            return;
        }
        let result = parsed.map(|mut traffic| {
            state.traffic = DocumentState::of(text.clone(), None);
            self.metrics().sources.loaded(TRAFFIC, began);
            if change::same(&traffic, &current.traffic) {
                return;
            }
            traffic.revision = traffic.revision.max(current.traffic_revision + 1);
            ramp::yield_to("an edit of the file", None, &current.traffic, &mut traffic, &current.routing);
            let entry = Entry::flip(&Actor::file(), "edit", "", &current.traffic, &traffic);
            self.publish(self.workshop.reflow(&current, traffic));
            state.history.append(entry);
        });
        if let Err(problems) = self.conclude(TRAFFIC, began, result) {
            let State { history, traffic, .. } = state;
            refuse(history, traffic, (text, None, against), TRAFFIC, &Actor::file(), problems);
        }
    }

    /// Takes the instances over that registries list: services whose list changed are built, everything else is shared.
    pub(crate) fn populate(&self) {
        let _state = self.lock();
        let began = Instant::now();
        let changes = self.discovery.changes(self);
        if changes.is_empty() {
            return;
        }
        let current = self.current();
        match self.workshop.repopulate(&current, &changes) {
            Ok(generation) => {
                let positions: Vec<usize> = changes.iter().filter_map(|(name, _)| generation.service(name)).collect();
                self.workshop.upkeep.repopulate(&generation, &positions);
                self.live.store(Arc::new(generation));
                let services = changes.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
                tracing::info!(services, took = ?began.elapsed(), "instances in force");
            }
            // Files of keys that cannot be read any more: the instances wait for the next change.
            Err(problem) => tracing::error!(problem, "instances could not be taken over"),
        }
    }

    /// Notes that a source holds what is in force, if it does.
    pub(super) fn confirm(&self, name: &str, document: &DocumentState, now: Instant) {
        if document.refused.is_none() {
            self.metrics().sources.confirmed(name, now);
        }
    }
}

/// Notes that a document is refused. Its text is remembered, so that the same bad text is refused once and not at every
/// look.
pub(super) fn refuse(
    history: &mut History,
    state: &mut DocumentState,
    (text, version, against): (String, Option<Version>, u64),
    document: &'static str,
    from: &Actor,
    problems: Problems,
) {
    let lines = problems.0.iter().map(ToString::to_string).collect();
    let refused = Some(Refusal { at: Timestamp(SystemTime::now()), problems: problems.0 });
    *state = DocumentState { text, refused, version, against };
    history.append(Entry::refused(document, from, "reload", "", lines));
}
