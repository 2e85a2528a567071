//! Whose requests are counted together.

use std::borrow::Cow;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use http::HeaderName;
use smallvec::SmallVec;

use crate::request::RequestView;

/// A part of a key. A request that lacks it shares a bucket with all others that lack it (and agree in the other
/// parts): leaving a header out is no way around a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyPart {
    /// The client's address; of an IPv6 address the first 64 bits, which is what one client has for itself.
    ClientIp,
    /// The first value of a header.
    Header(HeaderName),
    /// The value of a cookie.
    Cookie(Box<str>),
    /// The value of a query parameter.
    Query(Box<str>),
    /// A claim of the verified token.
    Claim(Box<str>),
    /// The route.
    Route,
    /// The service.
    Service,
    /// The subset that the request is meant for.
    Tag,
}

/// What a key is made from: a request, and where it goes.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// The request.
    pub request: RequestView<'a>,
    /// Name of its route.
    pub route: &'a str,
    /// Name of its service.
    pub service: &'a str,
    /// Name of the subset it is meant for.
    pub subset: &'a str,
}

impl KeyPart {
    /// Its value as text; `None` if the request lacks it. A header that is no visible ASCII is as good as none.
    #[must_use]
    pub fn text<'a>(&self, subject: &Subject<'a>) -> Option<Cow<'a, str>> {
        let request = &subject.request;
        match self {
            Self::ClientIp => Some(Cow::Owned(network(request.client_ip).to_string())),
            Self::Header(name) => request.header(name).map(Cow::Borrowed),
            Self::Cookie(name) => request.cookie(name).map(Cow::Borrowed),
            Self::Query(name) => request.query_param(name),
            Self::Claim(name) => request.claim(name).map(Cow::Borrowed),
            Self::Route => Some(Cow::Borrowed(subject.route)),
            Self::Service => Some(Cow::Borrowed(subject.service)),
            Self::Tag => Some(Cow::Borrowed(subject.subset)),
        }
    }

    /// Appends it in a form that no other sequence of values has.
    pub(super) fn write(&self, subject: &Subject<'_>, bytes: &mut SmallVec<[u8; 128]>) {
        if *self == Self::ClientIp {
            match network(subject.request.client_ip) {
                IpAddr::V4(v4) => {
                    bytes.push(4);
                    bytes.extend_from_slice(&v4.octets());
                }
                IpAddr::V6(v6) => {
                    bytes.push(6);
                    bytes.extend_from_slice(&v6.octets());
                }
            }
            return;
        }
        match self.text(subject) {
            None => bytes.push(0),
            Some(text) => {
                bytes.push(1);
                bytes.extend_from_slice(&text.len().to_le_bytes());
                bytes.extend_from_slice(text.as_bytes());
            }
        }
    }
}

/// The address, or the /64 network of an IPv6 address.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & (u128::MAX << 64)).into(),
        v4 => v4,
    }
}

impl fmt::Display for KeyPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClientIp => f.write_str("client_ip"),
            Self::Header(name) => write!(f, "header {name}"),
            Self::Cookie(name) => write!(f, "cookie {name}"),
            Self::Query(name) => write!(f, "query {name}"),
            Self::Claim(name) => write!(f, "claim {name}"),
            Self::Route => f.write_str("route"),
            Self::Service => f.write_str("service"),
            Self::Tag => f.write_str("tag"),
        }
    }
}
