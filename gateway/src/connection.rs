//! One client connection. While it is idle it costs a stream and a small task: what pingora needs for a request is
//! made when a sound head of one is there, and freed when it is done. (pingora's own loop keeps the request's future
//! alive while it waits, three times the memory.)

mod client;
mod forward;
mod frames;
mod head;
mod http2;
mod inbound;
pub mod limits;
mod pace;
pub mod permits;
mod proxied;
mod refuse;

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use pingora::apps::{HttpPersistentSettings, HttpServerApp, ServerApp};
use pingora::connectors::TransportConnector;
use pingora::protocols::http::ServerSession;
use pingora::protocols::{ALPN, Ssl, Stream};
use pingora::proxy::HttpProxy;
use pingora::server::ShutdownWatch;
use serin_core::strict::{self, OddNames, Policy};
use tokio::io::AsyncReadExt;
use tokio::runtime::Handle;
use tokio::time::{Instant, Sleep};

pub use self::client::{BadBody, Client, PLACEHOLDER};
use self::head::{Opening, Place};
use self::http2::Http2;
use self::inbound::Inbound;
use self::limits::{Limit, Limits, Refusals};
use self::permits::{Permit, Permits};
pub use self::proxied::Proxied;
pub use self::refuse::Refuser;
use crate::drain::Drain;
use crate::overload::Overload;
use crate::pool::keeper::Dialer;
use crate::proxy::Edge;
use crate::upkeep::Upkeep;

/// Serves client connections.
pub struct Connections {
    /// Serves requests.
    proxy: Arc<HttpProxy<Edge>>,
    /// Says when there are too few descriptors left for one more connection.
    overload: Arc<Overload>,
    /// Makes connections to upstreams in advance, on the runtime of these connections.
    upkeep: Arc<Upkeep>,
    /// What it makes them with.
    connector: Arc<TransportConnector>,
    doors: Vec<Arc<Door>>,
    /// Counts the connections of all listeners.
    permits: Arc<Permits>,
    refusals: Arc<Refusals>,
    /// Which steps of a drain were taken.
    drain: Arc<Drain>,
    /// Answers heads that are refused.
    refuser: Refuser,
    /// What becomes of odd field names.
    odd_names: OddNames,
    /// Where the PROXY protocol is spoken.
    proxied: Arc<Proxied>,
}

/// Where connections come in.
struct Door {
    address: SocketAddr,
    /// Whether HTTP/2 in clear text is spoken.
    h2c: bool,
    limits: Arc<Limits>,
    /// How heads are read.
    policy: Policy,
    /// Counts the connections of this listener alone, if it has a limit of its own.
    permits: Option<Arc<Permits>>,
    http2: Arc<Http2>,
}

impl Connections {
    /// No listeners yet.
    #[must_use]
    pub fn new(proxy: HttpProxy<Edge>, parts: Parts) -> Self {
        let Parts { overload, upkeep, connector, permits, refusals, refuser, odd_names, proxied, drain } = parts;
        let (proxy, doors) = (Arc::new(proxy), Vec::new());
        Self { proxy, overload, upkeep, connector, doors, permits, refusals, refuser, odd_names, proxied, drain }
    }

    /// Adds a listener. `permits` count its connections alone.
    pub fn add(&mut self, address: SocketAddr, h2c: bool, limits: &Arc<Limits>, permits: Option<Permits>) {
        let http2 = Arc::new(Http2::new(Arc::clone(&self.proxy), limits));
        let policy = Policy {
            limits: strict::Limits {
                target: limits.target_bytes,
                head: limits.header_bytes,
                fields: limits.header_count,
            },
            odd_names: self.odd_names,
        };
        let (limits, permits) = (Arc::clone(limits), permits.map(Arc::new));
        self.doors.push(Arc::new(Door { address, h2c, limits, policy, permits, http2 }));
    }

    /// The listener that a connection came in at. One that listens on any free port is not known by its address.
    fn door(&self, local: Option<&SocketAddr>) -> Option<&Arc<Door>> {
        let here = |door: &&Arc<Door>| local.is_some_and(|local| is_at(&door.address, local));
        self.doors.iter().find(here).or(self.doors.first())
    }

    /// Leave for one more connection.
    fn enter(&self, door: &Door, peer: Option<&SocketAddr>) -> Result<[Option<Permit>; 2], Limit> {
        let ip = peer.map(SocketAddr::ip);
        let own = door.permits.as_ref().map(|permits| permits.enter(ip)).transpose()?;
        Ok([Some(self.permits.enter(ip)?), own])
    }

    /// Lets a connection in, if there is room for it.
    async fn admit(self: Arc<Self>, stream: Stream, shutdown: ShutdownWatch) {
        let _open = self.drain.connection();
        let Some(stream) = self.proxied.unwrap(stream).await else { return };
        let digest = stream.get_socket_digest();
        let digest = digest.as_deref();
        let Some(door) = self.door(digest.and_then(|digest| digest.local_addr()?.as_inet())).map(Arc::clone) else {
            return;
        };
        match self.enter(&door, digest.and_then(|digest| digest.peer_addr()?.as_inet())) {
            Ok(permits) => {
                let inbound = Inbound::new(stream, Arc::clone(&door.limits), Arc::clone(&self.refusals), permits);
                self.serve(inbound, &door, shutdown).await;
            }
            Err(limit) => self.refusals.count(limit),
        }
    }

