//! Who a request belongs to and which subset it is meant for: tag rules, user keys, buckets.

use std::borrow::Cow;
use std::sync::Arc;

use hmac::{Hmac, KeyInit, Mac};
use http::HeaderName;
use sha2::Sha256;
use xxhash_rust::xxh3::xxh3_64;

use crate::matcher::{Condition, all};
use crate::request::RequestView;

/// Who may set the header or cookie that a tag rule looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Anybody.
    Any,
    /// Peers within `trusted_proxies`; from others the header is removed.
    TrustedProxies,
    /// Whoever can sign it: `value;exp=UNIX;sig=HEX`. Unsigned ones are removed.
    Signed,
}

/// A rule that sends the requests it matches to a subset.
#[derive(Clone, Debug)]
pub struct TagRule {
    /// Name, for metrics and explain.
    pub name: Arc<str>,
    /// All of these must hold.
    pub when: Vec<Condition>,
    /// Position of the subset in the service.
    pub subset: usize,
    /// Who is believed.
    pub trust: Trust,
}

/// Whether a tag rule applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TagVerdict {
    /// It matches and is believed.
    Accepted,
    /// It would match, but who sent it is not trusted.
    Untrusted,
    /// It does not match.
    NoMatch,
}

impl TagRule {
    /// Whether the rule applies to a request.
    #[must_use]
    pub fn verdict(&self, request: &RequestView<'_>, key: Option<&SigningKey>) -> TagVerdict {
        if self.trust == Trust::Signed {
            return self.signed_verdict(request, key);
        }
        if !all(&self.when, request) {
            return TagVerdict::NoMatch;
        }
        match self.trust {
            Trust::TrustedProxies if !request.from_trusted_proxy => TagVerdict::Untrusted,
            _ => TagVerdict::Accepted,
        }
    }

    fn signed_verdict(&self, request: &RequestView<'_>, key: Option<&SigningKey>) -> TagVerdict {
        let mut verdict = TagVerdict::Accepted;
        for condition in &self.when {
            let (source, matches) = match condition {
                Condition::Header(name, matches) => (request.header(name), matches),
                Condition::Cookie(name, matches) => (request.cookie(name), matches),
                other if other.holds(request) => continue,
                _ => return TagVerdict::NoMatch,
            };
            let Some(token) = source else { return TagVerdict::NoMatch };
            match key.and_then(|key| key.verify(token, request.unix_time)) {
                Some(value) if matches.matches(Some(value)) => {}
                Some(_) => return TagVerdict::NoMatch,
                None => verdict = TagVerdict::Untrusted,
            }
        }
        verdict
    }

    /// Headers that only a trusted peer may set because this rule believes them.
    pub fn guarded_headers(&self) -> impl Iterator<Item = &HeaderName> {
        self.when.iter().filter(|_| self.trust != Trust::Any).filter_map(|condition| match condition {
            Condition::Header(name, _) => Some(name),
            _ => None,
        })
    }

    /// Cookies that only a trusted peer may set because this rule believes them.
    pub fn guarded_cookies(&self) -> impl Iterator<Item = &str> {
        self.when.iter().filter(|_| self.trust != Trust::Any).filter_map(|condition| match condition {
            Condition::Cookie(name, _) => Some(&**name),
            _ => None,
        })
    }
}

/// The key that override tags are signed with (HMAC-SHA-256, RFC 2104).
#[derive(Clone)]
pub struct SigningKey(Hmac<Sha256>);

impl SigningKey {
    /// Least length of a key, in bytes.
    pub const MIN: usize = 16;

    /// A key of at least [`SigningKey::MIN`] bytes; `None` if it is shorter.
    #[must_use]
    pub fn new(key: &[u8]) -> Option<Self> {
        if key.len() < Self::MIN {
            return None;
        }
        Hmac::new_from_slice(key).ok().map(Self)
    }

    /// Signs a tag value until `expires`, in seconds since the epoch: `value;exp=UNIX;sig=HEX`.
    #[must_use]
    pub fn sign(&self, value: &str, expires: u64) -> String {
        let signed = format!("{value};exp={expires}");
        let digest = self.0.clone().chain_update(&signed).finalize().into_bytes();
        let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{signed};sig={hex}")
    }

