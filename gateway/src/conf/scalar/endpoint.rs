//! Where telemetry is sent.

use std::fmt;
use std::str::FromStr;

use super::{Scalar, refuse, scalar};

/// A URL with `http` or `https`, without query and fragment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint(http::Uri);

impl Endpoint {
    /// As a URI with scheme and authority.
    #[must_use]
    pub fn uri(&self) -> &http::Uri {
        &self.0
    }
}

impl Scalar for Endpoint {
    const SCHEMA: &'static str = "Endpoint";
    const PATTERN: &'static str = r"^https?://[^/?#@\s]+(/[^?#\s]*)?$";
    const EXPECTED: &'static str = "a URL such as `http://127.0.0.1:4317`";

    fn is_plausible(text: &str) -> bool {
        text.starts_with("http://") || text.starts_with("https://")
    }
}

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let plain = Self::is_plausible(text) && !text.contains(['?', '#', '@']);
        let uri = Some(text).filter(|_| plain).and_then(|text| text.parse::<http::Uri>().ok());
        let uri = uri.filter(|uri| uri.host().is_some_and(|host| !host.is_empty()));
        uri.map(Self).ok_or_else(|| refuse::<Self>(text))
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

scalar!(Endpoint);

#[cfg(test)]
mod tests {
    use super::super::tests::agrees;
    use super::*;

    #[test]
    fn endpoints_are_urls_without_ornaments() {
        let cases = [
            ("http://127.0.0.1:4317", Some("http://127.0.0.1:4317/")),
            ("https://otel.example.org/in/", Some("https://otel.example.org/in/")),
            ("http://[::1]:4318", Some("http://[::1]:4318/")),
            ("127.0.0.1:4317", None),
            ("grpc://a:1", None),
            ("http://", None),
            ("http://:80", None),
            ("http://a b", None),
            ("http://a/?x", None),
            ("http://user:secret@a", None),
            ("", None),
        ];
        for (text, expected) in cases {
            assert_eq!(agrees::<Endpoint>(text).as_deref(), expected, "{text}");
        }
    }
}
