//! The routes of a document, indexed. An entry is a route on one of its hosts; the entries are sorted by [`Rank`] once,
//! so that the position of an entry is its precedence and the best match is the least number.

use std::collections::{HashMap, HashSet};

use foldhash::fast::FixedState;
use smallvec::SmallVec;

use super::host::{parents, without_dot};
use super::trie::{Entry as EntryId, NodeId, Trie};
use super::{HostKind, HostMatch, Rank, Route};
use crate::matcher::{self, PathKind};
use crate::request::RequestView;

/// The routes of a document.
#[derive(Debug, Default)]
pub struct RouteTable {
    routes: Vec<Route>,
    entries: Vec<Entry>,
    hosts: Vec<HostMatch>,
    paths: Trie,
    exact: HostMap,
    wildcard: HostMap,
    longest_wildcard: usize,
    any: Option<NodeId>,
}

/// A host or domain; a short one lies in the map itself.
type HostKey = SmallVec<[u8; 24]>;

/// The trees by host. The keys are the operator's, so that clients cannot provoke collisions.
type HostMap = HashMap<HostKey, NodeId, FixedState>;

/// Kept small, as a search touches many of them; its host, which only explaining asks for, is kept apart.
#[derive(Clone, Copy, Debug)]
struct Entry {
    route: u32,
    why: MatchWhy,
    conditional: bool,
}

impl Entry {
    fn found(self) -> Match {
        Match { route: self.route as usize, why: self.why }
    }
}

/// The route that a request takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Match {
    /// Index of the route, its place in the document.
    pub route: usize,
    /// How it matched.
    pub why: MatchWhy,
}

/// How a route matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct MatchWhy {
    /// How the host did.
    pub host: HostKind,
    /// How the path did.
    pub path: PathKind,
}

/// A route whose host and path match, and what of the rest does not.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Candidate {
    /// The route, and how it matched.
    #[serde(flatten)]
    pub found: Match,
    /// The conditions that do not hold, by their index; none if the request could take the route.
    pub failed: Vec<usize>,
}

impl RouteTable {
    /// Indexes the routes of a document, given in its order.
    #[must_use]
    pub fn new(routes: Vec<Route>) -> Self {
        Self::with_pauses(routes, || ())
    }

    /// Like [`RouteTable::new`], with something to do after each route: many routes take milliseconds.
    #[must_use]
    pub fn with_pauses(routes: Vec<Route>, mut pause: impl FnMut()) -> Self {
        let mut table = Self::default();
        for (rank, host) in ranked(&routes, &mut pause) {
            let route = &routes[rank.order];
            table.insert(rank.order, route, host);
            pause();
        }
        table.longest_wildcard = table.wildcard.keys().map(|domain| domain.len()).max().unwrap_or(0);
        table.routes = routes;
        table
    }

    /// Adds the next entry by rank.
    fn insert(&mut self, order: usize, route: &Route, host: &HostMatch) {
        let root = match host {
            HostMatch::Exact(name) => Some((&mut self.exact, name)),
            HostMatch::Wildcard(domain) => Some((&mut self.wildcard, domain)),
            HostMatch::Any => None,
        };
        let root = match root {
            Some((map, name)) => *map.entry(HostKey::from_slice(name.as_bytes())).or_insert_with(|| self.paths.root()),
            None => *self.any.get_or_insert_with(|| self.paths.root()),
        };
        self.paths.insert(root, &route.path, self.entries.len() as EntryId);
        let why = MatchWhy { host: host.kind(), path: route.path.kind() };
        self.entries.push(Entry { route: order as u32, why, conditional: !route.conditions.is_empty() });
        self.hosts.push(host.clone());
    }

    /// The routes in the order of the document.
    #[must_use]
    pub fn routes(&self) -> &[Route] {
        &self.routes
    }

    /// The routes, without their index.
    #[must_use]
    pub fn into_routes(self) -> Vec<Route> {
        self.routes
    }

    /// The route that a request takes. Allocates nothing, unless the engine of a regular expression has to grow its
    /// cache or a query parameter that is asked for came percent-encoded.
    #[must_use]
    pub fn find(&self, request: &RequestView<'_>) -> Option<Match> {
        let id = self.roots(without_dot(request.host)).find_map(|root| self.find_below(root, request))?;
        Some(self.entries[id as usize].found())
    }

    /// Every route whose host and path match, in order of precedence, once per host that matches. The request takes the
    /// first of which no condition failed. Looks at every route: for explaining, not for serving.
    #[must_use]
    pub fn candidates(&self, request: &RequestView<'_>) -> Vec<Candidate> {
        let entries = self.hosts.iter().zip(&self.entries).map(|(host, entry)| (host, entry.found()));
        let reached = entries
            .filter(|(host, found)| host.matches(request.host) && self.routes[found.route].path.matches(request.path));
        let candidate = |(_, found): (&HostMatch, Match)| {
            let conditions = self.routes[found.route].conditions.iter().enumerate();
            let failed = conditions.filter(|(_, condition)| !condition.holds(request)).map(|(index, _)| index);
            Candidate { found, failed: failed.collect() }
        };
        reached.map(candidate).collect()
    }

    /// The trees of a host, the most specific first.
    fn roots<'a>(&'a self, host: &'a str) -> impl Iterator<Item = NodeId> + 'a {
        let domains = parents(host).filter(|domain| domain.len() <= self.longest_wildcard);
        let wildcards = domains.filter_map(|domain| self.wildcard.get(domain.as_bytes()).copied());
        self.exact.get(host.as_bytes()).copied().into_iter().chain(wildcards).chain(self.any)
    }

    fn find_below(&self, root: NodeId, request: &RequestView<'_>) -> Option<EntryId> {
        if request.path.starts_with('/') {
            return self.paths.search(root, request.path, |id| self.accepts(id, request));
        }
        let path_matches = |id: EntryId| self.route(id).path.matches(request.path);
        self.paths.outside(root).find(|&id| path_matches(id) && self.accepts(id, request))
    }

    /// Whether a request takes an entry that its path leads to. A route without further conditions is not looked at.
    fn accepts(&self, id: EntryId, request: &RequestView<'_>) -> bool {
        let Entry { why, conditional, .. } = self.entries[id as usize];
        (why.path != PathKind::Regex || self.route(id).path.matches(request.path))
            && (!conditional || matcher::all(&self.route(id).conditions, request))
    }

    fn route(&self, id: EntryId) -> &Route {
        &self.routes[self.entries[id as usize].route as usize]
    }
}

/// The routes on each of their hosts, by rank.
fn ranked(routes: &[Route], mut pause: impl FnMut()) -> Vec<(Rank, &HostMatch)> {
    let mut ranked = Vec::with_capacity(routes.len());
    for (order, route) in routes.iter().enumerate() {
        let mut seen = HashSet::new();
        let any = route.hosts.is_empty().then_some(&HostMatch::Any);
        let hosts = route.hosts.iter().chain(any).filter(|host| seen.insert(*host));
        ranked.extend(hosts.map(|host| (Rank::new(route, host, order), host)));
        pause();
    }
    ranked.sort_unstable_by_key(|(rank, _)| *rank);
    ranked
}
