//! The desk of one registry: what is wanted of it, what it told, and how it is doing.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::Serialize;
use tokio::sync::{Notify, watch};

use super::Query;
use super::listed::{List, in_order};
use super::shelf::{Rules, Shelf};
use super::snapshot;
use crate::conf::Instance;
use crate::telemetry::metrics::Metrics;

/// Least and longest pause between two snapshots on disk. Between them it is a hundred times what the last one took, so that
/// the disk is left to others.
const SNAPSHOT: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(30));

/// What checks say of an instance of a service: none if it is not checked.
pub(super) type Opinion<'a> = &'a dyn Fn(&Query, SocketAddr) -> Option<bool>;

/// The desk of one registry.
pub struct Desk {
    /// Name of the registry.
    pub(super) name: String,
    /// As it is called among the sources, in metrics.
    source: String,
    kind: &'static str,
    wanted: watch::Sender<Arc<BTreeSet<Query>>>,
    state: Mutex<State>,
    /// Rung when something changed.
    pub(super) bell: Arc<Notify>,
    metrics: Arc<Metrics>,
    path: PathBuf,
}

#[derive(Default)]
struct State {
    shelves: BTreeMap<Query, Shelf>,
    /// Services whose good list is another one since they were last taken.
    changed: BTreeSet<Query>,
    /// Offers that wait for a look, as only the control path knows what checks say.
    offered: BTreeMap<Query, List>,
    problem: Option<String>,
    /// Why single services have no news.
    failing: BTreeMap<Query, String>,
    unsaved: bool,
    /// When the next snapshot may be written.
    save_from: Option<Instant>,
}

/// How a registry stands.
#[derive(Debug, Serialize, JsonSchema)]
pub struct RegistryStatus {
    /// What kind it is.
    pub kind: &'static str,
    /// Whether it can be reached.
    pub reachable: bool,
    /// Why it cannot be reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Services that are wanted of it.
    pub services: usize,
    /// Lists that are held back because they are hardly true.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(default)]
    pub held: Vec<HeldBack>,
    /// Services of which there is no news, and why.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(default)]
    pub failing: BTreeMap<String, String>,
}

/// A list that is held back.
#[derive(Debug, Serialize, JsonSchema)]
pub struct HeldBack {
    /// Whose it is.
    pub service: String,
    /// Instances it has.
    pub listed: usize,
    /// Instances that are used in its place.
    pub used: usize,
    /// How long it has been held back, in seconds.
    pub seconds: f64,
}

