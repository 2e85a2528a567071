//! Load with a ledger: clients that keep their connections, and clients that open one for each request, until they are
//! told to stop. What the clients of a service do when it closes a connection, they do as well: they open another one.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use rustls::ClientConfig;
use tokio::task::JoinSet;

use crate::client::{Call, Conn, HOST, Reply};
use crate::ledger::{Ledger, new_id};
use crate::rogue::ID;

/// How a client talks.
#[derive(Clone)]
pub enum Talk {
    /// HTTP/1.1, one connection for as long as it is kept.
    Keeps,
    /// HTTP/1.1, a connection for each request.
    Opens,
    /// HTTP/2 in clear text, one connection for as long as it is kept.
    H2c,
    /// TLS, one connection for as long as it is kept.
    Tls(Arc<ClientConfig>),
}

/// Clients at work.
pub struct Load {
    /// What became of every request.
    pub ledger: Arc<Ledger>,
    shared: Arc<Shared>,
    clients: JoinSet<()>,
}

#[derive(Default)]
struct Shared {
    /// Whether the load balancer has taken the gateway out.
    out: AtomicBool,
    stop: AtomicBool,
    refused: AtomicU64,
    answered: AtomicU64,
}

impl Load {
    /// Starts clients of these kinds, which send `path` to `address`.
    #[must_use]
    pub fn start(clients: &[(usize, Talk, SocketAddr)], path: &str) -> Self {
        let (ledger, shared) = (Arc::new(Ledger::default()), Arc::new(Shared::default()));
        let mut tasks = JoinSet::new();
        for (count, talk, address) in clients {
            for _ in 0..*count {
                let client = Client {
                    ledger: Arc::clone(&ledger),
                    shared: Arc::clone(&shared),
                    talk: talk.clone(),
                    address: *address,
                    path: path.to_owned(),
                };
                tasks.spawn(client.run());
            }
        }
        Self { ledger, shared, clients: tasks }
    }

    /// Requests that were answered so far.
    #[must_use]
    pub fn answered(&self) -> u64 {
        self.shared.answered.load(Relaxed)
    }

    /// Connections that were refused so far.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.shared.refused.load(Relaxed)
    }

    /// Clients open no new connections any more, as when a load balancer has noticed that a gateway is not ready. They
    /// go on where they have one, and end where it is closed.
    pub fn take_out(&self) {
        self.shared.out.store(true, Relaxed);
    }

    /// Waits for `count` more answers.
    pub async fn more(&self, count: u64) {
        let wanted = self.answered() + count;
        let enough = || async { (self.answered() >= wanted).then_some(()) };
        crate::wait::until(format!("{count} more answers"), enough).await;
    }

    /// Waits until every client has ended because its connection was closed.
    ///
    /// # Panics
    /// If one failed, or they do not end.
    pub async fn ended(&mut self) {
        let all = async {
            while let Some(client) = self.clients.join_next().await {
                client.unwrap()
            }
        };
        tokio::time::timeout(crate::wait::DEADLINE, all).await.expect("the clients to end");
    }

    /// Stops the clients after their request.
    pub async fn stop(&mut self) {
        self.shared.stop.store(true, Relaxed);
        self.ended().await;
    }
}

struct Client {
    ledger: Arc<Ledger>,
    shared: Arc<Shared>,
    talk: Talk,
    address: SocketAddr,
    path: String,
}

impl Client {
    async fn run(self) {
        let mut kept: Option<Conn> = None;
        while !self.shared.stop.load(Relaxed) {
            let mut conn = match kept.take() {
                Some(conn) => conn,
                None if self.shared.out.load(Relaxed) => return,
                None => match self.connect().await {
                    Ok(conn) => conn,
                    Err(_) => {
                        self.shared.refused.fetch_add(1, Relaxed);
                        continue;
                    }
                },
            };
            let id = new_id();
            let sent = Call::get(&self.path).header(ID, &id).try_on(&mut conn).await;
            let stays = sent.as_ref().is_ok_and(Self::stays) && !matches!(self.talk, Talk::Opens);
            self.shared.answered.fetch_add(1, Relaxed);
            self.ledger.note(&id, "GET", sent.map(|reply| reply.status.as_u16()));
            if stays && conn.is_open().await {
                kept = Some(conn);
            }
        }
    }

    fn stays(reply: &Reply) -> bool {
        !reply.header("connection").eq_ignore_ascii_case("close")
    }

    async fn connect(&self) -> io::Result<Conn> {
        match &self.talk {
            Talk::Keeps | Talk::Opens => Conn::try_http1(self.address).await,
            Talk::H2c => Conn::try_h2c(self.address).await,
            Talk::Tls(config) => Conn::tls(self.address, HOST, Arc::clone(config)).await,
        }
    }
}
