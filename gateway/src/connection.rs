//! One client connection. While it is idle it costs a stream and a small task: what pingora needs for a request is
//! made when the first byte of one arrives, and freed when it is done. (pingora's own loop keeps the request's future
//! alive while it waits, three times the memory.)

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use async_trait::async_trait;
use pingora::apps::{HttpPersistentSettings, HttpServerApp, ServerApp};
use pingora::connectors::TransportConnector;
use pingora::protocols::http::ServerSession;
use pingora::protocols::{ALPN, Stream};
use pingora::proxy::HttpProxy;
use pingora::server::ShutdownWatch;
use tokio::runtime::Handle;
use tokio::time::{Instant, Sleep};

use crate::overload::Overload;
use crate::pool::keeper::Dialer;
use crate::proxy::{Edge, KEEPALIVE};
use crate::upkeep::Upkeep;

/// What the preface of HTTP/2 begins with (RFC 9113 section 3.4). No method does.
const H2_START: &[u8; 3] = b"PRI";

/// Serves client connections.
pub struct Connections {
    /// Serves requests, and whole HTTP/2 connections.
    pub proxy: Arc<HttpProxy<Edge>>,
    /// Whether any clear-text listener speaks HTTP/2.
    pub h2c: bool,
    /// Says when there are too few descriptors left for one more connection.
    pub overload: Arc<Overload>,
    /// Makes connections to upstreams in advance, on the runtime of these connections.
    pub upkeep: Arc<Upkeep>,
    /// What it makes them with.
    pub connector: Arc<TransportConnector>,
}

/// What the first bytes of a request say.
enum Begins {
    Http1,
    Http2,
    /// The client is gone, was silent for too long, or the gateway stops.
    Not,
}

#[async_trait]
impl ServerApp for Connections {
    async fn process_new(self: &Arc<Self>, stream: Stream, shutdown: &ShutdownWatch) -> Option<Stream> {
        self.upkeep.keeper.dial_with(|| Dialer { runtime: Handle::current(), connector: Arc::clone(&self.connector) });
        self.overload.probe();
        if self.overload.refuses_connections() {
            return None;
        }
        let (this, shutdown) = (Arc::clone(self), shutdown.clone());
        // A task of its own: the one that pingora spawned is as large as a TLS handshake, for as long as it lives.
        tokio::spawn(async move { this.serve(stream, shutdown).await });
        None
    }

    async fn cleanup(&self) {
        self.proxy.http_cleanup().await;
    }
}

impl Connections {
    async fn serve(self: Arc<Self>, mut stream: Stream, shutdown: ShutdownWatch) {
        let proxy = &self.proxy;
        if matches!(stream.selected_alpn_proto(), Some(ALPN::H2)) {
            ServerApp::process_new(proxy, stream, &shutdown).await;
            return;
        }
        let tls = stream.get_ssl_digest().is_some();
        let mut settings: Option<HttpPersistentSettings> = None;
        let mut h2c = self.h2c && !tls;
        let mut watch = Watch::new(shutdown.clone());
        loop {
            // A TLS stream cannot be looked into; pingora waits for its requests itself.
            if !tls {
                match begin(&mut stream, h2c, &mut watch).await {
                    Begins::Http1 => {}
                    Begins::Http2 => {
                        ServerApp::process_new(proxy, stream, &shutdown).await;
                        return;
                    }
                    Begins::Not => return,
                }
            }
            h2c = false;
            let mut session = ServerSession::new_http1(stream);
            match settings.take() {
                Some(settings) => settings.apply_to_session(&mut session),
                None => session.set_keepalive(Some(KEEPALIVE.as_secs())),
            }
            if *shutdown.borrow() {
                session.set_keepalive(None);
            }
            match proxy.process_new_http(session, &shutdown).await {
                Some(reused) => (stream, settings) = reused.consume(),
                None => return,
            }
        }
    }
}

/// Whether an address that is listened on is the one that a connection came in at.
#[must_use]
pub fn is_at(listener: &SocketAddr, local: &SocketAddr) -> bool {
    listener.port() == local.port() && (listener.ip().is_unspecified() || listener.ip() == local.ip())
}

/// Waits for the first byte of a request, or for as many as tell HTTP/2 from HTTP/1.
async fn begin(stream: &mut Stream, h2c: bool, watch: &mut Watch) -> Begins {
    let mut first = [0; H2_START.len()];
    let first = if h2c { &mut first[..] } else { &mut first[..1] };
    watch.idle_since = Instant::now();
    let peeked = tokio::select! {
        biased;
        peeked = stream.try_peek(first) => peeked,
        () = watch => return Begins::Not,
    };
    match peeked {
        Ok(true) if first == H2_START => Begins::Http2,
        Ok(_) => Begins::Http1,
        Err(_) => Begins::Not,
    }
}

/// Is ready when the connection was idle for too long, or when the gateway stops. One timer serves all requests of a
/// connection: it is not set anew for each, but asked when it goes off how long the connection was idle.
struct Watch {
    idle_since: Instant,
    timer: Pin<Box<Sleep>>,
    stopping: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl Watch {
    fn new(shutdown: ShutdownWatch) -> Self {
        Self {
            idle_since: Instant::now(),
            timer: Box::pin(tokio::time::sleep(KEEPALIVE)),
            stopping: Box::pin(stopping(shutdown)),
        }
    }
}

impl Future for Watch {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        while self.timer.as_mut().poll(cx).is_ready() {
            let until = self.idle_since + KEEPALIVE;
            if until <= Instant::now() {
                return Poll::Ready(());
            }
            self.timer.as_mut().reset(until);
        }
        self.stopping.as_mut().poll(cx)
    }
}

/// Returns when the gateway stops.
async fn stopping(mut shutdown: ShutdownWatch) {
    while !*shutdown.borrow_and_update() {
        if shutdown.changed().await.is_err() {
            return;
        }
    }
}
