//! What a service needs in the background: its pools and its checks. Those that do not change stay as they are.

use std::sync::Arc;
use std::time::Instant;

use pingora::upstreams::peer::HttpPeer;
use serin_core::instance::Instance;

use super::Workshop;
use crate::checks::{Key, Target};
use crate::conf;
use crate::pool::{InstancePool, Policy};
use crate::proxy::peer::{self, Protocol, UpstreamTls};

/// The pools of a service's instances. One that was there before stays if nothing is said of it that is new.
pub(super) fn pools(
    workshop: &Workshop,
    name: &str,
    conf: &conf::Service,
    protocol: Protocol,
    instances: &[Instance],
    before: &[Arc<InstancePool>],
    now: Instant,
) -> Vec<Arc<InstancePool>> {
    let policy = Arc::new(policy(conf, protocol));
    let pool = |instance: &Instance| {
        // Both are in order of their addresses.
        let kept = before.binary_search_by_key(&instance.address, |pool| pool.address()).ok().map(|at| &before[at]);
        kept.filter(|pool| *pool.policy() == policy).map_or_else(
            || {
                let metrics = workshop.metrics.pool(name, &instance.address.to_string());
                let policy = Arc::clone(&policy);
                Arc::new(InstancePool::new(instance.address, policy, metrics, now, rand::random()))
            },
            Arc::clone,
        )
    };
    instances.iter().map(pool).collect()
}

/// How the instances of those pools are connected to.
pub(super) fn peers(pools: &[Arc<InstancePool>], protocol: Protocol, tls: Option<&UpstreamTls>) -> Vec<HttpPeer> {
    let peer = |pool: &Arc<InstancePool>| {
        let mut peer = peer::template(pool.address(), protocol, tls);
        pool.adopt(&mut peer);
        peer
    };
    pools.iter().map(peer).collect()
}

/// What is checked of a service's instances; nothing if it has no checks.
pub(super) fn checks(
    workshop: &Workshop,
    conf: &conf::Service,
    protocol: Protocol,
    instances: &[Instance],
    peers: &[HttpPeer],
) -> Vec<Arc<Target>> {
    let Some(check) = conf.health_check.clone().map(Arc::new) else { return Vec::new() };
    let tls = conf.tls.clone().map(Arc::new);
    let target = |(instance, peer): (&Instance, &HttpPeer)| {
        let key = Key { address: instance.address, check: Arc::clone(&check), protocol, tls: tls.clone() };
        workshop.upkeep.checks.target(key, peer)
    };
    instances.iter().zip(peers).map(target).collect()
}

fn policy(conf: &conf::Service, protocol: Protocol) -> Policy {
    let pool = &conf.pool;
    Policy {
        max_connections: pool.max_connections.map(usize::from),
        acquire_timeout: pool.acquire_timeout.duration(),
        idle: pool.idle.duration(),
        min_idle: usize::from(pool.min_idle),
        max_lifetime: pool.max_lifetime.as_option().map(|span| span.duration()),
        connect: conf.timeouts.connect.duration(),
        protocol,
        tls: conf.tls.clone(),
    }
}
