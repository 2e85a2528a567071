//! The audit log: a file that is only ever appended to, with every change and every refusal, those included that never
//! came as far as a document. The history is made from the same entries, but keeps the newest ones only.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use prometheus::IntCounter;

use super::history::Entry;

/// Name of the file in the state directory.
pub const FILE: &str = "audit.jsonl";
/// Refused calls that are written at once, and how many more a second: whoever hammers at the door does not fill the
/// disk. Changes are always written.
const BURST: f64 = 100.0;
const PER_SECOND: f64 = 5.0;

/// The audit log of one gateway.
pub struct Audit {
    path: PathBuf,
    lost: IntCounter,
    refusals: Mutex<Allowance>,
}

/// How many more refused calls may be written.
struct Allowance {
    left: f64,
    at: Instant,
    passed_over: u64,
}

impl Audit {
    /// The log of a state directory. Entries that cannot be written are counted.
    #[must_use]
    pub fn new(directory: &Path, lost: IntCounter) -> Self {
        let refusals = Allowance { left: BURST, at: Instant::now(), passed_over: 0 };
        Self { path: directory.join(FILE), lost, refusals: Mutex::new(refusals) }
    }

    /// Appends an entry and syncs it. The file is opened each time, so that it can be moved away, and be made one that
    /// can only be appended to (`chattr +a`).
    pub fn append(&self, entry: &Entry) {
        if let Err(error) = self.write(entry) {
            self.lost.inc();
            tracing::error!(%error, path = %self.path.display(), "cannot write the audit log");
        }
    }

    /// Appends a call that was refused before it came as far as a document, unless there were too many of them lately.
    pub fn refused_call(&self, mut entry: Entry, now: Instant) {
        let mut allowance = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        let gained = now.saturating_duration_since(allowance.at).as_secs_f64() * PER_SECOND;
        (allowance.left, allowance.at) = ((allowance.left + gained).min(BURST), now);
        if allowance.left < 1.0 {
            allowance.passed_over += 1;
            return;
        }
        allowance.left -= 1.0;
        match std::mem::take(&mut allowance.passed_over) {
            0 => {}
            more => entry.problems.push(format!("{more} more before it were not written")),
        }
        drop(allowance);
        self.append(&entry);
    }

    fn write(&self, entry: &Entry) -> io::Result<()> {
        let mut line = serde_json::to_vec(entry)?;
        line.push(b'\n');
        let mut options = OpenOptions::new();
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o640);
        let mut file = options.create(true).append(true).open(&self.path)?;
        file.write_all(&line)?;
        file.sync_data()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::change::Actor;
    use super::*;

    fn entry(action: &str) -> Entry {
        Entry::refused("admin", &Actor::file(), action, "", vec!["401".to_owned()])
    }

    #[test]
    fn nothing_is_ever_taken_back_and_the_file_may_be_moved() {
        let dir = tempfile::tempdir().unwrap();
        let audit = Audit::new(dir.path(), IntCounter::new("lost", "lost").unwrap());
        let lines = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap().lines().count();
        (0..1_500).for_each(|_| audit.append(&entry("flip")));
        assert_eq!(lines(FILE), 1_500);
        std::fs::rename(dir.path().join(FILE), dir.path().join("old")).unwrap();
        audit.append(&entry("flip"));
        assert_eq!((lines("old"), lines(FILE)), (1_500, 1));
        assert_eq!(audit.lost.get(), 0);
        drop(dir);
        audit.append(&entry("flip"));
        assert_eq!(audit.lost.get(), 1, "what cannot be written is counted");
    }

    #[test]
    fn hammering_at_the_door_does_not_fill_the_disk() {
        let dir = tempfile::tempdir().unwrap();
        let audit = Audit::new(dir.path(), IntCounter::new("lost", "lost").unwrap());
        let begin = Instant::now();
        (0..10_000).for_each(|_| audit.refused_call(entry("GET /v1/traffic"), begin));
        audit.refused_call(entry("GET /v1/traffic"), begin + Duration::from_secs(1));
        let text = std::fs::read_to_string(dir.path().join(FILE)).unwrap();
        assert_eq!(text.lines().count(), 101);
        assert!(text.lines().last().unwrap().contains("9900 more before it were not written"), "{text}");
    }
}
