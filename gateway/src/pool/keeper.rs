//! Looks after all pools: closes what is too old or belongs to an instance that left, and makes connections in advance.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::InstancePool;

/// How often the pools are looked at.
pub const TICK: Duration = Duration::from_secs(1);
/// Connections to one instance that are made in advance at a time.
const AT_ONCE: usize = 32;

/// All pools there are, those of instances that left included until their last connection is closed.
#[derive(Default)]
pub struct Keeper {
    pools: Mutex<Vec<Arc<InstancePool>>>,
}

impl Keeper {
    /// Takes over what is in force; pools that are not part of it are retired.
    pub fn apply<'a>(&self, in_force: impl Iterator<Item = &'a Arc<InstancePool>>, now: Instant) {
        let mut pools = self.lock();
        let known: HashSet<_> = pools.iter().map(Arc::as_ptr).collect();
        let (mut kept, mut new) = (HashSet::new(), Vec::new());
        for pool in in_force {
            kept.insert(Arc::as_ptr(pool));
            if !known.contains(&Arc::as_ptr(pool)) {
                new.push(Arc::clone(pool));
            }
        }
        pools.iter().filter(|pool| !kept.contains(&Arc::as_ptr(pool))).for_each(|pool| pool.retire(now));
        pools.extend(new);
    }

    /// Looks at every pool once.
    pub fn tick(&self, now: Instant) {
        let mut pools = self.lock();
        for pool in pools.iter() {
            let oldest = pool.oldest_epoch(now);
            pool.shelf.sift(oldest, now, pool.policy.idle);
            pool.sockets.close_before(oldest);
            if !pool.is_retired() && pool.policy.min_idle > 0 {
                replenish(pool, now);
            }
        }
        // A request that began before its instance left may hold the pool and connect once more.
        pools.retain(|pool| !pool.is_retired() || pool.connections().0 > 0 || Arc::strong_count(pool) > 1);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<InstancePool>>> {
        self.pools.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes as many connections as are missing, in tasks of their own.
fn replenish(pool: &Arc<InstancePool>, now: Instant) {
    pool.sockets.sift_spare(now, pool.policy.idle);
    let (idle, all) = pool.sockets.idle(pool.epoch(now));
    let room = pool.policy.max_connections.map_or(AT_ONCE, |most| most.saturating_sub(all));
    let at_once = if pool.sockets.is_failing() { 1 } else { AT_ONCE };
    for _ in 0..pool.policy.min_idle.saturating_sub(idle).min(room).min(at_once) {
        let pool = Arc::clone(pool);
        tokio::spawn(async move {
            // An instance that cannot be reached is tried again at the next tick; its health is for others to judge.
            if pool.sockets.make_spare(pool.address, pool.policy.connect).await.is_ok() && pool.is_retired() {
                pool.sockets.drop_spare();
            }
        });
    }
}
