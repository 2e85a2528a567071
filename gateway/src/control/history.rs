//! The history: an append-only file of every change and every refusal, with who, from where, why, and the documents
//! before and after. It keeps the newest [`CAP`] changes and the newest [`REFUSED`] refusals, so that no flood of refusals
//! costs a revision.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::audit::Audit;
use super::change::{self, Actor};
use crate::conf::Traffic;
use crate::telemetry::names::{ROUTING, TRAFFIC};

/// Changes that are kept.
pub const CAP: usize = 1_000;
/// Refusals that are kept.
pub const REFUSED: usize = 200;
/// Entries that the file may have beyond, so that it is not written anew at every change.
const SLACK: usize = 200;

/// What became of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It is in force.
    Applied,
    /// It did not pass the checks.
    Refused,
}

/// One change or refusal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Entry {
    /// `routing` or `traffic`.
    pub document: String,
    /// Revision that came into force; none for a refusal, and for what changes no document.
    pub revision: Option<u64>,
    /// When, in RFC 3339.
    pub at: String,
    /// Who.
    #[serde(flatten)]
    pub actor: Actor,
    /// What was done.
    pub action: String,
    /// Why, in the operator's words.
    pub reason: String,
    /// What became of it.
    pub outcome: Outcome,
    /// What was wrong, for a refusal.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
    /// The traffic document before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Traffic>,
    /// The traffic document after.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Traffic>,
    /// Hash of a routing document's text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

impl Entry {
    /// A document that came into force.
    #[must_use]
    pub fn applied(
        document: &str,
        revision: u64,
        actor: &Actor,
        action: &str,
        reason: &str,
        after: Option<Traffic>,
    ) -> Self {
        Self {
            document: document.to_owned(),
            revision: Some(revision),
            at: humantime::format_rfc3339_millis(std::time::SystemTime::now()).to_string(),
            actor: actor.clone(),
            action: action.to_owned(),
            reason: reason.to_owned(),
            outcome: Outcome::Applied,
            problems: Vec::new(),
            before: None,
            after,
            digest: None,
        }
    }

    /// A change of the traffic document.
    #[must_use]
    pub fn flip(actor: &Actor, action: &str, reason: &str, before: &Traffic, after: &Traffic) -> Self {
        let applied = Self::applied(TRAFFIC, after.revision, actor, action, reason, Some(after.clone()));
        Self { before: Some(before.clone()), ..applied }
    }

    /// A change that was refused.
    #[must_use]
    pub fn refused(document: &str, actor: &Actor, action: &str, reason: &str, problems: Vec<String>) -> Self {
        let applied = Self::applied(document, 0, actor, action, reason, None);
        Self { revision: None, outcome: Outcome::Refused, problems, ..applied }
    }
}

/// The history of one gateway.
pub struct History {
    path: PathBuf,
    file: File,
    entries: VecDeque<Entry>,
    lines: usize,
    /// Whether the file ends within a line, which the next entry must not continue.
    torn: bool,
    routing_digest: Option<String>,
    audit: Option<Arc<Audit>>,
}

impl History {
    /// Opens the history of a state directory, which is made if it is not there. Lines that are no entries (a power
    /// cut may have cut the last one) are passed over.
    ///
    /// # Errors
    /// If the directory or the file cannot be written to.
    pub fn open(directory: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(directory)?;
        let path = directory.join("history.jsonl");
        let file = OpenOptions::new().create(true).append(true).read(true).open(&path)?;
        let mut history =
            Self { file, path, entries: VecDeque::new(), lines: 0, torn: false, routing_digest: None, audit: None };
        let mut lines = BufReader::new(File::open(&history.path)?);
        let mut line = Vec::new();
        while lines.read_until(b'\n', &mut line)? > 0 {
            history.lines += 1;
            history.torn = line.pop_if(|last| *last == b'\n').is_none();
            if let Ok(entry) = serde_json::from_slice::<Entry>(&std::mem::take(&mut line)) {
                history.push(entry);
            }
        }
        Ok(history)
    }

    /// Writes every entry to the audit log as well.
    #[must_use]
    pub fn with_audit(self, audit: Arc<Audit>) -> Self {
        Self { audit: Some(audit), ..self }
    }

    /// The entries, newest first.
    #[must_use]
    pub fn entries(&self) -> Vec<Entry> {
        self.entries.iter().rev().cloned().collect()
    }

    /// Appends an entry and syncs it. A disk that is full costs the file the entry, which stays in memory.
    pub fn append(&mut self, mut entry: Entry) {
        if entry.document == ROUTING && entry.outcome == Outcome::Applied {
            entry.digest.clone_from(&self.routing_digest);
        }
        if let Some(audit) = &self.audit {
            audit.append(&entry);
        }
        let mut line = serde_json::to_vec(&entry).unwrap_or_default();
        line.push(b'\n');
        self.push(entry);
        self.lines += 1;
        let written = if self.lines > CAP + REFUSED + SLACK { self.rewrite() } else { self.write(&line) };
        if let Err(error) = written {
            tracing::error!(%error, path = %self.path.display(), "cannot write the history");
        }
    }

    /// The latest revision of a document.
    #[must_use]
    pub fn latest(&self, document: &str) -> Option<u64> {
        self.entries.iter().rev().filter(|entry| entry.document == document).find_map(|entry| entry.revision)
    }

    /// The traffic document of a revision.
    #[must_use]
    pub fn traffic(&self, revision: u64) -> Option<Traffic> {
        let found = self.entries.iter().rev().find(|e| e.document == TRAFFIC && e.revision == Some(revision));
        found?.after.clone()
    }

