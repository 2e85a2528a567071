//! Speaks to a receiver of OTLP. Both protocols are one POST of protobuf; gRPC puts five bytes before it and the outcome
//! into trailers.

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use flate2::Compression as Level;
use flate2::write::GzEncoder;
use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client as HyperClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use prost::Message as _;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use super::receiver::Receiver;
use crate::conf::{Compression, OtlpProtocol};

/// Longest answer that is read.
const MAX_ANSWER: usize = 64 << 10;
/// How often an HTTP/2 connection in use is asked whether it is alive, and how long it has to say so.
const PING: Duration = Duration::from_secs(20);
const PONG: Duration = Duration::from_secs(10);
/// Length of what gRPC puts before a message.
const PREFIX: usize = 5;

static GRPC_ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
static GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
static GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

/// Why a message did not arrive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What went wrong.
    pub what: String,
    /// Whether it may arrive if it is sent again.
    pub transient: bool,
    /// When the receiver wants it again.
    pub retry_after: Option<Duration>,
}

impl Refusal {
    fn transient(what: impl Into<String>) -> Self {
        Self { what: what.into(), transient: true, retry_after: None }
    }
}

/// A client of one receiver.
pub struct Client {
    receiver: Receiver,
    connector: HttpsConnector<HttpConnector>,
    http: HyperClient<HttpsConnector<HttpConnector>, Full<Bytes>>,
}

impl Client {
    /// A client; it connects when it sends.
    ///
    /// # Errors
    /// If certificates cannot be read.
    pub fn new(receiver: Receiver) -> Result<Self, String> {
        let builder = HttpsConnectorBuilder::new().with_tls_config(tls(&receiver)?).https_or_http();
        let connector = match receiver.protocol {
            OtlpProtocol::Grpc => builder.enable_http2().build(),
            OtlpProtocol::Http => builder.enable_http1().build(),
        };
        let http = build(&receiver, connector.clone());
        Ok(Self { receiver, connector, http })
    }

    /// Sends a message. Answers how many of its items were rejected.
    ///
    /// # Errors
    /// What kept it from arriving.
    pub async fn send(&mut self, message: Bytes) -> Result<u64, Refusal> {
        let answer = tokio::time::timeout(self.receiver.timeout, self.post(message)).await;
        answer.unwrap_or_else(|_| {
            // A connection that hangs must not be used again.
            self.http = build(&self.receiver, self.connector.clone());
            Err(Refusal::transient(format!("no answer from {} in time", self.receiver.uri)))
        })
    }

    async fn post(&self, message: Bytes) -> Result<u64, Refusal> {
        let broken =
            |error: &dyn std::error::Error| Refusal::transient(format!("{}: {}", self.receiver.uri, causes(error)));
        let request = self.request(message).map_err(|what| Refusal { what, transient: false, retry_after: None })?;
        let (head, body) = self.http.request(request).await.map_err(|error| broken(&error))?.into_parts();
        let body = Limited::new(body, MAX_ANSWER).collect().await.map_err(|error| broken(&*error))?;
        let trailers = body.trailers().cloned();
        let body = body.to_bytes();
        match self.receiver.protocol {
            OtlpProtocol::Grpc => grpc_outcome(head.status, trailers.as_ref().unwrap_or(&head.headers), &body),
            OtlpProtocol::Http => http_outcome(head.status, &head.headers, &body),
        }
        .map_err(|refusal| Refusal { what: format!("{}: {}", self.receiver.uri, refusal.what), ..refusal })
    }

    fn request(&self, message: Bytes) -> Result<Request<Full<Bytes>>, String> {
        let gzip = self.receiver.compression == Compression::Gzip;
        let grpc = self.receiver.protocol == OtlpProtocol::Grpc;
        let message = if gzip { compress(&message).map_err(|error| error.to_string())? } else { message };
        let body = if grpc { framed(&message, gzip) } else { message };
        let mut request = Request::post(self.receiver.uri.clone()).body(Full::new(body)).map_err(|e| e.to_string())?;
        let headers = request.headers_mut();
        headers.clone_from(&self.receiver.headers);
        headers.insert(header::USER_AGENT, HeaderValue::from_static(concat!("serin/", env!("CARGO_PKG_VERSION"))));
        let kind = if grpc { "application/grpc" } else { "application/x-protobuf" };
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
        if grpc {
            headers.insert(header::TE, HeaderValue::from_static("trailers"));
        }
        if gzip {
            let name = if grpc { GRPC_ENCODING.clone() } else { header::CONTENT_ENCODING };
            headers.insert(name, HeaderValue::from_static("gzip"));
        }
        Ok(request)
    }
}

fn build(
    receiver: &Receiver,
    connector: HttpsConnector<HttpConnector>,
) -> HyperClient<HttpsConnector<HttpConnector>, Full<Bytes>> {
    HyperClient::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .http2_only(receiver.protocol == OtlpProtocol::Grpc)
        .http2_keep_alive_interval(PING)
        .http2_keep_alive_timeout(PONG)
        .build(connector)
}

