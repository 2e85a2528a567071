//! The config centers that hold the documents of a fleet: links to them, and what of them is kept on disk for a start
//! without them.

mod store;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tokio::runtime::{Handle, Runtime};
use tokio::sync::watch;

use self::store::Store;
use super::change::Actor;
use super::leader::Leadership;
use super::{CenterStatus, Control, Local, Refusal};
use crate::conf::{Bootstrap, Place, Problems, Source, Traffic};
use crate::sources::follow::Backoff;
use crate::sources::{self, Center, Lost, PublishError, Seen, Told, Version};
use crate::telemetry::access_log::Timestamp;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::names::{ROUTING, TRAFFIC};

/// Name of the document that says who leads, in logs and metrics.
const LEADER: &str = "leader";
/// Why a center cannot be reached before anybody tried.
const FRESH: &str = "not connected yet";
/// How long an operator's change waits for a center before it is in force without.
const PATIENCE: Duration = Duration::from_millis(600);
/// How long after a write a watch may still tell of what was there before: longer than a look takes that never ends.
const LATE: Duration = Duration::from_secs(10);
/// How long a start waits for a center before it takes what is on disk.
const START: Duration = Duration::from_secs(3);
/// How long it waits for an answer if nothing is on disk: a center may be slow.
const FIRST: Duration = Duration::from_secs(10);
/// Pause between two looks at a center without which there is nothing to start with.
const PAUSE: Duration = Duration::from_millis(500);

/// The config centers of a gateway. A gateway whose documents and instances are in files has none, and no thread for
/// them.
pub struct Fleet {
    /// Where the routing document is, if it is in a center.
    pub(super) routing: Option<Arc<Link>>,
    /// Where the traffic document is, if it is in a center.
    pub(super) traffic: Option<Arc<Link>>,
    /// Who leads the ramps.
    pub(super) leadership: Leadership,
    /// What is kept on disk.
    pub(super) store: Store,
    runtime: Option<Runtime>,
}

/// One document in a config center, and whether it can be reached.
pub struct Link {
    document: &'static str,
    center: Arc<dyn Center>,
    down: Mutex<Option<String>>,
    /// When this gateway wrote it last.
    written: Mutex<Option<Instant>>,
    metrics: Arc<Metrics>,
}

impl Link {
    fn new(document: &'static str, center: Arc<dyn Center>, metrics: &Arc<Metrics>) -> Arc<Self> {
        let down = Mutex::new(Some(FRESH.to_owned()));
        Arc::new(Self { document, center, down, written: Mutex::default(), metrics: Arc::clone(metrics) })
    }

    /// What it is, for people.
    pub(super) fn name(&self) -> String {
        self.center.describe()
    }

    /// Why it cannot be reached, if it cannot.
    pub(super) fn problem(&self) -> Option<String> {
        self.down.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether it can be reached.
    pub(super) fn is_up(&self) -> bool {
        self.problem().is_none()
    }

    /// Whether nobody has tried to reach it yet.
    pub(super) fn is_fresh(&self) -> bool {
        self.problem().is_some_and(|problem| problem == FRESH)
    }

    /// Whether a write is sure to be refused if somebody else was faster.
    pub(super) fn compares(&self) -> bool {
        self.center.compares()
    }

    /// Who changes things that come from there.
    pub(super) fn actor(&self) -> Actor {
        Actor { by: "center".to_owned(), from: self.name(), token: None }
    }

    fn note_written(&self) {
        *self.written.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Whether a watch may still tell of what was there before something was written.
    fn wrote_lately(&self) -> bool {
        let written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        written.is_some_and(|at| at.elapsed() < LATE)
    }

    pub(super) fn status(&self) -> CenterStatus {
        let problem = self.problem();
        CenterStatus { reachable: problem.is_none(), problem, local: None, leads_ramps: None }
    }

    fn set(&self, problem: Option<String>) {
        let mut down = self.down.lock().unwrap_or_else(PoisonError::into_inner);
        match (&*down, &problem) {
            (None, Some(why)) => tracing::error!(center = self.name(), why, "the config center is lost"),
            (Some(_), None) => tracing::info!(center = self.name(), "the config center is there"),
            _ => {}
        }
        self.metrics.sources.reachable(self.document, problem.is_none());
        *down = problem;
    }

    /// What was seen, as a document.
    pub(super) fn source(&self, seen: &Seen) -> Result<Source, Problems> {
        match &seen.text {
            Some(text) => Ok(Source::inline(self.name(), &**text)),
            None => Err(Problems::whole(&self.name(), "there is no such document")),
        }
    }
}

/// What a gateway starts with.
pub(super) struct First<T> {
    pub(super) document: T,
    pub(super) source: Source,
    /// What the center held in its place that is not sound.
    pub(super) refused: Option<Refusal>,
}

impl Fleet {
    /// Connects to nothing yet.
    ///
    /// # Errors
    /// If a file of keys or passwords cannot be used.
    pub(super) fn open(bootstrap: &Bootstrap, node: Arc<str>, metrics: &Arc<Metrics>) -> Result<Self, Problems> {
        let link = |name: &'static str, place: &Place| {
            let center = sources::open(place).map_err(|problem| Problems::whole(name, problem))?;
            Ok::<_, Problems>(center.map(|center| Link::new(name, center, metrics)))
        };
        let (routing, traffic) = (link(ROUTING, &bootstrap.routing)?, link(TRAFFIC, &bootstrap.traffic)?);
        let leader = bootstrap.traffic.beside(".leader").map(|place| link(LEADER, &place)).transpose()?.flatten();
        let needed = routing.is_some() || traffic.is_some() || !bootstrap.registries.is_empty();
        let runtime = needed.then(|| {
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).thread_name("sources").enable_all().build()
        });
        let runtime = runtime.transpose().map_err(|error| Problems::whole("sources", error.to_string()))?;
        let leadership = Leadership::new(leader, node);
        Ok(Self { routing, traffic, leadership, store: Store::new(bootstrap.state_dir().join("center")), runtime })
    }

