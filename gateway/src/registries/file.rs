//! A file as registry: instances by the name of their service.

use std::convert::Infallible;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use indexmap::IndexMap;

use super::Registry;
use super::desk::Desk;
use crate::conf::{self, Instance, Source};
use crate::sources::Lost;

/// How often the file is looked at.
const LOOK: Duration = Duration::from_millis(250);

/// A file.
pub(super) struct FileRegistry {
    path: PathBuf,
}

impl FileRegistry {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path }
    }

    fn read(&self) -> Result<IndexMap<String, Vec<Instance>>, Lost> {
        Source::read(&self.path).and_then(|source| conf::value(&source)).map_err(Lost::because)
    }

    fn stamp(&self) -> Option<(SystemTime, u64)> {
        let meta = std::fs::metadata(&self.path).ok()?;
        Some((meta.modified().ok()?, meta.len()))
    }
}

#[async_trait]
impl Registry for FileRegistry {
    async fn run(&self, desk: &Desk) -> Result<Infallible, Lost> {
        let mut wanted = desk.wanted();
        let mut seen = None;
        let mut looks = tokio::time::interval(LOOK);
        loop {
            let asked = tokio::select! {
                _ = looks.tick() => false,
                changed = wanted.changed() => changed.map(|()| true).map_err(Lost::because)?,
            };
            let stamp = self.stamp();
            if asked || seen != Some(stamp) {
                let mut services = self.read()?;
                for query in wanted.borrow_and_update().iter() {
                    desk.tell(query, services.swap_remove(&query.service).unwrap_or_default());
                }
                seen = Some(stamp);
            }
            desk.alive();
        }
    }
}
