//! The connections to one instance: how many requests may use one at a time, how old they may become, and that they
//! are closed when the instance leaves.
//!
//! pingora keeps the idle connections and shows nobody its pool. What is done here is done from both of its ends:
//! [`sockets`] makes the connections that it asks for and is told when it drops one, and the key under which a
//! connection is kept says which requests may use it again. A connection that is too old is kept under a key that no
//! request asks for any more; [`keeper`] then shuts its socket down, which has pingora drop it. The relay keeps its own
//! on a [`shelf`].

pub mod identity;
pub mod keeper;
pub mod shelf;
pub mod sockets;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use pingora::connectors::TransportConnector;
use pingora::protocols::Stream;
use pingora::upstreams::peer::HttpPeer;
use serin_core::lifetime::Lifetime;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use self::identity::Identity;
use self::shelf::{Kind, Shelf};
use self::sockets::{Dialer, InUse, Sockets};
use crate::conf;
use crate::proxy::peer::Protocol;
use crate::telemetry::metrics::PoolMetrics;

/// How long a connection that no request may ask for any more is left alone: a request that asked just before may be
/// about to use it.
const GRACE: Duration = Duration::from_secs(1);
/// Epoch of connections to an instance that left. It is an old one as well, once the grace is over.
const RETIRED: u64 = u64::MAX - 1;

/// What a service says of its connections.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Requests that may use a connection at a time.
    pub max_connections: Option<usize>,
    /// How long one more request waits.
    pub acquire_timeout: Duration,
    /// How long a connection is kept that nothing uses.
    pub idle: Duration,
    /// Idle connections that are made in advance.
    pub min_idle: usize,
    /// How long a connection is used for new requests.
    pub max_lifetime: Option<Duration>,
    /// For making a connection.
    pub connect: Duration,
    /// The protocol spoken on it.
    pub protocol: Protocol,
    /// Its TLS settings.
    pub tls: Option<conf::UpstreamTls>,
}

/// The connections to one instance of one service.
pub struct InstancePool {
    policy: Arc<Policy>,
    address: SocketAddr,
    lifetime: Option<Lifetime>,
    born: Instant,
    /// Sets the keys of this pool apart from those of any other, and from those of an earlier one of the same address.
    salt: u64,
    slots: Option<Arc<Semaphore>>,
    retired: OnceLock<Instant>,
    retired_attempts: AtomicU64,
    sockets: Arc<Sockets>,
    shelf: Shelf,
    identity: Option<Identity>,
    metrics: PoolMetrics,
}

/// The pool has no connection to spare, nor had it one within the time to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overflow;

/// Leave to use a connection.
pub struct Acquired {
    /// Gives it back when dropped; `None` where there is no bound.
    pub permit: Option<OwnedSemaphorePermit>,
    /// Whether it had to be waited for.
    pub waited: bool,
}

/// What an attempt holds of its instance's pool.
#[derive(Default)]
pub struct Lease {
    /// Leave to use a connection.
    pub permit: Option<OwnedSemaphorePermit>,
    /// The connection.
    pub used: Option<InUse>,
}

impl InstancePool {
    /// A pool without connections. `random` sets it apart from others.
    #[must_use]
    pub fn new(address: SocketAddr, policy: Arc<Policy>, metrics: PoolMetrics, now: Instant, random: u64) -> Self {
        // The upper bits of the number, as a share of what they could be at most.
        let unit = (random >> 11) as f64 / (1_u64 << 53) as f64;
        Self {
            lifetime: policy.max_lifetime.map(|length| Lifetime::new(length, unit)),
            slots: policy.max_connections.map(|most| Arc::new(Semaphore::new(most))),
            sockets: Arc::default(),
            shelf: Shelf::default(),
            identity: policy.tls.as_ref().and_then(|tls| Identity::one_of(&tls.san)),
            born: now,
            salt: random,
            retired: OnceLock::new(),
            retired_attempts: AtomicU64::new(0),
            policy,
            address,
            metrics,
        }
    }

    /// Where its connections lead.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What the service says of it.
    #[must_use]
    pub fn policy(&self) -> &Arc<Policy> {
        &self.policy
    }