    /// Where config centers and registries are followed.
    pub(super) fn runtime(&self) -> Option<&Handle> {
        self.runtime.as_ref().map(Runtime::handle)
    }

    /// The routing document to start with.
    pub(super) fn first_routing<T>(
        &self,
        bootstrap: &Bootstrap,
        parse: impl Fn(&Source) -> Result<T, Problems>,
    ) -> Result<First<T>, Problems> {
        self.first(ROUTING, &bootstrap.routing, self.routing.as_deref(), parse)
    }

    /// The traffic document to start with. If a center can be reached and has none, everything goes to the stable
    /// subsets, and the first change makes it.
    pub(super) fn first_traffic(
        &self,
        bootstrap: &Bootstrap,
        parse: impl Fn(&Source) -> Result<Traffic, Problems>,
    ) -> Result<First<Traffic>, Problems> {
        if let Some(local) = self.traffic.as_ref().and_then(|_| self.store.local()) {
            // Changes that the center does not have yet outlive a restart; the center is looked at afterwards.
            match parse(&local) {
                Ok(document) => return Ok(First { document, source: local, refused: None }),
                Err(problems) => tracing::error!("changes that were kept are not sound any more:\n{problems}"),
            }
        }
        self.first(TRAFFIC, &bootstrap.traffic, self.traffic.as_deref(), parse)
    }

    fn first<T>(
        &self,
        name: &'static str,
        place: &Place,
        link: Option<&Link>,
        parse: impl Fn(&Source) -> Result<T, Problems>,
    ) -> Result<First<T>, Problems> {
        let sound = |source: Source, refused| Ok(First { document: parse(&source)?, source, refused });
        let Some(link) = link else {
            return match place.file() {
                Some(file) => sound(Source::read(file)?, None),
                None => Err(Problems::whole(name, "is in no place")),
            };
        };
        let began = Instant::now();
        loop {
            let patience = if self.store.last(name).is_some() { START } else { FIRST };
            let lost = match self.within(patience, link.center.read()) {
                Ok(seen) => {
                    let empty = || Source::inline(link.name(), "revision: 0");
                    let source = link.source(&seen).or_else(|problems| {
                        let fresh = name == TRAFFIC && self.store.last(name).is_none();
                        if fresh { Ok(empty()) } else { Err(problems) }
                    });
                    let problems = match source.and_then(|source| sound(source, None)) {
                        Ok(first) => {
                            self.store.keep(name, &first.source.text);
                            return Ok(first);
                        }
                        Err(problems) => problems,
                    };
                    let Some(last) = self.store.last(name) else { return Err(problems) };
                    tracing::error!(document = name, "refused, starting with the last good one:\n{problems}");
                    let refused = Refusal { at: Timestamp(SystemTime::now()), problems: problems.0.clone() };
                    return sound(last, Some(refused)).map_err(|_| problems);
                }
                Err(lost) => lost,
            };
            if let Some(last) = self.store.last(name) {
                tracing::warn!(document = name, why = %lost, "starting with the last good one, the center is lost");
                return sound(last, None);
            }
            tracing::error!(document = name, center = link.name(), why = %lost, waited = ?began.elapsed(),
                "waiting for the config center: nothing is on disk to start with");
            std::thread::sleep(PAUSE);
        }
    }

