//! The control path: documents in, generations out. Every change - a watched file, the admin API, the CLI - goes
//! through here: it is checked and built as a whole, then swapped in as one, then written to the history. A document
//! that does not pass is refused and reported, and the generation in force stays.

pub mod audit;
pub mod build;
pub mod change;
pub mod fleet;
mod flip;
pub mod generation;
pub mod history;
mod leader;
mod merge;
pub mod ramp;
mod reconcile;
mod signature;
mod take;
pub mod watch;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use arc_swap::ArcSwap;
use schemars::JsonSchema;
use serde::Serialize;
use serin_core::plugin::{Catalogue, Node};
use serin_core::tag::SigningKey;

use self::audit::Audit;
use self::build::Workshop;
use self::change::Actor;
use self::fleet::{Fleet, Link};
pub use self::flip::Flipped;
pub(crate) use self::flip::recheck;
use self::generation::Generation;
use self::history::{Entry, History};
use self::ramp::driver::Ramps;
use crate::conf::{self, Bootstrap, Place, Problem, Problems, Source, Traffic};
use crate::ease;
use crate::limits::bank::{BankService, BankStatus};
use crate::registries::desk::RegistryStatus;
use crate::registries::discovery::{self, Discovery};
use crate::registries::register::Membership;
use crate::sources::Version;
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
    /// Those that were in force and may still be held by requests.
    retired: Mutex<Vec<Arc<Generation>>>,
    workshop: Workshop,
    state: Mutex<State>,
    ramps: Ramps,
    fleet: Fleet,
    discovery: Arc<Discovery>,
    membership: Membership,
    audit: Arc<Audit>,
    /// Talks to the server of the fleet's limits for as long as there is a control path.
    _bank_service: Option<BankService>,
}

/// What only one change at a time may touch.
struct State {
    history: History,
    routing: DocumentState,
    traffic: DocumentState,
    /// The traffic document as the config center had it last, if there is one.
    shared: Option<Traffic>,
    /// Changes that the config center does not have yet, if there are any.
    local: Option<Local>,
    /// The traffic document in force, if its file could not be written.
    unwritten: Option<Unwritten>,
}

/// What is in force and could not be written to its file.
struct Unwritten {
    text: String,
    /// What the file held then.
    before: String,
    why: String,
}

/// Changes of the traffic document that were made while the config center could not be reached.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Local {
    /// Since when.
    #[schemars(with = "String")]
    pub since: Timestamp,
    /// The revision of the center that they were made to.
    pub base_revision: u64,
    /// What they are: one line for each.
    pub changes: Vec<String>,
    /// When they were written to a center that may not have compared: somebody else may have written over them.
    #[serde(skip)]
    published: Option<Instant>,
}

/// How a document was last seen where it is kept.
#[derive(Default)]
struct DocumentState {
    text: String,
    refused: Option<Refusal>,
    /// Its version in its config center; none if it is in a file, or was not seen there yet.
    version: Option<Version>,
    /// Revision of the other document that it was refused beside.
    against: u64,
}

impl DocumentState {
    /// One that is in force.
    fn of(text: String, version: Option<Version>) -> Self {
        Self { text, version, ..Self::default() }
    }

    /// Whether this is what is in force.
    fn holds(&self, source: &Source) -> bool {
        self.refused.is_none() && source.text == self.text
    }

    /// Whether nothing changed by which it was refused.
    fn is_judged_against(&self, other: u64) -> bool {
        self.refused.is_none() || self.against == other
    }

    /// Whether it was refused for just this reason before.
    fn is_refused_for(&self, problems: &Problems) -> bool {
        self.refused.as_ref().is_some_and(|refusal| refusal.problems == problems.0)
    }

    /// Whether this is what was read the last time: the same text, or the same reason why there is none. What cannot be
    /// read is refused once, as a bad document is, and not at every look.
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
    /// Registries of instances by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(default)]
    pub registries: BTreeMap<String, RegistryStatus>,
    /// The server of the fleet's rate limits, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<BankStatus>,
}

/// State of one document.
#[derive(Serialize, JsonSchema)]
pub struct DocumentStatus {
    /// Revision in force.
    pub revision: u64,
    /// Where it is kept: a file, or a config center.
    pub source: String,
    /// The config center, if it is in one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub center: Option<CenterStatus>,
    /// What was refused since, if it was.
    pub refused: Option<Refusal>,
    /// Why its file does not hold what is in force, if it could not be written. It is tried again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_written: Option<String>,
}

