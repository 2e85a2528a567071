//! Looks after all pools: closes what is too old or belongs to an instance that left, and makes connections in advance.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use pingora::connectors::TransportConnector;
use pingora::upstreams::peer::HttpPeer;
use tokio::runtime::Handle;

use super::InstancePool;

/// How often the pools are looked at.
pub const TICK: Duration = Duration::from_secs(1);
/// Connections to one instance that are made in advance at a time.
const AT_ONCE: usize = 32;

/// All pools there are, those of instances that left included until their last connection is closed.
#[derive(Default)]
pub struct Keeper {
    pools: Mutex<Vec<Kept>>,
    dialer: OnceLock<Dialer>,
}

/// A pool, and how its connections are made; the latter holds the pool as well, and goes when the instance does.
struct Kept {
    pool: Arc<InstancePool>,
    peer: Option<HttpPeer>,
}

impl Kept {
    fn new(pool: &Arc<InstancePool>, peer: &HttpPeer) -> Self {
        Self { pool: Arc::clone(pool), peer: pool.keeps_tls_ready().then(|| peer.clone()) }
    }
}

/// What makes TLS connections in advance: they belong to the runtime on which requests are served.
pub struct Dialer {
    /// That runtime.
    pub runtime: Handle,
    /// The relay's connector.
    pub connector: Arc<TransportConnector>,
}

impl Keeper {
    /// Tells it how TLS connections are made. Only the first word counts.
    pub fn dial_with(&self, dialer: impl FnOnce() -> Dialer) {
        self.dialer.get_or_init(dialer);
    }

    /// Takes over what is in force; pools that are not part of it are retired.
    pub fn apply<'a>(&self, in_force: impl Iterator<Item = (&'a Arc<InstancePool>, &'a HttpPeer)>, now: Instant) {
        let mut pools = self.lock();
        let known: HashSet<_> = pools.iter().map(|kept| Arc::as_ptr(&kept.pool)).collect();
        let (mut stay, mut new) = (HashSet::new(), Vec::new());
        for (pool, peer) in in_force {
            stay.insert(Arc::as_ptr(pool));
            if !known.contains(&Arc::as_ptr(pool)) {
                new.push(Kept::new(pool, peer));
            }
        }
        for kept in pools.iter_mut().filter(|kept| !stay.contains(&Arc::as_ptr(&kept.pool))) {
            kept.peer = None;
            kept.pool.retire(now);
        }
        pools.extend(new);
    }

    /// Takes over the pools of some services in place of those that they had.
    pub fn exchange<'a>(
        &self,
        had: impl Iterator<Item = &'a Arc<InstancePool>>,
        in_force: impl Iterator<Item = (&'a Arc<InstancePool>, &'a HttpPeer)>,
        now: Instant,
    ) {
        let mut gone: HashSet<_> = had.map(Arc::as_ptr).collect();
        let mut pools = self.lock();
        for (pool, peer) in in_force {
            if !gone.remove(&Arc::as_ptr(pool)) {
                pools.push(Kept::new(pool, peer));
            }
        }
        if gone.is_empty() {
            return;
        }
        for kept in pools.iter_mut().filter(|kept| gone.contains(&Arc::as_ptr(&kept.pool))) {
            kept.peer = None;
            kept.pool.retire(now);
        }
    }

    /// Looks at every pool once.
    pub fn tick(&self, now: Instant) {
        let mut pools = self.lock();
        for Kept { pool, peer } in pools.iter() {
            let oldest = pool.oldest_epoch(now);
            pool.shelf.sift(oldest, now, pool.policy.idle);
            pool.sockets.close_before(oldest);
            if !pool.is_retired() && pool.policy.min_idle > 0 {
                self.replenish(pool, peer.as_ref(), now);
            }
        }
        // A request that began before its instance left may hold the pool and connect once more.
        pools.retain(|Kept { pool, .. }| !pool.is_retired() || pool.connections().0 > 0 || Arc::strong_count(pool) > 1);
    }

    /// Makes as many connections as are missing, in tasks of their own. An instance that cannot be reached is tried again
    /// at the next tick; its health is for others to judge.
    fn replenish(&self, pool: &Arc<InstancePool>, peer: Option<&HttpPeer>, now: Instant) {
        for _ in 0..missing(pool, now) {
            let pool = Arc::clone(pool);
            match (peer, self.dialer.get()) {
                (None, _) => drop(tokio::spawn(async move { pool.make_spare().await })),
                (Some(peer), Some(dialer)) => {
                    let (peer, connector) = (peer.clone(), Arc::clone(&dialer.connector));
                    dialer.runtime.spawn(async move { pool.make_ready(&connector, peer).await });
                }
                (Some(_), None) => {}
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Kept>> {
        self.pools.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How many connections are to be made in advance just now.
fn missing(pool: &InstancePool, now: Instant) -> usize {
    pool.sockets.sift_spare(now, pool.policy.idle);
    let (idle, all) = pool.sockets.idle(pool.epoch(now));
    let room = pool.policy.max_connections.map_or(AT_ONCE, |most| most.saturating_sub(all));
    let at_once = if pool.sockets.is_failing() { 1 } else { AT_ONCE };
    pool.policy.min_idle.saturating_sub(idle).min(room).min(at_once)
}
