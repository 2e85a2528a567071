//! Routes: which one a request takes, and what it asks for. Precedence is the order of [`Rank`], nothing else.

mod edits;
mod host;
mod rewrite;
mod table;
mod trie;

use std::cmp::Reverse;
use std::sync::Arc;

use http::{HeaderValue, StatusCode};

pub use edits::{EditError, EditHeaders, HeaderEdits};
pub use host::{HostError, HostKind, HostMatch, HostRank};
pub use rewrite::{Origin, PathRewrite, Redirect, RedirectStatus, Rewrite, RewriteError};
pub use table::{Candidate, Match, MatchWhy, RouteTable};

use crate::matcher::{Condition, PathMatch, PathRank};

/// One route. Its place in the document is its index in the [`RouteTable`], by which the gateway may keep more about it.
#[derive(Clone, Debug)]
pub struct Route {
    /// Name, unique in the document.
    pub name: Arc<str>,
    /// Hosts, of which one has to match; none means any.
    pub hosts: Vec<HostMatch>,
    /// Condition on the path.
    pub path: PathMatch,
    /// Further conditions, all of which have to hold.
    pub conditions: Vec<Condition>,
    /// What to do with a request.
    pub action: Action,
    /// What changes in path and host before a request goes to the service.
    pub rewrite: Rewrite,
    /// Edits of the request's header on its way to the service.
    pub request_headers: HeaderEdits,
    /// Edits of the response's header on its way to the client.
    pub response_headers: HeaderEdits,
}

/// What a route does with a request.
#[derive(Clone, Debug)]
pub enum Action {
    /// Sends it to a service, by its index in the snapshot.
    Service(usize),
    /// Sends the client elsewhere.
    Redirect(Redirect),
    /// Answers by itself.
    Respond(Respond),
}

/// A fixed answer.
#[derive(Clone, Debug)]
pub struct Respond {
    /// Status.
    pub status: StatusCode,
    /// Body.
    pub body: Arc<str>,
    /// Media type of the body.
    pub content_type: HeaderValue,
}

/// Precedence of a route on one of its hosts; the least goes first. It orders by the fields from top to bottom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    /// Exact hosts, then wildcards with the longer one first, then any.
    pub host: HostRank,
    /// Exact paths, templates, regular expressions, prefixes.
    pub path: PathRank,
    /// Whether any method will do.
    pub any_method: bool,
    /// Number of conditions on headers, cookies and claims: more of them first.
    pub headers: Reverse<usize>,
    /// Number of conditions on the query: more of them first.
    pub query: Reverse<usize>,
    /// Place in the document.
    pub order: usize,
}

impl Rank {
    /// The rank that a route, the `order`th of the document, has for a host.
    #[must_use]
    pub fn new(route: &Route, host: &HostMatch, order: usize) -> Self {
        let count = |of: fn(&Condition) -> bool| route.conditions.iter().filter(|condition| of(condition)).count();
        Self {
            host: host.rank(),
            path: route.path.rank(),
            any_method: count(|condition| matches!(condition, Condition::Method(_))) == 0,
            headers: Reverse(count(|condition| {
                matches!(condition, Condition::Header(..) | Condition::Cookie(..) | Condition::Claim(..))
            })),
            query: Reverse(count(|condition| matches!(condition, Condition::Query(..)))),
            order,
        }
    }
}

#[cfg(test)]
mod tests;
