//! The control path: documents in, generations out. Every change - a watched file, the admin API, the CLI - goes
//! through here: it is checked and built as a whole, then swapped in as one, then written to the history. A document
//! that does not pass is refused and reported, and the generation in force stays.

pub mod audit;
pub mod build;
pub mod change;
pub mod generation;
pub mod history;
pub mod ramp;
pub mod watch;

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};

use arc_swap::ArcSwap;
use schemars::JsonSchema;
use serde::Serialize;
use serin_core::plugin::{Catalogue, Node};
use serin_core::selfguard::Trip;
use serin_core::tag::SigningKey;

use self::audit::Audit;
use self::build::Workshop;
use self::change::{Actor, Change, FlipError};
use self::generation::Generation;
use self::history::{Entry, History};
use self::ramp::driver::Ramps;
use crate::conf::{self, Bootstrap, Problem, Problems, Routing, Source, Traffic};
use crate::telemetry::access_log::Timestamp;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::names::{ROUTING, TRAFFIC};
use crate::upkeep::Upkeep;

/// Holds what is in force and changes it.
pub struct Control {
    /// The generation in force.
    pub live: Arc<ArcSwap<Generation>>,
    /// What the gateway was started with.
    pub bootstrap: Bootstrap,
    workshop: Workshop,
    state: Mutex<State>,
    ramps: Ramps,
    audit: Arc<Audit>,
}

/// What only one change at a time may touch.
struct State {
    history: History,
    routing: DocumentState,
    traffic: DocumentState,
}

/// How a document's file was last seen.
#[derive(Default)]
struct DocumentState {
    text: String,
    refused: Option<Refusal>,
}

impl DocumentState {
    /// Whether this is what was read the last time: the same text, or the same reason why there is none. A file that
    /// cannot be read is refused once, as a bad one is, and not at every look.
    fn has_seen(&self, read: &Result<Source, Problems>) -> bool {
        match read {
            Ok(source) => source.text == self.text,
            Err(problems) => self.refused.as_ref().is_some_and(|refusal| refusal.problems == problems.0),
        }
    }
}

/// A document that was refused and is still there.
#[derive(Clone, Serialize, JsonSchema)]
pub struct Refusal {
    /// When.
    #[schemars(with = "String")]
    pub at: Timestamp,
    /// What is wrong with it.
    pub problems: Vec<Problem>,
}

/// State of the control path, for `/readyz?verbose`.
#[derive(Serialize, JsonSchema)]
pub struct Status {
    /// Whether a generation is in force.
    pub ready: bool,
    /// The routing document.
    pub routing: DocumentStatus,
    /// The traffic document.
    pub traffic: DocumentStatus,
}

/// State of one document.
#[derive(Serialize, JsonSchema)]
pub struct DocumentStatus {
    /// Revision in force.
    pub revision: u64,
    /// File it is read from.
    pub file: std::path::PathBuf,
    /// What was refused since, if it was.
    pub refused: Option<Refusal>,
}

impl Control {
    /// Reads the documents that the bootstrap names and builds the first generation.
    ///
    /// # Errors
    /// All problems of the documents, or the one that kept a file from being read.
    pub fn start(bootstrap: Bootstrap, catalogue: Catalogue, metrics: Arc<Metrics>) -> Result<Self, Problems> {
        let signing_key = signing_key(&bootstrap)?;
        let upkeep = Arc::new(Upkeep::new(Arc::clone(&metrics)));
        let paths = bootstrap.requests.paths();
        let workshop = Workshop { catalogue, node: node(&bootstrap), metrics, signing_key, paths, upkeep };
        let routing_source = Source::read(&bootstrap.routing.file)?;
        let routing = Arc::new(conf::routing_of(&bootstrap, &routing_source, &workshop.catalogue)?);
        let traffic_source = Source::read(&bootstrap.traffic.file)?;
        let traffic = conf::traffic(&traffic_source, &routing)?;
        let state_dir = bootstrap.state_dir();
        let history = History::open(&state_dir).map_err(|e| cannot("keep a history in", &state_dir, &e))?;
        let audit = Arc::new(Audit::new(&state_dir, workshop.metrics.audit_lost.clone()));
        let mut history = history.with_audit(Arc::clone(&audit));
        let revisions = (history.routing_revision(&routing_source.text), history.traffic_revision(&traffic));
        let generation = workshop
            .build(&routing, &Arc::new(traffic), revisions, None)
            .map_err(|problem| Problems::whole(&routing_source.name, problem))?;
        history.note_routing(&routing_source.text);
        for (document, known) in [(ROUTING, revisions.0), (TRAFFIC, revisions.1)] {
            if history.latest(document) != Some(known) {
                let traffic = (document == TRAFFIC).then(|| Traffic::clone(&generation.traffic));
                history.append(Entry::applied(document, known, &Actor::file(), "start", "", traffic));
            }
        }
        workshop.announce(&generation);
        for document in [ROUTING, TRAFFIC] {
            workshop.metrics.sources.loaded(document, Instant::now());
        }
        Ok(Self {
            live: Arc::new(ArcSwap::from_pointee(generation)),
            bootstrap,
            workshop,
            state: Mutex::new(State {
                history,
                routing: DocumentState { text: routing_source.text, refused: None },
                traffic: DocumentState { text: traffic_source.text, refused: None },
            }),
            ramps: Ramps::default(),
            audit,
        })
    }

