//! Answers that the gateway gives itself. The connection stays open, unless there is a large body that would have to be
//! read first; gRPC clients get a gRPC status.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode};
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::protocols::http::ServerSession;
use pingora::proxy::Session;
use pingora::{ErrorType, OrErr, Result};
use serin_core::strict::Refusal;

use crate::identity::RequestId;
use crate::text::header_value;

/// Largest body, in bytes, that is read and thrown away so that the connection stays open.
const DRAINED: u64 = 64 << 10;
/// How long that may take.
const DRAIN_TIME: Duration = Duration::from_secs(5);

/// What a client is told that asks for a method that nobody may use. Others may do as well, as the upstream has it.
const ALLOWED: HeaderValue = HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS");

/// An answer of the gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Status.
    pub status: StatusCode,
    /// Header fields, besides length and type of the body.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Type of the body.
    pub content_type: HeaderValue,
    /// Body.
    pub body: Bytes,
}

impl Reply {
    /// An error as a problem document (RFC 9457). `detail` says to the client what was wrong, and nothing of the inside.
    #[must_use]
    pub fn problem(status: StatusCode, detail: &str) -> Self {
        let title = status.canonical_reason().unwrap_or("Error");
        let body = serde_json::json!({
            "type": "about:blank",
            "title": title,
            "status": status.as_u16(),
            "detail": detail,
        });
        Self {
            status,
            headers: Vec::new(),
            content_type: HeaderValue::from_static("application/problem+json"),
            body: Bytes::from(format!("{body}\n")),
        }
    }

    /// The answer to a request that is refused for its head.
    #[must_use]
    pub fn refusal(refusal: Refusal) -> Self {
        let mut reply = Self::problem(refusal.status(), &refusal.to_string());
        match refusal {
            Refusal::Method => reply.headers.push((http::header::ALLOW, ALLOWED)),
            Refusal::WebSocketVersion => {
                reply.headers.push((http::header::UPGRADE, HeaderValue::from_static("websocket")));
                reply.headers.push((http::header::SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13")));
            }
            _ => {}
        }
        reply
    }

    /// Says when it may be worth to ask again (RFC 9110 section 10.2.3), in whole seconds and at least one.
    #[must_use]
    pub fn with_retry_after(mut self, after: Option<Duration>) -> Self {
        if let Some(after) = after {
            let seconds = after.as_millis().div_ceil(1_000).max(1);
            let seconds = HeaderValue::from(u64::try_from(seconds).unwrap_or(u64::MAX));
            self.headers.push((http::header::RETRY_AFTER, seconds));
        }
        self
    }

    /// Says which request it answers, where a header is for that.
    #[must_use]
    pub fn with_request_id(mut self, header: Option<&HeaderName>, id: &RequestId) -> Self {
        // An identity is visible ASCII.
        if let Some((name, id)) = header.zip(header_value(id.as_str().as_bytes()).ok()) {
            self.headers.push((name.clone(), id));
        }
        self
    }

    /// Sends the client elsewhere. A location that is no header value is answered as an error of the gateway.
    #[must_use]
    pub fn redirect(status: StatusCode, location: &str) -> Self {
        match HeaderValue::from_str(location) {
            Ok(location) => Self {
                status,
                headers: vec![(http::header::LOCATION, location)],
                content_type: HeaderValue::from_static("text/plain"),
                body: Bytes::new(),
            },
            Err(_) => Self::problem(StatusCode::INTERNAL_SERVER_ERROR, "The redirect has no valid target."),
        }
    }

    /// Sends the answer.
    ///
    /// # Errors
    /// If the client is gone.
    pub async fn send(self, session: &mut Session) -> Result<()> {
        if is_small(session.req_header()) {
            let downstream = session.as_downstream_mut();
            downstream.set_close_on_response_before_downstream_finish(false);
            downstream.set_total_drain_timeout(Some(DRAIN_TIME));
        }
        if is_grpc(session) {
            return self.send_grpc(session).await;
        }
        let no_body = session.req_header().method == http::Method::HEAD || self.body.is_empty();
        let mut head = ResponseHeader::build(self.status, Some(self.headers.len() + 2))?;
        if !self.body.is_empty() {
            head.insert_header(http::header::CONTENT_TYPE, self.content_type)?;
        }
        head.set_content_length(self.body.len())?;
        for (name, value) in self.headers {
            head.append_header(name, value)?;
        }
        if no_body {
            return send_head_only(session, head).await;
        }
        session.write_response_header(Box::new(head), false).await?;
        session.write_response_body(Some(self.body), true).await
    }

    /// The trailers-only form of gRPC over HTTP/2: HTTP status 200 and the gRPC status in the head.
    async fn send_grpc(self, session: &mut Session) -> Result<()> {
        let mut head = ResponseHeader::build(StatusCode::OK, Some(3))?;
        head.insert_header(http::header::CONTENT_TYPE, "application/grpc")?;
        head.insert_header("grpc-status", grpc_status(self.status))?;
        let message = self.status.canonical_reason().unwrap_or("error");
        head.insert_header(
            "grpc-message",
            HeaderValue::from_str(message).or_err(ErrorType::InternalError, "a status reason is ASCII")?,
        )?;
        for (name, value) in self.headers {
            head.append_header(name, value)?;
        }
        send_head_only(session, head).await
    }
}

/// Whether the request's body is small and certain to come. After `Expect: 100-continue` it may not, for it was not asked
/// for (RFC 9110 section 10.1.1).
fn is_small(head: &RequestHeader) -> bool {
    let length = head.headers.get(http::header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    length.is_some_and(|length: u64| length <= DRAINED) && !head.headers.contains_key(http::header::EXPECT)
}

/// Sends a response that ends with its head. pingora's own call leaves an HTTP/2 stream open, which is then reset if the
/// connection is not used again, and which no gRPC client takes for the trailers-only form.
async fn send_head_only(session: &mut Session, head: ResponseHeader) -> Result<()> {
    if let ServerSession::H2(stream) = session.as_downstream_mut() {
        return stream.write_response_header(Box::new(head), true);
    }
    session.write_response_header(Box::new(head), true).await
}

/// Whether the request is a gRPC call.
#[must_use]
pub fn is_grpc(session: &Session) -> bool {
    if session.req_header().method != http::Method::POST {
        return false;
    }
    let content_type = session.req_header().headers.get(http::header::CONTENT_TYPE);
    content_type.is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"))
}

/// The gRPC status that stands for an HTTP status (gRPC's "HTTP to gRPC Status Code Mapping" and, for a deadline, Envoy.
fn grpc_status(status: StatusCode) -> &'static str {
    match status.as_u16() {
        400 => "13",
        401 => "16",
        403 => "7",
        404 => "12",
        // RESOURCE_EXHAUSTED: only rate limits answer so here. (The mapping has UNAVAILABLE, for other people's 429.)
        429 => "8",
        502 | 503 => "14",
        // The gateway's own: what it waited for did not come within the client's deadline.
        504 => "4",
        _ => "2",
    }
}
