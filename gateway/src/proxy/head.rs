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

/// Why a path has no normal form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// It has `..` segments that lead above the root.
    #[error("the path leads above the root")]
    AboveRoot,
    /// It has a NUL, an encoded slash or backslash, or a broken escape: forms that parsers disagree on.
    #[error("the path has an escape that may be read in two ways")]
    Ambiguous,
}

/// The normal form of a path (RFC 3986 section 6.2.2): escapes of unreserved characters are decoded once, dot segments
/// resolved, runs of slashes merged. What is routed is what is forwarded, so a path that upstreams could read in
/// another way is refused.
///
/// # Errors
/// If the path has no normal form.
pub fn normal_path(path: &str) -> Result<Cow<'_, str>, PathError> {
    if is_normal(path) {
        return Ok(Cow::Borrowed(path));
    }
    let decoded = decode_unreserved(path)?;
    let mut normal = String::with_capacity(decoded.len());
    let mut segments = decoded.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let last = segments.peek().is_none();
        match segment {
            ".." => {
                let parent = normal.rfind('/').ok_or(PathError::AboveRoot)?;
                normal.truncate(parent);
                if last {
                    normal.push('/');
                }
            }
            "" | "." if last => normal.push('/'),
            "" | "." => {}
            segment => {
                normal.push('/');
                normal.push_str(segment);
            }
        }
    }
    if normal.is_empty() {
        normal.push('/');
    }
    Ok(Cow::Owned(normal))
}

/// Whether a path is its own normal form. Most are, and are not copied.
fn is_normal(path: &str) -> bool {
    let mut previous = 0;
    for &byte in path.as_bytes() {
        match byte {
            b'%' | b'\\' | 0 => return false,
            b'/' | b'.' if previous == b'/' => return false,
            _ => previous = byte,
        }
    }
    path.starts_with('/')
}

fn decode_unreserved(path: &str) -> Result<String, PathError> {
    let mut out = String::with_capacity(path.len());
    let mut rest = path;
    while let Some(at) = rest.find(['%', '\\', '\0']) {
        out.push_str(&rest[..at]);
        if !rest[at..].starts_with('%') {
            return Err(PathError::Ambiguous);
        }
        let digits = rest.get(at + 1..at + 3).ok_or(PathError::Ambiguous)?;
        let byte =
            u8::from_str_radix(digits, 16).ok().filter(|_| !digits.starts_with('+')).ok_or(PathError::Ambiguous)?;
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte)),
            0 | b'/' | b'\\' => return Err(PathError::Ambiguous),
            // %25 followed by what would become another escape: an upstream that decodes twice would see it.
            b'%' if rest
                .get(at + 3..at + 5)
                .is_some_and(|next| matches!(next, "2e" | "2E" | "2f" | "2F" | "5c" | "5C")) =>
            {
                return Err(PathError::Ambiguous);
            }
            _ => {
                out.push('%');
                out.push_str(&digits.to_ascii_uppercase());
            }
        }
        rest = &rest[at + 3..];
    }
    out.push_str(rest);
    if out.starts_with('/') { Ok(out) } else { Err(PathError::Ambiguous) }
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

/// An address of X-Forwarded-For, which some proxies send with a port.
fn parse_hop(hop: &str) -> Option<IpAddr> {
    let parsed = hop.parse().ok().or_else(|| hop.parse::<std::net::SocketAddr>().ok().map(|address| address.ip()));
    parsed.map(|address: IpAddr| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn paths() {
        let cases = [
            ("/", Ok("/")),
            ("/a/b", Ok("/a/b")),
            ("/a/b/", Ok("/a/b/")),
            ("//a///b//", Ok("/a/b/")),
            ("/a/./b/.", Ok("/a/b/")),
            ("/a/../b", Ok("/b")),
            ("/a/..", Ok("/")),
            ("/a/b/..", Ok("/a/")),
            ("/pub/%2e%2E/admin", Ok("/admin")),
            ("/%61%2Db", Ok("/a-b")),
            ("/a%c3%a9", Ok("/a%C3%A9")),
            ("/..a/.b", Ok("/..a/.b")),
            ("/a%20b", Ok("/a%20b")),
            ("/100%25", Ok("/100%25")),
            ("/../../etc", Err(PathError::AboveRoot)),
            ("/pub/..%2fadmin", Err(PathError::Ambiguous)),
            ("/%252e%252e/admin", Err(PathError::Ambiguous)),
            ("/a\\..\\b", Err(PathError::Ambiguous)),
            ("/a%5cb", Err(PathError::Ambiguous)),
            ("/a%00.html", Err(PathError::Ambiguous)),
            ("/a%", Err(PathError::Ambiguous)),
            ("/a%+1", Err(PathError::Ambiguous)),
            ("/a%zz", Err(PathError::Ambiguous)),
            ("a", Err(PathError::Ambiguous)),
        ];
        for (path, expected) in cases {
            assert_eq!(normal_path(path).as_deref(), expected.as_deref(), "{path}");
        }
    }

    proptest! {
        #[test]
        fn a_normal_form_is_its_own_normal_form(path in "/([a-z.%/\\\\]|%2e|%2f|%25|\\.\\.|//){0,12}") {
            if let Ok(normal) = normal_path(&path) {
                prop_assert!(normal.starts_with('/'));
                prop_assert!(!normal.split('/').any(|segment| segment == ".." || segment == "."));
                let again = normal_path(&normal).map(Cow::into_owned);
                prop_assert_eq!(again, Ok(normal.into_owned()));
            }
        }
    }

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
