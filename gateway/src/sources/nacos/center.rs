//! A document in Nacos: one configuration. Writes say with `casMd5` what they replace. r-nacos does not look at that, so
//! the text is looked at before and after a write as well.

use std::convert::Infallible;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use super::message::Verdict;
use super::{Connection, Push, Pushes, Server};
use crate::conf::NacosDocument;
use crate::sources::{Center, Lost, PublishError, Seen, Told, Version, tell};

/// How often the server is asked for changes though nothing was pushed: finds connections that only look alive.
const LOOK: Duration = Duration::from_secs(3);

/// Pauses before looks that follow a push which told of nothing new, in milliseconds.
const AGAIN: [u64; 5] = [20, 40, 80, 160, 320];

/// A configuration of Nacos.
pub(crate) struct NacosCenter {
    server: Server,
    group: String,
    data_id: String,
    /// The connection of the watch, which reads and writes share.
    connection: Mutex<Option<Connection>>,
}

#[derive(Deserialize)]
struct Config {
    #[serde(flatten)]
    verdict: Verdict,
    #[serde(default)]
    content: Option<String>,
    #[serde(default)]
    md5: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Listened {
    #[serde(flatten)]
    verdict: Verdict,
    #[serde(default)]
    changed_configs: Option<Vec<Value>>,
}

impl NacosCenter {
    /// Connects to nothing yet.
    ///
    /// # Errors
    /// If the file of the password cannot be read.
    pub(crate) fn new(conf: &NacosDocument) -> Result<Self, String> {
        Ok(Self {
            server: Server::new(&conf.server)?,
            group: conf.group.clone(),
            data_id: conf.data_id.clone(),
            connection: Mutex::default(),
        })
    }

    /// A request about the configuration.
    fn body(&self) -> Value {
        json!({"module": "config", "dataId": self.data_id, "group": self.group, "tenant": self.server.tenant()})
    }

    fn share(&self, connection: Option<Connection>) {
        *self.connection.lock().unwrap_or_else(PoisonError::into_inner) = connection;
    }

    /// The connection of the watch, or one for this once, which lasts as long as its pushes are there.
    async fn connection(&self) -> Result<(Connection, Option<Pushes>), Lost> {
        let shared = self.connection.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match shared {
            Some(connection) => Ok((connection, None)),
            None => Connection::open(&self.server).await.map(|(connection, pushes)| (connection, Some(pushes))),
        }
    }

    async fn look(&self, connection: &Connection) -> Result<Seen, Lost> {
        let config: Config = connection.ask("ConfigQueryRequest", self.body()).await?;
        if !config.verdict.is_good() {
            return match config.verdict.error_code {
                Verdict::NOT_FOUND => Ok(Seen { text: None, version: Version::Absent }),
                _ => Err(Lost(config.verdict.problem())),
            };
        }
        let text = config.content.unwrap_or_default();
        // The MD5 is what a write is compared with; the text itself tells versions apart just as well.
        let version = config.md5.filter(|md5| !md5.is_empty()).unwrap_or_else(|| text.clone());
        Ok(Seen { text: Some(text.into()), version: Version::At(version) })
    }

    /// Asks to be told of changes; true if there was one already.
    async fn listen(&self, connection: &Connection, seen: &Seen) -> Result<bool, Lost> {
        let md5 = if let Version::At(md5) = &seen.version { md5 } else { "" };
        let context = json!({"dataId": self.data_id, "group": self.group, "tenant": self.server.tenant(), "md5": md5});
        let body = json!({"module": "config", "listen": true, "configListenContexts": [context]});
        let answer: Listened = connection.ask("ConfigBatchListenRequest", body).await?;
        if !answer.verdict.is_good() {
            return Err(Lost(answer.verdict.problem()));
        }
        Ok(answer.changed_configs.is_some_and(|changed| !changed.is_empty()))
    }

    async fn follow(&self, told: &watch::Sender<Told>) -> Result<Infallible, Lost> {
        let (connection, mut pushes) = Connection::open(&self.server).await?;
        self.share(Some(connection.clone()));
        let mut looks = tokio::time::interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut listened: Option<Version> = None;
        let mut last: Option<Seen> = None;
        loop {
            // The first tick is at once.
            let pushed = tokio::select! {
                _ = looks.tick() => false,
                push = pushes.next() => match push? {
                    Push::Config { data_id, group } if data_id == self.data_id && group == self.group => true,
                    _ => continue,
                },
            };
            let known = last.take().filter(|last| !pushed && listened.as_ref() == Some(&last.version));
            if let Some(known) = known {
                // The server compares the MD5, so that a document which is the same is not sent again and again.
                if !self.listen(&connection, &known).await? {
                    tell(told, last.insert(known).clone());
                    continue;
                }
            }
            let mut seen = self.look(&connection).await?;
            for pause in if pushed { &AGAIN[..] } else { &[] } {
                // A push may be faster than what it tells of.
                if listened.as_ref() != Some(&seen.version) {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(*pause)).await;
                seen = self.look(&connection).await?;
            }
            // Changed between the look and the request to be told: looked at once more.
            while listened.as_ref() != Some(&seen.version) {
                listened = Some(seen.version.clone());
                if self.listen(&connection, &seen).await? {
                    tell(told, seen);
                    seen = self.look(&connection).await?;
                }
            }
            tell(told, last.insert(seen).clone());
        }
    }
}

#[async_trait]
impl Center for NacosCenter {
    fn describe(&self) -> String {
        format!("nacos {} {}/{}", self.server.conf.address, self.group, self.data_id)
    }

    fn compares(&self) -> bool {
        // Nacos does, r-nacos does not, and nothing tells one from the other.
        false
    }

    async fn read(&self) -> Result<Seen, Lost> {
        let (connection, _pushes) = self.connection().await?;
        self.look(&connection).await
    }

    async fn watch(&self, told: &watch::Sender<Told>) -> Lost {
        let Err(lost) = self.follow(told).await;
        self.share(None);
        lost
    }

    async fn publish(&self, text: &str, expected: &Version) -> Result<Version, PublishError> {
        let (connection, _pushes) = self.connection().await?;
        if self.look(&connection).await?.version != *expected {
            return Err(PublishError::Stale);
        }
        let mut body = self.body();
        body["content"] = json!(text);
        body["additionMap"] = json!({"type": "yaml"});
        if let Version::At(md5) = expected {
            body["casMd5"] = json!(md5);
        }
        let verdict: Verdict = connection.ask("ConfigPublishRequest", body).await?;
        let now = self.look(&connection).await?;
        match (verdict.is_good(), now.text.as_deref() == Some(text)) {
            (_, true) => Ok(now.version),
            (true, false) => Err(PublishError::Stale),
            (false, false) if now.version != *expected => Err(PublishError::Stale),
            (false, false) => Err(PublishError::Lost(Lost(verdict.problem()))),
        }
    }
}
