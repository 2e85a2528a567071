//! One client connection. While it is idle it costs a stream and a small task: what pingora needs for a request is
//! made when the first byte of one arrives, and freed when it is done. (pingora's own loop keeps the request's future
//! alive while it waits, three times the memory.)

mod frames;
mod head;
mod http2;
mod inbound;
pub mod limits;
mod pace;
pub mod permits;
mod refusal;

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
use pingora::protocols::{ALPN, Stream};
use pingora::proxy::HttpProxy;
use pingora::server::ShutdownWatch;
use tokio::runtime::Handle;
use tokio::time::{Instant, Sleep};

use self::http2::Http2;
use self::inbound::Inbound;
use self::limits::{Limit, Limits, Refusals};
use self::permits::{Permit, Permits};
use crate::drain::Drain;
use crate::overload::Overload;
use crate::pool::keeper::Dialer;
use crate::proxy::Edge;
use crate::upkeep::Upkeep;

/// What the preface of HTTP/2 begins with (RFC 9113 section 3.4). No method does.
const H2_START: &[u8; 3] = b"PRI";

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
}

/// Where connections come in.
struct Door {
    address: SocketAddr,
    /// Whether HTTP/2 in clear text is spoken.
    h2c: bool,
    limits: Arc<Limits>,
    /// Counts the connections of this listener alone, if it has a limit of its own.
    permits: Option<Arc<Permits>>,
    http2: Arc<Http2>,
}

/// What the first bytes of a request say.
enum Begins {
    Http1,
    Http2,
    /// They did not all come in time.
    Late,
    /// The client is gone, was silent for too long, or the gateway stops.
    Not,
}

impl Connections {
    /// No listeners yet. `permits` count the connections of all of them.
    #[must_use]
    pub fn new(
        proxy: HttpProxy<Edge>,
        overload: Arc<Overload>,
        upkeep: Arc<Upkeep>,
        connector: Arc<TransportConnector>,
        permits: Arc<Permits>,
        refusals: Arc<Refusals>,
        drain: Arc<Drain>,
    ) -> Self {
        Self { proxy: Arc::new(proxy), overload, upkeep, connector, doors: Vec::new(), permits, refusals, drain }
    }

    /// Adds a listener. `permits` count its connections alone.
    pub fn add(&mut self, address: SocketAddr, h2c: bool, limits: &Arc<Limits>, permits: Option<Permits>) {
        let http2 = Arc::new(Http2::new(Arc::clone(&self.proxy), limits));
        let (limits, permits) = (Arc::clone(limits), permits.map(Arc::new));
        self.doors.push(Arc::new(Door { address, h2c, limits, permits, http2 }));
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

    async fn serve(self: Arc<Self>, mut inbound: Box<Inbound>, door: Arc<Door>, shutdown: ShutdownWatch) {
        let _open = self.drain.connection();
        let (proxy, limits) = (&self.proxy, &door.limits);
        if matches!(inbound.stream().selected_alpn_proto(), Some(ALPN::H2)) {
            return door.http2.serve(inbound, limits, &shutdown).await;
        }
        let tls = inbound.stream().get_ssl_digest().is_some();
        let mut settings: Option<HttpPersistentSettings> = None;
        let mut h2c = door.h2c && !tls;
        let mut watch = Watch::new(limits.idle, self.drain.closing_idle());
        loop {
            // A TLS stream cannot be looked into; pingora waits for its requests itself.
            if !tls {
                match begin(inbound.stream(), h2c, limits.head_timeout, &mut watch).await {
                    Begins::Http1 => {}
                    Begins::Http2 => return door.http2.serve(inbound, limits, &shutdown).await,
                    Begins::Late => return inbound.too_late().await,
                    Begins::Not => return,
                }
            }
            h2c = false;
            inbound.expect_head();
            let mut session = ServerSession::new_http1(inbound);
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
            if *shutdown.borrow() {
                session.set_keepalive(None);
            }
            let Some(reused) = proxy.process_new_http(session, &shutdown).await else { return };
            let (stream, kept) = reused.consume();
            let Some(same) = Inbound::again(stream) else { return };
            (inbound, settings) = (same, kept);
        }
    }
}

#[async_trait]
impl ServerApp for Connections {
    async fn process_new(self: &Arc<Self>, stream: Stream, shutdown: &ShutdownWatch) -> Option<Stream> {
        self.upkeep.keeper.dial_with(|| Dialer { runtime: Handle::current(), connector: Arc::clone(&self.connector) });
        self.overload.probe();
        if self.overload.refuses_connections() {
            return None;
        }
        let digest = stream.get_socket_digest();
        let digest = digest.as_deref();
        let door = Arc::clone(self.door(digest.and_then(|digest| digest.local_addr()?.as_inet()))?);
        let permits = match self.enter(&door, digest.and_then(|digest| digest.peer_addr()?.as_inet())) {
            Ok(permits) => permits,
            Err(limit) => {
                self.refusals.count(limit);
                return None;
            }
        };
        let inbound = Inbound::new(stream, Arc::clone(&door.limits), Arc::clone(&self.refusals), permits);
        let (this, shutdown) = (Arc::clone(self), shutdown.clone());
        // A task of its own: the one that pingora spawned is as large as a TLS handshake, for as long as it lives.
        tokio::spawn(this.serve(inbound, door, shutdown));
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

/// Waits for the first byte of a request, and then not for long for as many as tell HTTP/2 from HTTP/1.
async fn begin(stream: &mut Stream, h2c: bool, head_timeout: Duration, watch: &mut Watch) -> Begins {
    let mut first = [0; H2_START.len()];
    watch.idle_since = Instant::now();
    let peeked = tokio::select! {
        biased;
        peeked = stream.try_peek(&mut first[..1]) => peeked,
        () = watch => return Begins::Not,
    };
    if peeked.is_err() {
        return Begins::Not;
    }
    if !h2c || first[0] != H2_START[0] {
        return Begins::Http1;
    }
    match tokio::time::timeout(head_timeout, stream.try_peek(&mut first)).await {
        Err(_) => Begins::Late,
        Ok(Err(_)) => Begins::Not,
        Ok(Ok(true)) if first == *H2_START => Begins::Http2,
        Ok(_) => Begins::Http1,
    }
}

/// Is ready when the connection was idle for too long, or when a draining gateway closes those that are idle. One timer serves all requests of a
/// connection: it is not set anew for each, but asked when it goes off how long the connection was idle.
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
