//! What the decision may look at in a request: a view borrowed from its head.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::IpAddr;

use http::{HeaderMap, Method};
use percent_encoding::percent_decode_str;

/// Claims of a JWT whose signature was verified, flattened to text.
pub type Claims = BTreeMap<String, String>;

/// The head of one request, as the decision sees it. Borrowed, so that making one costs nothing.
#[derive(Clone, Copy, Debug)]
pub struct RequestView<'a> {
    /// Request method.
    pub method: &'a Method,
    /// Host in lower case, without the port.
    pub host: &'a str,
    /// Normalised path, beginning with `/`.
    pub path: &'a str,
    /// Query string without the `?`.
    pub query: Option<&'a str>,
    /// Request header fields.
    pub headers: &'a HeaderMap,
    /// Address of the client, after trusted proxies were taken into account.
    pub client_ip: IpAddr,
    /// Whether the peer that sent the request is one of `trusted_proxies`.
    pub from_trusted_proxy: bool,
    /// Claims of a verified JWT, if the request carried one.
    pub claims: Option<&'a Claims>,
    /// Wall clock in seconds since the epoch, for the expiry of signed tags only.
    pub unix_time: u64,
}

impl<'a> RequestView<'a> {
    /// The first value of a header field, when it is visible ASCII.
    #[must_use]
    pub fn header(&self, name: &http::HeaderName) -> Option<&'a str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The value of a cookie (RFC 6265 section 5.4), from any of the `Cookie` fields.
    #[must_use]
    pub fn cookie(&self, name: &str) -> Option<&'a str> {
        self.headers
            .get_all(http::header::COOKIE)
            .iter()
            .filter_map(|field| field.to_str().ok())
            .flat_map(|field| field.split(';'))
            .filter_map(|pair| pair.split_once('='))
            .find(|(key, _)| key.trim() == name)
            .map(|(_, value)| value.trim().trim_matches('"'))
    }

    /// The first value of a query parameter, percent-decoded. A parameter without `=` is empty.
    #[must_use]
    pub fn query_param(&self, name: &str) -> Option<Cow<'a, str>> {
        self.query?.split('&').find_map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(key) == name).then(|| decode(value))
        })
    }

    /// A claim of the verified JWT.
    #[must_use]
    pub fn claim(&self, name: &str) -> Option<&'a str> {
        self.claims?.get(name).map(String::as_str)
    }
}

/// Percent-decodes one form field, `+` being a space; what is not UTF-8 stays as it was sent.
fn decode(text: &str) -> Cow<'_, str> {
    if text.contains('+') {
        let spaced = text.replace('+', " ");
        let decoded = percent_decode_str(&spaced).decode_utf8().map(Cow::into_owned);
        return Cow::Owned(decoded.unwrap_or_else(|_| text.to_owned()));
    }
    percent_decode_str(text).decode_utf8().unwrap_or(Cow::Borrowed(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with<R>(headers: &HeaderMap, query: &str, check: impl Fn(RequestView<'_>) -> R) -> R {
        check(RequestView {
            method: &Method::GET,
            host: "a",
            path: "/",
            query: Some(query),
            headers,
            client_ip: [127, 0, 0, 1].into(),
            from_trusted_proxy: false,
            claims: None,
            unix_time: 0,
        })
    }

    #[test]
    fn cookies_are_found_in_any_field() {
        let mut headers = HeaderMap::new();
        headers.append("cookie", "a=1; uid=\"u 7\"".parse().unwrap());
        headers.append("cookie", "b=2".parse().unwrap());
        with(&headers, "", |r| {
            assert_eq!(r.cookie("uid"), Some("u 7"));
            assert_eq!(r.cookie("b"), Some("2"));
            assert_eq!(r.cookie("id"), None);
        });
    }

    #[test]
    fn query_parameters_are_decoded() {
        with(&HeaderMap::new(), "a=1&u%69d=x%20y&flag&p=q+r", |r| {
            assert_eq!(r.query_param("uid").as_deref(), Some("x y"));
            assert_eq!(r.query_param("flag").as_deref(), Some(""));
            assert_eq!(r.query_param("p").as_deref(), Some("q r"));
            assert_eq!(r.query_param("z"), None);
        });
    }
}
