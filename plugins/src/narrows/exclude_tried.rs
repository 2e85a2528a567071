//! `exclude_tried`: takes out the instances that the request has tried. Every chain begins with it anyway; naming it
//! says so, and changes nothing.

use std::sync::Arc;

use serin_core::candidates::Candidates;
use serin_core::chain::{self, Narrow, Narrowing, PickCx};
use serin_core::instance::Instance;
use serin_core::plugin::{BuildError, Node, Plugin};

use crate::Empty;

/// Names the core's [`chain::exclude_tried`].
#[derive(Debug)]
pub struct ExcludeTried;

impl Plugin for ExcludeTried {
    const NAME: &'static str = "exclude_tried";
    type Conf = Empty;
    type Made = dyn Narrowing;

    fn build(_conf: Empty, _node: &Node) -> Result<Arc<dyn Narrowing>, BuildError> {
        Ok(Arc::new(Self))
    }
}

impl Narrowing for ExcludeTried {
    fn prepare(&self, _pool: &[Instance]) -> Arc<dyn Narrow> {
        Arc::new(Self)
    }
}

impl Narrow for ExcludeTried {
    fn narrow(&self, cx: &mut PickCx<'_>, candidates: &mut Candidates<'_>) {
        chain::exclude_tried(cx.tried, candidates);
    }
}

#[cfg(test)]
mod tests {
    use serin_core::candidates::{Candidates, Slot};

    use super::*;
    use crate::laws::with_cx;
    use crate::testing::{pool, rng};

    #[test]
    fn named_or_not_the_same_is_left() {
        let cases: [(&[Slot], &[Slot]); 4] =
            [(&[], &[0, 1, 3]), (&[1], &[0, 3]), (&[1, 1, 0], &[3]), (&[0, 1, 3, 0], &[0, 1, 3])];
        let pool = pool(&[1, 1, 0, 1]);
        for (tried, wanted) in cases {
            let mut candidates = Candidates::new(&pool);
            chain::exclude_tried(tried, &mut candidates);
            assert!(candidates.slots().eq(wanted.iter().copied()), "{tried:?}");
            with_cx(&mut rng(0), 0, tried, |cx| ExcludeTried.narrow(cx, &mut candidates));
            assert!(candidates.slots().eq(wanted.iter().copied()), "{tried:?} twice");
        }
    }
}
