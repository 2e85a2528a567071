//! Where Redis is.

use std::fmt;
use std::str::FromStr;

use super::{HostPort, Scalar, refuse, scalar};

/// The port of Redis.
const PORT: u16 = 6379;

/// A URL of Redis, without user and password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisUrl {
    /// Whether the scheme is `rediss`.
    pub tls: bool,
    /// The host and the port.
    pub at: HostPort,
    /// The database.
    pub database: u16,
}

impl Scalar for RedisUrl {
    const SCHEMA: &'static str = "RedisUrl";
    const PATTERN: &'static str = r"^rediss?://([A-Za-z0-9_.-]+|\[[0-9a-fA-F:.]+\])(:[0-9]{1,5})?(/[0-9]{1,5})?$";
    const EXPECTED: &'static str = "a URL such as `redis://redis.internal:6379`";
}

impl FromStr for RedisUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.contains('@') {
            // Not repeated: there may be a password in it.
            return Err("has a user or a password in it: expected them in `username` and in `password_file` or \
                        `password_env`, beside `url`"
                .to_owned());
        }
        let parsed = text.split_once("://").and_then(|(scheme, rest)| {
            let tls = match scheme {
                "redis" => false,
                "rediss" => true,
                _ => return None,
            };
            let (at, database) = rest.split_once('/').unwrap_or((rest, "0"));
            let digits = !database.is_empty() && database.bytes().all(|byte| byte.is_ascii_digit());
            let database = database.parse().ok().filter(|_| digits && database.len() <= 5)?;
            let with_port = at.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'));
            let at = if with_port { at.parse() } else { format!("{at}:{PORT}").parse() };
            Some(Self { tls, at: at.ok()?, database })
        });
        parsed.ok_or_else(|| refuse::<Self>(text))
    }
}

impl fmt::Display for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "redis{}://{}", if self.tls { "s" } else { "" }, self.at)?;
        if self.database > 0 { write!(f, "/{}", self.database) } else { Ok(()) }
    }
}

scalar!(RedisUrl);

#[cfg(test)]
mod tests {
    use super::super::tests::agrees;
    use super::*;

    #[test]
    fn urls_have_a_port_and_a_database_by_default() {
        let cases = [
            ("redis://127.0.0.1:6380", Some("redis://127.0.0.1:6380")),
            ("redis://redis", Some("redis://redis:6379")),
            ("rediss://redis.internal/3", Some("rediss://redis.internal:6379/3")),
            ("redis://[::1]", Some("redis://[::1]:6379")),
            ("redis://[::1]:1/0", Some("redis://[::1]:1")),
            ("redis://", None),
            ("redis://a/b", None),
            ("redis://a/", None),
            ("redis://a:b", None),
            ("redis://a/+1", None),
            ("http://a:6379", None),
            ("a:6379", None),
        ];
        for (text, expected) in cases {
            assert_eq!(agrees::<RedisUrl>(text).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn a_password_is_refused_and_not_repeated() {
        let told = "redis://user:hunter2@a:6379".parse::<RedisUrl>().unwrap_err();
        assert!(told.contains("password_file") && !told.contains("hunter2"), "{told}");
    }
}
