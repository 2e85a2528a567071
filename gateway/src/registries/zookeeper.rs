//! ZooKeeper as registry: one recursive watch on the node that everything is below, whatever the number of services.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::time::MissedTickBehavior;
use zookeeper_client::{AddWatchMode, Client, Error, EventType, SessionState};

use super::desk::Desk;
use super::listed::parse;
use super::{DEADLINE, LOOK, Query, Registry};
use crate::conf::{self, Instance};
use crate::sources::Lost;

/// How long events are gathered before nodes are read: those of one change come within it.
const GATHER: Duration = Duration::from_millis(10);
/// Nodes that are read at once.
const AT_ONCE: usize = 64;

/// Nodes below a path.
pub(super) struct ZooKeeperRegistry {
    servers: String,
    /// Without a slash at the end.
    path: String,
    session: Duration,
}

impl ZooKeeperRegistry {
    pub(super) fn new(conf: &conf::ZooKeeper) -> Self {
        Self {
            servers: conf.servers.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
            path: conf.path.trim_end_matches('/').to_owned(),
            session: conf.session_timeout.duration(),
        }
    }

    /// The service that a node belongs to; none if it is the root or above.
    fn service<'a>(&self, path: &'a str) -> Option<&'a str> {
        let below = path.strip_prefix(&self.path)?.strip_prefix('/')?;
        below.split('/').next()
    }

    async fn read(&self, client: &Client, desk: &Desk, query: &Query) -> Result<(), Lost> {
        let node = format!("{}/{}", self.path, query.service);
        let names = match in_time(client.list_children(&node)).await? {
            Ok(names) => names,
            Err(Error::NoNode) => Vec::new(),
            Err(error) => return Err(Lost::because(error)),
        };
        let one = async |name: String| {
            let path = format!("{node}/{name}");
            match in_time(client.get_data(&path)).await? {
                Ok((data, _)) => Ok(parse(&name, &data).inspect_err(|why| desk.unreadable(&path, why)).ok()),
                // Gone since they were listed: an event says so as well.
                Err(Error::NoNode) => Ok(None),
                Err(error) => Err(Lost::because(error)),
            }
        };
        let read: Vec<Option<Instance>> = stream::iter(names).map(one).buffered(AT_ONCE).try_collect().await?;
        desk.tell(query, read.into_iter().flatten().collect());
        Ok(())
    }

    async fn read_all(&self, client: &Client, desk: &Desk, of: impl Fn(&str) -> bool) -> Result<(), Lost> {
        let wanted = desk.wanted().borrow().clone();
        for query in wanted.iter().filter(|query| of(&query.service)) {
            self.read(client, desk, query).await?;
        }
        Ok(())
    }
}

async fn in_time<T>(answer: impl Future<Output = Result<T, Error>>) -> Result<Result<T, Error>, Lost> {
    tokio::time::timeout(DEADLINE, answer).await.map_err(|_| Lost(format!("no answer within {DEADLINE:?}")))
}

#[async_trait]
impl Registry for ZooKeeperRegistry {
    async fn run(&self, desk: &Desk) -> Result<Infallible, Lost> {
        let mut wanted = desk.wanted();
        wanted.mark_unchanged();
        let connect = Client::connector().with_session_timeout(self.session).connect(&self.servers);
        let client = in_time(connect).await?.map_err(Lost::because)?;
        let root = if self.path.is_empty() { "/" } else { &*self.path };
        let watch = in_time(client.watch(root, AddWatchMode::PersistentRecursive)).await?;
        let mut watcher = watch.map_err(Lost::because)?;
        self.read_all(&client, desk, |_| true).await?;
        desk.alive();
        let mut looks = tokio::time::interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut concerned: BTreeSet<String> = BTreeSet::new();
        loop {
            tokio::select! {
                event = watcher.changed() => match event.event_type {
                    // Events are lost while a connection is (ZOOKEEPER-4698): everything is read anew.
                    EventType::Session if event.session_state != SessionState::SyncConnected => {
                        return Err(Lost(format!("the session is {:?}", event.session_state)));
                    }
                    EventType::Session => self.read_all(&client, desk, |_| true).await?,
                    _ => concerned.extend(self.service(&event.path).map(str::to_owned)),
                },
                () = tokio::time::sleep(GATHER), if !concerned.is_empty() => {
                    let concerned = std::mem::take(&mut concerned);
                    self.read_all(&client, desk, |service| concerned.contains(service)).await?;
                }
                _ = looks.tick() => {
                    in_time(client.check_stat(root)).await?.map_err(Lost::because)?;
                    desk.alive();
                }
                changed = wanted.changed() => {
                    changed.map_err(Lost::because)?;
                    self.read_all(&client, desk, |_| true).await?;
                }
            }
        }
    }
}
