//! Names.

use std::borrow::Borrow;
use std::fmt;
use std::ops::Deref;
use std::str::FromStr;
use std::sync::Arc;

use super::{Scalar, refuse, scalar};

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $max:literal, $first:expr, $rest:expr, $pattern:literal, $expected:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The text, shared.
            #[must_use]
            pub fn shared(&self) -> Arc<str> {
                Arc::clone(&self.0)
            }

            /// The text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl Scalar for $name {
            const SCHEMA: &'static str = stringify!($name);
            const PATTERN: &'static str = $pattern;
            const EXPECTED: &'static str = $expected;
        }

        impl FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                let (first, rest): (fn(u8) -> bool, fn(u8) -> bool) = ($first, $rest);
                let valid = text.len() <= $max && text.bytes().next().is_some_and(first) && text.bytes().all(rest);
                valid.then(|| Self(text.into())).ok_or_else(|| refuse::<Self>(text))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl Deref for $name {
            type Target = str;

            fn deref(&self) -> &str {
                &self.0
            }
        }

        scalar!($name);
    };
}

name!(
    /// The name of a service, subset, route, tag rule, listener, zone or label: a part of metric labels and URLs.
    Name,
    63,
    |byte| byte.is_ascii_alphanumeric(),
    |byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte),
    r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$",
    "a name of at most 63 letters, digits, `-`, `_` and `.` that begins with a letter or a digit"
);

name!(
    /// The name of a cookie (an RFC 9110 token).
    CookieName,
    128,
    is_token,
    is_token,
    r"^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}$",
    "the name of a cookie such as `uid`"
);

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}
