//! The balancer chain of a service: any number of narrows that shrink the candidates, then one pick that takes one.
//!
//! What is configured ([`Narrowing`], [`Balancer`]) is prepared for a pool whenever the pool changes; what serves
//! requests ([`Narrow`], [`Pick`]) is the prepared form.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use rand::Rng;

use crate::candidates::{Candidates, Slot};
use crate::instance::Instance;
use crate::request::RequestView;

/// What a narrow or a pick may look at. Clock and randomness are handed in, so that a decision can be replayed.
pub struct PickCx<'a> {
    /// The request.
    pub request: RequestView<'a>,
    /// Stable hash of the user's key, or a random number for requests without one.
    pub user_hash: u64,
    /// Slots of this pool that this request has tried already.
    pub tried: &'a [Slot],
    /// Weak instances were left out of this pick at random, in proportion to their weights in force. A pick that takes
    /// turns takes none then.
    pub thinned: bool,
    /// Current time.
    pub now: Instant,
    /// The decision is only being explained: leave cursors and counters as they are.
    pub dry_run: bool,
    /// Source of randomness.
    pub rng: &'a mut dyn Rng,
}

/// A narrow that was prepared for one pool. It shrinks the candidates and never picks. A narrow that would leave
/// nothing leaves everything instead, unless an empty set is its point.
pub trait Narrow: Send + Sync {
    /// Shrinks the candidates.
    fn narrow(&self, cx: &mut PickCx<'_>, candidates: &mut Candidates<'_>);

    /// How often it found nothing that it wants and left everything, since the count was last set to 0; `None` if that
    /// is of no interest.
    fn missed(&self) -> Option<&AtomicU64> {
        None
    }
}

/// A pick that was prepared for one pool. It never blocks, allocates or loops without a bound.
pub trait Pick: Send + Sync {
    /// Takes one of the candidates; `None` only if there are none.
    fn pick(&self, cx: &mut PickCx<'_>, candidates: &Candidates<'_>) -> Option<Slot>;
}

/// A configured narrow.
pub trait Narrowing: Send + Sync {
    /// Builds what requests need, off the hot path.
    fn prepare(&self, pool: &[Instance]) -> Arc<dyn Narrow>;
}

/// A configured pick.
pub trait Balancer: Send + Sync {
    /// Builds what requests need (tables, rings), off the hot path.
    fn prepare(&self, pool: &[Instance]) -> Arc<dyn Pick>;
}

/// A configured chain: narrows in order, then exactly one pick.
#[derive(Clone)]
pub struct ChainPlan {
    /// Narrows by name.
    pub narrows: Vec<(Arc<str>, Arc<dyn Narrowing>)>,
    /// The pick by name.
    pub pick: (Arc<str>, Arc<dyn Balancer>),
}

impl ChainPlan {
    /// Prepares the chain for a pool.
    #[must_use]
    pub fn prepare(&self, pool: &[Instance]) -> Chain {
        Chain {
            narrows: self.narrows.iter().map(|(name, plan)| (Arc::clone(name), plan.prepare(pool))).collect(),
            pick: (Arc::clone(&self.pick.0), self.pick.1.prepare(pool)),
        }
    }
}

impl Default for ChainPlan {
    fn default() -> Self {
        Self { narrows: Vec::new(), pick: (RoundRobin::NAME.into(), Arc::new(RoundRobin::default())) }
    }
}

/// A chain that was prepared for one pool.
pub struct Chain {
    narrows: Vec<(Arc<str>, Arc<dyn Narrow>)>,
    pick: (Arc<str>, Arc<dyn Pick>),
}

impl Chain {
    /// Name of the pick.
    #[must_use]
    pub fn pick_name(&self) -> &Arc<str> {
        &self.pick.0
    }

    /// The narrows that count how often they found nothing.
    pub fn missed(&self) -> impl Iterator<Item = (&Arc<str>, &AtomicU64)> {
        self.narrows.iter().filter_map(|(name, narrow)| Some((name, narrow.missed()?)))
    }

    /// Narrows the candidates. `seen` is told what every narrow left: this is how a decision is explained without a
    /// second copy of it.
    pub fn narrow(
        &self,
        cx: &mut PickCx<'_>,
        candidates: &mut Candidates<'_>,
        mut seen: impl FnMut(&str, &Candidates<'_>),
    ) {
        exclude_tried(cx.tried, candidates);
        if !cx.tried.is_empty() {
            seen("exclude_tried", candidates);
        }
        for (name, narrow) in &self.narrows {
            narrow.narrow(cx, candidates);
            seen(name, candidates);
        }
    }

    /// Picks one of the candidates that were left.
    pub fn pick(&self, cx: &mut PickCx<'_>, candidates: &Candidates<'_>) -> Option<Slot> {
        self.pick.1.pick(cx, candidates)
    }
}

/// Takes out the instances that the request has tried, unless it has tried them all. Every chain begins with this, after
/// the unhealthy ones are taken out.
pub fn exclude_tried(tried: &[Slot], candidates: &mut Candidates<'_>) {
    if !tried.is_empty() && candidates.slots().any(|slot| !tried.contains(&slot)) {
        tried.iter().for_each(|&slot| candidates.remove(slot));
    }
}

/// Plain round robin: the default pick, and what the balancer kill switch reverts every chain to.
#[derive(Debug, Default)]
pub struct RoundRobin {
    next: AtomicUsize,
}

impl RoundRobin {
    /// Its name in a chain.
    pub const NAME: &'static str = "round_robin";
}

impl Balancer for RoundRobin {
    fn prepare(&self, _pool: &[Instance]) -> Arc<dyn Pick> {
        Arc::new(Self::default())
    }
}

impl Pick for RoundRobin {
    fn pick(&self, cx: &mut PickCx<'_>, candidates: &Candidates<'_>) -> Option<Slot> {
        let len = candidates.len();
        if len == 0 {
            return None;
        }
        let turn = if cx.dry_run { self.next.load(Relaxed) } else { self.next.fetch_add(1, Relaxed) };
        candidates.nth(turn % len)
    }
}
