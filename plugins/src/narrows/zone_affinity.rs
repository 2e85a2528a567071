//! `zone_affinity`: the instances of the gateway's own zone, as long as there are any.

use std::sync::Arc;

use serin_core::chain::{Narrow, Narrowing};
use serin_core::instance::Instance;
use serin_core::plugin::{BuildError, Node, Plugin};

use crate::Empty;
use crate::narrows::{Fallback, Wanted};

/// Keeps the candidates of the gateway's own zone. If there are none, or the gateway has no zone, it keeps all of them.
#[derive(Debug)]
pub struct ZoneAffinity {
    own: Option<Arc<str>>,
}

impl Plugin for ZoneAffinity {
    const NAME: &'static str = "zone_affinity";
    type Conf = Empty;
    type Made = dyn Narrowing;

    fn build(_conf: Empty, node: &Node) -> Result<Arc<dyn Narrowing>, BuildError> {
        Ok(Arc::new(Self { own: node.zone.clone() }))
    }
}

impl Narrowing for ZoneAffinity {
    fn prepare(&self, pool: &[Instance]) -> Arc<dyn Narrow> {
        Wanted::prepare(pool, Fallback::Keep, |instance| self.own.is_some() && instance.zone == self.own)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use serin_core::candidates::Slot;

    use super::*;
    use crate::testing::{left, pool};

    #[test]
    fn the_own_zone_comes_first() {
        let mut pool = pool(&[1, 1, 1, 0, 1]);
        for (instance, zone) in pool.iter_mut().zip(["a", "b", "a", "c"]) {
            instance.zone = Some(zone.into());
        }
        let cases: [(Option<&str>, &[Slot]); 5] = [
            (Some("a"), &[0, 2]),
            (Some("b"), &[1]),
            (Some("c"), &[0, 1, 2, 4]), // its only instance has no weight
            (Some("d"), &[0, 1, 2, 4]),
            (None, &[0, 1, 2, 4]),
        ];
        for (own, wanted) in cases {
            let node = Node { zone: own.map(Into::into), ..Node::default() };
            assert_eq!(left("zone_affinity", json!({}), &node, &pool).unwrap(), wanted, "{own:?}");
        }
    }
}