/// TLS towards a receiver: verified by its own certificates, or else by those of the system.
fn tls(receiver: &Receiver) -> Result<rustls::ClientConfig, String> {
    let mut roots = rustls::RootCertStore::empty();
    if receiver.uri.scheme() == Some(&http::uri::Scheme::HTTPS) {
        let certificates = match &receiver.ca_file {
            Some(path) => {
                let named = |error: rustls::pki_types::pem::Error| format!("{}: {error}", path.display());
                CertificateDer::pem_file_iter(path).map_err(named)?.collect::<Result<Vec<_>, _>>().map_err(named)?
            }
            None => rustls_native_certs::load_native_certs().certs,
        };
        if roots.add_parsable_certificates(certificates).0 == 0 {
            return Err(format!("{}: there is no certificate to verify it by", receiver.uri));
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    Ok(builder.map_err(|error| error.to_string())?.with_root_certificates(roots).with_no_client_auth())
}

fn compress(message: &[u8]) -> std::io::Result<Bytes> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(message.len() / 4), Level::fast());
    encoder.write_all(message)?;
    encoder.finish().map(Bytes::from)
}

fn framed(message: &[u8], compressed: bool) -> Bytes {
    let mut framed = BytesMut::with_capacity(message.len() + PREFIX);
    framed.put_u8(u8::from(compressed));
    framed.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    framed.put_slice(message);
    framed.freeze()
}

/// What a gRPC receiver says (<https://opentelemetry.io/docs/specs/otlp/#failures>).
fn grpc_outcome(status: StatusCode, outcome: &HeaderMap, body: &[u8]) -> Result<u64, Refusal> {
    /// CANCELLED, DEADLINE_EXCEEDED, ABORTED, OUT_OF_RANGE, UNAVAILABLE, DATA_LOSS.
    const TRANSIENT: [u8; 6] = [1, 4, 10, 11, 14, 15];
    let code = outcome.get(&GRPC_STATUS).and_then(|code| code.to_str().ok()).and_then(|code| code.parse::<u8>().ok());
    match code {
        Some(0) => Ok(rejected(body.get(PREFIX..).unwrap_or_default())),
        Some(code) => {
            let message = outcome.get(&GRPC_MESSAGE).map_or_else(String::new, shown);
            let what = format!("grpc-status {code} {message}");
            Err(Refusal { what: what.trim_end().to_owned(), transient: TRANSIENT.contains(&code), retry_after: None })
        }
        None => Err(Refusal { what: format!("status {status} and no grpc-status"), ..by_status(status) }),
    }
}

fn http_outcome(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Result<u64, Refusal> {
    if status.is_success() {
        return Ok(rejected(body));
    }
    let after = headers.get(header::RETRY_AFTER).and_then(|after| after.to_str().ok()?.parse().ok());
    Err(Refusal { retry_after: after.map(Duration::from_secs), ..by_status(status) })
}

fn by_status(status: StatusCode) -> Refusal {
    let transient = matches!(status.as_u16(), 429 | 502..=504);
    Refusal { what: format!("status {status}"), transient, retry_after: None }
}

/// How many items an answer says were rejected. Those of all signals are alike.
fn rejected(answer: &[u8]) -> u64 {
    let partial = ExportTraceServiceResponse::decode(answer).ok().and_then(|answer| answer.partial_success);
    partial.map_or(0, |partial| u64::try_from(partial.rejected_spans).unwrap_or(0))
}

fn shown(value: &HeaderValue) -> String {
    String::from_utf8_lossy(value.as_bytes()).chars().filter(|c| !c.is_control()).take(200).collect()
}

/// An error with what caused it: hyper's own say little.
fn causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests {
    use opentelemetry_proto::tonic::collector::trace::v1::ExportTracePartialSuccess;

    use super::*;

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        lines.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn what_is_worth_another_attempt() {
        let grpc = |lines: &[_]| grpc_outcome(StatusCode::OK, &headers(lines), b"");
        assert_eq!(grpc(&[("grpc-status", "0")]), Ok(0));
        for (code, transient) in [("14", true), ("4", true), ("8", false), ("3", false), ("16", false)] {
            let refusal = grpc_outcome(StatusCode::OK, &headers(&[("grpc-status", code)]), b"").unwrap_err();
            assert_eq!(refusal.transient, transient, "{code}");
        }
        let proxy = grpc_outcome(StatusCode::BAD_GATEWAY, &HeaderMap::new(), b"<html>").unwrap_err();
        assert!(proxy.transient && proxy.what.contains("502"), "{proxy:?}");
        for (status, transient) in [(400, false), (401, false), (429, true), (500, false), (503, true)] {
            let status = StatusCode::from_u16(status).unwrap();
            assert_eq!(http_outcome(status, &HeaderMap::new(), b"").unwrap_err().transient, transient, "{status}");
        }
        let later = http_outcome(StatusCode::SERVICE_UNAVAILABLE, &headers(&[("retry-after", "3")]), b"");
        assert_eq!(later.unwrap_err().retry_after, Some(Duration::from_secs(3)));
    }

    #[test]
    fn what_was_rejected_is_counted() {
        let partial = ExportTracePartialSuccess { rejected_spans: 7, error_message: "no".to_owned() };
        let answer = ExportTraceServiceResponse { partial_success: Some(partial) }.encode_to_vec();
        assert_eq!(http_outcome(StatusCode::OK, &HeaderMap::new(), &answer), Ok(7));
        assert_eq!(grpc_outcome(StatusCode::OK, &headers(&[("grpc-status", "0")]), &framed(&answer, false)), Ok(7));
        assert_eq!(http_outcome(StatusCode::OK, &HeaderMap::new(), b"\xff"), Ok(0), "it is taken all the same");
    }
}
