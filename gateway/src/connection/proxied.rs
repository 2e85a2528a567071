//! Listeners behind a load balancer that speaks the PROXY protocol: who the client is comes before its first byte, and
//! before a TLS handshake.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use async_trait::async_trait;
use bytes::BytesMut;
use ipnet::IpNet;
use pingora::listeners::PreTlsProcess;
use pingora::protocols::l4::socket::SocketAddr as AnyAddr;
use pingora::protocols::l4::stream::Stream as L4Stream;
use pingora::protocols::{GetSocketDigest, SocketDigest, Stream, UniqueID};
use pingora::{Error, ErrorType, OrErr};
use serin_core::proxy_protocol::{self, Header, Malformed};
use tokio::io::AsyncReadExt;

use super::is_at;
use crate::conf::Bootstrap;
use crate::proxy::head::is_trusted;

/// How long a header may take.
const TIME: Duration = Duration::from_secs(10);

/// The listeners that expect the PROXY protocol, and whom it is taken from.
pub struct Proxied {
    listeners: Vec<SocketAddr>,
    trusted: Vec<IpNet>,
}

impl Proxied {
    /// As a bootstrap document says of the listeners at `addresses`. Nobody but `trusted` load balancers may connect there.
    #[must_use]
    pub fn new(bootstrap: &Bootstrap, addresses: &[SocketAddr], trusted: &[IpNet]) -> Self {
        let listeners = bootstrap.listeners.iter().zip(addresses).filter(|(listener, _)| listener.proxy_protocol);
        Self { listeners: listeners.map(|(_, &address)| address).collect(), trusted: trusted.to_vec() }
    }

    /// Whether there are such listeners.
    #[must_use]
    pub fn is_needed(&self) -> bool {
        !self.listeners.is_empty()
    }

    /// Reads the header of a clear-text connection, if its listener expects one. `None` if it has none.
    pub(super) async fn unwrap(&self, stream: Stream) -> Option<Stream> {
        if self.listeners.is_empty() || stream.get_ssl_digest().is_some() {
            return Some(stream);
        }
        let mut stream = stream.into_any().downcast::<L4Stream>().ok()?;
        Box::pin(self.process(&mut stream)).await.ok()?;
        Some(stream)
    }

    fn expects(&self, local: Option<&SocketAddr>) -> bool {
        local.is_some_and(|local| self.listeners.iter().any(|listener| is_at(listener, local)))
    }
}

#[async_trait]
impl PreTlsProcess for Proxied {
    async fn process(&self, stream: &mut L4Stream) -> pingora::Result<()> {
        let digest = stream.get_socket_digest();
        let inet = |address: Option<&AnyAddr>| address.and_then(AnyAddr::as_inet).copied();
        let (local, peer) = digest.map_or((None, None), |digest| (inet(digest.local_addr()), inet(digest.peer_addr())));
        if !self.expects(local.as_ref()) {
            return Ok(());
        }
        if !peer.is_some_and(|peer| is_trusted(peer.ip(), &self.trusted)) {
            return Error::e_explain(ErrorType::InvalidHTTPHeader, "not a trusted proxy");
        }
        let read = tokio::time::timeout(TIME, read(stream)).await;
        let header = read.or_err(ErrorType::ReadTimedout, "reading the PROXY protocol")?;
        let header = header.or_err(ErrorType::ReadError, "reading the PROXY protocol")?;
        if let Some(source) = header.source {
            let digest = SocketDigest::from_raw_fd(stream.id());
            // It is new, so nothing is in it.
            let _ = digest.peer_addr.set(Some(AnyAddr::Inet(source)));
            stream.set_socket_digest(digest);
        }
        Ok(())
    }
}

/// Reads a header, and leaves what follows it to be read.
async fn read(stream: &mut L4Stream) -> io::Result<Header> {
    let mut bytes = BytesMut::with_capacity(256);
    loop {
        if stream.read_buf(&mut bytes).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let parsed = proxy_protocol::parse(&bytes);
        if let Some(header) = parsed.map_err(|Malformed| io::Error::other(Malformed))? {
            stream.rewind(&bytes[header.length..]);
            return Ok(header);
        }
    }
}
