//! One check: a request or a connection, over the same protocol and TLS settings as the service's traffic.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::OnceLock;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_TYPE, HOST, TE, USER_AGENT};
use http::uri::Scheme;
use http::{HeaderMap, Uri};
use pingora::connectors::http::Connector;
use pingora::connectors::{ConnectorOptions, TransportConnector};
use pingora::http::RequestHeader;
use pingora::protocols::http::client::HttpSession;
use pingora::upstreams::peer::HttpPeer;
use pingora::{Error, ErrorType, OrErr};

use super::{Key, Target, grpc};
use crate::conf::{HttpProbe, Probe};
use crate::proxy::peer::Protocol;

/// Idle connections of checks that are kept, in all.
const POOL: usize = 16_384;
/// Longest interval over which a connection is kept for the next check.
const KEPT_FOR: Duration = Duration::from_secs(30);
/// The body of an answer is read up to here, so that the connection can be used again.
const LONGEST_BODY: usize = 64 << 10;

/// Why a check failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The connection was refused.
    Refused,
    /// There was no answer in time.
    Timeout,
    /// There is no way to the instance.
    Unreachable,
    /// TLS failed.
    Tls,
    /// The connection broke.
    Reset,
    /// The answer is not of the protocol.
    Protocol,
    /// An HTTP status that does not pass.
    Status(u16),
    /// A gRPC status other than OK.
    GrpcStatus(u16),
    /// The gRPC health service says so.
    NotServing,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused => f.write_str("connection refused"),
            Self::Timeout => f.write_str("no answer in time"),
            Self::Unreachable => f.write_str("unreachable"),
            Self::Tls => f.write_str("TLS failed"),
            Self::Reset => f.write_str("connection broke"),
            Self::Protocol => f.write_str("not an answer of the protocol"),
            Self::Status(status) => write!(f, "status {status}"),
            Self::GrpcStatus(status) => write!(f, "gRPC status {status}"),
            Self::NotServing => f.write_str("not serving"),
        }
    }
}

impl From<Box<Error>> for Reason {
    fn from(error: Box<Error>) -> Self {
        use ErrorType as E;
        match error.etype() {
            E::ConnectTimedout | E::TLSHandshakeTimedout | E::ReadTimedout | E::WriteTimedout => Self::Timeout,
            E::ConnectRefused => Self::Refused,
            E::ConnectNoRoute | E::ConnectError | E::SocketError | E::BindError => Self::Unreachable,
            E::TLSHandshakeFailure | E::InvalidCert | E::HandshakeError => Self::Tls,
            E::InvalidHTTPHeader | E::H1Error | E::H2Error | E::InvalidH2 | E::H2Downgrade => Self::Protocol,
            _ => Self::Reset,
        }
    }
}

/// Makes checks.
pub struct Prober {
    /// What the ticks of checks are counted from.
    pub(super) began: tokio::time::Instant,
    /// Made when it is first needed: it reads the system's authorities.
    connector: OnceLock<Connector>,
    /// Makes connections on which identities are found out.
    transport: OnceLock<TransportConnector>,
}

impl Default for Prober {
    fn default() -> Self {
        Self { began: tokio::time::Instant::now(), connector: OnceLock::new(), transport: OnceLock::new() }
    }
}

/// An answer as far as checks read it.
struct Answer {
    status: u16,
    headers: HeaderMap,
    body: BytesMut,
    trailers: Option<HeaderMap>,
}

/// How an instance is connected to for its checks: like its traffic, on connections of their own.
pub(super) fn peer(key: &Key, template: &HttpPeer) -> HttpPeer {
    let mut peer = template.clone();
    peer.options.custom_l4 = None;
    let interval = key.check.interval.duration();
    peer.options.idle_timeout = Some(interval * 2);
    let mut hasher = std::hash::DefaultHasher::new();
    (peer.group_key, key).hash(&mut hasher);
    peer.group_key = hasher.finish();
    peer
}

impl Prober {
    /// Makes one check.
    ///
    /// # Errors
    /// Why it failed.
    pub(super) async fn probe(&self, target: &Target) -> Result<(), Reason> {
        let key = &target.key;
        let check = async {
            match &key.check.probe {
                Probe::Tcp(_) => tcp(key).await,
                Probe::Http(http) => self.http(target, http).await,
                Probe::Grpc(grpc) => self.grpc(target, &grpc.service).await,
            }
        };
        tokio::time::timeout(key.check.timeout.duration(), check).await.unwrap_or(Err(Reason::Timeout))
    }

    async fn http(&self, target: &Target, http: &HttpProbe) -> Result<(), Reason> {
        let head = head(&target.key, "GET", &http.path, http.host.as_deref())?;
        let answer = self.ask(target, &head, None, LONGEST_BODY).await?;
        if http.status.contains(&answer.status) { Ok(()) } else { Err(Reason::Status(answer.status)) }
    }

