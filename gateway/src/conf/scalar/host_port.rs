//! Where other servers are: host names are allowed here, as these are not on the way of requests.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::{Scalar, refuse, scalar};

/// A host (a name, an IPv4 address, or an IPv6 address in brackets) with a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostPort {
    host: Arc<str>,
    port: u16,
}

impl HostPort {
    /// The host, as it is written.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl Scalar for HostPort {
    const SCHEMA: &'static str = "HostPort";
    const PATTERN: &'static str = r"^([A-Za-z0-9_.-]+|\[[0-9a-fA-F:.]+\]):[0-9]{1,5}$";
    const EXPECTED: &'static str = "a host with a port such as `nacos.internal:8848`";
}

impl FromStr for HostPort {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.rsplit_once(':').and_then(|(host, port)| {
            let name = |host: &str| host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte));
            let literal = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
            let sound = match literal {
                Some(ip) => ip.parse::<std::net::Ipv6Addr>().is_ok(),
                None => !host.is_empty() && name(host),
            };
            let digits = port.len() <= 5 && port.bytes().all(|byte| byte.is_ascii_digit());
            let port = port.parse().ok().filter(|port| *port > 0)?;
            (sound && digits).then(|| Self { host: host.into(), port })
        });
        parsed.ok_or_else(|| refuse::<Self>(text))
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

scalar!(HostPort);

/// The base of an HTTP service: a scheme, a host and a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BaseUrl {
    /// Whether the scheme is `https`.
    pub tls: bool,
    /// The host and the port.
    pub at: HostPort,
}

impl Scalar for BaseUrl {
    const SCHEMA: &'static str = "BaseUrl";
    const PATTERN: &'static str = r"^https?://([A-Za-z0-9_.-]+|\[[0-9a-fA-F:.]+\]):[0-9]{1,5}$";
    const EXPECTED: &'static str = "a scheme, a host and a port such as `http://etcd.internal:2379`";
}

impl FromStr for BaseUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.split_once("://").and_then(|(scheme, at)| {
            let tls = match scheme {
                "http" => false,
                "https" => true,
                _ => return None,
            };
            Some(Self { tls, at: at.parse().ok()? })
        });
        parsed.ok_or_else(|| refuse::<Self>(text))
    }
}

impl fmt::Display for BaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", if self.tls { "https" } else { "http" }, self.at)
    }
}

scalar!(BaseUrl);

#[cfg(test)]
mod tests {
    use super::super::tests::agrees;
    use super::*;

    #[test]
    fn hosts_and_ports() {
        let good = ["nacos:8848", "127.0.0.1:1", "[::1]:65535", "a_b.c-d:80"];
        for text in good {
            assert_eq!(agrees::<HostPort>(text).as_deref(), Some(text));
            let url = format!("https://{text}");
            assert_eq!(agrees::<BaseUrl>(&url), Some(url));
        }
        for text in ["nacos", "nacos:", ":80", "a:0", "a:65536", "a b:80", "::1:80", "[::1:80", "a:+80", "http://a:80"]
        {
            assert_eq!(agrees::<HostPort>(text), None, "{text}");
        }
        for text in ["a:80", "ftp://a:80", "http://a", "http://a:80/"] {
            assert_eq!(agrees::<BaseUrl>(text), None, "{text}");
        }
    }
}
