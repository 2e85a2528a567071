//! Documents come in: from watched files, and from config centers. What is refused is looked at again when the other
//! document became another one, for it may fit now; two files that changed together come into force together.

use std::path::Path;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use super::change::{self, Actor};
use super::generation::Generation;
use super::history::{Entry, History};
use super::{Control, DocumentState, Refusal, State, ramp, recheck};
use crate::conf::{self, Problems, Source, Traffic};
use crate::ease;
use crate::registries::discovery;
use crate::sources::Version;
use crate::telemetry::access_log::Timestamp;
use crate::telemetry::names::{ROUTING, TRAFFIC};

impl Control {
    /// Looks at the files of both documents. Large ones are taken at ease.
    pub fn reload(&self) {
        self.free_retired();
        self.write_again();
        let (routing, traffic) = (self.bootstrap.routing.file().map(Source::read), self.bootstrap.traffic.file());
        if let (Some(Ok(routing)), Some(traffic)) = (&routing, traffic) {
            // What does not fit says so when they are looked at one by one.
            let _ = self.take_both(routing, traffic);
        }
        let take_traffic = || {
            if let Some(file) = traffic {
                // Read under the lock: what was there before a flip would undo it.
                let mut state = self.lock();
                self.take_traffic(&mut state, &Source::read(file));
            }
        };
        take_traffic();
        if let Some(read) = &routing {
            self.take_routing(read, &Actor::file(), None);
            // It may have become one that a refused traffic document fits.
            take_traffic();
        }
    }

    /// Takes both documents over at once, if one of them is new and neither is what is in force.
    ///
    /// # Errors
    /// If they are not sound, or do not fit each other.
    fn take_both(&self, routing: &Source, traffic: &Path) -> Result<(), Problems> {
        let edited_with = |state: &State, traffic: &Source| {
            let news = routing.text != state.routing.text || traffic.text != state.traffic.text;
            news && !state.routing.holds(routing) && !state.traffic.holds(traffic)
        };
        let both = edited_with(&self.lock(), &Source::read(traffic)?);
        if !both {
            return Ok(());
        }
        let began = Instant::now();
        let document = self.parse_routing(routing)?;
        let mut state = self.lock();
        let traffic = Source::read(traffic)?;
        if !edited_with(&state, &traffic) {
            return Ok(());
        }
        let current = self.current();
        let (flipped, flip) = edited(conf::traffic(&traffic, &document)?, &current, &document).unzip();
        let flipped = flipped.map_or_else(|| Arc::clone(&current.traffic), Arc::new);
        let generation = self.build_routing(&state, routing, document, &flipped, &current)?;
        self.adopt_routing(&mut state, generation, routing.text.clone(), None, &Actor::file());
        flip.into_iter().for_each(|entry| state.history.append(entry));
        state.traffic = DocumentState::of(traffic.text, None);
        self.metrics().sources.loaded(TRAFFIC, Instant::now());
        self.conclude(ROUTING, began, Ok(()))?;
        self.conclude(TRAFFIC, began, Ok(()))
    }

