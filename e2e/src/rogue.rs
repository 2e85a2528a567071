//! An upstream that speaks raw HTTP/1.1 by a script: it breaks off, stalls and breaks the protocol at a chosen byte, and
//! notes each request that reached it.

use std::io;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, MutexGuard};

use bytes::Bytes;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Semaphore, watch};

/// The header that identifies a request in a ledger.
pub const ID: &str = "x-id";

/// One thing that it does with a request whose head it has read.
#[derive(Clone, Debug)]
pub enum Step {
    /// Reads so many bytes of the body, or all of it (of a known length) if there are fewer.
    Take(u64),
    /// Sends bytes.
    Send(Bytes),
    /// Sends the same bytes so many times.
    Flood(Bytes, usize),
    /// Waits for [`Rogue::let_go`].
    Gate,
    /// Reads whatever comes until the other side closes.
    Drain,
    /// Does nothing any more; the connection stays open.
    Stall,
    /// Closes the connection (FIN).
    Close,
    /// Resets the connection (RST).
    Reset,
}

impl Step {
    /// Sends text.
    #[must_use]
    pub fn send(text: impl Into<Bytes>) -> Self {
        Self::Send(text.into())
    }

    /// Reads the whole body and answers 200 on a connection that stays.
    #[must_use]
    pub fn answer() -> Vec<Self> {
        vec![Self::Take(u64::MAX), Self::send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")]
    }
}

/// A request that reached it.
#[derive(Clone, Debug, Default)]
pub struct Arrival {
    /// Its [`ID`].
    pub id: String,
    /// Its method.
    pub method: String,
    /// Its path.
    pub path: String,
    /// The number of the connection, from 0.
    pub connection: u64,
    /// The number of the request on its connection, from 0.
    pub nth: u64,
    length: u64,
}

type Script = dyn Fn(&Arrival) -> Vec<Step> + Send + Sync;

/// A running one; it ends when it is dropped.
pub struct Rogue {
    /// Where it listens.
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    script: Box<Script>,
    arrivals: Mutex<Vec<Arrival>>,
    connections: AtomicU64,
    gate: Semaphore,
    closing: watch::Sender<bool>,
}

impl Rogue {
    /// Starts it on a free port.
    pub async fn start(script: impl Fn(&Arrival) -> Vec<Step> + Send + Sync + 'static) -> Self {
        Self::start_at(SocketAddr::from(([127, 0, 0, 1], 0)), script).await
    }

    /// Starts it at an address that is known to be free.
    pub async fn start_at(at: SocketAddr, script: impl Fn(&Arrival) -> Vec<Step> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind(at).await.unwrap();
        let shared = Arc::new(Shared {
            script: Box::new(script),
            arrivals: Mutex::default(),
            connections: AtomicU64::new(0),
            gate: Semaphore::new(0),
            closing: watch::Sender::new(false),
        });
        let address = listener.local_addr().unwrap();
        tokio::spawn(accept(listener, Arc::clone(&shared)));
        Self { address, shared }
    }

    /// The requests that reached it.
    #[must_use]
    pub fn arrivals(&self) -> Vec<Arrival> {
        self.shared.arrivals().clone()
    }

    /// How many requests reached it.
    #[must_use]
    pub fn hits(&self) -> usize {
        self.shared.arrivals().len()
    }

    /// How often the request with this id reached it.
    #[must_use]
    pub fn hits_of(&self, id: &str) -> usize {
        self.shared.arrivals().iter().filter(|arrival| arrival.id == id).count()
    }

    /// How many connections were accepted.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Relaxed)
    }

    /// Lets one request pass its gate.
    pub fn let_go(&self) {
        self.shared.gate.add_permits(1);
    }
}

impl Drop for Rogue {
    fn drop(&mut self) {
        self.shared.closing.send_replace(true);
    }
}

impl Shared {
    fn arrivals(&self) -> MutexGuard<'_, Vec<Arrival>> {
        self.arrivals.lock().unwrap()
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut closing = shared.closing.subscribe();
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => accepted.unwrap().0,
            _ = closing.wait_for(|closed| *closed) => return,
        };
        let number = shared.connections.fetch_add(1, Relaxed);
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            let mut closing = shared.closing.subscribe();
            tokio::select! {
                _ = converse(stream, number, &shared) => {}
                _ = closing.wait_for(|closed| *closed) => {}
            }
        });
    }
}

async fn converse(stream: TcpStream, connection: u64, shared: &Shared) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut stream = BufReader::new(stream);
    for nth in 0.. {
        let Some(arrival) = arrival(&mut stream).await? else { return Ok(()) };
        let arrival = Arrival { connection, nth, ..arrival };
        let length = arrival.length;
        shared.arrivals().push(arrival.clone());
        for step in (shared.script)(&arrival) {
            match step {
                Step::Take(bytes) => drop(skip(&mut stream, bytes.min(length)).await?),
                Step::Send(bytes) => stream.write_all(&bytes).await?,
                Step::Flood(bytes, times) => {
                    for _ in 0..times {
                        stream.write_all(&bytes).await?;
                    }
                }
                Step::Gate => shared.gate.acquire().await.map_err(io::Error::other)?.forget(),
                Step::Drain => drop(skip(&mut stream, u64::MAX).await?),
                Step::Stall => std::future::pending().await,
                Step::Close => return Ok(()),
                Step::Reset => return stream.get_ref().set_zero_linger(),
            }
        }
    }
    Ok(())
}

async fn skip(stream: &mut BufReader<TcpStream>, bytes: u64) -> io::Result<u64> {
    tokio::io::copy(&mut stream.take(bytes), &mut tokio::io::sink()).await
}

/// Reads the head of a request; `None` at the end of the connection.
async fn arrival(stream: &mut BufReader<TcpStream>) -> io::Result<Option<Arrival>> {
    let mut line = String::new();
    if stream.read_line(&mut line).await? == 0 {
        return Ok(None);
    }
    let mut words = line.split(' ').map(str::to_owned);
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let mut arrival = Arrival { method, path, ..Arrival::default() };
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { return Ok(Some(arrival)) };
        match name.to_ascii_lowercase().as_str() {
            ID => value.clone_into(&mut arrival.id),
            "content-length" => arrival.length = value.parse().unwrap(),
            _ => {}
        }
    }
}

/// An address that swallows connections: whoever connects is never answered.
pub struct BlackHole {
    /// The address.
    pub address: SocketAddr,
    _listener: TcpListener,
    _full: TcpStream,
}

impl BlackHole {
    /// A listener that accepts nothing, with its backlog full: the kernel drops what comes then.
    pub async fn start() -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let listener = socket.listen(0).unwrap();
        let address = listener.local_addr().unwrap();
        let full = TcpStream::connect(address).await.unwrap();
        Self { address, _listener: listener, _full: full }
    }
}
