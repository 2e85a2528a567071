//! Conditions on a request, shared by routes and tag rules. Everything is parsed and compiled when it is made, so that
//! a condition that exists can only hold or not hold.

mod path;
mod pattern;

use std::fmt;

use http::{HeaderMap, HeaderName, Method};

pub(crate) use path::Segment;
pub use path::{Capture, Captures, PathError, PathKind, PathMatch, PathRank, Template};
pub use pattern::{Pattern, PatternError};

use crate::request::RequestView;

/// A condition on the value of a header, cookie, query parameter or claim.
#[derive(Clone, Debug)]
pub enum ValueMatch {
    /// The value is exactly this one.
    Exact(Box<str>),
    /// The value begins with this text.
    Prefix(Box<str>),
    /// The whole value matches.
    Regex(Pattern),
    /// The value is one of these.
    In(ValueSet),
    /// There is a value (`true`), or there is none (`false`).
    Present(bool),
}

impl ValueMatch {
    /// A regular expression that has to match the whole value.
    ///
    /// # Errors
    /// If it is no regular expression or too large.
    pub fn regex(pattern: &str) -> Result<Self, PatternError> {
        Pattern::new(pattern).map(Self::Regex)
    }

    /// A list of values.
    pub fn any_of(values: impl IntoIterator<Item = impl Into<Box<str>>>) -> Self {
        Self::In(ValueSet::new(values))
    }

    /// Whether a value, or its absence, is what was asked for. Only `Present(false)` matches an absent value.
    #[must_use]
    pub fn matches(&self, value: Option<&str>) -> bool {
        match (self, value) {
            (Self::Present(wanted), value) => *wanted == value.is_some(),
            (_, None) => false,
            (Self::Exact(wanted), Some(value)) => **wanted == *value,
            (Self::Prefix(prefix), Some(value)) => value.starts_with(&**prefix),
            (Self::Regex(pattern), Some(value)) => pattern.matches(value),
            (Self::In(values), Some(value)) => values.contains(value),
        }
    }

    /// Whether any line of a header field matches. A line that is not UTF-8 is present and matches no text.
    fn matches_lines(&self, headers: &HeaderMap, name: &HeaderName) -> bool {
        if let Self::Present(wanted) = self {
            return headers.contains_key(name) == *wanted;
        }
        let texts = headers.get_all(name).into_iter().filter_map(|line| std::str::from_utf8(line.as_bytes()).ok());
        texts.into_iter().any(|text| self.matches(Some(text)))
    }
}

impl fmt::Display for ValueMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(value) => write!(f, "is {value:?}"),
            Self::Prefix(prefix) => write!(f, "begins with {prefix:?}"),
            Self::Regex(pattern) => write!(f, "matches {:?}", pattern.as_str()),
            Self::In(values) => write!(f, "is one of {:?}", values.0),
            Self::Present(true) => f.write_str("is present"),
            Self::Present(false) => f.write_str("is absent"),
        }
    }
}

/// A set of values, sorted. An empty one contains nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueSet(Box<[Box<str>]>);

impl ValueSet {
    /// The set of these values.
    pub fn new(values: impl IntoIterator<Item = impl Into<Box<str>>>) -> Self {
        let mut values: Vec<Box<str>> = values.into_iter().map(Into::into).collect();
        values.sort_unstable();
        values.dedup();
        Self(values.into())
    }

    /// Whether a value is in the set.
    #[must_use]
    pub fn contains(&self, value: &str) -> bool {
        self.0.binary_search_by(|known| (**known).cmp(value)).is_ok()
    }
}

/// One condition on a request.
#[derive(Clone, Debug)]
pub enum Condition {
    /// On a header field; if the field has several lines, one that matches is enough. A line is not split at commas.
    Header(HeaderName, ValueMatch),
    /// On a cookie.
    Cookie(Box<str>, ValueMatch),
    /// On the first query parameter of that name, percent-decoded.
    Query(Box<str>, ValueMatch),
    /// On a claim of a verified JWT.
    Claim(Box<str>, ValueMatch),
    /// The method is one of these.
    Method(Vec<Method>),
    /// On the normalised path.
    Path(PathMatch),
}

impl Condition {
    /// Whether a request satisfies the condition.
    #[must_use]
    pub fn holds(&self, request: &RequestView<'_>) -> bool {
        match self {
            Self::Header(name, value) => value.matches_lines(request.headers, name),
            Self::Cookie(name, value) => value.matches(request.cookie(name)),
            Self::Query(name, value) => value.matches(request.query_param(name).as_deref()),
            Self::Claim(name, value) => value.matches(request.claim(name)),
            Self::Method(methods) => methods.contains(request.method),
            Self::Path(path) => path.matches(request.path),
        }
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(name, value) => write!(f, "header {name} {value}"),
            Self::Cookie(name, value) => write!(f, "cookie {name} {value}"),
            Self::Query(name, value) => write!(f, "query {name} {value}"),
            Self::Claim(name, value) => write!(f, "claim {name} {value}"),
            Self::Method(methods) => {
                let names: Vec<_> = methods.iter().map(Method::as_str).collect();
                write!(f, "method is one of {}", names.join(", "))
            }
            Self::Path(path) => write!(f, "path {path}"),
        }
    }
}

