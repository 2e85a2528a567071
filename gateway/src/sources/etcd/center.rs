//! A document in etcd: one key. Writes are transactions that compare its `mod_revision`.

use std::time::Duration;

use async_trait::async_trait;
use etcd_client::{Client, Compare, CompareOp, EventType, GetOptions, KeyValue, Txn, TxnOp, WatchOptions};
use tokio::sync::{OnceCell, watch};
use tokio::time::MissedTickBehavior;

use super::{Cluster, LARGEST, in_time};
use crate::conf::EtcdDocument;
use crate::sources::{Center, Lost, PublishError, Seen, Told, Version, tell};

/// How often the key's version is asked for though nothing was told: finds connections that only look alive.
const LOOK: Duration = Duration::from_secs(3);

/// A key of etcd.
pub(crate) struct EtcdCenter {
    cluster: Cluster,
    key: String,
    client: OnceCell<Client>,
}

impl EtcdCenter {
    /// Connects to nothing yet.
    ///
    /// # Errors
    /// If a file of keys or passwords cannot be read.
    pub(crate) fn new(conf: &EtcdDocument) -> Result<Self, String> {
        Ok(Self { cluster: Cluster::new(&conf.server)?, key: conf.key.clone(), client: OnceCell::new() })
    }

    async fn client(&self) -> Result<Client, Lost> {
        self.client.get_or_try_init(|| self.cluster.connect()).await.cloned()
    }

    /// Reads the key, and the store's revision at which it was read.
    async fn look(&self) -> Result<(Seen, i64), Lost> {
        let mut reader = self.client().await?.kv_client().max_decoding_message_size(LARGEST);
        let answer = in_time(reader.get(self.key.as_bytes(), None)).await?;
        let revision = answer.header().map_or(0, |header| header.revision());
        Ok((seen(answer.kvs().first()), revision))
    }

    /// Looks whether there is another version; reads the text only if there is.
    async fn look_again(&self, last: &Seen) -> Result<Seen, Lost> {
        let mut client = self.client().await?;
        let answer = in_time(client.get(self.key.as_bytes(), Some(GetOptions::new().with_keys_only()))).await?;
        if version(answer.kvs().first()) == last.version {
            return Ok(last.clone());
        }
        Ok(self.look().await?.0)
    }
}

fn version(entry: Option<&KeyValue>) -> Version {
    entry.map_or(Version::Absent, |entry| Version::At(entry.mod_revision().to_string()))
}

fn seen(entry: Option<&KeyValue>) -> Seen {
    // A document that is no text is shown as good as can be: the control path refuses it and says why.
    let text = entry.map(|entry| String::from_utf8_lossy(entry.value()).into());
    Seen { text, version: version(entry) }
}

#[async_trait]
impl Center for EtcdCenter {
    fn describe(&self) -> String {
        format!("etcd {} {}", self.cluster.name(), self.key)
    }

    fn compares(&self) -> bool {
        true
    }

    async fn read(&self) -> Result<Seen, Lost> {
        Ok(self.look().await?.0)
    }

    async fn watch(&self, told: &watch::Sender<Told>) -> Lost {
        let watched = async {
            let (mut last, revision) = self.look().await?;
            tell(told, last.clone());
            let mut watcher = self.client().await?.watch_client().max_decoding_message_size(LARGEST);
            let options = WatchOptions::new().with_start_revision(revision + 1);
            let mut stream = in_time(watcher.watch(self.key.as_bytes(), Some(options))).await?;
            let mut looks = tokio::time::interval(LOOK);
            looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            looks.reset();
            loop {
                tokio::select! {
                    message = stream.message() => {
                        let message = message.map_err(Lost::because)?;
                        let message = message.ok_or_else(|| Lost("the watch ended".to_owned()))?;
                        if message.canceled() {
                            return Err(Lost(format!("the watch was cancelled: {}", message.cancel_reason())));
                        }
                        let Some(event) = message.events().last() else { continue };
                        let entry = event.kv().filter(|_| event.event_type() == EventType::Put);
                        last = seen(entry);
                    }
                    _ = looks.tick() => last = self.look_again(&last).await?,
                }
                tell(told, last.clone());
            }
        };
        let Err(lost) = watched.await as Result<std::convert::Infallible, Lost>;
        lost
    }

    async fn publish(&self, text: &str, expected: &Version) -> Result<Version, PublishError> {
        let compare = match expected {
            Version::Absent => Compare::version(self.key.as_bytes(), CompareOp::Equal, 0),
            Version::At(revision) => {
                // Versions come from this center, so they are numbers.
                let revision = revision.parse().map_err(Lost::because)?;
                Compare::mod_revision(self.key.as_bytes(), CompareOp::Equal, revision)
            }
        };
        let write = TxnOp::put(self.key.as_bytes(), text.as_bytes(), None);
        let mut client = self.client().await?;
        let answer = in_time(client.txn(Txn::new().when([compare]).and_then([write]))).await?;
        if !answer.succeeded() {
            return Err(PublishError::Stale);
        }
        let revision = answer.header().map_or(0, |header| header.revision());
        Ok(Version::At(revision.to_string()))
    }
}
