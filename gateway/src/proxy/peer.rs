//! How an instance is connected to. A template is made with the snapshot and cloned per attempt.

use std::hash::{Hash, Hasher};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use pingora::protocols::ALPN;
use pingora::upstreams::peer::HttpPeer;
use pingora::utils::tls::CertKey;

use super::ctx::Upstream;
use crate::control::generation::Timeouts;

/// Streams of one HTTP/2 connection to an upstream.
const H2_STREAMS: usize = 100;
/// Memory bounds of HTTP/2 towards upstreams; pingora's 8 MiB per stream would let one slow client pin that much.
const H2_STREAM_WINDOW: u32 = 1 << 20;
const H2_CONNECTION_WINDOW: u32 = 8 << 20;

/// The protocol spoken to the instances of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2 over TLS.
    H2,
    /// HTTP/2 in clear text, with prior knowledge.
    H2c,
}

/// TLS towards the instances of a service.
#[derive(Clone)]
pub struct UpstreamTls {
    /// Name that is asked for and verified.
    pub sni: String,
    /// Authorities that are trusted, instead of the system's.
    pub ca: Option<Arc<pingora::protocols::tls::CaType>>,
    /// Whether the certificate is verified.
    pub verify: bool,
    /// Whether it has to bear that name. If not, it has an id, which the pool sees to.
    pub by_name: bool,
    /// Certificate to show to upstreams that ask for one.
    pub client: Option<Arc<CertKey>>,
}

/// The template of an instance's peer.
#[must_use]
pub fn template(address: SocketAddr, protocol: Protocol, tls: Option<&UpstreamTls>) -> HttpPeer {
    let sni = tls.map_or(String::new(), |tls| tls.sni.clone());
    let mut peer = HttpPeer::new(address, tls.is_some(), sni);
    let options = &mut peer.options;
    options.alpn = match protocol {
        Protocol::Http1 => ALPN::H1,
        Protocol::H2 | Protocol::H2c => ALPN::H2,
    };
    options.max_h2_streams = H2_STREAMS;
    options.h2_stream_window_size = Some(H2_STREAM_WINDOW);
    options.h2_connection_window_size = Some(H2_CONNECTION_WINDOW);
    if let Some(tls) = tls {
        options.verify_cert = tls.verify;
        options.verify_hostname = tls.verify && tls.by_name;
        options.ca = tls.ca.clone();
        peer.client_cert_key = tls.client.clone();
    }
    peer.group_key = group(protocol, tls);
    peer
}

/// Connections are shared only between peers of one TLS policy: pingora's own key leaves out protocol and authorities.
fn group(protocol: Protocol, tls: Option<&UpstreamTls>) -> u64 {
    let mut hasher = std::hash::DefaultHasher::new();
    protocol.hash(&mut hasher);
    if let Some(ca) = tls.and_then(|tls| tls.ca.as_ref()) {
        Arc::as_ptr(ca).cast::<u8>().hash(&mut hasher);
    }
    hasher.finish()
}

/// The peer of one attempt, its connection to be kept under `key`. pingora has one read timeout per attempt, for the head
/// and for gaps in the body; so it is the first-byte timeout, and the idle timeout for streams, bounded by what is left
/// of the request's time.
#[must_use]
pub fn connect_to(
    template: &HttpPeer,
    key: u64,
    timeouts: Timeouts,
    left: Option<Duration>,
    upstream: &Upstream,
) -> Box<HttpPeer> {
    let mut peer = Box::new(template.clone());
    peer.group_key = key;
    let options = &mut peer.options;
    options.total_connection_timeout = Some(bounded(timeouts.connect, left));
    options.read_timeout = Some(bounded(patience(timeouts, upstream), left));
    options.write_timeout = Some(timeouts.idle);
    if upstream.upgrade {
        options.alpn = ALPN::H1;
    }
    peer
}

/// How long the head of a response may take.
#[must_use]
pub fn patience(timeouts: Timeouts, upstream: &Upstream) -> Duration {
    if upstream.stream { timeouts.idle } else { timeouts.first_byte }
}

/// A timeout within what is left of the request's time; never none at all, which would be unlimited.
#[must_use]
pub fn bounded(timeout: Duration, left: Option<Duration>) -> Duration {
    left.map_or(timeout, |left| timeout.min(left.max(Duration::from_millis(1))))
}
