//! Identities of workloads (the SPIFFE ID standard).

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::{Scalar, refuse, scalar};

/// Longest identity (SPIFFE ID section 2.3).
const LONGEST: usize = 2_048;
/// Longest trust domain (section 2.1).
const LONGEST_DOMAIN: usize = 255;

/// The identity of a workload, or of all of a trust domain where it has no path.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SpiffeId(Arc<str>);

impl SpiffeId {
    /// Whether an identity is this one, or belongs to this trust domain.
    #[must_use]
    pub fn covers(&self, id: &Self) -> bool {
        if self.path().is_empty() { self.trust_domain() == id.trust_domain() } else { self == id }
    }

    /// The trust domain.
    #[must_use]
    pub fn trust_domain(&self) -> &str {
        self.parts().0
    }

    fn path(&self) -> &str {
        self.parts().1
    }

    fn parts(&self) -> (&str, &str) {
        let rest = self.0.strip_prefix("spiffe://").unwrap_or_default();
        rest.find('/').map_or((rest, ""), |at| rest.split_at(at))
    }

    fn is_sound(&self) -> bool {
        let (domain, path) = self.parts();
        let in_domain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-".contains(&byte);
        let in_path = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let segment = |text: &str| !matches!(text, "" | "." | "..") && text.bytes().all(in_path);
        self.0.len() <= LONGEST
            && (1..=LONGEST_DOMAIN).contains(&domain.len())
            && domain.bytes().all(in_domain)
            && (path.is_empty() || path[1..].split('/').all(segment))
    }
}

impl Scalar for SpiffeId {
    const SCHEMA: &'static str = "SpiffeId";
    const PATTERN: &'static str = r"^spiffe://[a-z0-9._-]{1,255}(/[A-Za-z0-9._-]+)*$";
    const EXPECTED: &'static str =
        "a SPIFFE id such as `spiffe://example.org/ns/shop/sa/users`, or a trust domain such as `spiffe://example.org`";
}

impl FromStr for SpiffeId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Some(Self(text.into())).filter(Self::is_sound).ok_or_else(|| refuse::<Self>(text))
    }
}

impl fmt::Display for SpiffeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

scalar!(SpiffeId);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids() {
        let long = format!("spiffe://{}/a", "d".repeat(256));
        for (text, sound) in [
            ("spiffe://example.org", true),
            ("spiffe://example.org/ns/shop/sa/users", true),
            ("spiffe://a_b-c.1/X", true),
            ("spiffe://example.org/", false),
            ("spiffe://example.org//a", false),
            ("spiffe://example.org/a/../b", false),
            ("spiffe://example.org/a/", false),
            ("spiffe://example.org/a?b", false),
            ("spiffe://example.org/%41", false),
            ("spiffe://example.org:80/a", false),
            ("spiffe://Example.org/a", false),
            ("spiffe:///a", false),
            ("SPIFFE://example.org/a", false),
            ("https://example.org/a", false),
            ("example.org/a", false),
            ("", false),
            (&long, false),
        ] {
            assert_eq!(text.parse::<SpiffeId>().is_ok(), sound, "{text}");
        }
    }

    #[test]
    fn a_trust_domain_covers_its_own() {
        let id = |text: &str| text.parse::<SpiffeId>().unwrap();
        for (known, shown, covers) in [
            ("spiffe://example.org", "spiffe://example.org/a", true),
            ("spiffe://example.org", "spiffe://example.org", true),
            ("spiffe://example.org", "spiffe://example.org.evil/a", false),
            ("spiffe://example.org", "spiffe://evil/example.org", false),
            ("spiffe://example.org/a", "spiffe://example.org/a", true),
            ("spiffe://example.org/a", "spiffe://example.org/a/b", false),
            ("spiffe://example.org/a", "spiffe://example.org/A", false),
            ("spiffe://example.org/a", "spiffe://example.org", false),
        ] {
            assert_eq!(id(known).covers(&id(shown)), covers, "{known} {shown}");
        }
    }
}