    /// The revision of a traffic document that was found at the start: the latest one if it says the same, else the
    /// next.
    #[must_use]
    pub fn traffic_revision(&self, traffic: &Traffic) -> u64 {
        let Some(latest) = self.latest(TRAFFIC) else { return traffic.revision.max(1) };
        match self.traffic(latest) {
            Some(known) if change::same(&known, traffic) => latest.max(traffic.revision),
            _ => traffic.revision.max(latest + 1),
        }
    }

    /// The revision of a routing document: the latest one if its text is the same, else the next.
    #[must_use]
    pub fn routing_revision(&self, text: &str) -> u64 {
        let digest = digest(text);
        let latest = self.entries.iter().rev().find(|e| e.document == ROUTING && e.revision.is_some());
        match latest.and_then(|entry| Some((entry.revision?, entry.digest.as_ref() == Some(&digest)))) {
            None => 1,
            Some((revision, true)) => revision,
            Some((revision, false)) => revision + 1,
        }
    }

    /// Notes the text of the routing document, which the next entry of it refers to.
    pub fn note_routing(&mut self, text: &str) {
        self.routing_digest = Some(digest(text));
    }

    fn push(&mut self, entry: Entry) {
        let outcome = entry.outcome;
        self.entries.push_back(entry);
        let most = if outcome == Outcome::Applied { CAP } else { REFUSED };
        let alike = |entry: &Entry| entry.outcome == outcome;
        if self.entries.iter().filter(|entry| alike(entry)).count() > most {
            let oldest = self.entries.iter().position(alike);
            oldest.and_then(|oldest| self.entries.remove(oldest));
        }
    }

    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        if self.torn {
            self.file.write_all(b"\n")?;
        }
        // Until all of it is there, as much of it as a full disk took.
        self.torn = true;
        self.file.write_all(line)?;
        self.torn = false;
        self.file.sync_data()
    }

    /// Writes the file anew with the entries that are kept.
    fn rewrite(&mut self) -> io::Result<()> {
        let mut text = String::new();
        for entry in &self.entries {
            text.push_str(&serde_json::to_string(entry)?);
            text.push('\n');
        }
        change::write_atomically(&self.path, &text)?;
        self.file = OpenOptions::new().append(true).open(&self.path)?;
        (self.lines, self.torn) = (self.entries.len(), false);
        Ok(())
    }
}

fn digest(text: &str) -> String {
    format!("{:016x}", xxh3_64(text.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn traffic(revision: u64, balancer: bool) -> Traffic {
        let mut traffic = Traffic { revision, ..Traffic::default() };
        traffic.switches.balancer.all = balancer;
        traffic
    }

    #[test]
    fn entries_outlive_the_process_up_to_the_cap() {
        let dir = tempfile::tempdir().unwrap();
        let mut history = History::open(dir.path()).unwrap();
        for revision in 1..=1_500 {
            let (before, after) = (traffic(revision - 1, false), traffic(revision, revision % 2 == 0));
            history.append(Entry::flip(&Actor::file(), "edit", "because", &before, &after));
        }
        drop(history);
        OpenOptions::new().append(true).open(dir.path().join("history.jsonl")).unwrap().write_all(b"{\"cut").unwrap();
        let history = History::open(dir.path()).unwrap();
        assert_eq!(history.entries().len(), CAP);
        assert_eq!(history.latest(TRAFFIC), Some(1_500));
        assert_eq!(history.traffic(1_400), Some(traffic(1_400, true)));
        assert_eq!(history.traffic(100), None);
        assert_eq!(history.traffic_revision(&traffic(3, true)), 1_500, "says the same");
        assert_eq!(history.traffic_revision(&traffic(3, false)), 1_501, "says something else");
        let lines = std::fs::read_to_string(dir.path().join("history.jsonl")).unwrap().lines().count();
        assert!(lines <= CAP + REFUSED + SLACK + 1, "{lines}");
    }

    #[test]
    fn no_flood_of_refusals_costs_a_revision() {
        let dir = tempfile::tempdir().unwrap();
        let mut history = History::open(dir.path()).unwrap();
        history.append(Entry::flip(&Actor::file(), "edit", "", &traffic(0, false), &traffic(1, true)));
        for _ in 0..3 * CAP {
            history.append(Entry::refused(TRAFFIC, &Actor::file(), "edit", "", vec!["no".to_owned()]));
        }
        assert_eq!(history.traffic(1), Some(traffic(1, true)));
        assert_eq!(history.entries().len(), 1 + REFUSED);
        drop(history);
        assert_eq!(History::open(dir.path()).unwrap().latest(TRAFFIC), Some(1));
    }

    #[test]
    fn a_line_that_was_cut_swallows_no_entry() {
        let dir = tempfile::tempdir().unwrap();
        History::open(dir.path()).unwrap();
        let path = dir.path().join("history.jsonl");
        std::fs::write(&path, "{\"cut").unwrap();
        let mut history = History::open(dir.path()).unwrap();
        for revision in 1..=2 {
            history.append(Entry::flip(&Actor::file(), "edit", "", &traffic(0, false), &traffic(revision, true)));
        }
        drop(history);
        assert_eq!(History::open(dir.path()).unwrap().entries().len(), 2);
    }

    #[test]
    fn routing_revisions_follow_the_text() {
        let dir = tempfile::tempdir().unwrap();
        let mut history = History::open(dir.path()).unwrap();
        assert_eq!(history.routing_revision("a"), 1);
        history.note_routing("a");
        history.append(Entry::applied(ROUTING, 1, &Actor::file(), "start", "", None));
        assert_eq!(history.routing_revision("a"), 1);
        assert_eq!(history.routing_revision("b"), 2);
    }
}
