//! `cluster`: the instances of the gateway's own cluster, as long as there are any.

use std::sync::Arc;

use serin_core::chain::{Narrow, Narrowing};
use serin_core::instance::Instance;
use serin_core::plugin::{BuildError, Node, Plugin};

use crate::Empty;
use crate::narrows::{Fallback, Wanted};

/// Keeps the candidates of the gateway's own cluster. If there are none, or the gateway has no cluster, it keeps all of them.
#[derive(Debug)]
pub struct Cluster {
    own: Option<Arc<str>>,
}

impl Plugin for Cluster {
    const NAME: &'static str = "cluster";
    type Conf = Empty;
    type Made = dyn Narrowing;

    fn build(_conf: Empty, node: &Node) -> Result<Arc<dyn Narrowing>, BuildError> {
        Ok(Arc::new(Self { own: node.cluster.clone() }))
    }
}

impl Narrowing for Cluster {
    fn prepare(&self, pool: &[Instance]) -> Arc<dyn Narrow> {
        Wanted::prepare(pool, Fallback::Keep, |instance| self.own.is_some() && instance.cluster == self.own)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use serin_core::candidates::Slot;

    use super::*;
    use crate::testing::{left, pool};

    #[test]
    fn the_own_cluster_comes_first() {
        let mut pool = pool(&[1, 1, 1, 0, 1]);
        for (instance, cluster) in pool.iter_mut().zip(["a", "b", "a", "c"]) {
            instance.cluster = Some(cluster.into());
        }
        let cases: [(Option<&str>, &[Slot]); 5] = [
            (Some("a"), &[0, 2]),
            (Some("b"), &[1]),
            (Some("c"), &[0, 1, 2, 4]), // its only instance has no weight
            (Some("d"), &[0, 1, 2, 4]),
            (None, &[0, 1, 2, 4]),
        ];
        for (own, wanted) in cases {
            let node = Node { cluster: own.map(Into::into), ..Node::default() };
            assert_eq!(left("cluster", json!({}), &node, &pool).unwrap(), wanted, "{own:?}");
        }
    }
}