    /// Has a peer's connections made and kept here.
    pub fn adopt(self: &Arc<Self>, peer: &mut HttpPeer) {
        peer.options.idle_timeout = Some(self.policy.idle);
        peer.options.custom_l4 = Some(Arc::new(Dialer(Arc::clone(self))));
    }

    /// The key under which a peer's connections are kept, so that only those come back that may be used at `now`.
    #[must_use]
    pub fn key(&self, peer: u64, now: Instant) -> u64 {
        const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut epoch = self.epoch(now);
        if epoch == RETIRED {
            // Never the same one twice: nothing is kept of an instance that left.
            epoch ^= self.retired_attempts.fetch_add(1, Relaxed) + 1;
        }
        peer ^ self.salt.wrapping_add(epoch.wrapping_mul(SPREAD)).wrapping_mul(SPREAD)
    }

    /// Leave to use a connection, waited for at most as long as the service says, and as is left for the request.
    ///
    /// # Errors
    /// If there was none to be had.
    pub async fn acquire(&self, left: Option<Duration>) -> Result<Acquired, Overflow> {
        let Some(slots) = &self.slots else { return Ok(Acquired { permit: None, waited: false }) };
        if let Ok(permit) = Arc::clone(slots).try_acquire_owned() {
            return Ok(Acquired { permit: Some(permit), waited: false });
        }
        let longest = left.map_or(self.policy.acquire_timeout, |left| left.min(self.policy.acquire_timeout));
        if !longest.is_zero() {
            self.metrics.waits.inc();
            if let Ok(Ok(permit)) = tokio::time::timeout(longest, Arc::clone(slots).acquire_owned()).await {
                return Ok(Acquired { permit: Some(permit), waited: true });
            }
        }
        self.metrics.overflows.inc();
        Err(Overflow)
    }

    /// Notes that an attempt uses a connection, by its descriptor. `reused` is whether it came from pingora's pool.
    #[must_use]
    pub fn using(&self, descriptor: i32, reused: bool) -> Option<InUse> {
        self.sockets.using(descriptor, reused)
    }

    /// Who the instance has to be, if that is more than what its certificate's name says.
    #[must_use]
    pub fn identity(&self) -> Option<&Identity> {
        self.identity.as_ref()
    }

    /// Makes a connection to it, past pingora's pool.
    ///
    /// # Errors
    /// If there is none to be had, or it is not to who the instance has to be.
    pub async fn connect(&self, connector: &TransportConnector, peer: &HttpPeer) -> pingora::Result<Stream> {
        let stream = connector.new_stream(peer).await?;
        if let Some(identity) = &self.identity {
            identity.check(&stream)?;
        }
        Ok(stream)
    }

    /// Has pingora drop a connection, by its descriptor.
    pub fn close(&self, descriptor: i32) {
        self.sockets.close(descriptor);
    }

    /// An idle connection of the relay's that may be used at `now`, and what counts it as used. `group` is the peer's.
    #[must_use]
    pub fn take(&self, group: u64, now: Instant) -> Option<(Stream, InUse)> {
        self.shelf.take(self.kind(group, now), now, self.policy.idle)
    }

    /// Keeps a connection of the relay's for the next request.
    pub fn keep(&self, stream: Stream, used: &InUse, kind: Kind, now: Instant) {
        if !self.is_retired() {
            self.shelf.put(stream, used, kind, now);
        }
    }

    /// The kind of a connection that is made at `now`.
    #[must_use]
    pub fn kind(&self, group: u64, now: Instant) -> Kind {
        Kind { group, epoch: self.epoch(now) }
    }

    /// Whether connections that are made in advance have their TLS handshake behind them: those of the relay have.
    fn keeps_tls_ready(&self) -> bool {
        self.policy.min_idle > 0 && self.policy.tls.is_some() && self.policy.protocol == Protocol::Http1
    }

    /// Makes a connection in advance, short of a TLS handshake.
    async fn make_spare(&self) {
        let made = self.sockets.make_spare(self.address, self.policy.connect).await;
        if made.is_ok() && self.is_retired() {
            self.sockets.drop_spare();
        }
    }

