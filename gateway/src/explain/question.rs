//! What is asked: a request in words, and how it is understood.

use std::net::{IpAddr, Ipv4Addr};

use http::header::HOST;
use http::request::Parts;
use http::uri::Authority;
use http::{HeaderName, HeaderValue, Method, Uri};
use indexmap::IndexMap;
use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serin_core::request::RequestView;

use crate::proxy::head;

/// A request that is to be explained.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Question {
    /// Method [GET].
    #[serde(default = "get")]
    pub method: String,
    /// URL, or only path and query. A `host` header goes before the host of the URL, as curl has it.
    pub url: String,
    /// Header fields by name.
    #[serde(default)]
    pub headers: IndexMap<String, HeaderValues>,
    /// Address that the request comes from [127.0.0.1].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_ip: Option<String>,
    /// Whether that address counts as a trusted proxy [as `trusted_proxies` has it].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trusted: Option<bool>,
    /// Seed of the random numbers [a random one].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
}

fn get() -> String {
    "GET".to_owned()
}

/// The value of a header field, or its values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum HeaderValues {
    /// One line.
    One(String),
    /// Several lines.
    Several(Vec<String>),
}

impl HeaderValues {
    /// The lines.
    #[must_use]
    pub fn lines(&self) -> &[String] {
        match self {
            Self::One(line) => std::slice::from_ref(line),
            Self::Several(lines) => lines,
        }
    }
}

/// What keeps a question from describing a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct BadQuestion {
    /// Which part of the question.
    pub field: String,
    /// What was expected.
    pub message: String,
}

fn bad(field: impl Into<String>, message: impl Into<String>) -> BadQuestion {
    BadQuestion { field: field.into(), message: message.into() }
}

/// A question that was understood.
pub(super) struct Asked {
    /// The head, with a target in origin form.
    pub(super) parts: Parts,
    pub(super) scheme: &'static str,
    pub(super) port: Option<u16>,
    pub(super) client_ip: IpAddr,
    pub(super) trusted: bool,
}

impl Asked {
    /// The request as decisions see it before a service is known.
    pub(super) fn view<'a>(&'a self, host: &'a str, path: &'a str) -> RequestView<'a> {
        RequestView {
            method: &self.parts.method,
            host,
            path,
            query: self.parts.uri.query(),
            headers: &self.parts.headers,
            client_ip: self.client_ip,
            from_trusted_proxy: self.trusted,
            claims: None,
            unix_time: 0,
        }
    }
}

impl Question {
    /// The request that the question describes.
    pub(super) fn understand(&self, networks: &[IpNet]) -> Result<Asked, BadQuestion> {
        let method: Method = self.method.parse().map_err(|_| bad("method", "expected a method such as `GET`"))?;
        let url: Uri = self.url.parse().map_err(|_| bad("url", format!("{:?} is no URL", self.url)))?;
        let target = url.path_and_query().map_or("/", |target| target.as_str());
        if !target.starts_with('/') {
            return Err(bad("url", "expected a URL such as `http://api.example.com/users/7`, or a path"));
        }
        let (mut parts, ()) = http::Request::new(()).into_parts();
        parts.uri = target.parse().map_err(|_| bad("url", format!("{target:?} is no path")))?;
        parts.method = method;
        for (name, values) in &self.headers {
            let field = || format!("headers.{name}");
            let parsed: HeaderName = name.parse().map_err(|_| bad(field(), "expected the name of a header field"))?;
            for line in values.lines() {
                let line =
                    HeaderValue::from_str(line).map_err(|_| bad(field(), "expected the value of a header field"))?;
                parts.headers.append(parsed.clone(), line);
            }
        }
        if let (false, Some(authority)) = (parts.headers.contains_key(HOST), url.authority()) {
            let host = HeaderValue::from_str(authority.as_str()).map_err(|_| bad("url", "its host is no host"))?;
            parts.headers.insert(HOST, host);
        }
        let peer = self.peer()?;
        let networks = self.networks(peer, networks);
        Ok(Asked {
            client_ip: head::client_ip(peer, &parts.headers, &networks),
            trusted: head::is_trusted(peer, &networks),
            scheme: if url.scheme_str() == Some("https") { "https" } else { "http" },
            port: port(&parts),
            parts,
        })
    }

    fn peer(&self) -> Result<IpAddr, BadQuestion> {
        let Some(text) = &self.client_ip else { return Ok(Ipv4Addr::LOCALHOST.into()) };
        text.parse().map_err(|_| bad("client_ip", format!("expected an IP address, got {text:?}")))
    }

    /// The trusted networks, with or without the peer if the question says so.
    fn networks(&self, peer: IpAddr, networks: &[IpNet]) -> Vec<IpNet> {
        match self.trusted {
            None => networks.to_vec(),
            Some(false) => Vec::new(),
            Some(true) => networks.iter().copied().chain([peer.to_canonical().into()]).collect(),
        }
    }
}

fn port(parts: &Parts) -> Option<u16> {
    let authority: Authority = parts.headers.get(HOST)?.to_str().ok()?.parse().ok()?;
    authority.port_u16()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions() {
        let networks = ["10.0.0.0/8".parse().unwrap()];
        let cases = [
            (r#"{"url": "http://API.example.com:81/a?b=c"}"#, Ok("api.example.com /a 127.0.0.1 false")),
            (r#"{"url": "http://a/x", "headers": {"Host": "b:9"}}"#, Ok("b /x 127.0.0.1 false")),
            (r#"{"url": "/x", "client_ip": "10.1.1.1"}"#, Ok(" /x 10.1.1.1 true")),
            (r#"{"url": "/x", "client_ip": "10.1.1.1", "trusted": false}"#, Ok(" /x 10.1.1.1 false")),
            (
                r#"{"url": "/x", "client_ip": "9.9.9.9", "trusted": true, "headers": {"x-forwarded-for": ["1.2.3.4"]}}"#,
                Ok(" /x 1.2.3.4 true"),
            ),
            (r#"{"url": "http://a", "method": "G T"}"#, Err("method")),
            (r#"{"url": "a b"}"#, Err("url")),
            (r#"{"url": "*"}"#, Err("url")),
            (r#"{"url": "/", "headers": {"a b": "c"}}"#, Err("headers.a b")),
            (r#"{"url": "/", "headers": {"a": "b\n"}}"#, Err("headers.a")),
            (r#"{"url": "/", "client_ip": "localhost"}"#, Err("client_ip")),
        ];
        for (question, expected) in cases {
            let question: Question = serde_json::from_str(question).unwrap();
            let got = question.understand(&networks).map(|asked| {
                let host = head::host(&asked.parts).into_owned();
                format!("{host} {} {} {}", asked.parts.uri.path(), asked.client_ip, asked.trusted)
            });
            let expected = expected.map(ToOwned::to_owned).map_err(ToOwned::to_owned);
            assert_eq!(got.map_err(|error| error.field), expected, "{question:?}");
        }
    }
}