    async fn grpc(&self, target: &Target, service: &str) -> Result<(), Reason> {
        let mut head = head(&target.key, "POST", grpc::CHECK, None)?;
        head.insert_header(CONTENT_TYPE, "application/grpc")?;
        head.insert_header(TE, "trailers")?;
        let answer = self.ask(target, &head, Some(grpc::request(service)), grpc::LONGEST).await?;
        if answer.status != 200 {
            return Err(Reason::Status(answer.status));
        }
        // Without a message the status is in the head.
        let trailers = answer.trailers.iter().chain([&answer.headers]).find_map(|fields| fields.get("grpc-status"));
        match trailers.and_then(|status| status.to_str().ok()?.parse().ok()) {
            Some(0) => {}
            Some(status) => return Err(Reason::GrpcStatus(status)),
            None => return Err(Reason::Protocol),
        }
        match grpc::is_serving(&answer.body) {
            Some(true) => Ok(()),
            Some(false) => Err(Reason::NotServing),
            None => Err(Reason::Protocol),
        }
    }

    /// Sends a request. On a connection that was kept it is sent once more if that fails: the other side may have
    /// closed it just then, which says nothing of its health.
    async fn ask(
        &self,
        target: &Target,
        head: &RequestHeader,
        body: Option<Bytes>,
        longest: usize,
    ) -> Result<Answer, Reason> {
        let (key, peer) = (&target.key, &target.peer);
        let connector = self.connector.get_or_init(|| Connector::new(Some(ConnectorOptions::new(POOL))));
        loop {
            let (mut session, reused) = connector.get_http_session(peer).await?;
            if let Some(identity) = &target.identity {
                let transport = self.transport.get_or_init(|| TransportConnector::new(None));
                identity.confirm(session.digest(), transport, peer).await?;
            }
            match exchange(&mut session, head, body.clone(), longest).await {
                Ok((answer, whole)) => {
                    if whole && key.check.interval.duration() <= KEPT_FOR {
                        connector.release_http_session(session, peer, peer.options.idle_timeout).await;
                    } else {
                        session.shutdown().await;
                    }
                    return Ok(answer);
                }
                Err(_) if reused => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

async fn tcp(key: &Key) -> Result<(), Reason> {
    match tokio::net::TcpStream::connect(key.address).await {
        Ok(stream) => {
            // Closed at once, without a farewell and what it leaves behind, as HAProxy does.
            let _ = stream.set_zero_linger();
            Ok(())
        }
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => Err(Reason::Refused),
        Err(_) => Err(Reason::Unreachable),
    }
}

fn head(key: &Key, method: &str, path: &str, host: Option<&str>) -> Result<RequestHeader, Reason> {
    let sni = key.tls.as_ref().and_then(|tls| tls.asked_name()).filter(|sni| !sni.is_empty());
    let address = key.address.to_string();
    let host = host.or(sni).unwrap_or(&address);
    let mut head = RequestHeader::build(method, path.as_bytes(), Some(4))?;
    head.insert_header(USER_AGENT, concat!("serin-health-check/", env!("CARGO_PKG_VERSION")))?;
    if key.protocol == Protocol::Http1 {
        head.insert_header(HOST, host)?;
    } else {
        let scheme = if key.tls.is_some() { Scheme::HTTPS } else { Scheme::HTTP };
        let uri = Uri::builder().scheme(scheme).authority(host).path_and_query(path).build();
        head.set_uri(uri.or_err(ErrorType::InternalError, "a path and a host make a URI")?);
        head.set_version(http::Version::HTTP_2);
    }
    Ok(head)
}

/// One request and its answer; the flag is whether all of the answer was read.
async fn exchange(
    session: &mut HttpSession,
    head: &RequestHeader,
    body: Option<Bytes>,
    longest: usize,
) -> pingora::Result<(Answer, bool)> {
    session.write_request_header(Box::new(head.clone())).await?;
    match body {
        Some(body) => session.write_request_body(body, true).await?,
        None => session.finish_request_body().await?,
    }
    loop {
        session.read_response_header().await?;
        // HTTP/2 reads the last one at once.
        let informational = session.response_header().is_some_and(|head| head.status.is_informational());
        if !(informational && session.as_http1().is_some()) {
            break;
        }
    }
    let (mut read, mut whole) = (BytesMut::new(), false);
    while read.len() <= longest {
        match session.read_response_body().await? {
            Some(piece) => read.extend_from_slice(&piece),
            None => {
                whole = true;
                break;
            }
        }
    }
    let trailers = match session {
        HttpSession::H2(h2) if whole => h2.read_trailers().await?,
        _ => None,
    };
    let Some(head) = session.response_header() else {
        return Error::e_explain(ErrorType::InvalidHTTPHeader, "no response head");
    };
    let answer = Answer { status: head.status.as_u16(), headers: head.headers.clone(), body: read, trailers };
    Ok((answer, whole))
}
