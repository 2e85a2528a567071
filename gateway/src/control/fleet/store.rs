//! The last good documents of config centers, on disk.

use std::path::PathBuf;

use crate::conf::Source;
use crate::control::change::write_atomically;

/// Name of the document with changes that the center does not have yet.
const LOCAL: &str = "local-traffic";

/// A directory of documents.
pub(in crate::control) struct Store {
    dir: PathBuf,
}

impl Store {
    /// The directory is made when something is kept.
    pub(super) fn new(dir: PathBuf) -> Self {
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.yaml"))
    }

    /// Keeps the text of a good document. If that is not possible, a start without the center is not possible either,
    /// and nothing else.
    pub(in crate::control) fn keep(&self, name: &str, text: &str) {
        if self.last(name).is_some_and(|last| last.text == text) {
            return;
        }
        let path = self.path(name);
        if let Err(error) = std::fs::create_dir_all(&self.dir).and_then(|()| write_atomically(&path, text)) {
            tracing::error!(path = %path.display(), %error, "a good document could not be kept");
        }
    }

    /// The last good document.
    pub(super) fn last(&self, name: &str) -> Option<Source> {
        Source::read(self.path(name)).ok()
    }

    /// Keeps the traffic document with changes that the center does not have yet.
    pub(in crate::control) fn keep_local(&self, text: &str) {
        self.keep(LOCAL, text);
    }

    /// The traffic document with changes that the center does not have yet.
    pub(super) fn local(&self) -> Option<Source> {
        self.last(LOCAL)
    }

    /// The center has all changes.
    pub(in crate::control) fn forget_local(&self) {
        // That it is not there is what is wanted.
        let _ = std::fs::remove_file(self.path(LOCAL));
    }
}
