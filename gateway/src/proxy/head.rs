//! What is read from a request's head before it is routed: host, normal path, client address.

use std::borrow::Cow;
use std::net::IpAddr;

use http::HeaderMap;
use http::request::Parts;
use ipnet::IpNet;

/// The host that a request asks for, without port and in lower case. Empty if there is none.
#[must_use]
pub fn host(head: &Parts) -> Cow<'_, str> {
    let authority = match head.uri.authority() {
        Some(authority) => authority.as_str(),
        None => head.headers.get(http::header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default(),
    };
    let host = without_port(authority);
    if host.bytes().any(|byte| byte.is_ascii_uppercase()) {
        Cow::Owned(host.to_ascii_lowercase())
    } else {
        Cow::Borrowed(host)
    }
}

fn without_port(authority: &str) -> &str {
    if authority.starts_with('[') {
        return authority.find(']').map_or(authority, |end| &authority[..=end]);
    }
    authority.rsplit_once(':').map_or(authority, |(host, _)| host)
}

/// Whether an address is one of these networks.
#[must_use]
pub fn is_trusted(address: IpAddr, networks: &[IpNet]) -> bool {
    let address = address.to_canonical();
    networks.iter().any(|network| network.contains(&address))
}

/// The client's address: the peer, or behind trusted proxies the right-most address of X-Forwarded-For that is not
/// one of them.
#[must_use]
pub fn client_ip(peer: IpAddr, headers: &HeaderMap, trusted: &[IpNet]) -> IpAddr {
    let mut client = peer.to_canonical();
    if trusted.is_empty() || !is_trusted(client, trusted) {
        return client;
    }
    let hops = headers.get_all("x-forwarded-for").into_iter().rev().filter_map(|line| line.to_str().ok());
    for hop in hops.flat_map(|line| line.rsplit(',')) {
        let Some(address) = parse_hop(hop.trim()) else { break };
        client = address;
        if !is_trusted(client, trusted) {
            break;
        }
    }
    client
}

/// An address of X-Forwarded-For, which some proxies send with a port. One with a zone means something to one machine only
/// (RFC 4007 section 6), and is no address of a client.
fn parse_hop(hop: &str) -> Option<IpAddr> {
    if hop.contains('%') {
        return None;
    }
    let parsed = hop.parse().ok().or_else(|| hop.parse::<std::net::SocketAddr>().ok().map(|address| address.ip()));
    parsed.map(|address: IpAddr| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_behind_proxies() {
        let trusted: Vec<IpNet> = vec!["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()];
        let cases = [
            ("203.0.113.9", "1.2.3.4", "203.0.113.9"),
            ("10.0.0.1", "1.2.3.4", "1.2.3.4"),
            ("10.0.0.1", "6.6.6.6, 1.2.3.4, 10.9.9.9", "1.2.3.4"),
            ("10.0.0.1", "10.1.1.1, 10.2.2.2", "10.1.1.1"),
            ("10.0.0.1", "junk", "10.0.0.1"),
            ("10.0.0.1", "1.2.3.4, junk, 10.2.2.2", "10.2.2.2"),
            ("::ffff:10.0.0.1", "1.2.3.4:555", "1.2.3.4"),
            ("fd00::1", "[2001:db8::1]:80", "2001:db8::1"),
            ("fd00::1", "[2001:db8::1%1]:80", "fd00::1"),
        ];
        for (peer, forwarded, expected) in cases {
            let mut headers = HeaderMap::new();
            headers.insert("x-forwarded-for", forwarded.parse().unwrap());
            let found = client_ip(peer.parse().unwrap(), &headers, &trusted);
            assert_eq!(found, expected.parse::<IpAddr>().unwrap(), "{peer} with {forwarded}");
        }
    }

    #[test]
    fn hosts() {
        let cases = [("API.example.com:8080", "api.example.com"), ("[::1]:80", "[::1]"), ("a", "a"), ("", "")];
        for (sent, expected) in cases {
            let (head, ()) = http::Request::builder().header("host", sent).body(()).unwrap().into_parts();
            assert_eq!(host(&head), expected);
        }
    }
}
