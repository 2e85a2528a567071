//! What consistent hashing hashes.

use http::HeaderName;
use serde::{Deserialize, Deserializer, de::Error};
use serin_core::chain::PickCx;
use xxhash_rust::xxh3::xxh3_64;

/// What a request is hashed by. A request without it is hashed by its user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Key {
    /// The service's `user_key`; requests without one are spread at random.
    #[default]
    User,
    /// The first value of a header field.
    #[serde(deserialize_with = "header_name")]
    Header(HeaderName),
    /// A cookie.
    Cookie(Box<str>),
    /// A query parameter.
    Query(Box<str>),
    /// The client's address.
    ClientIp,
    /// The path without the query.
    Path,
}

fn header_name<'de, D: Deserializer<'de>>(from: D) -> Result<HeaderName, D::Error> {
    let name = String::deserialize(from)?;
    name.parse().map_err(|_| D::Error::custom(format!("header: expected the name of a header field, found {name:?}")))
}

impl Key {
    /// A well-mixed hash of the request's key.
    pub(crate) fn hash(&self, cx: &PickCx<'_>) -> u64 {
        let request = &cx.request;
        let text = |text: &str| xxh3_64(text.as_bytes());
        let hash = match self {
            Self::User => None,
            Self::Header(name) => request.header(name).map(text),
            Self::Cookie(name) => request.cookie(name).map(text),
            Self::Query(name) => request.query_param(name).map(|value| text(&value)),
            Self::ClientIp => Some(match request.client_ip {
                std::net::IpAddr::V4(ip) => xxh3_64(&ip.octets()),
                std::net::IpAddr::V6(ip) => xxh3_64(&ip.octets()),
            }),
            Self::Path => Some(text(request.path)),
        };
        // The user's hash has decided on the version already: mixed, so that the users of one version spread evenly.
        mix(hash.unwrap_or(cx.user_hash))
    }
}

/// Finaliser of splitmix64: a bijection whose every output bit depends on every input bit.
pub(crate) fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, Method};
    use serde_json::json;
    use serin_core::request::RequestView;

    use super::*;

    fn key(conf: serde_json::Value) -> Key {
        serde_json::from_value(conf).unwrap()
    }

    fn hash(key: &Key, headers: &[(&'static str, &str)], path: &str, query: &str, user_hash: u64) -> u64 {
        let mut fields = HeaderMap::new();
        for (name, value) in headers {
            fields.append(*name, value.parse().unwrap());
        }
        let request = RequestView {
            method: &Method::GET,
            host: "a",
            path,
            query: Some(query),
            headers: &fields,
            client_ip: [10, 0, 0, user_hash as u8].into(),
            from_trusted_proxy: false,
            claims: None,
            unix_time: 0,
        };
        let (tried, now) = (&[], std::time::Instant::now());
        key.hash(&PickCx {
            request,
            user_hash,
            tried,
            thinned: false,
            now,
            dry_run: false,
            rng: &mut crate::testing::rng(0),
        })
    }

    #[test]
    fn requests_of_one_key_have_one_hash() {
        // Per key: two requests with the same key and a third with another one, as (headers, path, query, user).
        type Request = (&'static [(&'static str, &'static str)], &'static str, &'static str, u64);
        let cases: [(serde_json::Value, [Request; 3]); 6] = [
            (json!("user"), [(&[], "/a", "", 1), (&[], "/b", "", 1), (&[], "/a", "", 2)]),
            (json!("path"), [(&[], "/a", "", 1), (&[], "/a", "q", 2), (&[], "/b", "", 1)]),
            (json!("client_ip"), [(&[], "/a", "", 1), (&[], "/b", "", 1), (&[], "/a", "", 2)]),
            (
                json!({ "header": "X-Id" }),
                [(&[("x-id", "1")], "/", "", 1), (&[("x-id", "1")], "/", "", 2), (&[], "/", "", 1)],
            ),
            (
                json!({ "cookie": "c" }),
                [(&[("cookie", "c=1")], "/", "", 1), (&[("cookie", "b=2;c=1")], "/", "", 2), (&[], "/", "", 1)],
            ),
            (json!({ "query": "q" }), [(&[], "/", "q=a%20b", 1), (&[], "/", "x&q=a+b", 2), (&[], "/", "q=a", 1)]),
        ];
        for (conf, requests) in cases {
            let key = key(conf);
            let [a, b, c] = requests.map(|(headers, path, query, user)| hash(&key, headers, path, query, user));
            assert!(a == b && a != c, "{key:?}");
        }
    }

    #[test]
    fn a_request_without_the_key_is_hashed_by_its_user() {
        for conf in [json!({ "header": "x-id" }), json!({ "cookie": "c" }), json!({ "query": "q" })] {
            assert_eq!(hash(&key(conf), &[], "/", "", 7), hash(&Key::User, &[], "/", "", 7));
        }
    }

    #[test]
    fn refusals_say_what_was_expected() {
        let cases = [
            (json!({ "header": "a b" }), "expected the name of a header field, found \"a b\""),
            (json!("ip"), "unknown variant `ip`, expected one of `user`, `header`, `cookie`"),
        ];
        for (conf, wanted) in cases {
            let error = serde_json::from_value::<Key>(conf).unwrap_err().to_string();
            assert!(error.contains(wanted), "{error}");
        }
    }
}