    /// Makes a connection in advance that a request only has to be written to, and shelves it.
    async fn make_ready(&self, connector: &TransportConnector, mut peer: HttpPeer) {
        let _making = self.sockets.making();
        peer.options.total_connection_timeout = Some(self.policy.connect);
        let kind = self.kind(peer.group_key, Instant::now());
        let made = self.connect(connector, &peer).await;
        self.sockets.note_failing(made.is_err());
        if let Ok(stream) = made
            && let Some(used) = self.using(stream.id(), false)
        {
            self.keep(stream, &used, kind, Instant::now());
        }
    }

    /// Connections: all that are open, and those that requests use. Ones that were made in advance are among the open.
    #[must_use]
    pub fn connections(&self) -> (usize, usize) {
        self.sockets.count()
    }

    /// From now on no connection is used again, and idle ones are closed.
    pub fn retire(&self, now: Instant) {
        let _ = self.retired.set(now);
        self.sockets.drop_spare();
    }

    fn is_retired(&self) -> bool {
        self.retired.get().is_some()
    }

    fn epoch(&self, now: Instant) -> u64 {
        if self.is_retired() {
            return RETIRED;
        }
        self.lifetime.map_or(0, |lifetime| lifetime.epoch(now.saturating_duration_since(self.born)))
    }

    /// The oldest epoch whose idle connections a request may still be about to use.
    fn oldest_epoch(&self, now: Instant) -> u64 {
        match self.retired.get() {
            // All of them may go.
            Some(&at) if now.saturating_duration_since(at) >= GRACE => u64::MAX,
            Some(_) => 0,
            None => now.checked_sub(GRACE).map_or(0, |before| self.epoch(before.max(self.born))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::metrics::Metrics;

    fn pool(change: impl FnOnce(&mut Policy), now: Instant) -> InstancePool {
        let mut policy = Policy {
            max_connections: None,
            acquire_timeout: Duration::from_millis(200),
            idle: Duration::from_secs(50),
            min_idle: 0,
            max_lifetime: None,
            connect: Duration::from_secs(1),
            protocol: Protocol::Http1,
            tls: None,
        };
        change(&mut policy);
        let metrics = Metrics::new().unwrap().pool("s", "127.0.0.1:1");
        InstancePool::new("127.0.0.1:1".parse().unwrap(), Arc::new(policy), metrics, now, rand::random())
    }

    #[test]
    fn a_key_holds_for_a_lifetime_and_for_one_pool() {
        let now = Instant::now();
        let hour = Duration::from_secs(3_600);
        let forever = pool(|_| (), now);
        assert_eq!(forever.key(1, now), forever.key(1, now + 1_000 * hour));
        assert_ne!(forever.key(1, now), forever.key(2, now));

        let pool = pool(|policy| policy.max_lifetime = Some(hour), now);
        let keys: Vec<_> = (0..240).map(|minute| pool.key(1, now + Duration::from_secs(60 * minute))).collect();
        let changes = keys.windows(2).filter(|pair| pair[0] != pair[1]).count();
        assert!((3..=4).contains(&changes), "{changes} in four hours");
        assert_ne!(keys[0], forever.key(1, now));

        pool.retire(now);
        assert_ne!(pool.key(1, now), pool.key(1, now), "no connection of an instance that left is used again");
        assert_eq!((pool.oldest_epoch(now), pool.oldest_epoch(now + GRACE)), (0, u64::MAX));
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_pool_is_waited_for_and_overflows() {
        let pool = pool(|policy| policy.max_connections = Some(1), Instant::now());
        let held = pool.acquire(None).await.unwrap();
        assert!(held.permit.is_some() && !held.waited);
        let begin = tokio::time::Instant::now();
        assert_eq!(pool.acquire(None).await.err(), Some(Overflow));
        assert_eq!(begin.elapsed().as_millis() / 10, 20);
        assert_eq!(pool.acquire(Some(Duration::ZERO)).await.err(), Some(Overflow), "no time is left to wait");
        assert_eq!((pool.metrics.waits.get(), pool.metrics.overflows.get()), (1, 2));
        let release = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            drop(held);
        };
        let (acquired, ()) = tokio::join!(pool.acquire(None), release);
        assert!(acquired.unwrap().waited);
    }

    #[tokio::test]
    async fn without_a_bound_nothing_is_counted() {
        let pool = pool(|_| (), Instant::now());
        assert!(pool.acquire(None).await.unwrap().permit.is_none());
        assert_eq!(pool.connections(), (0, 0));
    }
}
