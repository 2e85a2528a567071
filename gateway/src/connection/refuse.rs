//! What becomes of a refused head: it is answered, counted and logged, and its connection closed.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use http::{HeaderName, StatusCode};
use memchr::memchr;
use pingora::protocols::GetSocketDigest;
use pingora::protocols::http::date::get_cached_date;
use serin_core::strict::Refusal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::inbound::Inbound;
use crate::control::generation::Generation;
use crate::identity::RequestId;
use crate::proxy::reply::Reply;
use crate::telemetry::Finished;
use crate::telemetry::access_log::AccessLog;
use crate::telemetry::metrics::Metrics;

/// How long a client that is still sending may take to read its answer: closing at once would reset the connection, and
/// with it what was not read (RFC 9112 section 9.6).
const LINGER: Duration = Duration::from_millis(500);
/// Longest part of a refused request line that is logged.
const LOGGED: usize = 1 << 10;

/// Answers refused heads and tells of them.
pub struct Refuser {
    /// Metrics.
    pub metrics: Arc<Metrics>,
    /// The access log, if there is one.
    pub access_log: Option<Arc<AccessLog>>,
    /// The generation in force.
    pub live: Arc<ArcSwap<Generation>>,
    /// The header that tells a client the identity of its request.
    pub request_id: Option<HeaderName>,
}

impl Refuser {
    /// Answers what was read of a head, and closes the connection.
    pub(super) async fn answer(&self, mut stream: Box<Inbound>, refusal: Refusal, head: &[u8]) {
        let began = Instant::now();
        let id = RequestId::random(rand::random());
        let reply = Reply::refusal(refusal).with_request_id(self.request_id.as_ref(), &id);
        let answer = bytes(&reply, head.starts_with(b"HEAD "));
        let peer =
            stream.get_socket_digest().and_then(|digest| digest.peer_addr()?.as_inet().map(std::net::SocketAddr::ip));
        // A client that does not take its answer has none, and goes the same way.
        let _ = tokio::time::timeout(LINGER, say(&mut stream, &answer)).await;
        self.tell(refusal, head, &id, peer.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)), began.elapsed());
        let _ = tokio::time::timeout(LINGER, drain(&mut stream)).await;
    }

    fn tell(&self, refusal: Refusal, head: &[u8], id: &RequestId, peer: IpAddr, duration: Duration) {
        let status = refusal.status().as_u16();
        self.metrics.count_refusal(refusal);
        self.metrics.count_unrouted(status);
        if self.access_log.is_none() && self.metrics.tail.is_idle() {
            return;
        }
        let generation = self.live.load();
        let (method, target) = request_line(head);
        let finished = Finished {
            method: &method,
            host: "",
            path: &target,
            status,
            route: None,
            service: None,
            subset: None,
            why: None,
            bucket: None,
            tag: None,
            instance: None,
            fallback: None,
            duration,
            decision: Duration::ZERO,
            request_id: id.as_str(),
            client_ip: peer.to_canonical(),
            bytes_in: 0,
            bytes_out: 0,
            attempts: 0,
            error: Some(refusal.as_str()),
            limit: None,
            revision: (generation.routing_revision, generation.traffic_revision),
            trace_id: None,
        };
        if let Some(log) = &self.access_log {
            log.write(&finished);
        }
        if !self.metrics.tail.is_idle() {
            self.metrics.tail.tell(&finished, None);
        }
    }
}

/// Method and target of what may be no request line, for the log.
fn request_line(head: &[u8]) -> (String, String) {
    let line = &head[..memchr(b'\n', head).unwrap_or(head.len()).min(LOGGED)];
    let mut words = line.trim_ascii().splitn(2, |&byte| byte == b' ');
    let method = String::from_utf8_lossy(words.next().unwrap_or_default()).into_owned();
    let rest = words.next().unwrap_or_default();
    let target = rest.rsplitn(2, |&byte| byte == b' ').last().unwrap_or_default();
    // The log has no queries, which may hold secrets.
    let path = target.split(|&byte| byte == b'?').next().unwrap_or_default();
    (method, String::from_utf8_lossy(path).into_owned())
}

/// The bytes of an answer.
fn bytes(reply: &Reply, head_only: bool) -> Vec<u8> {
    let reason = reply.status.canonical_reason().unwrap_or_default();
    let mut bytes = format!("HTTP/1.1 {} {reason}\r\ndate: ", reply.status.as_u16()).into_bytes();
    bytes.extend_from_slice(get_cached_date().as_bytes());
    let body = if head_only { &b""[..] } else { &reply.body };
    bytes.extend_from_slice(format!("\r\ncontent-length: {}\r\ncontent-type: ", reply.body.len()).as_bytes());
    bytes.extend_from_slice(reply.content_type.as_bytes());
    for (name, value) in &reply.headers {
        bytes.extend_from_slice(format!("\r\n{name}: ").as_bytes());
        bytes.extend_from_slice(value.as_bytes());
    }
    let upgrade = if reply.status == StatusCode::UPGRADE_REQUIRED { "upgrade, close" } else { "close" };
    bytes.extend_from_slice(format!("\r\nconnection: {upgrade}\r\n\r\n").as_bytes());
    bytes.extend_from_slice(body);
    bytes
}

async fn say(stream: &mut Inbound, answer: &[u8]) -> std::io::Result<()> {
    stream.write_all(answer).await?;
    AsyncWriteExt::shutdown(stream).await
}

/// Takes in what the client still sends.
async fn drain(stream: &mut Inbound) {
    let mut scratch = [0; 1 << 10];
    while matches!(stream.read(&mut scratch).await, Ok(read) if read > 0) {}
}
