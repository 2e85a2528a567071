//! The idle connections of one instance that the relay uses again. Nothing waits on them: whether one is still good is
//! looked at when it is taken, and what nobody takes is thrown out by the keeper.

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use pingora::protocols::Stream;
use tokio::io::AsyncReadExt;

use super::sockets::{InUse, Used};

/// Most that are kept of one instance; one more is closed.
const MOST: usize = 1_024;

/// Which requests may use a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// Policy that it was made under: TLS settings, above all.
    pub group: u64,
    /// Time of life of its pool in which it was made.
    pub epoch: u64,
}

/// The idle connections, the one that was used last on top.
#[derive(Default)]
pub struct Shelf(Mutex<Vec<Kept>>);

struct Kept {
    stream: Stream,
    used: Arc<Used>,
    kind: Kind,
    since: Instant,
}

impl Shelf {
    /// A connection of this kind that was idle for less than `idle` and that the instance did not close.
    pub(super) fn take(&self, kind: Kind, now: Instant, idle: Duration) -> Option<(Stream, InUse)> {
        loop {
            let mut kept = self.lock().pop()?;
            let fine = kept.kind == kind && now.saturating_duration_since(kept.since) < idle;
            if fine && is_quiet(&mut kept.stream) {
                return Some((kept.stream, InUse::start(&kept.used)));
            }
        }
    }

    /// Keeps a connection until a request wants it.
    pub(super) fn put(&self, stream: Stream, used: &InUse, kind: Kind, now: Instant) {
        let mut kept = self.lock();
        if kept.len() < MOST {
            kept.push(Kept { stream, used: used.connection(), kind, since: now });
        }
    }

    /// Closes what is older than `oldest`, was idle for `idle`, or was closed by the instance.
    pub(super) fn sift(&self, oldest: u64, now: Instant, idle: Duration) {
        let mut out = Vec::new();
        let mut shelf = self.lock();
        for mut kept in std::mem::take(&mut *shelf) {
            let young = kept.kind.epoch >= oldest && now.saturating_duration_since(kept.since) < idle;
            if young && is_quiet(&mut kept.stream) { shelf.push(kept) } else { out.push(kept) }
        }
        drop(shelf);
        // Closing takes its time, which no request should wait for.
        drop(out);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Kept>> {
        // Nothing panics while it holds this.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a connection that nothing was asked on has nothing to say, not even that it is closed. Asks the system only
/// if something happened to it.
fn is_quiet(stream: &mut Stream) -> bool {
    let mut byte = [0];
    let read = pin!(stream.read(&mut byte));
    matches!(read.poll(&mut Context::from_waker(Waker::noop())), Poll::Pending)
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::pool::sockets::Sockets;

    const IDLE: Duration = Duration::from_secs(50);
    const KIND: Kind = Kind { group: 1, epoch: 0 };

    struct World {
        listener: TcpListener,
        sockets: Arc<Sockets>,
        shelf: Shelf,
        now: Instant,
    }

    impl World {
        async fn new() -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            Self { listener, sockets: Arc::default(), shelf: Shelf::default(), now: Instant::now() }
        }

        /// Puts a connection on the shelf; returns its other end.
        async fn put(&self, kind: Kind) -> TcpStream {
            let address = self.listener.local_addr().unwrap();
            let (client, server) = tokio::join!(TcpStream::connect(address), self.listener.accept());
            let (stream, used) = self.sockets.adopted(client.unwrap());
            self.shelf.put(Box::new(stream), &used, kind, self.now);
            server.unwrap().0
        }

        fn take(&self, kind: Kind, after: Duration) -> bool {
            self.shelf.take(kind, self.now + after, IDLE).is_some()
        }
    }

    #[tokio::test]
    async fn only_connections_of_the_kind_and_age_are_taken() {
        for (kind, after, expected) in [
            (KIND, Duration::ZERO, true),
            (KIND, IDLE, false),
            (Kind { group: 2, ..KIND }, Duration::ZERO, false),
            (Kind { epoch: 1, ..KIND }, Duration::ZERO, false),
        ] {
            let world = World::new().await;
            let _other_end = world.put(KIND).await;
            assert_eq!(world.sockets.count(), (1, 0), "an idle connection is open and not used");
            assert_eq!(world.take(kind, after), expected, "{kind:?} after {after:?}");
            assert_eq!(world.sockets.count(), (0, 0), "taken and dropped, or found unfit and closed");
        }
    }

    #[tokio::test]
    async fn closed_and_talkative_connections_are_not_taken() {
        let world = World::new().await;
        let _good = world.put(KIND).await;
        let mut talkative = world.put(KIND).await;
        let closed = world.put(KIND).await;
        drop(closed);
        talkative.write_all(b"HTTP/1.1 408 Request Timeout\r\n\r\n").await.unwrap();
        let deadline = Instant::now() + Duration::from_secs(5);
        while world.sockets.count() != (1, 0) {
            assert!(Instant::now() < deadline, "{:?}", world.sockets.count());
            tokio::time::sleep(Duration::from_millis(1)).await;
            world.shelf.sift(0, world.now, IDLE);
        }
        assert!(world.take(KIND, Duration::ZERO));
        assert!(!world.take(KIND, Duration::ZERO));
    }

    #[tokio::test]
    async fn what_is_too_old_is_thrown_out() {
        let world = World::new().await;
        let _ends = (world.put(KIND).await, world.put(Kind { epoch: 1, ..KIND }).await);
        world.shelf.sift(1, world.now, IDLE);
        assert_eq!(world.sockets.count(), (1, 0));
        world.shelf.sift(1, world.now + IDLE, IDLE);
        assert_eq!(world.sockets.count(), (0, 0));
    }
}