    /// What was left unsettled by the process before: the document that its changes were made to, and the changes.
    pub(super) fn left_over(
        &self,
        current: &Traffic,
        parse: impl Fn(&Source) -> Result<Traffic, Problems>,
    ) -> (Option<Traffic>, Option<Local>) {
        if self.traffic.is_none() || self.store.local().is_none() {
            return (None, None);
        }
        let base = self.store.last(TRAFFIC).and_then(|source| parse(&source).ok()).unwrap_or_default();
        let changes = vec![format!("revision {}: kept from before a restart", current.revision)];
        let local =
            Local { since: Timestamp(SystemTime::now()), base_revision: base.revision, changes, published: None };
        (Some(base), Some(local))
    }

    /// Writes a document, if that does not take too long. A write that does is not called back: a slow center still gets
    /// it, and what became of it is seen there.
    pub(super) fn publish(&self, link: &Link, text: &str, expected: &Version) -> Result<Version, PublishError> {
        let (center, text, expected) = (Arc::clone(&link.center), text.to_owned(), expected.clone());
        let write = async move {
            match center.publish(&text, &expected).await {
                Err(PublishError::Lost(lost)) => Err(lost),
                other => Ok(other),
            }
        };
        let written =
            self.within(PATIENCE, async { tokio::spawn(write).await.unwrap_or_else(|e| Err(Lost::because(e))) });
        match written {
            Ok(written) => {
                link.set(None);
                link.note_written();
                written
            }
            Err(lost) => {
                link.set(Some(lost.to_string()));
                Err(lost.into())
            }
        }
    }

    /// Reads a document, if that does not take too long.
    pub(super) fn read(&self, link: &Link) -> Result<Seen, Lost> {
        let seen = self.within(PATIENCE, link.center.read());
        link.set(seen.as_ref().err().map(ToString::to_string));
        seen
    }

    fn within<T>(&self, patience: Duration, answer: impl Future<Output = Result<T, Lost>>) -> Result<T, Lost> {
        let Some(runtime) = &self.runtime else { return Err(Lost("there is no config center".to_owned())) };
        let answer = async { tokio::time::timeout(patience, answer).await };
        runtime.block_on(answer).unwrap_or_else(|_| Err(Lost(format!("no answer within {patience:?}"))))
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Dropped plainly it would wait, which it must not do where it may be dropped.
            runtime.shutdown_background();
        }
    }
}

impl Control {
    /// Follows the config centers and the registries from now on.
    pub fn follow(self: &Arc<Self>) {
        let Some(runtime) = &self.fleet.runtime else { return };
        runtime.spawn(Arc::clone(&self.discovery).follow(Arc::clone(self)));
        if let Some(link) = &self.fleet.routing {
            runtime.spawn(follow(Arc::clone(self), Arc::clone(link), Self::take_routing_of));
        }
        if let Some(link) = &self.fleet.traffic {
            let take = |control: &Self, link: &Link, seen: Seen| {
                let mut state = control.lock();
                // A watch may tell late: taken for news, what was there before the last flip would undo it.
                let late = link.wrote_lately() && state.traffic.version.as_ref() != Some(&seen.version);
                let seen = if late { control.fleet.read(link) } else { Ok(seen) };
                // If it is lost, a new watch will tell.
                if let Ok(seen) = seen {
                    control.take_traffic_of(link, &mut state, seen);
                }
            };
            runtime.spawn(follow(Arc::clone(self), Arc::clone(link), take));
        }
    }

    fn take_routing_of(&self, link: &Link, seen: Seen) {
        if self.has_routing(&seen.version) {
            return;
        }
        let read = link.source(&seen);
        let text = read.as_ref().ok().map(|source| source.text.clone());
        let sound = self.take_routing(&read, &link.actor(), Some(seen.version));
        if let Some(text) = text.filter(|_| sound) {
            self.fleet.store.keep(ROUTING, &text);
        }
    }
}

/// Follows one document for as long as the process lives.
async fn follow(control: Arc<Control>, link: Arc<Link>, take: fn(&Control, &Link, Seen)) {
    let mut backoff = Backoff::default();
    loop {
        let began = Instant::now();
        let (told, mut news) = watch::channel(Told::default());
        let taking = async {
            while news.changed().await.is_ok() {
                let Some(seen) = news.borrow_and_update().seen.clone() else { continue };
                link.set(None);
                let (control, link) = (Arc::clone(&control), Arc::clone(&link));
                // A build takes its time, and what is kept on disk does as well.
                let taken = tokio::task::spawn_blocking(move || take(&control, &link, seen)).await;
                if let Err(error) = taken {
                    tracing::error!(%error, "a document could not be taken over");
                }
            }
        };
        let watching = async {
            let lost = link.center.watch(&told).await;
            drop(told);
            lost
        };
        let (lost, ()) = tokio::join!(watching, taking);
        link.set(Some(lost.to_string()));
        tokio::time::sleep(backoff.pause(began)).await;
    }
}