impl Desk {
    /// What is on disk is good until the registry tells something else.
    pub(super) fn new(name: &str, kind: &'static str, path: PathBuf, bell: Arc<Notify>, metrics: Arc<Metrics>) -> Self {
        let shelves = snapshot::read(&path).into_iter().map(|(query, list)| (query, Shelf::restored(list)));
        let state =
            State { shelves: shelves.collect(), problem: Some("not connected yet".to_owned()), ..State::default() };
        let source = format!("registry:{name}");
        metrics.sources.reachable(&source, false);
        Self {
            name: name.to_owned(),
            source,
            kind,
            wanted: watch::channel(Arc::default()).0,
            state: Mutex::new(state),
            bell,
            metrics,
            path,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is wanted, now and in future.
    pub(super) fn wanted(&self) -> watch::Receiver<Arc<BTreeSet<Query>>> {
        self.wanted.subscribe()
    }

    /// Says what is wanted from now on. What is not wanted any more is forgotten.
    pub(super) fn want(&self, queries: BTreeSet<Query>) {
        {
            let mut state = self.lock();
            let State { shelves, changed, offered, failing, .. } = &mut *state;
            shelves.retain(|query, _| queries.contains(query));
            changed.retain(|query| queries.contains(query));
            offered.retain(|query, _| queries.contains(query));
            failing.retain(|query, _| queries.contains(query));
        }
        self.wanted.send_if_modified(|wanted| {
            let changed = **wanted != queries;
            if changed {
                *wanted = Arc::new(queries);
            }
            changed
        });
    }

    /// The registry tells the whole list of a service.
    pub(super) fn tell(&self, query: &Query, list: Vec<Instance>) {
        let list = in_order(list);
        let mut state = self.lock();
        state.failing.remove(query);
        // Only what is wanted is kept, so that nothing grows without bound.
        if !self.wanted.borrow().contains(query) {
            return;
        }
        let same =
            state.shelves.get(query).is_some_and(|shelf| shelf.held().is_none() && shelf.accepted() == Some(&list));
        if same && !state.offered.contains_key(query) {
            return;
        }
        state.offered.insert(query.clone(), list);
        drop(state);
        self.bell.notify_one();
    }

    /// The registry leaves entries out that it cannot read.
    pub(super) fn unreadable(&self, what: &str, problem: &str) {
        self.metrics.sources.unreadable(&self.source);
        tracing::warn!(registry = self.name, what, problem, "an entry is left out");
    }

    /// The registry is there.
    pub(super) fn alive(&self) {
        let was = self.lock().problem.take();
        if was.is_some() {
            tracing::info!(registry = self.name, "the registry is there");
            self.metrics.sources.reachable(&self.source, true);
        }
        self.metrics.sources.confirmed(&self.source, Instant::now());
    }

    /// The registry is not there.
    pub(super) fn lost(&self, problem: &str) {
        self.metrics.sources.reachable(&self.source, false);
        let was = self.lock().problem.replace(problem.to_owned());
        if was.is_none_or(|was| was == "not connected yet") {
            tracing::error!(registry = self.name, problem, "the registry is lost, what it told last stays");
        }
    }

    /// There is no news of one service.
    pub(super) fn failing(&self, query: &Query, problem: &str) {
        let was = self.lock().failing.insert(query.clone(), problem.to_owned());
        if was.is_none() {
            tracing::warn!(registry = self.name, service = query.service, problem, "no news, what was told last stays");
        }
    }

    /// Looks at what was told and at what is held back.
    pub(super) fn settle(&self, now: Instant, opinion: Opinion<'_>) {
        let mut state = self.lock();
        let State { shelves, changed, offered, .. } = &mut *state;
        let mut any = false;
        let held_before = shelves.values().filter(|shelf| shelf.held().is_some()).count();
        for (query, shelf) in
            shelves.iter_mut().filter(|(query, shelf)| shelf.held().is_some() && !offered.contains_key(*query))
        {
            if shelf.look(rules(query), now, &|at| opinion(query, at)) {
                changed.insert(query.clone());
                any = true;
            }
        }
        for (query, list) in std::mem::take(offered) {
            let shelf = shelves.entry(query.clone()).or_default();
            let was_held = shelf.held().is_some();
            if shelf.offer(list, rules(&query), now, &|at| opinion(&query, at)) {
                changed.insert(query.clone());
                any = true;
            }
            if let (Some((listed, _)), false) = (shelf.held(), was_held) {
                let used = shelf.accepted().map_or(0, |list| list.len());
                tracing::error!(
                    registry = self.name,
                    service = query.service,
                    listed,
                    used,
                    "a list is held back: it has lost too many instances at once"
                );
            }
        }
        let held = shelves.values().filter(|shelf| shelf.held().is_some()).count();
        if held != held_before {
            self.metrics.sources.held(&self.source, held);
        }
        if any {
            state.unsaved = true;
            self.metrics.sources.loaded(&self.source, now);
        }
    }

    /// The services whose good list is another one since this was asked last.
    pub(super) fn take_changed(&self) -> BTreeSet<Query> {
        std::mem::take(&mut self.lock().changed)
    }

    /// Whether something is held back.
    pub(super) fn holds(&self) -> bool {
        self.lock().shelves.values().any(|shelf| shelf.held().is_some())
    }

    /// The good list of a service; none before there was one.
    pub(super) fn list(&self, query: &Query) -> Option<List> {
        self.lock().shelves.get(query)?.accepted().cloned()
    }

    /// Whether there is an answer to everything that is wanted.
    pub(super) fn has_all(&self) -> bool {
        let state = self.lock();
        let has = |query| state.shelves.contains_key(query) || state.offered.contains_key(query);
        self.wanted.borrow().iter().all(has)
    }

    /// Writes what is good to disk, if it is another one than there and it was not written just now. May wait for the
    /// disk.
    pub(super) fn save(&self, now: Instant) {
        let lists: Vec<(Query, List)> = {
            let mut state = self.lock();
            if !state.unsaved || state.save_from.is_some_and(|from| now < from) {
                return;
            }
            state.unsaved = false;
            let good = |(query, shelf): (&Query, &Shelf)| Some((query.clone(), shelf.accepted()?.clone()));
            state.shelves.iter().filter_map(good).collect()
        };
        let written = snapshot::write(&self.path, &lists);
        let mut state = self.lock();
        state.save_from = Some(now + (100 * now.elapsed()).clamp(SNAPSHOT.0, SNAPSHOT.1));
        if let Err(error) = written {
            tracing::error!(path = %self.path.display(), %error, "the instances of a registry could not be kept");
            state.unsaved = true;
        }
    }

    /// How it stands.
    pub(super) fn status(&self, now: Instant) -> RegistryStatus {
        let state = self.lock();
        let held = |(query, shelf): (&Query, &Shelf)| {
            let (listed, since) = shelf.held()?;
            Some(HeldBack {
                service: query.service.clone(),
                listed,
                used: shelf.accepted().map_or(0, |list| list.len()),
                seconds: now.saturating_duration_since(since).as_secs_f64(),
            })
        };
        RegistryStatus {
            kind: self.kind,
            reachable: state.problem.is_none(),
            problem: state.problem.clone(),
            services: self.wanted.borrow().len(),
            held: state.shelves.iter().filter_map(held).collect(),
            failing: state.failing.iter().map(|(query, why)| (query.service.clone(), why.clone())).collect(),
        }
    }
}

fn rules(query: &Query) -> Rules {
    Rules { hold: query.hold, max_shrink: query.max_shrink }
}
