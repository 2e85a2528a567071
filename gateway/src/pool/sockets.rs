//! The sockets of one instance: pingora has them made here, and drops are noticed here.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpStream as Socket};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use nix::sys::socket::{Shutdown, shutdown};
use pingora::connectors::L4Connect;
use pingora::protocols::l4::ext;
use pingora::protocols::l4::socket::SocketAddr as PeerAddr;
use pingora::protocols::l4::stream::Stream;
use pingora::upstreams::peer::{Tracer, Tracing};
use pingora::{Error, ErrorType};
use tokio::net::TcpStream;

use super::InstancePool;

/// The sockets of one instance.
#[derive(Debug, Default)]
pub struct Sockets {
    /// Those that pingora has, by descriptor. Whoever holds this lock knows that none of the descriptors is closed.
    open: Mutex<HashMap<RawFd, Arc<Used>>>,
    /// Those that were made in advance, with their age. They belong to no runtime until one is used.
    spare: Mutex<Vec<(Socket, Instant)>>,
    making: AtomicUsize,
    /// Whether the latest one could not be made.
    failing: AtomicBool,
}

/// How a socket is used.
#[derive(Debug)]
pub struct Used {
    epoch: u64,
    /// Attempts that use it; several at a time only with HTTP/2. It is made for one.
    by: AtomicU32,
}

/// Counts an attempt as a user of its connection, until it is dropped.
#[derive(Debug)]
pub struct InUse(Arc<Used>);

impl InUse {
    /// One more attempt uses the connection.
    pub(super) fn start(used: &Arc<Used>) -> Self {
        used.by.fetch_add(1, Relaxed);
        Self(Arc::clone(used))
    }

    /// What it counts on, for as long as the connection is kept.
    pub(super) fn connection(&self) -> Arc<Used> {
        Arc::clone(&self.0)
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.0.by.fetch_sub(1, Relaxed);
    }
}

impl Sockets {
    /// Notes that an attempt uses a connection.
    pub(super) fn using(&self, descriptor: RawFd, reused: bool) -> Option<InUse> {
        let used = Arc::clone(lock(&self.open).get(&descriptor)?);
        if reused {
            used.by.fetch_add(1, Relaxed);
        }
        Some(InUse(used))
    }

    /// Open ones and used ones.
    pub(super) fn count(&self) -> (usize, usize) {
        let spare = lock(&self.spare).len();
        let open = lock(&self.open);
        (open.len() + spare, open.values().filter(|used| used.by.load(Relaxed) > 0).count())
    }

    /// Idle ones of an epoch, those in advance and those in the making included, and all.
    pub(super) fn idle(&self, epoch: u64) -> (usize, usize) {
        let waiting = lock(&self.spare).len() + self.making.load(Relaxed);
        let open = lock(&self.open);
        let idle = open.values().filter(|used| used.epoch == epoch && used.by.load(Relaxed) == 0).count();
        (idle + waiting, open.len() + waiting)
    }

    /// Has pingora drop the idle connections of epochs before one.
    pub(super) fn close_before(&self, epoch: u64) {
        for (descriptor, used) in lock(&self.open).iter() {
            if used.epoch < epoch && used.by.load(Relaxed) == 0 {
                // Its reader sees the end. A socket that the other side closed already is about to be dropped.
                let _ = shutdown(*descriptor, Shutdown::Both);
            }
        }
    }

    /// Has pingora drop a connection.
    pub(super) fn close(&self, descriptor: RawFd) {
        if lock(&self.open).contains_key(&descriptor) {
            // Its reader sees the end.
            let _ = shutdown(descriptor, Shutdown::Both);
        }
    }

    /// Drops what was made in advance and is too old or dead.
    pub(super) fn sift_spare(&self, now: Instant, idle: Duration) {
        lock(&self.spare).retain(|(socket, made)| now.saturating_duration_since(*made) < idle && is_quiet(socket));
    }

    /// Drops all that was made in advance.
    pub(super) fn drop_spare(&self) {
        lock(&self.spare).clear();
    }

    /// Makes one in advance.
    ///
    /// # Errors
    /// If the instance cannot be reached in time.
    pub(super) async fn make_spare(&self, address: SocketAddr, timeout: Duration) -> std::io::Result<()> {
        let _making = self.making();
        let made = tokio::time::timeout(timeout, TcpStream::connect(address)).await;
        let made = made.map_err(std::io::Error::from).flatten().and_then(TcpStream::into_std);
        self.note_failing(made.is_err());
        lock(&self.spare).push((made?, Instant::now()));
        Ok(())
    }

