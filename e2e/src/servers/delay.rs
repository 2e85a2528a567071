//! A TCP relay that makes a server slow: what it answers comes late.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

/// A running relay; it ends with its handle.
pub struct Delay {
    /// Where it listens.
    pub address: SocketAddr,
    millis: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

impl Delay {
    /// Starts one before `server`, without a delay.
    pub async fn before(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let millis = Arc::new(AtomicU64::new(0));
        let delay = Arc::clone(&millis);
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                connections.spawn(relay(client, server, Arc::clone(&delay)));
            }
        });
        Self { address, millis, task }
    }

    /// From now on every answer comes so much later.
    pub fn set(&self, delay: Duration) {
        self.millis.store(u64::try_from(delay.as_millis()).unwrap(), Relaxed);
    }
}

impl Drop for Delay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Until either side ends.
async fn relay(client: TcpStream, server: SocketAddr, delay: Arc<AtomicU64>) {
    let Ok(server) = TcpStream::connect(server).await else { return };
    for stream in [&client, &server] {
        stream.set_nodelay(true).unwrap();
    }
    let ((mut asks, mut told), (mut answers, mut asked)) = (client.into_split(), server.into_split());
    let back = async {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(count @ 1..) = answers.read(&mut buffer).await {
            let late = Duration::from_millis(delay.load(Relaxed));
            if !late.is_zero() {
                tokio::time::sleep(late).await;
            }
            if told.write_all(&buffer[..count]).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        _ = copy(&mut asks, &mut asked) => {}
        () = back => {}
    }
}