    async fn serve(&self, inbound: Box<Inbound>, door: &Door, shutdown: ShutdownWatch) {
        let (proxy, limits) = (&self.proxy, &door.limits);
        if matches!(inbound.selected_alpn_proto(), Some(ALPN::H2)) {
            return door.http2.serve(inbound, limits, &shutdown).await;
        }
        let secure = inbound.get_ssl_digest().is_some();
        let (policy, time) = (&door.policy, limits.head_timeout);
        let mut place = Place { h2c: door.h2c && !secure, secure, policy, time };
        let mut settings: Option<HttpPersistentSettings> = None;
        let mut watch = Watch::new(limits.idle, self.drain.closing_idle());
        let mut client = Box::new(Client::new(inbound));
        while begin(&mut client, &mut watch).await {
            let head = match head::open(&mut client, place).await {
                Opening::Http1(head) => head,
                Opening::Http2(preface) => {
                    client.stream.unread(preface);
                    return door.http2.serve(client.stream, limits, &shutdown).await;
                }
                Opening::Refused(refusal, head) => {
                    if let Some(limit) = Limit::of(refusal) {
                        self.refusals.count(limit);
                    }
                    // In a box, so that connections that nothing is wrong with have no room for it.
                    return Box::pin(self.refuser.answer(client.stream, refusal, &head)).await;
                }
                Opening::Gone => return,
            };
            place.h2c = false;
            let mut session = ServerSession::new_http1(client);
            match settings.take() {
                Some(settings) => {
                    settings.apply_to_session(&mut session);
                    // After a response, pingora would wait for the next request for ever.
                    if session.get_keepalive().is_some() {
                        session.set_keepalive(Some(limits.idle.as_secs()));
                    }
                }
                None => {
                    session.set_keepalive(Some(limits.idle.as_secs()));
                    session.set_keepalive_reuses_remaining(limits.requests.map(|most| most - 1));
                }
            }
            session.set_pipelined_prefix(head);
            if *shutdown.borrow() {
                session.set_keepalive(None);
            }
            let Some(reused) = proxy.process_new_http(session, &shutdown).await else { return };
            let (stream, kept) = reused.consume();
            let Some(same) = Client::back(stream) else { return };
            (client, settings) = (same, kept);
        }
    }
}

/// What connections need besides the proxy.
pub struct Parts {
    /// Says when there are too few descriptors left for one more connection.
    pub overload: Arc<Overload>,
    /// Makes connections to upstreams in advance.
    pub upkeep: Arc<Upkeep>,
    /// What it makes them with.
    pub connector: Arc<TransportConnector>,
    /// Counts the connections of all listeners.
    pub permits: Arc<Permits>,
    /// Counts what is refused for a limit.
    pub refusals: Arc<Refusals>,
    /// Answers heads that are refused.
    pub refuser: Refuser,
    /// What becomes of odd field names.
    pub odd_names: OddNames,
    /// Where the PROXY protocol is spoken.
    pub proxied: Arc<Proxied>,
    /// Which steps of a drain were taken.
    pub drain: Arc<Drain>,
}

#[async_trait]
impl ServerApp for Connections {
    async fn process_new(self: &Arc<Self>, stream: Stream, shutdown: &ShutdownWatch) -> Option<Stream> {
        self.upkeep.keeper.dial_with(|| Dialer { runtime: Handle::current(), connector: Arc::clone(&self.connector) });
        self.overload.probe();
        if self.overload.refuses_connections() {
            return None;
        }
        // A task of its own: the one that pingora spawned is as large as a TLS handshake, for as long as it lives.
        tokio::spawn(Arc::clone(self).admit(stream, shutdown.clone()));
        None
    }

    /// Called when the listeners are closed. What pingora does then drops the connections that wait for a request.
    async fn cleanup(&self) {
        stopping(self.drain.closing_idle()).await;
        self.proxy.http_cleanup().await;
    }
}

/// Whether an address that is listened on is the one that a connection came in at.
#[must_use]
pub fn is_at(listener: &SocketAddr, local: &SocketAddr) -> bool {
    listener.port() == local.port() && (listener.ip().is_unspecified() || listener.ip() == local.ip())
}

/// Waits for the first byte of a request; false if the client is gone, was silent for too long, or the gateway
/// closes what is idle.
async fn begin(client: &mut Client, watch: &mut Watch) -> bool {
    if !client.ahead.is_empty() {
        return true;
    }
    let mut first = [0; 1];
    watch.idle_since = Instant::now();
    let read = tokio::select! {
        biased;
        read = client.stream.read(&mut first) => read,
        () = watch => return false,
    };
    client.ahead.reserve(head::PIECE);
    client.ahead.extend_from_slice(&first);
    matches!(read, Ok(1))
}

/// Is ready when the connection was idle for too long, or when a draining gateway closes those that are idle. One timer
/// serves all requests of a connection: it is not set anew for each, but asked when it goes off how long the connection was
/// idle.
struct Watch {
    idle: Duration,
    idle_since: Instant,
    timer: Pin<Box<Sleep>>,
    stopping: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl Watch {
    fn new(idle: Duration, drained: ShutdownWatch) -> Self {
        Self {
            idle,
            idle_since: Instant::now(),
            timer: Box::pin(tokio::time::sleep(idle)),
            stopping: Box::pin(stopping(drained)),
        }
    }
}

impl Future for Watch {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        while self.timer.as_mut().poll(cx).is_ready() {
            let until = self.idle_since + self.idle;
            if until <= Instant::now() {
                return Poll::Ready(());
            }
            self.timer.as_mut().reset(until);
        }
        self.stopping.as_mut().poll(cx)
    }
}

/// Returns when the gateway takes a step towards its end.
async fn stopping(mut step: ShutdownWatch) {
    while !*step.borrow_and_update() {
        if step.changed().await.is_err() {
            return;
        }
    }
}
