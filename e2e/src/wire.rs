//! A bad wire: a TCP proxy that holds back what passes, lets it through drop by drop, or swallows it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// What a wire does to what passes, in either direction. It may be changed while connections are open.
#[derive(Default)]
struct Quality {
    /// How long everything is held back, in milliseconds.
    delay: AtomicU64,
    /// Time that a byte takes, in microseconds.
    per_byte: AtomicU64,
}

/// A running one; new connections end with its handle, open ones when either side closes.
pub struct Wire {
    /// Where it listens.
    pub address: SocketAddr,
    quality: Arc<Quality>,
    task: JoinHandle<()>,
}

impl Wire {
    /// A good wire to `to`.
    pub async fn to(to: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let quality = Arc::new(Quality::default());
        let shared = Arc::clone(&quality);
        let task = tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let Ok(far) = TcpStream::connect(to).await else { continue };
                for end in [&near, &far] {
                    end.set_nodelay(true).unwrap();
                }
                let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
                pass(near_in, far_out, Arc::clone(&shared));
                pass(far_in, near_out, Arc::clone(&shared));
            }
        });
        Self { address, quality, task }
    }

    /// Holds everything back for so long, in each direction.
    pub fn delay(&self, time: Duration) {
        self.quality.delay.store(time.as_millis() as u64, Relaxed);
    }

    /// Lets a byte through each time that so much time is over.
    pub fn trickle(&self, per_byte: Duration) {
        self.quality.per_byte.store(per_byte.as_micros() as u64, Relaxed);
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Passes on one direction of a connection.
fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, quality: Arc<Quality>) {
    let (sender, mut pieces) = mpsc::channel::<(Instant, Vec<u8>)>(1_024);
    let shared = Arc::clone(&quality);
    tokio::spawn(async move {
        let mut buffer = vec![0; 16_384];
        while let Ok(length @ 1..) = from.read(&mut buffer).await {
            let due = Instant::now() + Duration::from_millis(shared.delay.load(Relaxed));
            if sender.send((due, buffer[..length].to_vec())).await.is_err() {
                return;
            }
        }
    });
    tokio::spawn(async move {
        while let Some((due, piece)) = pieces.recv().await {
            tokio::time::sleep_until(due).await;
            let mut rest = &piece[..];
            while !rest.is_empty() {
                let per_byte = Duration::from_micros(quality.per_byte.load(Relaxed));
                let length = if per_byte.is_zero() { rest.len() } else { 1 };
                tokio::time::sleep(per_byte).await;
                if to.write_all(&rest[..length]).await.is_err() {
                    return;
                }
                rest = &rest[length..];
            }
        }
        let _ = to.shutdown().await;
    });
}