    /// Counts one as being made, until it is dropped.
    pub(super) fn making(&self) -> Making<'_> {
        self.making.fetch_add(1, Relaxed);
        Making(&self.making)
    }

    /// Notes whether the latest one could not be made in advance.
    pub(super) fn note_failing(&self, failing: bool) {
        self.failing.store(failing, Relaxed);
    }

    /// Whether the latest one could not be made in advance.
    pub(super) fn is_failing(&self) -> bool {
        self.failing.load(Relaxed)
    }

    /// One that was made in advance and is still good, the newest first.
    fn take_spare(&self) -> Option<TcpStream> {
        loop {
            let (socket, _) = lock(&self.spare).pop()?;
            if let Some(socket) = Some(socket).filter(is_quiet).and_then(|socket| TcpStream::from_std(socket).ok()) {
                return Some(socket);
            }
        }
    }

    /// One for a test, in use.
    #[cfg(test)]
    pub(super) fn adopted(self: &Arc<Self>, socket: TcpStream) -> (Stream, InUse) {
        let descriptor = socket.as_raw_fd();
        let stream = self.adopt(socket, 0);
        let used = self.using(descriptor, false).unwrap();
        (stream, used)
    }

    fn adopt(self: &Arc<Self>, socket: TcpStream, epoch: u64) -> Stream {
        let descriptor = socket.as_raw_fd();
        let used = Arc::new(Used { epoch, by: AtomicU32::new(1) });
        lock(&self.open).insert(descriptor, used);
        let mut stream = Stream::from(socket);
        stream.tracer = Some(Tracer(Box::new(Watch { sockets: Arc::clone(self), descriptor })));
        stream
    }
}

/// Whether a socket that nothing was asked on has nothing to say, not even that it is closed.
fn is_quiet(socket: &Socket) -> bool {
    let peeked = socket.peek(&mut [0]);
    peeked.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
}

/// One that is being made.
pub(super) struct Making<'a>(&'a AtomicUsize);

impl Drop for Making<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// Makes the connections to one instance, for pingora.
pub struct Dialer(pub Arc<InstancePool>);

impl std::fmt::Debug for Dialer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Dialer").field(&self.0.address).finish()
    }
}

#[async_trait]
impl L4Connect for Dialer {
    async fn connect(&self, address: &PeerAddr) -> pingora::Result<Stream> {
        let pool = &self.0;
        let epoch = pool.epoch(Instant::now());
        if let Some(spare) = pool.sockets.take_spare() {
            return Ok(pool.sockets.adopt(spare, epoch));
        }
        let Some(address) = address.as_inet() else {
            return Error::e_explain(ErrorType::InternalError, "an instance has an IP address");
        };
        let socket = ext::connect(address, None).await?;
        Ok(pool.sockets.adopt(socket, epoch))
    }
}

/// Notices that pingora drops a connection. It is told so before the descriptor is closed.
#[derive(Debug)]
struct Watch {
    sockets: Arc<Sockets>,
    descriptor: RawFd,
}

impl Tracing for Watch {
    fn on_connected(&self) {}

    fn on_disconnected(&self) {
        lock(&self.sockets.open).remove(&self.descriptor);
    }

    fn boxed_clone(&self) -> Box<dyn Tracing> {
        Box::new(Self { sockets: Arc::clone(&self.sockets), descriptor: self.descriptor })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while it holds one of these.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;

    use super::*;

    async fn pair(listener: &TcpListener) -> (TcpStream, TcpStream) {
        let (client, server) = tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
        (client.unwrap(), server.unwrap().0)
    }

    #[tokio::test]
    async fn idle_sockets_of_an_old_epoch_are_closed_and_used_ones_are_not() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let sockets = Arc::new(Sockets::default());
        let mut ends = Vec::new();
        for epoch in [0, 0, 1] {
            let (client, server) = pair(&listener).await;
            let descriptor = client.as_raw_fd();
            ends.push((sockets.adopt(client, epoch), server, descriptor));
        }
        // Each is made for an attempt; the first and the last of them end.
        let mut attempts: Vec<_> = ends.iter().map(|(_, _, fd)| sockets.using(*fd, false)).collect();
        assert_eq!(sockets.count(), (3, 3));
        attempts[0] = None;
        attempts[2] = None;
        assert_eq!((sockets.count(), sockets.idle(0), sockets.idle(1)), ((3, 1), (1, 3), (1, 3)));
        sockets.close_before(1);
        assert_eq!(ends[0].1.read(&mut [0]).await.unwrap(), 0, "the idle one of the old epoch is closed");
        for (_, server, _) in &ends[1..] {
            let still_open = server.try_read(&mut [0]).unwrap_err().kind() == std::io::ErrorKind::WouldBlock;
            assert!(still_open);
        }
        ends.clear();
        assert_eq!(sockets.count(), (0, 0), "every drop is noticed");
    }

    #[tokio::test]
    async fn dead_and_old_spare_sockets_are_not_used() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let sockets = Sockets::default();
        let mut servers = Vec::new();
        for _ in 0..3 {
            sockets.make_spare(address, Duration::from_secs(1)).await.unwrap();
            servers.push(listener.accept().await.unwrap().0);
        }
        drop(servers.pop());
        assert!(sockets.take_spare().is_some_and(|s| s.peer_addr().unwrap() == address), "one of the other two");
        sockets.sift_spare(Instant::now(), Duration::from_secs(50));
        assert_eq!(sockets.idle(0), (1, 1));
        sockets.sift_spare(Instant::now() + Duration::from_secs(60), Duration::from_secs(50));
        assert_eq!(sockets.idle(0), (0, 0));
        drop(listener);
        assert!(sockets.make_spare(address, Duration::from_secs(1)).await.is_err());
        assert!(sockets.take_spare().is_none());
    }
}
