//! The opening handshake of a WebSocket (RFC 6455 section 4).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use sha1::{Digest, Sha1};

use super::Refusal;

/// What a server hashes a key with (RFC 6455 section 1.3).
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// Length of a key once it is decoded.
const KEY: usize = 16;

/// What a request asks for with `Upgrade`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upgrade {
    /// Nothing that is served: the request is one like any other.
    None,
    /// A WebSocket.
    WebSocket,
}

/// Reads what a request asks for. Without `Connection: upgrade` the field speaks of nothing (RFC 9110 section 7.8), and
/// what is not a WebSocket opened by GET is not served.
///
/// # Errors
/// If it asks for a WebSocket in a wrong way.
pub fn asked(method: &Method, headers: &HeaderMap) -> Result<Upgrade, Refusal> {
    let websocket = has_token(headers, &header::UPGRADE, b"websocket");
    if !websocket || method != Method::GET || !has_token(headers, &header::CONNECTION, b"upgrade") {
        return Ok(Upgrade::None);
    }
    if only(headers, &header::SEC_WEBSOCKET_VERSION).is_none_or(|version| version != "13") {
        return Err(Refusal::WebSocketVersion);
    }
    let key = only(headers, &header::SEC_WEBSOCKET_KEY).and_then(|key| STANDARD.decode(key.as_bytes()).ok());
    let body = headers.contains_key(header::TRANSFER_ENCODING)
        || headers.get(header::CONTENT_LENGTH).is_some_and(|length| length != "0");
    if key.is_none_or(|key| key.len() != KEY) || body {
        return Err(Refusal::WebSocket);
    }
    Ok(Upgrade::WebSocket)
}

/// Whether a response of status 101 is the answer to a request that asked for a WebSocket (RFC 6455 section 4.1).
#[must_use]
pub fn is_accepted(request: &HeaderMap, response: &HeaderMap) -> bool {
    let Some(key) = only(request, &header::SEC_WEBSOCKET_KEY) else { return false };
    let digest = Sha1::new().chain_update(key.as_bytes()).chain_update(GUID).finalize();
    has_token(response, &header::UPGRADE, b"websocket")
        && has_token(response, &header::CONNECTION, b"upgrade")
        && only(response, &header::SEC_WEBSOCKET_ACCEPT)
            .is_some_and(|accept| *accept.as_bytes() == *STANDARD.encode(digest).as_bytes())
}

/// The value of a field that is there once.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a HeaderValue> {
    let mut values = headers.get_all(name).iter();
    values.next().filter(|_| values.next().is_none())
}

/// Whether a list has a token, in whatever case.
fn has_token(headers: &HeaderMap, name: &HeaderName, token: &[u8]) -> bool {
    let lists = headers.get_all(name).iter().map(HeaderValue::as_bytes);
    lists.flat_map(|list| list.split(|&byte| byte == b',')).any(|each| each.trim_ascii().eq_ignore_ascii_case(token))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 6455 section 1.3.
    const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
    const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

    fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
        lines.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap())).collect()
    }

    #[test]
    fn openings() {
        let (upgrade, connection) = (("upgrade", "WebSocket"), ("connection", "keep-alive, Upgrade"));
        let (version, key) = (("sec-websocket-version", "13"), ("sec-websocket-key", KEY));
        let cases: [(&[_], _); 10] = [
            (&[upgrade, connection, version, key], Ok(Upgrade::WebSocket)),
            (&[upgrade, version, key], Ok(Upgrade::None)),
            (&[("upgrade", "h2c"), connection], Ok(Upgrade::None)),
            (&[connection], Ok(Upgrade::None)),
            (&[upgrade, connection, key], Err(Refusal::WebSocketVersion)),
            (&[upgrade, connection, ("sec-websocket-version", "777"), key], Err(Refusal::WebSocketVersion)),
            (&[upgrade, connection, version], Err(Refusal::WebSocket)),
            (&[upgrade, connection, version, ("sec-websocket-key", "x")], Err(Refusal::WebSocket)),
            (&[upgrade, connection, version, key, key], Err(Refusal::WebSocket)),
            (&[upgrade, connection, version, key, ("content-length", "5")], Err(Refusal::WebSocket)),
        ];
        for (lines, expected) in cases {
            assert_eq!(asked(&Method::GET, &headers(lines)), expected, "{lines:?}");
            assert_eq!(asked(&Method::POST, &headers(lines)), Ok(Upgrade::None), "{lines:?}");
        }
    }

    #[test]
    fn acceptances() {
        let request = headers(&[("sec-websocket-key", KEY)]);
        let (upgrade, connection, accept) =
            (("upgrade", "websocket"), ("connection", "upgrade"), ("sec-websocket-accept", ACCEPT));
        let cases: [(&[_], _); 6] = [
            (&[upgrade, connection, accept], true),
            (&[upgrade, accept], false),
            (&[connection, accept], false),
            (&[upgrade, connection], false),
            (&[upgrade, connection, accept, accept], false),
            (&[upgrade, connection, ("sec-websocket-accept", "S3pPLMBiTxaQ9kYGzzhZRbK+xOo=")], false),
        ];
        for (lines, expected) in cases {
            assert_eq!(is_accepted(&request, &headers(lines)), expected, "{lines:?}");
        }
        assert!(!is_accepted(&HeaderMap::new(), &headers(&[upgrade, connection, accept])));
    }
}