    /// Parses and checks a routing document: most of the work on a large one, for which no flip has to wait. There is
    /// one thread that takes routing documents over, so what is parsed is not out of date when the lock is taken.
    fn parse_routing(&self, source: &Source) -> Result<conf::Routing, Problems> {
        ease::at_ease(|| conf::routing_of(&self.bootstrap, source, &self.workshop.catalogue))
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

    /// Takes a routing document over that was read somewhere; false if it is not sound.
    pub(super) fn take_routing(&self, read: &Result<Source, Problems>, from: &Actor, version: Option<Version>) -> bool {
        let began = Instant::now();
        {
            let mut state = self.lock();
            if state.routing.has_seen(read) && state.routing.is_judged_against(self.current().traffic_revision) {
                state.routing.version = version;
                self.confirm(ROUTING, &state.routing, began);
                return state.routing.refused.is_none();
            }
        }
        let parsed = read.as_ref().map_err(Clone::clone).and_then(|source| Ok((source, self.parse_routing(source)?)));
        let mut state = self.lock();
        let current = self.current();
        let against = current.traffic_revision;
        let built = parsed.and_then(|(source, routing)| {
            // What operators flipped must fit the new routing as well, or neither is taken.
            recheck(&current.traffic, &routing)?;
            self.build_routing(&state, source, routing, &current.traffic, &current)
        });
        if built.as_ref().is_err_and(|problems| state.routing.is_refused_for(problems)) {
            state.routing.against = against;
            return false;
        }
        let result = built.map(|generation| {
            self.adopt_routing(&mut state, generation, text_of(read), version.clone(), from);
        });
        let result = self.conclude(ROUTING, began, result);
        let sound = result.is_ok();
        if let Err(problems) = result {
            let State { history, routing, .. } = &mut *state;
            refuse(history, routing, (text_of(read), version, against), ROUTING, from, problems);
        }
        sound
    }

    /// Whether the routing document of a center is in force in this version: nothing has to be looked at then.
    pub(super) fn has_routing(&self, version: &Version) -> bool {
        let state = self.lock();
        let has = state.routing.refused.is_none() && state.routing.version.as_ref() == Some(version);
        if has {
            self.confirm(ROUTING, &state.routing, Instant::now());
        }
        has
    }

    /// Builds what a routing document makes of a traffic document, with the instances that registries list.
    fn build_routing(
        &self,
        state: &State,
        source: &Source,
        mut routing: conf::Routing,
        traffic: &Arc<Traffic>,
        current: &Generation,
    ) -> Result<Generation, Problems> {
        self.discovery.want(&routing);
        self.discovery.await_answers(discovery::RELOAD);
        self.discovery.fill(&mut routing);
        let revision = state.history.routing_revision(&source.text).max(current.routing_revision + 1);
        let revisions = (revision, traffic.revision);
        let built = ease::at_ease(|| self.workshop.build(&Arc::new(routing), traffic, revisions, Some(current)));
        built.map_err(|problem| {
            self.discovery.want(&current.routing);
            Problems::whole(&source.name, problem)
        })
    }

    /// Puts what a routing document made in force.
    fn adopt_routing(
        &self,
        state: &mut State,
        generation: Generation,
        text: String,
        version: Option<Version>,
        from: &Actor,
    ) {
        state.history.note_routing(&text);
        state.routing = DocumentState::of(text, version);
        let revision = generation.routing_revision;
        // In force before it is noted: a slow disk delays no change.
        ease::at_ease(|| self.publish(generation));
        self.metrics().sources.loaded(ROUTING, Instant::now());
        state.history.append(Entry::applied(ROUTING, revision, from, "reload", "", None));
    }

    /// Takes a traffic document over that was read from its file.
    pub(super) fn take_traffic(&self, state: &mut State, read: &Result<Source, Problems>) {
        let (began, current) = (Instant::now(), self.current());
        let against = current.routing_revision;
        if state.traffic.has_seen(read) && state.traffic.is_judged_against(against) {
            if state.unwritten.is_none() {
                self.confirm(TRAFFIC, &state.traffic, began);
            }
            return;
        }
        let parsed = read.as_ref().map_err(Clone::clone).and_then(|source| conf::traffic(source, &current.routing));
        if parsed.as_ref().is_err_and(|problems| state.traffic.is_refused_for(problems)) {
            state.traffic.against = against;
            return;
        }
        let result = parsed.map(|traffic| {
            state.traffic = DocumentState::of(text_of(read), None);
            self.metrics().sources.loaded(TRAFFIC, began);
            if let Some((traffic, entry)) = edited(traffic, &current, &current.routing) {
                self.publish(self.workshop.reflow(&current, traffic));
                state.history.append(entry);
            }
        });
        if let Err(problems) = self.conclude(TRAFFIC, began, result) {
            let State { history, traffic, .. } = state;
            refuse(history, traffic, (text_of(read), None, against), TRAFFIC, &Actor::file(), problems);
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
                self.workshop.upkeep.repopulate(&current, &generation, &positions);
                self.put_in_force(generation);
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

/// The text that a document is remembered by; nothing if it could not be read.
fn text_of(read: &Result<Source, Problems>) -> String {
    read.as_ref().map_or_else(|_| String::new(), |source| source.text.clone())
}

/// An edited traffic document as it comes into force, and what is noted of that; none if it says what is in force.
fn edited(mut traffic: Traffic, current: &Generation, routing: &conf::Routing) -> Option<(Traffic, Entry)> {
    if change::same(&traffic, &current.traffic) {
        return None;
    }
    traffic.revision = traffic.revision.max(current.traffic_revision + 1);
    ramp::yield_to("an edit of the file", None, &current.traffic, &mut traffic, routing);
    let entry = Entry::flip(&Actor::file(), "edit", "", &current.traffic, &traffic);
    Some((traffic, entry))
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
