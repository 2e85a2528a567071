//! Lists of instances as registries give them: what is in them, and how they are put right.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::conf::{Address, Instance, Labels};

/// A list in order of addresses, without repetitions.
pub(crate) type List = Arc<[Instance]>;

/// An instance of which nothing but the address is known.
pub(crate) fn plain(address: SocketAddr) -> Instance {
    Instance {
        address: Address(address),
        labels: Labels::new(),
        zone: None,
        cluster: None,
        weight: serin_core::instance::DEFAULT_WEIGHT,
    }
}

/// An instance as registrars write it: JSON as in the routing document, or nothing, if `name` is its address.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn parse(name: &str, value: &[u8]) -> Result<Instance, String> {
    if value.trim_ascii().is_empty() {
        return name.parse().map(plain).map_err(|_| "is empty, and the name is no address".to_owned());
    }
    let instance: Instance = serde_json::from_slice(value).map_err(|error| error.to_string())?;
    match instance.weight {
        0..=1_000_000 => Ok(instance),
        weight => Err(format!("has the weight {weight}: at most 1000000 is possible")),
    }
}

/// Puts a list in order. Instances that cannot be reached by any means are left out; of two with one address the first
/// stays.
pub(crate) fn in_order(mut list: Vec<Instance>) -> List {
    list.retain(|instance| instance.address.port() != 0 && !instance.address.ip().is_unspecified());
    list.sort_by_key(|instance| instance.address.0);
    list.dedup_by_key(|instance| instance.address.0);
    list.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_are_read_and_put_in_order() {
        let address = "127.0.0.1:80".parse().unwrap();
        assert_eq!(parse("127.0.0.1:80", b" \n"), Ok(plain(address)));
        assert!(parse("a", b"").is_err() && parse("a", b"{").is_err() && parse("a", b"\xff\xfe").is_err());
        assert!(parse("a", br#"{"address": "127.0.0.1:80", "wieght": 1}"#).is_err());
        assert!(parse("a", br#"{"address": "127.0.0.1:80", "weight": 1000001}"#).is_err());
        let written = parse("a", br#"{"address": "127.0.0.1:80", "labels": {"version": "v1"}, "weight": 7}"#).unwrap();
        assert_eq!((written.weight, &*written.labels["version"]), (7, "v1"));
        let list = ["127.0.0.2:1", "127.0.0.1:2", "127.0.0.1:0", "0.0.0.0:1", "127.0.0.2:1"];
        let list = in_order(list.iter().map(|text| plain(text.parse().unwrap())).collect());
        let addresses: Vec<_> = list.iter().map(|instance| instance.address.to_string()).collect();
        assert_eq!(addresses, ["127.0.0.1:2", "127.0.0.2:1"]);
    }
}
