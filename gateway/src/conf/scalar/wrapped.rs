//! Addresses, headers and methods: types of other crates, with patterns and words.

use std::fmt;
use std::net::SocketAddr;
use std::ops::Deref;
use std::str::FromStr;

use ipnet::IpNet;

use super::{Scalar, refuse, scalar};

macro_rules! wrapper {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        pub struct $name(pub $inner);

        impl FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                let parsed = Some(text).filter(|text| Self::is_plausible(text)).and_then(|text| text.parse().ok());
                parsed.map(Self).ok_or_else(|| refuse::<Self>(text))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl Deref for $name {
            type Target = $inner;

            fn deref(&self) -> &$inner {
                &self.0
            }
        }

        scalar!($name);
    };
}

wrapper!(
    /// An IP address with a port; IPv6 in brackets. Host names are not resolved.
    Address(SocketAddr)
);

impl Scalar for Address {
    const SCHEMA: &'static str = "Address";
    const PATTERN: &'static str = r"^([0-9]{1,3}(\.[0-9]{1,3}){3}|\[[0-9a-fA-F:.]+(%[0-9]+)?\]):[0-9]{1,5}$";
    const EXPECTED: &'static str = "an IP address with a port such as `127.0.0.1:9001` or `[::1]:9001`";
}

wrapper!(
    /// A block of IP addresses.
    Cidr(IpNet)
);

impl Scalar for Cidr {
    const SCHEMA: &'static str = "Cidr";
    const PATTERN: &'static str = r"^([0-9]{1,3}(\.[0-9]{1,3}){3}|[0-9a-fA-F:.]*:[0-9a-fA-F:.]*)/[0-9]{1,3}$";
    const EXPECTED: &'static str = "a block of addresses such as `10.0.0.0/8` or `fd00::/8`";
    const UNIT: &'static str = "/32";
}

wrapper!(
    /// The name of a header field, kept in lower case.
    HeaderName(http::HeaderName)
);

impl Scalar for HeaderName {
    const SCHEMA: &'static str = "HeaderName";
    const PATTERN: &'static str = r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$";
    const EXPECTED: &'static str = "the name of a header field such as `x-user-id`";
    const IGNORES_CASE: bool = true;
}

wrapper!(
    /// A request method. Methods are case-sensitive.
    Method(http::Method)
);

impl Scalar for Method {
    const SCHEMA: &'static str = "Method";
    const PATTERN: &'static str = r"^[A-Z][A-Z-]{0,31}$";
    const EXPECTED: &'static str = "a method in capitals such as `GET`";

    fn is_plausible(text: &str) -> bool {
        let capitals = text.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'-');
        capitals && text.len() <= 32 && !text.starts_with('-')
    }
}