    /// The value of a signed tag, if the signature is right and it has not expired at `unix_time`.
    #[must_use]
    pub fn verify<'a>(&self, token: &'a str, unix_time: u64) -> Option<&'a str> {
        let (signed, signature) = token.rsplit_once(";sig=")?;
        let (value, expires) = signed.rsplit_once(";exp=")?;
        if expires.parse::<u64>().ok()? < unix_time {
            return None;
        }
        let signature = unhex(signature)?;
        self.0.clone().chain_update(signed).verify_slice(&signature).ok()?;
        Some(value)
    }
}

impl std::fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SigningKey")
    }
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.is_ascii() || !text.len().is_multiple_of(2) {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok()).collect()
}

/// Where a user's key may be found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// A header field.
    Header(HeaderName),
    /// A cookie.
    Cookie(Box<str>),
    /// A query parameter.
    Query(Box<str>),
    /// A claim of a verified JWT.
    Claim(Box<str>),
    /// The client's address.
    ClientIp,
}

impl KeySource {
    /// The key, when the request has it and it is not empty.
    #[must_use]
    pub fn get<'a>(&self, request: &RequestView<'a>) -> Option<Cow<'a, str>> {
        let found = match self {
            Self::Header(name) => request.header(name).map(Cow::Borrowed),
            Self::Cookie(name) => request.cookie(name).map(Cow::Borrowed),
            Self::Query(name) => request.query_param(name),
            Self::Claim(name) => request.claim(name).map(Cow::Borrowed),
            Self::ClientIp => Some(Cow::Owned(request.client_ip.to_string())),
        };
        found.filter(|key| !key.is_empty())
    }
}

impl std::fmt::Display for KeySource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Header(name) => write!(f, "header {name}"),
            Self::Cookie(name) => write!(f, "cookie {name}"),
            Self::Query(name) => write!(f, "query {name}"),
            Self::Claim(name) => write!(f, "claim {name}"),
            Self::ClientIp => f.write_str("client_ip"),
        }
    }
}

/// What decides for requests without a user key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Anonymous {
    /// Every request on its own.
    Random,
    /// The client's address.
    Ip,
    /// A cookie that the gateway issues.
    Cookie {
        /// Its name.
        name: Box<str>,
        /// Its age in seconds.
        max_age: u64,
    },
    /// The stable subset.
    Stable,
}

/// Hashes user keys of one service into buckets. A different salt gives an independent split.
#[derive(Clone, Debug)]
pub struct Bucketing {
    seed: u64,
}

/// The bucket of a user: 64 evenly spread bits, the same on every replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket(pub u64);

impl Bucketing {
    /// Buckets for a service under a salt.
    #[must_use]
    pub fn new(salt: &str, service: &str) -> Self {
        Self { seed: xxh3_64(format!("{salt}\0{service}").as_bytes()) }
    }

    /// The bucket of a user key.
    #[must_use]
    pub fn bucket(&self, key: &str) -> Bucket {
        Bucket(xxhash_rust::xxh3::xxh3_64_with_seed(key.as_bytes(), self.seed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signed_tags() {
        let key = SigningKey::new(b"0123456789abcdef").unwrap();
        let token = key.sign("canary", 100);
        let other = SigningKey::new(b"fedcba9876543210").unwrap();
        let cases = [
            (token.as_str(), 100, Some("canary")),
            (token.as_str(), 101, None),
            (&token.replace("canary", "stable"), 1, None),
            (&token.replace("exp=100", "exp=900"), 1, None),
            (&token[..token.len() - 1], 1, None),
            (&other.sign("canary", 100), 1, None),
            ("canary", 1, None),
            ("", 1, None),
            (";exp=9;sig=é", 1, None),
        ];
        for (token, now, expected) in cases {
            assert_eq!(key.verify(token, now), expected, "{token} at {now}");
        }
        assert!(SigningKey::new(b"short").is_none());
    }
}