    /// The generation in force.
    #[must_use]
    pub fn current(&self) -> Arc<Generation> {
        self.live.load_full()
    }

    /// What is known of ramps under way.
    #[must_use]
    pub fn ramps(&self) -> &Ramps {
        &self.ramps
    }

    /// The metrics of the process.
    #[must_use]
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.workshop.metrics
    }

    /// The audit log.
    #[must_use]
    pub fn audit(&self) -> &Audit {
        &self.audit
    }

    /// Which gateway this is.
    #[must_use]
    pub fn node(&self) -> &Node {
        &self.workshop.node
    }

    /// What goes on in the background.
    #[must_use]
    pub fn upkeep(&self) -> &Arc<Upkeep> {
        &self.workshop.upkeep
    }

    /// State of the documents.
    #[must_use]
    pub fn status(&self) -> Status {
        let current = self.current();
        let state = self.lock();
        let status = |revision, file: &Path, document: &DocumentState| DocumentStatus {
            revision,
            file: file.to_owned(),
            refused: document.refused.clone(),
        };
        Status {
            ready: true,
            routing: status(current.routing_revision, &self.bootstrap.routing.file, &state.routing),
            traffic: status(current.traffic_revision, &self.bootstrap.traffic.file, &state.traffic),
        }
    }

    /// The history, newest first.
    #[must_use]
    pub fn history(&self) -> Vec<Entry> {
        self.lock().history.entries()
    }

    /// Reads the routing document again, if its file changed.
    pub fn reload_routing(&self) {
        let mut state = self.lock();
        let began = Instant::now();
        let file = &self.bootstrap.routing.file;
        let read = Source::read(file);
        if state.routing.has_seen(&read) {
            self.confirm(ROUTING, &state.routing, began);
            return;
        }
        let built = read.and_then(|source| {
            let routing = conf::routing_of(&self.bootstrap, &source, &self.workshop.catalogue)?;
            let current = self.current();
            // What operators flipped must fit the new routing as well, or neither is taken.
            recheck(&current.traffic, &routing)?;
            let revision = state.history.routing_revision(&source.text).max(current.routing_revision + 1);
            let revisions = (revision, current.traffic_revision);
            let built = self.workshop.build(&Arc::new(routing), &current.traffic, revisions, Some(&current));
            let generation = built.map_err(|problem| Problems::whole(&source.name, problem))?;
            Ok((source.text, generation))
        });
        let result = built.map(|(text, generation)| {
            state.routing = DocumentState { text, refused: None };
            let State { history, routing, .. } = &mut *state;
            history.note_routing(&routing.text);
            let revision = generation.routing_revision;
            // In force before it is noted: a slow disk delays no change.
            self.publish(generation);
            self.metrics().sources.loaded(ROUTING, Instant::now());
            history.append(Entry::applied(ROUTING, revision, &Actor::file(), "reload", "", None));
        });
        if let Err(problems) = self.conclude(ROUTING, began, result) {
            let State { history, routing, .. } = &mut *state;
            refuse(history, routing, file, ROUTING, problems);
        }
    }

    /// Reads the traffic document again, if its file changed.
    pub fn reload_traffic(&self) {
        let mut state = self.lock();
        let began = Instant::now();
        let file = &self.bootstrap.traffic.file;
        let read = Source::read(file);
        if state.traffic.has_seen(&read) {
            self.confirm(TRAFFIC, &state.traffic, began);
            return;
        }
        let current = self.current();
        let parsed = read.and_then(|source| Ok((conf::traffic(&source, &current.routing)?, source.text)));
        let result = parsed.map(|(mut traffic, text)| {
            state.traffic = DocumentState { text, refused: None };
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
            let State { history, traffic, .. } = &mut *state;
            refuse(history, traffic, file, TRAFFIC, problems);
        }
    }

    /// Changes the traffic document: checks it, puts it in force, writes the file, and notes who did it and why. With
    /// `expected`, only if that is the revision in force. A refused change is noted as well.
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
        let current = self.current();
        let result = self.prepare(&state, &current, actor, change, expected);
        let traffic = match result {
            Ok(traffic) => traffic,
            Err(error) => {
                self.metrics().count_document(TRAFFIC, false, began.elapsed());
                state.history.append(Entry::refused(TRAFFIC, actor, &change.to_string(), reason, error.problems()));
                return Err(error);
            }
        };
        let entry = Entry::flip(actor, &change.to_string(), reason, &current.traffic, &traffic);
        // In force first: a disk that is full must not keep an operator from pulling a switch.
        self.publish(self.workshop.reflow(&current, traffic.clone()));
        self.metrics().sources.loaded(TRAFFIC, began);
        let text = change::to_yaml(&traffic);
        let written = change::write_atomically(&self.bootstrap.traffic.file, &text);
        if written.is_ok() {
            state.traffic = DocumentState { text, refused: None };
        }
        state.history.append(entry);
        self.metrics().count_document(TRAFFIC, true, began.elapsed());
        Ok(Flipped { traffic, not_written: written.err().map(|error| error.to_string()) })
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
        actor: &Actor,
        change: &Change,
        expected: Option<u64>,
    ) -> Result<Traffic, FlipError> {
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
        Ok(traffic)
    }

    /// Notes that a file holds what is in force, if it does.
    fn confirm(&self, name: &str, document: &DocumentState, now: Instant) {
        if document.refused.is_none() {
            self.metrics().sources.confirmed(name, now);
        }
    }

    fn publish(&self, generation: Generation) {
        self.workshop.announce(&generation);
        self.live.store(Arc::new(generation));
    }

    fn conclude(&self, document: &str, began: Instant, result: Result<(), Problems>) -> Result<(), Problems> {
        self.metrics().count_document(document, result.is_ok(), began.elapsed());
        match &result {
            Ok(()) => tracing::info!(document, "in force"),
            Err(problems) => tracing::error!(document, "refused, the one in force stays:\n{problems}"),
        }
        result
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is consistent between any two statements, so a panic elsewhere does not spoil it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A change that is in force.
pub struct Flipped {
    /// The traffic document in force.
    pub traffic: Traffic,
    /// Why it could not be written to its file, if it could not.
    pub not_written: Option<String>,
}

/// Checks a traffic document that comes from no file as if it did: its text is what would be written.
///
/// # Errors
/// Everything that is wrong with it.
pub(crate) fn recheck(traffic: &Traffic, routing: &Routing) -> Result<(), Problems> {
    conf::traffic(&Source::inline("traffic", change::to_yaml(traffic)), routing).map(drop)
}

fn refuse(history: &mut History, state: &mut DocumentState, file: &Path, document: &'static str, problems: Problems) {
    // Remembered, so that the same bad text is refused once and not at every look.
    state.text = std::fs::read_to_string(file).unwrap_or_default();
    let lines = problems.0.iter().map(ToString::to_string).collect();
    state.refused = Some(Refusal { at: Timestamp(SystemTime::now()), problems: problems.0 });
    history.append(Entry::refused(document, &Actor::file(), "reload", "", lines));
}

fn node(bootstrap: &Bootstrap) -> Node {
    let mut node = bootstrap.node.to_core();
    if node.id.is_empty() {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_else(|_| "serin".to_owned());
        node.id = host.trim().into();
    }
    node
}

fn signing_key(bootstrap: &Bootstrap) -> Result<Option<SigningKey>, Problems> {
    let Some(signing) = &bootstrap.tag_signing else { return Ok(None) };
    let bytes = std::fs::read(&signing.key_file).map_err(|error| cannot("read", &signing.key_file, &error))?;
    let short = || {
        Problems::whole(
            &signing.key_file.display().to_string(),
            format!("a signing key has at least {} bytes", SigningKey::MIN),
        )
    };
    SigningKey::new(bytes.trim_ascii_end()).map(Some).ok_or_else(short)
}

fn cannot(act: &str, path: &Path, error: &dyn std::fmt::Display) -> Problems {
    Problems::whole(&path.display().to_string(), format!("cannot {act} it: {error}"))
}
