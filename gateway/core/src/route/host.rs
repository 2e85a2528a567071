//! Matching of hosts: exact, by wildcard, any.

use std::cmp::Reverse;
use std::fmt;

/// Why a host in the configuration was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    /// It is empty.
    #[error("the host is empty; leave `hosts` out to match any")]
    Empty,
    /// A `*` is elsewhere than in place of the first label.
    #[error("{0:?}: `*` can only stand alone or in place of the first label, as in *.example.org")]
    Wildcard(String),
    /// It names a port.
    #[error("{0:?} has a port; routes match hosts without it")]
    Port(String),
    /// It has a character that no host has.
    #[error("{1:?} never occurs in a host, so {0:?} would match nothing; write international names as xn--...")]
    NeverMatches(String, char),
}

/// A condition on the host of a request. Hosts are compared without regard to case, port and the dot at the end.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum HostMatch {
    /// Exactly this host.
    Exact(Box<str>),
    /// Any host below this domain, however deep, and not the domain itself.
    Wildcard(Box<str>),
    /// Any host, none included.
    Any,
}

/// How a host was matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HostKind {
    /// Exactly.
    Exact,
    /// By wildcard.
    Wildcard,
    /// The route takes any host.
    Any,
}

/// How specific a host match is; the most specific is the least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HostRank {
    /// Exact host.
    Exact,
    /// Wildcard: the longer one first.
    Wildcard(Reverse<usize>),
    /// Any host.
    Any,
}

impl HostMatch {
    /// Reads `api.example.com`, `*.example.org`, `*` or `[::1]`.
    ///
    /// # Errors
    /// If no request could have such a host.
    pub fn parse(text: &str) -> Result<Self, HostError> {
        let host = without_dot(text).to_ascii_lowercase();
        if text == "*" {
            return Ok(Self::Any);
        }
        let (name, wildcard) = host.strip_prefix("*.").map_or((host.as_str(), false), |name| (name, true));
        if name.is_empty() {
            return Err(if wildcard { HostError::Wildcard(text.to_owned()) } else { HostError::Empty });
        }
        if name.contains('*') {
            return Err(HostError::Wildcard(text.to_owned()));
        }
        let literal_v6 = name.starts_with('[') && name.ends_with(']');
        if name.contains(':') && !literal_v6 {
            return Err(HostError::Port(text.to_owned()));
        }
        let fits = |c: char| c.is_ascii_alphanumeric() || "-._~".contains(c) || literal_v6 && "[]:".contains(c);
        match name.chars().find(|&c| !fits(c)) {
            Some(found) => Err(HostError::NeverMatches(text.to_owned(), found)),
            None if wildcard => Ok(Self::Wildcard(name.into())),
            None => Ok(Self::Exact(name.into())),
        }
    }

    /// Whether a host, in lower case and without the port, matches.
    #[must_use]
    pub fn matches(&self, host: &str) -> bool {
        let host = without_dot(host);
        match self {
            Self::Any => true,
            Self::Exact(wanted) => **wanted == *host,
            Self::Wildcard(domain) => parents(host).any(|parent| *parent == **domain),
        }
    }

    /// How it matches.
    #[must_use]
    pub fn kind(&self) -> HostKind {
        match self {
            Self::Exact(_) => HostKind::Exact,
            Self::Wildcard(_) => HostKind::Wildcard,
            Self::Any => HostKind::Any,
        }
    }

    /// How specific it is.
    #[must_use]
    pub fn rank(&self) -> HostRank {
        match self {
            Self::Exact(_) => HostRank::Exact,
            Self::Wildcard(domain) => HostRank::Wildcard(Reverse(domain.len())),
            Self::Any => HostRank::Any,
        }
    }
}

impl fmt::Display for HostMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(host) => f.write_str(host),
            Self::Wildcard(domain) => write!(f, "*.{domain}"),
            Self::Any => f.write_str("*"),
        }
    }
}

/// A host without the dot that makes it absolute.
pub(super) fn without_dot(host: &str) -> &str {
    host.strip_suffix('.').unwrap_or(host)
}

/// The domains that a host is in, the longest first.
pub(super) fn parents(host: &str) -> impl Iterator<Item = &str> {
    let dots = host.bytes().enumerate().filter(|&(at, byte)| byte == b'.' && at > 0);
    dots.map(|(at, _)| &host[at + 1..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts() {
        let cases = [
            ("API.example.com", "api.example.com api.example.com.", "example.com x.api.example.com"),
            ("*.example.org", "a.example.org a.b.example.org a.example.org.", "example.org .example.org aexample.org"),
            ("*.b.example.org.", "a.b.example.org", "b.example.org a.example.org"),
            ("*", "a a.b 127.0.0.1", ""),
            ("[::1]", "[::1]", "::1"),
            ("127.0.0.1", "127.0.0.1", "127.0.0.2"),
        ];
        for (text, yes, no) in cases {
            let host = HostMatch::parse(text).unwrap();
            for (candidates, expected) in [(yes, true), (no, false)] {
                for candidate in candidates.split_whitespace() {
                    assert_eq!(host.matches(candidate), expected, "{host} on {candidate}");
                }
            }
        }
    }

    #[test]
    fn bad_hosts_are_refused_with_a_reason() {
        let cases = [
            ("", "the host is empty"),
            ("*.", "can only stand alone"),
            ("a.*.b", "can only stand alone"),
            ("*a.b", "can only stand alone"),
            ("example.com:8080", "has a port"),
            ("http://a", "has a port"),
            ("a/b", "never occurs"),
            ("bücher.de", "xn--"),
        ];
        for (text, expected) in cases {
            let error = HostMatch::parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
