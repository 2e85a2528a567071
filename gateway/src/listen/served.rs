//! What a TLS connection is for: the name that the client asked for, and those of the certificate that it got. A request
//! for another host belongs on another connection (RFC 9110 section 15.5.20, RFC 9113 section 9.1.2).

use std::any::Any;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use async_trait::async_trait;
use pingora::listeners::TlsAccept;
use pingora::protocols::tls::TlsRef;
use x509_parser::prelude::GeneralName;

use super::Certificates;

/// The names that a certificate is for, each list in order.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// Whole names, in lower case.
    exact: Vec<Box<str>>,
    /// What comes after `*.`.
    wildcards: Vec<Box<str>>,
    addresses: Vec<IpAddr>,
}

impl Names {
    /// The alternative names of a certificate (RFC 6125: the subject's common name is of no account).
    #[must_use]
    pub fn of(alternative: &[GeneralName<'_>]) -> Self {
        let mut names = Self::default();
        for name in alternative {
            match *name {
                GeneralName::DNSName(name) => {
                    let name = name.to_ascii_lowercase();
                    match name.strip_prefix("*.") {
                        Some(rest) => names.wildcards.push(rest.into()),
                        None => names.exact.push(name.into()),
                    }
                }
                GeneralName::IPAddress(bytes) => names.addresses.extend(address(bytes)),
                _ => {}
            }
        }
        names.exact.sort_unstable();
        names.wildcards.sort_unstable();
        names
    }

    /// Whether one of them is this host, in lower case: a name, or an address as URIs have it.
    #[must_use]
    pub fn cover(&self, host: &str) -> bool {
        let has = |list: &[Box<str>], name: &str| list.binary_search_by(|known| (**known).cmp(name)).is_ok();
        let rest = || host.split_once('.').map(|(_, rest)| rest);
        has(&self.exact, host)
            || (!self.wildcards.is_empty() && rest().is_some_and(|rest| has(&self.wildcards, rest)))
            || (!self.addresses.is_empty() && literal(host).is_some_and(|literal| self.addresses.contains(&literal)))
    }

    /// DNS names as certificates have them.
    pub fn dns(&self) -> impl Iterator<Item = String> + '_ {
        let wildcards = self.wildcards.iter().map(|rest| format!("*.{rest}"));
        self.exact.iter().map(ToString::to_string).chain(wildcards)
    }
}

/// The address in a certificate (RFC 5280 section 4.2.1.6).
fn address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = || <[u8; 4]>::try_from(bytes).map(|bytes| IpAddr::V4(Ipv4Addr::from(bytes)));
    let v6 = || <[u8; 16]>::try_from(bytes).map(|bytes| IpAddr::V6(Ipv6Addr::from(bytes)));
    v4().or_else(|_| v6()).ok()
}

/// The address that a host is.
fn literal(host: &str) -> Option<IpAddr> {
    host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host).parse().ok()
}

/// What one TLS connection is for.
#[derive(Debug)]
pub struct Served {
    /// The name that the client asked for, in lower case.
    asked: Box<str>,
    /// Those of the certificate that it got.
    names: Arc<Names>,
}

impl Served {
    /// Whether a request for this host, in lower case and without a port, belongs here: the client asked for that very
    /// name, or the certificate is for it, as it is where HTTP/2 clients use one connection for several hosts.
    #[must_use]
    pub fn fits(&self, host: &str) -> bool {
        let host = host.strip_suffix('.').unwrap_or(host);
        host.is_empty() || *host == *self.asked || self.names.cover(host)
    }
}

/// Notes with each connection what it is for.
pub(super) struct Note(pub(super) Arc<Certificates>);

#[async_trait]
impl TlsAccept for Note {
    async fn handshake_complete_callback(&self, tls: &TlsRef) -> Option<Arc<dyn Any + Send + Sync>> {
        // Who asked for no name, as clients do that know an address only, was promised nothing.
        let asked = tls.server_name()?;
        let asked = asked.strip_suffix('.').unwrap_or(asked).to_ascii_lowercase().into_boxed_str();
        let names = self.0.names_for(&asked);
        Some(Arc::new(Served { asked, names }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_that_fit_a_connection() {
        let names = Names::of(&[
            GeneralName::DNSName("One.test"),
            GeneralName::DNSName("*.wild.test"),
            GeneralName::DNSName("a.test"),
            GeneralName::IPAddress(&[127, 0, 0, 1]),
            GeneralName::IPAddress(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]),
            GeneralName::RFC822Name("who@two.test"),
        ]);
        let served = Served { asked: "asked.test".into(), names: Arc::new(names) };
        for (host, fits) in [
            ("asked.test", true),
            ("asked.test.", true),
            ("one.test", true),
            ("a.test", true),
            ("x.wild.test", true),
            ("", true),
            ("127.0.0.1", true),
            ("[::1]", true),
            ("127.0.0.2", false),
            ("[::2]", false),
            ("two.test", false),
            ("wild.test", false),
            ("x.y.wild.test", false),
            ("x.one.test", false),
            ("test", false),
        ] {
            assert_eq!(served.fits(host), fits, "{host}");
        }
    }
}
