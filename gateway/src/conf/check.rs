//! What no schema can say: whether the names that a document refers to exist, and whether its parts fit together.
//! Again everything at once, each at its place.

mod bootstrap;
mod chain;
mod guard;
mod limit;
mod limits;
mod ramp;
mod route;
mod service;
mod telemetry;
mod traffic;
mod upkeep;

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;

use serde_path_to_error::{Segment, Segments};

pub(super) use self::bootstrap::bootstrap;
pub(super) use self::route::routing;
pub(super) use self::traffic::traffic;
use super::problem::{At, Problem, listed, nearest, shown};
use super::tree::{Mark, Node};

/// Collects what is wrong with one document.
pub(super) struct Report<'a> {
    file: &'a str,
    root: &'a Node,
    /// Paths at which something is wrong already: what is found there now follows from it.
    known: Vec<String>,
    /// Everything so far.
    pub(super) problems: Vec<Problem>,
}

impl<'a> Report<'a> {
    pub(super) fn new(file: &'a str, root: &'a Node, problems: Vec<Problem>) -> Self {
        let known = problems.iter().map(|problem| problem.path.clone()).collect();
        Self { file, root, known, problems }
    }

    /// Something is wrong at a place.
    pub(super) fn say(&mut self, at: &At<'_>, message: impl Into<String>) {
        self.suggest(at, message, None);
    }

    /// Something is wrong at a place, and something else was probably meant.
    fn suggest(&mut self, at: &At<'_>, message: impl Into<String>, suggestion: Option<&str>) {
        let path = at.to_string();
        let below = |known: &String| {
            path.strip_prefix(known.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        if self.known.iter().filter(|known| !known.is_empty()).any(below) {
            return;
        }
        let Mark { line, column } = self.root.locate(at);
        self.problems.push(Problem {
            file: self.file.to_owned(),
            line,
            column,
            path,
            message: message.into(),
            suggestion: suggestion.map(str::to_owned),
        });
    }

    /// A name that must be one of those that are known. `what` is what it names.
    pub(super) fn unknown<'n>(
        &mut self,
        at: &At<'_>,
        what: &str,
        name: &str,
        known: impl Iterator<Item = &'n str> + Clone,
    ) {
        let meant = nearest(name, known.clone());
        let all: Vec<_> = known.take(21).collect();
        let known = match all.len() {
            0 => "none is defined".to_owned(),
            1..=20 => format!("expected {}{}", if all.len() > 1 { "one of " } else { "" }, listed(all)),
            _ => format!("expected one of {} or another one that is defined", listed(&all[..20])),
        };
        self.suggest(at, format!("unknown {what} `{}`, {known}", shown(name)), meant);
    }

    /// Items of which no two may have the same key. `describe` gives what a repeated one is called.
    fn unique<K: Hash + Eq>(
        &mut self,
        list: &At<'_>,
        field: &str,
        keys: impl Iterator<Item = K>,
        describe: impl Fn(&K) -> String,
    ) {
        let mut first = HashMap::new();
        for (index, key) in keys.enumerate() {
            let Some(&earlier) = first.get(&key) else {
                first.insert(key, index);
                continue;
            };
            let line = self.root.locate(&list.index(earlier).key(field)).line;
            let message = format!("{} is here a second time: the first is on line {line}", describe(&key));
            self.say(&list.index(index).key(field), message);
        }
    }

    /// What serde refused though the schema allowed it.
    pub(super) fn refused(&mut self, mut path: Segments<'_>, at: &At<'_>, message: &str) {
        match path.next() {
            Some(Segment::Map { key } | Segment::Enum { variant: key }) => self.refused(path, &at.key(key), message),
            Some(Segment::Seq { index }) => self.refused(path, &at.index(*index), message),
            Some(Segment::Unknown) | None => self.say(at, message),
        }
    }

    /// What the core refuses to build, in one line.
    fn told<T, E: fmt::Display>(&mut self, at: &At<'_>, built: Result<T, E>) -> Option<T> {
        built.map_err(|error| self.say(at, one_line(&error.to_string()))).ok()
    }
}

/// The regex crate draws where a mistake is, in several lines; the reason is in the last one.
fn one_line(text: &str) -> String {
    let mut lines = text.lines();
    let first = lines.next().unwrap_or_default();
    let Some(last) = lines.next_back() else { return first.to_owned() };
    let what = first.split_once(": ").map_or("", |(what, _)| what);
    let reason = last.trim_start_matches("error: ");
    if what.is_empty() { reason.to_owned() } else { format!("{what}: {reason}") }
}