/// Whether a request satisfies every one of the conditions.
#[must_use]
pub fn all(conditions: &[Condition], request: &RequestView<'_>) -> bool {
    conditions.iter().all(|condition| condition.holds(request))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Claims;

    fn exact(text: &str) -> ValueMatch {
        ValueMatch::Exact(text.into())
    }

    #[test]
    fn values() {
        let regex = |pattern| ValueMatch::regex(pattern).unwrap();
        let cases = [
            (exact("a"), Some("a"), true),
            (exact("a"), Some("A"), false),
            (exact("a"), Some("ab"), false),
            (exact(""), Some(""), true),
            (exact(""), None, false),
            (ValueMatch::Prefix("ab".into()), Some("abc"), true),
            (ValueMatch::Prefix("ab".into()), Some("a"), false),
            (ValueMatch::Prefix("".into()), None, false),
            (regex("b+"), Some("bb"), true),
            (regex("b+"), Some("abb"), false),
            (regex("b+"), Some("bbc"), false),
            (regex("b+"), Some("bb\n"), false),
            (regex("a|b"), Some("ab"), false),
            (regex("a|b"), Some("b"), true),
            (regex(".*"), None, false),
            (ValueMatch::any_of(["x", "b", "a"]), Some("b"), true),
            (ValueMatch::any_of(["x", "b", "a"]), Some("c"), false),
            (ValueMatch::any_of([""; 0]), Some(""), false),
            (ValueMatch::any_of(["x"]), None, false),
            (ValueMatch::Present(true), Some(""), true),
            (ValueMatch::Present(true), None, false),
            (ValueMatch::Present(false), Some(""), false),
            (ValueMatch::Present(false), None, true),
        ];
        for (wanted, value, expected) in cases {
            assert_eq!(wanted.matches(value), expected, "{wanted} on {value:?}");
        }
    }

    #[test]
    fn conditions() {
        let mut headers = HeaderMap::new();
        headers.append("x-tag", "blue".parse().unwrap());
        headers.append("x-tag", "canary".parse().unwrap());
        headers.append("x-raw", http::HeaderValue::from_bytes(b"\xff").unwrap());
        headers.append("cookie", "uid=7; beta=yes".parse().unwrap());
        let claims = Claims::from([("plan".to_owned(), "gold".to_owned())]);
        let request = RequestView {
            method: &Method::POST,
            host: "a",
            path: "/api/users/7",
            query: Some("v=2&flag&n=a%20b"),
            headers: &headers,
            client_ip: [127, 0, 0, 1].into(),
            from_trusted_proxy: false,
            claims: Some(&claims),
            unix_time: 0,
        };
        let header = |name: &'static str, value| Condition::Header(HeaderName::from_static(name), value);
        let cases = [
            (header("x-tag", exact("blue")), true),
            (header("x-tag", exact("canary")), true),
            (header("x-tag", exact("blue, canary")), false),
            (header("x-tag", ValueMatch::Present(false)), false),
            (header("x-none", ValueMatch::Present(false)), true),
            (header("x-raw", ValueMatch::Present(true)), true),
            (header("x-raw", ValueMatch::Present(false)), false),
            (header("x-raw", ValueMatch::Prefix("".into())), false),
            (Condition::Cookie("beta".into(), exact("yes")), true),
            (Condition::Cookie("none".into(), ValueMatch::Present(true)), false),
            (Condition::Query("n".into(), exact("a b")), true),
            (Condition::Query("flag".into(), ValueMatch::Present(true)), true),
            (Condition::Query("v".into(), exact("3")), false),
            (Condition::Claim("plan".into(), ValueMatch::any_of(["gold"])), true),
            (Condition::Claim("sub".into(), ValueMatch::Present(true)), false),
            (Condition::Method(vec![Method::GET, Method::POST]), true),
            (Condition::Method(vec![Method::GET]), false),
            (Condition::Path(PathMatch::prefix("/api").unwrap()), true),
            (Condition::Path(PathMatch::exact("/api").unwrap()), false),
        ];
        for (condition, expected) in &cases {
            assert_eq!(condition.holds(&request), *expected, "{condition}");
        }
        let holding: Vec<_> = cases.iter().filter(|case| case.1).map(|case| case.0.clone()).collect();
        assert!(all(&holding, &request) && all(&[], &request));
        assert!(!all(&cases.map(|case| case.0), &request));
    }
}
