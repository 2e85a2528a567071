//! DNS as registry: names are asked for again when their records expire. A name that does not exist has no instances; a
//! server that fails or is silent says nothing, and what it said last stays.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use hickory_resolver::TokioResolver;
use hickory_resolver::config::{NameServerConfig, ResolverConfig};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::rr::{RData, RecordType};
use tokio::task::{AbortHandle, JoinSet};

use super::desk::Desk;
use super::listed::plain;
use super::{DEADLINE, LOOK, Query, Registry};
use crate::conf::{Dns, Instance};
use crate::sources::Lost;

/// Name servers.
pub(super) struct DnsRegistry {
    names: Arc<Names>,
}

struct Names {
    resolver: TokioResolver,
    min_ttl: Duration,
    max_ttl: Duration,
}

/// What a name has, and until when that holds.
struct Answer<T> {
    records: Vec<T>,
    until: Instant,
}

impl DnsRegistry {
    pub(super) fn new(conf: &Dns) -> Result<Self, String> {
        let mut builder = if conf.servers.is_empty() {
            TokioResolver::builder_tokio().map_err(|error| format!("the system has no name servers: {error}"))?
        } else {
            let mut servers = Vec::new();
            for server in &conf.servers {
                let address = server.to_string().to_socket_addrs().ok().and_then(|mut addresses| addresses.next());
                let address = address.ok_or_else(|| format!("the name server {server} is nowhere"))?;
                let mut server = NameServerConfig::udp_and_tcp(address.ip());
                server.connections.iter_mut().for_each(|connection| connection.port = address.port());
                servers.push(server);
            }
            let config = ResolverConfig::from_parts(None, Vec::new(), servers);
            TokioResolver::builder_with_config(config, TokioRuntimeProvider::default())
        };
        let options = builder.options_mut();
        (options.timeout, options.attempts, options.cache_size) = (DEADLINE, 1, 0);
        let resolver = builder.build().map_err(|error| error.to_string())?;
        let names = Names { resolver, min_ttl: conf.min_ttl.duration(), max_ttl: conf.max_ttl.duration() };
        Ok(Self { names: Arc::new(names) })
    }
}

impl Names {
    /// The records of a type that a name has.
    async fn ask<T>(
        &self,
        name: &str,
        kind: RecordType,
        pick: impl Fn(&RData) -> Option<T>,
    ) -> Result<Answer<T>, Lost> {
        match self.resolver.lookup(name, kind).await {
            Ok(found) => {
                let records = found.answers().iter().filter_map(|record| pick(&record.data)).collect();
                Ok(Answer { records, until: found.valid_until() })
            }
            Err(NetError::Dns(DnsError::NoRecordsFound(_))) => {
                Ok(Answer { records: Vec::new(), until: Instant::now() })
            }
            Err(error) => Err(Lost::because(error)),
        }
    }

    async fn addresses(&self, name: &str) -> Result<Answer<IpAddr>, Lost> {
        let v4 =
            self.ask(name, RecordType::A, |data| if let RData::A(a) = data { Some(IpAddr::V4(a.0)) } else { None });
        let v6 = self.ask(
            name,
            RecordType::AAAA,
            |data| if let RData::AAAA(a) = data { Some(IpAddr::V6(a.0)) } else { None },
        );
        let (v4, v6) = tokio::join!(v4, v6);
        let (v4, v6) = (v4?, v6?);
        let until = match (v4.records.is_empty(), v6.records.is_empty()) {
            (false, true) => v4.until,
            (true, false) => v6.until,
            _ => v4.until.min(v6.until),
        };
        Ok(Answer { records: v4.records.into_iter().chain(v6.records).collect(), until })
    }

    async fn instances(&self, query: &Query) -> Result<Answer<Instance>, Lost> {
        if let Some(port) = query.port {
            let Answer { records, until } = self.addresses(&query.service).await?;
            return Ok(Answer { records: records.into_iter().map(|ip| plain((ip, port).into())).collect(), until });
        }
        let pick = |data: &RData| if let RData::SRV(srv) = data { Some(srv.clone()) } else { None };
        let Answer { records, mut until } = self.ask(&query.service, RecordType::SRV, pick).await?;
        // Of several priorities only the first serves (RFC 2782); who is healthy is for checks to say.
        let first = records.iter().map(|srv| srv.priority).min();
        let unweighted = records.iter().all(|srv| srv.weight == 0);
        let mut instances: BTreeMap<SocketAddr, Instance> = BTreeMap::new();
        for srv in records.iter().filter(|srv| Some(srv.priority) == first) {
            let addresses = self.addresses(&srv.target.to_string()).await?;
            until = until.min(addresses.until);
            for ip in addresses.records {
                let mut instance = plain((ip, srv.port).into());
                if !unweighted {
                    // Zero is the least weight, not none.
                    instance.weight = u32::from(srv.weight).max(1);
                }
                instances.insert(instance.address.0, instance);
            }
        }
        Ok(Answer { records: instances.into_values().collect(), until })
    }

    /// Asks for one name again and again.
    async fn follow(
        self: Arc<Self>,
        query: Query,
        said: tokio::sync::mpsc::Sender<(Query, Result<Vec<Instance>, Lost>)>,
    ) {
        loop {
            let (answer, pause) = match self.instances(&query).await {
                Ok(Answer { records, until }) => {
                    let ttl = until.saturating_duration_since(Instant::now());
                    (Ok(records), ttl.clamp(self.min_ttl, self.max_ttl))
                }
                Err(lost) => (Err(lost), self.min_ttl),
            };
            if said.send((query.clone(), answer)).await.is_err() {
                return;
            }
            tokio::time::sleep(pause).await;
        }
    }
}

#[async_trait]
impl Registry for DnsRegistry {
    async fn run(&self, desk: &Desk) -> Result<Infallible, Lost> {
        let mut wanted = desk.wanted();
        wanted.mark_changed();
        let (say, mut said) = tokio::sync::mpsc::channel(64);
        // Dropped with everything in it when this returns.
        let mut tasks = JoinSet::new();
        let mut running: BTreeMap<Query, AbortHandle> = BTreeMap::new();
        let mut heard = Instant::now();
        loop {
            tokio::select! {
                changed = wanted.changed() => {
                    changed.map_err(Lost::because)?;
                    let now = Arc::clone(&wanted.borrow_and_update());
                    running.retain(|query, task| now.contains(query) || { task.abort(); false });
                    for query in now.iter().filter(|query| !running.contains_key(*query)).cloned().collect::<Vec<_>>() {
                        let task = tasks.spawn(Arc::clone(&self.names).follow(query.clone(), say.clone()));
                        running.insert(query, task);
                    }
                }
                Some((query, answer)) = said.recv() => match answer {
                    Ok(list) => {
                        heard = Instant::now();
                        desk.alive();
                        desk.tell(&query, list);
                    }
                    Err(lost) => {
                        if heard.elapsed() > self.names.max_ttl.max(LOOK) {
                            desk.lost(&lost.0);
                        }
                        desk.failing(&query, &lost.0);
                    }
                },
                // Tasks that were aborted are forgotten.
                Some(_) = tasks.join_next() => {}
            }
        }
    }
}
