//! `ip_family`: the instances with an IPv4 or an IPv6 address, if there are any (`prefer`) or else none (`only`).

use std::sync::Arc;

use serde::Deserialize;
use serin_core::chain::{Narrow, Narrowing};
use serin_core::instance::Instance;
use serin_core::plugin::{BuildError, Node, Plugin};

use crate::narrows::{Fallback, Wanted};

/// Keeps the candidates of one address family. An IPv4 address that is mapped into IPv6 counts as IPv4.
#[derive(Debug)]
pub struct IpFamily {
    family: Family,
    fallback: Fallback,
}

/// Configuration: one of the two.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Conf {
    /// The family to keep if any candidate is of it.
    #[serde(default)]
    pub prefer: Option<Family>,
    /// The family to keep even if no candidate is of it.
    #[serde(default)]
    pub only: Option<Family>,
}

/// An address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Plugin for IpFamily {
    const NAME: &'static str = "ip_family";
    type Conf = Conf;
    type Made = dyn Narrowing;

    fn build(conf: Conf, _node: &Node) -> Result<Arc<dyn Narrowing>, BuildError> {
        let (family, fallback) = match (conf.prefer, conf.only) {
            (Some(family), None) => (family, Fallback::Keep),
            (None, Some(family)) => (family, Fallback::Empty),
            _ => return Err(BuildError("expected either `prefer: v4|v6` or `only: v4|v6`".into())),
        };
        Ok(Arc::new(Self { family, fallback }))
    }
}

impl Narrowing for IpFamily {
    fn prepare(&self, pool: &[Instance]) -> Arc<dyn Narrow> {
        let v4 = self.family == Family::V4;
        Wanted::prepare(pool, self.fallback, |instance| instance.address.ip().to_canonical().is_ipv4() == v4)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use serin_core::candidates::Slot;

    use super::*;
    use crate::testing::{left, pool};

    fn with_addresses(addresses: &[&str]) -> Vec<Instance> {
        let mut pool = pool(&vec![1; addresses.len()]);
        pool.iter_mut().zip(addresses).for_each(|(instance, address)| instance.address = address.parse().unwrap());
        pool
    }

    #[test]
    fn one_family_is_left() {
        let (both, only_v4) = (["1.1.1.1:1", "[::1]:1", "[::ffff:1.1.1.2]:1"], ["1.1.1.1:1"]);
        let cases: [(Value, &[&str], &[Slot]); 6] = [
            (json!({ "prefer": "v4" }), &both, &[0, 2]),
            (json!({ "prefer": "v6" }), &both, &[1]),
            (json!({ "only": "v4" }), &both, &[0, 2]),
            (json!({ "only": "v6" }), &both, &[1]),
            (json!({ "prefer": "v6" }), &only_v4, &[0]),
            (json!({ "only": "v6" }), &only_v4, &[]),
        ];
        for (conf, addresses, wanted) in cases {
            let found = left("ip_family", conf.clone(), &Node::default(), &with_addresses(addresses));
            assert_eq!(found.unwrap(), wanted, "{conf} of {addresses:?}");
        }
    }

    #[test]
    fn refusals_say_what_was_expected() {
        let cases = [
            (json!({}), "expected either `prefer: v4|v6` or `only: v4|v6`"),
            (json!({ "prefer": "v4", "only": "v4" }), "expected either"),
            (json!({ "prefer": "ipv4" }), "unknown variant `ipv4`, expected `v4` or `v6`"),
            (json!({ "require": "v4" }), "unknown field `require`, expected `prefer` or `only`"),
        ];
        for (conf, wanted) in cases {
            let error = left("ip_family", conf, &Node::default(), &[]).unwrap_err();
            assert!(error.contains(wanted), "{error}");
        }
    }
}
