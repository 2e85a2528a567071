//! Example of what a plug-in must not do. `faulty` picks well for a while, and then it panics or sleeps at every
//! decision. The gateway takes its chain out and serves on; `serin rearm` puts it back.
//!
//! ```yaml
//! balancer: [ { faulty: { fault: panic, after: 100 } } ]
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use serde::Deserialize;
use serin_core::candidates::{Candidates, Slot};
use serin_core::chain::{Balancer, Pick, PickCx};
use serin_core::instance::Instance;
use serin_core::plugin::{BuildError, Node, Plugin};

/// How long a stalling decision sleeps.
const STALL: Duration = Duration::from_millis(5);

/// Takes the first candidate until its fault shows.
#[derive(Clone, Copy, Debug)]
pub struct Faulty(Conf);

/// Configuration.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Conf {
    /// What is wrong with it.
    pub fault: Fault,
    /// Decisions before that shows [0].
    #[serde(default)]
    pub after: u64,
}

/// What is wrong with the balancer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// It panics.
    Panic,
    /// It sleeps for 5 ms.
    Stall,
}

impl Plugin for Faulty {
    const NAME: &'static str = "faulty";
    type Conf = Conf;
    type Made = dyn Balancer;

    fn build(conf: Conf, _node: &Node) -> Result<Arc<dyn Balancer>, BuildError> {
        Ok(Arc::new(Self(conf)))
    }
}

impl Balancer for Faulty {
    fn prepare(&self, _pool: &[Instance]) -> Arc<dyn Pick> {
        Arc::new(Prepared { conf: self.0, decisions: AtomicU64::new(0) })
    }
}

struct Prepared {
    conf: Conf,
    decisions: AtomicU64,
}

impl Pick for Prepared {
    #[expect(clippy::panic, reason = "that is the fault that this example is about")]
    fn pick(&self, cx: &mut PickCx<'_>, candidates: &Candidates<'_>) -> Option<Slot> {
        let before = if cx.dry_run { self.decisions.load(Relaxed) } else { self.decisions.fetch_add(1, Relaxed) };
        match self.conf.fault {
            _ if before < self.conf.after => {}
            Fault::Panic => panic!("a fault in the balancer `faulty`"),
            Fault::Stall => std::thread::sleep(STALL),
        }
        candidates.nth(0)
    }
}
