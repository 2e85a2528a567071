//! etcd as registry: one watch on a prefix, whatever the number of services.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::convert::Infallible;

use async_trait::async_trait;
use etcd_client::{EventType, GetOptions, PutOptions, WatchOptions};
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use super::desk::Desk;
use super::listed::parse;
use super::register::{Registrar, told};
use super::{LOOK, Registry};
use crate::conf::{self, Instance, Registration};
use crate::sources::Lost;
use crate::sources::etcd::{Cluster, LARGEST, in_time};

/// Instances below a prefix.
pub(super) struct EtcdRegistry {
    cluster: Cluster,
    /// With a slash at the end.
    prefix: String,
}

/// What is known: by service, instances by the rest of the key.
type Known = HashMap<String, BTreeMap<String, Instance>>;

impl EtcdRegistry {
    pub(super) fn new(conf: &conf::EtcdRegistry) -> Result<Self, String> {
        let prefix = format!("{}/", conf.prefix.trim_end_matches('/'));
        Ok(Self { cluster: Cluster::new(&conf.server)?, prefix })
    }

    /// Service and instance of a key.
    fn split<'a>(&self, key: &'a [u8]) -> Option<(&'a str, &'a str)> {
        std::str::from_utf8(key).ok()?.strip_prefix(&self.prefix)?.rsplit_once('/')
    }

    /// Takes an entry over; none for one that is gone. Gives the service.
    fn note<'a>(&self, known: &mut Known, desk: &Desk, key: &'a [u8], value: Option<&[u8]>) -> Option<&'a str> {
        let (service, id) = self.split(key)?;
        let read = value.map(|value| parse(id, value));
        let read = read.and_then(|read| read.inspect_err(|e| desk.unreadable(&String::from_utf8_lossy(key), e)).ok());
        let instances = known.entry(service.to_owned()).or_default();
        match read {
            Some(instance) => drop(instances.insert(id.to_owned(), instance)),
            None => drop(instances.remove(id)),
        }
        if instances.is_empty() {
            known.remove(service);
        }
        Some(service)
    }
}

/// How long an entry outlives a gateway that is not heard of, in seconds.
const TTL: i64 = 10;

#[async_trait]
impl Registrar for EtcdRegistry {
    async fn stay(&self, entry: &Registration, leave: &mut watch::Receiver<bool>) -> Result<(), Lost> {
        let mut client = self.cluster.connect().await?;
        let lease = in_time(client.lease_grant(TTL, None)).await?.id();
        let key = format!("{}{}/{}", self.prefix, entry.service, entry.address);
        let value = serde_json::to_string(&entry.instance()).map_err(Lost::because)?;
        in_time(client.put(key, value, Some(PutOptions::new().with_lease(lease)))).await?;
        tracing::info!(registry = %entry.registry, service = entry.service, "registered");
        let (mut keeper, mut answers) = in_time(client.lease_keep_alive(lease)).await?;
        let mut beats = tokio::time::interval(LOOK);
        loop {
            tokio::select! {
                () = told(leave) => {
                    in_time(client.lease_revoke(lease)).await?;
                    return Ok(());
                }
                _ = beats.tick() => {
                    in_time(keeper.keep_alive()).await?;
                    let answer = in_time(answers.message()).await?;
                    if answer.is_none_or(|answer| answer.ttl() <= 0) {
                        return Err(Lost("the lease has run out".to_owned()));
                    }
                }
            }
        }
    }
}

fn tell(desk: &Desk, known: &Known, concerns: impl Fn(&str) -> bool) {
    for query in desk.wanted().borrow().iter().filter(|query| concerns(&query.service)) {
        let instances = known.get(&query.service).into_iter().flat_map(BTreeMap::values).cloned();
        desk.tell(query, instances.collect());
    }
}

#[async_trait]
impl Registry for EtcdRegistry {
    async fn run(&self, desk: &Desk) -> Result<Infallible, Lost> {
        let mut wanted = desk.wanted();
        wanted.mark_unchanged();
        let client = self.cluster.connect().await?;
        let mut reader = client.kv_client().max_decoding_message_size(LARGEST);
        let all = in_time(reader.get(&*self.prefix, Some(GetOptions::new().with_prefix()))).await?;
        let revision = all.header().map_or(0, |header| header.revision());
        let mut known = Known::new();
        for entry in all.kvs() {
            self.note(&mut known, desk, entry.key(), Some(entry.value()));
        }
        drop(all);
        desk.alive();
        tell(desk, &known, |_| true);
        let options = WatchOptions::new().with_prefix().with_start_revision(revision + 1);
        let mut watcher = client.watch_client().max_decoding_message_size(LARGEST);
        let mut stream = in_time(watcher.watch(&*self.prefix, Some(options))).await?;
        let mut looks = tokio::time::interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                message = stream.message() => {
                    let message = message.map_err(Lost::because)?;
                    let message = message.ok_or_else(|| Lost("the watch ended".to_owned()))?;
                    if message.canceled() {
                        return Err(Lost(format!("the watch was cancelled: {}", message.cancel_reason())));
                    }
                    let mut concerned = BTreeSet::new();
                    for event in message.events() {
                        let Some(entry) = event.kv() else { continue };
                        let value = (event.event_type() == EventType::Put).then(|| entry.value());
                        concerned.extend(self.note(&mut known, desk, entry.key(), value).map(str::to_owned));
                    }
                    tell(desk, &known, |service| concerned.contains(service));
                }
                _ = looks.tick() => {
                    // A connection that only looks alive is found by this.
                    in_time(reader.get(&*self.prefix, None)).await?;
                    desk.alive();
                }
                changed = wanted.changed() => {
                    changed.map_err(Lost::because)?;
                    tell(desk, &known, |_| true);
                }
            }
        }
    }
}