/// How a config center stands.
#[derive(Serialize, JsonSchema)]
pub struct CenterStatus {
    /// Whether it can be reached.
    pub reachable: bool,
    /// Why it cannot be reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Changes that it does not have yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local: Option<Local>,
    /// Whether this gateway leads the ramps of all that share the traffic document; only looked after while there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leads_ramps: Option<bool>,
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
        let node = node(&bootstrap);
        let bank = BankService::open(&bootstrap, &node.id, &metrics);
        let bank_service = bank.map_err(|problem| Problems::whole("limits.redis", problem))?;
        let bank = bank_service.as_ref().map(|service| Arc::clone(&service.bank));
        let workshop = Workshop { catalogue, node, metrics, signing_key, paths, upkeep, bank };
        let state_dir = bootstrap.state_dir();
        let history = History::open(&state_dir).map_err(|e| cannot("keep a history in", &state_dir, &e))?;
        let audit = Arc::new(Audit::new(&state_dir, workshop.metrics.audit_lost.clone()));
        let mut history = history.with_audit(Arc::clone(&audit));
        let fleet = Fleet::open(&bootstrap, Arc::clone(&workshop.node.id), &workshop.metrics)?;
        let first =
            fleet.first_routing(&bootstrap, |source| conf::routing_of(&bootstrap, source, &workshop.catalogue))?;
        let (mut routing, routing_source, routing_refused) = (first.document, first.source, first.refused);
        let membership = Membership::new(&bootstrap)?;
        let discovery = Discovery::start(&bootstrap, &workshop.metrics, fleet.runtime())?;
        discovery.want(&routing);
        discovery.await_answers(discovery::START);
        discovery.fill(&mut routing);
        let routing = Arc::new(routing);
        let first = fleet.first_traffic(&bootstrap, |source| conf::traffic(source, &routing))?;
        let (traffic, traffic_source, traffic_refused) = (first.document, first.source, first.refused);
        let (shared, local) = fleet.left_over(&traffic, |source| conf::traffic(source, &routing));
        let shared = shared.or_else(|| fleet.traffic.is_some().then(|| traffic.clone()));
        let revisions = (history.routing_revision(&routing_source.text), history.traffic_revision(&traffic));
        let generation = workshop
            .build(&routing, &Arc::new(traffic), revisions, None)
            .map_err(|problem| Problems::whole(&routing_source.name, problem))?;
        history.note_routing(&routing_source.text);
        // A document of a center says who changed it while this gateway was not there.
        let author = fleet
            .traffic
            .as_ref()
            .filter(|_| generation.traffic.revision == revisions.1)
            .and_then(|link| Some(signature::of(&traffic_source.text, &generation.traffic)?.through(&link.name())));
        for (document, known) in [(ROUTING, revisions.0), (TRAFFIC, revisions.1)] {
            if history.latest(document) != Some(known) {
                let traffic = (document == TRAFFIC).then(|| Traffic::clone(&generation.traffic));
                history.append(match author.as_ref().filter(|_| document == TRAFFIC) {
                    Some(author) => {
                        Entry::applied(document, known, &author.actor, &author.action, &author.reason, traffic)
                    }
                    None => Entry::applied(document, known, &Actor::file(), "start", "", traffic),
                });
            }
        }
        workshop.announce(&generation);
        for document in [ROUTING, TRAFFIC] {
            workshop.metrics.sources.loaded(document, Instant::now());
        }
        Ok(Self {
            live: Arc::new(ArcSwap::from_pointee(generation)),
            retired: Mutex::default(),
            bootstrap,
            workshop,
            state: Mutex::new(State {
                history,
                routing: DocumentState { refused: routing_refused, ..DocumentState::of(routing_source.text, None) },
                traffic: DocumentState { refused: traffic_refused, ..DocumentState::of(traffic_source.text, None) },
                shared,
                local,
                unwritten: None,
            }),
            ramps: Ramps::default(),
            fleet,
            discovery: Arc::new(discovery),
            membership,
            audit,
            _bank_service: bank_service,
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

    /// Registers this gateway where it is to be found.
    pub fn enlist(&self) {
        if let Some(runtime) = self.fleet.runtime() {
            self.membership.enlist(runtime);
        }
    }

    /// Leaves the entries of this gateway in registries to the process that took over.
    pub fn relieve(&self) {
        self.membership.relieve();
    }

    /// Takes this gateway out of the registries.
    pub async fn leave(&self) {
        self.membership.leave().await;
    }

    /// Whether this gateway leads the ramps. Looks after that, which may wait for a config center.
    #[must_use]
    pub fn leads(&self, now: Instant) -> bool {
        self.fleet.leadership.tick(&self.fleet, now);
        self.fleet.leadership.leads()
    }

    /// State of the documents.
    #[must_use]
    pub fn status(&self) -> Status {
        let current = self.current();
        let state = self.lock();
        let status = |revision, place: &Place, link: Option<&Arc<Link>>, document: &DocumentState| DocumentStatus {
            revision,
            source: place.file().map(|file| file.display().to_string()).or(link.map(|l| l.name())).unwrap_or_default(),
            center: link.map(|link| link.status()),
            refused: document.refused.clone(),
            not_written: None,
        };
        let (Bootstrap { routing, traffic, .. }, Fleet { routing: far_routing, traffic: far_traffic, .. }) =
            (&self.bootstrap, &self.fleet);
        let mut status = Status {
            ready: true,
            routing: status(current.routing_revision, routing, far_routing.as_ref(), &state.routing),
            traffic: status(current.traffic_revision, traffic, far_traffic.as_ref(), &state.traffic),
            registries: self.discovery.status(),
            limits: self.workshop.bank.as_ref().map(|bank| bank.status()),
        };
        status.traffic.not_written = state.unwritten.as_ref().map(|unwritten| unwritten.why.clone());
        if let Some(center) = &mut status.traffic.center {
            center.local.clone_from(&state.local);
            center.leads_ramps = Some(self.fleet.leadership.leads());
        }
        status
    }

    /// The history, newest first.
    #[must_use]
    pub fn history(&self) -> Vec<Entry> {
        self.lock().history.entries()
    }

    fn publish(&self, generation: Generation) {
        self.workshop.announce(&generation);
        self.put_in_force(generation);
    }

    fn put_in_force(&self, generation: Generation) {
        let before = self.live.swap(Arc::new(generation));
        self.retired.lock().unwrap_or_else(PoisonError::into_inner).push(before);
    }

    /// Frees the generations that nobody holds any more, at ease. Of a large one that takes milliseconds, which the last
    /// request to hold it is not to spend.
    fn free_retired(&self) {
        let mut retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
        let free: Vec<_> = retired.extract_if(.., |generation| Arc::strong_count(generation) == 1).collect();
        drop(retired);
        ease::at_ease(|| free.into_iter().filter_map(Arc::into_inner).for_each(Generation::dismantle));
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
