//! Watches the files of documents and certificates. Directories are watched, not files: editors and ConfigMaps replace
//! files, which a watch on the file itself would not survive.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use notify::event::{AccessKind, AccessMode, ModifyKind};
use notify::{Event, EventKind, RecursiveMode, Watcher};

/// How long events are gathered before the files are read: a burst becomes one reload.
const DEBOUNCE: Duration = Duration::from_millis(10);
/// How often the files are looked at without an event, for file systems that send none.
const POLL: Duration = Duration::from_secs(2);

/// Calls `changed` on a thread of its own after anything changed in the directories of `files`, and now and then
/// without a reason. It has to find out itself what changed, and be quick if nothing did.
///
/// # Errors
/// If the thread cannot be started. A directory that cannot be watched is polled.
pub fn watch(files: &[PathBuf], changed: impl Fn() + Send + 'static) -> std::io::Result<()> {
    let directories: BTreeSet<PathBuf> = files.iter().flat_map(|file| directories_of(file)).collect();
    let names: BTreeSet<OsString> = files.iter().flat_map(|file| names_of(file)).collect();
    let (sender, events) = mpsc::channel();
    std::thread::Builder::new().name("watch".to_owned()).spawn(move || {
        let watcher = notify::recommended_watcher(move |event| {
            if tells_of_change(&event, &names) {
                // The other side lives as long as the process.
                let _ = sender.send(());
            }
        });
        let watching = watcher.map(|mut watcher| {
            for directory in &directories {
                if let Err(error) = watcher.watch(directory, RecursiveMode::NonRecursive) {
                    tracing::warn!(directory = %directory.display(), %error, "cannot watch, polling instead");
                }
            }
            watcher
        });
        if let Err(error) = &watching {
            tracing::warn!(%error, "cannot watch files, polling instead");
        }
        while wait(&events) {
            // Whatever goes wrong in one look, the files are watched for the next.
            if catch_unwind(AssertUnwindSafe(&changed)).is_err() {
                tracing::error!("a look at the watched files panicked");
            }
        }
    })?;
    Ok(())
}

/// Whether an event may mean that a file is another one now. Reading a file is an event as well, and would make every
/// look at the files the reason for the next one; nor does it matter what is written to files of other names, such as
/// a log beside them. What is made, moved or removed may be a link on the way to a file, whatever its name.
fn tells_of_change(event: &notify::Result<Event>, names: &BTreeSet<OsString>) -> bool {
    let Ok(event) = event else { return true };
    let ours = || event.paths.iter().any(|path| path.file_name().is_none_or(|name| names.contains(name)));
    match event.kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) | EventKind::Modify(ModifyKind::Data(_)) => ours(),
        EventKind::Access(_) => false,
        _ => true,
    }
}

/// The name of a file and, if it is a link, that of its target.
fn names_of(file: &Path) -> Vec<OsString> {
    let target = file.canonicalize().ok();
    let name = |path: &Path| path.file_name().map(OsStr::to_owned);
    name(file).into_iter().chain(target.as_deref().and_then(name)).collect()
}

/// The directory of a file and, if it is a link, that of its target.
fn directories_of(file: &Path) -> Vec<PathBuf> {
    let parent = |path: &Path| path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_owned();
    let target = file.canonicalize().ok().map(|target| parent(&target));
    std::iter::once(parent(file)).chain(target).collect()
}

/// Waits for events or the next poll; false once nobody can send any more and nobody polls, which never happens.
fn wait(events: &Receiver<()>) -> bool {
    match events.recv_timeout(POLL) {
        Ok(()) => while events.recv_timeout(DEBOUNCE).is_ok() {},
        Err(RecvTimeoutError::Timeout) => {}
        Err(RecvTimeoutError::Disconnected) => std::thread::sleep(POLL),
    }
    true
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Instant;

    use super::*;

    #[test]
    fn changes_are_told_and_reading_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.yaml");
        std::fs::write(&file, "1").unwrap();
        let (sender, calls) = channel();
        let read = file.clone();
        let look = move || {
            // As a reload does.
            let text = std::fs::read_to_string(&read).unwrap_or_default();
            let _ = sender.send((text, Instant::now()));
        };
        watch(std::slice::from_ref(&file), look).unwrap();
        let told = |text: &str| while calls.recv_timeout(Duration::from_secs(5)).unwrap().0 != text {};
        // The first look is a poll: after it the directory is watched.
        told("1");
        std::fs::write(&file, "2").unwrap();
        told("2");
        let (other, renamed) = (dir.path().join("b"), "3");
        std::fs::write(&other, renamed).unwrap();
        std::fs::rename(&other, &file).unwrap();
        told(renamed);
        // Nothing changes any more, so the next looks are polls, two seconds apart.
        let (_, one) = calls.recv_timeout(Duration::from_secs(5)).unwrap();
        let (_, two) = calls.recv_timeout(Duration::from_secs(5)).unwrap();
        assert!(two - one >= POLL / 2, "{:?} between two looks", two - one);
    }
}
