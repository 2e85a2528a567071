//! The narrows.

use std::sync::Arc;

use serde::Deserialize;
use serin_core::candidates::{Candidates, Mask};
use serin_core::chain::{Narrow, Narrowing, PickCx};
use serin_core::instance::Instance;
use serin_core::plugin::Table;

pub mod cluster;
pub mod exclude_tried;
pub mod implied;
pub mod ip_family;
pub mod labels;
pub mod zone_affinity;

/// Every narrow of this crate by name.
#[must_use]
pub fn table() -> Table<dyn Narrowing> {
    Table::default()
        .with::<cluster::Cluster>()
        .with::<exclude_tried::ExcludeTried>()
        .with::<implied::Healthy>()
        .with::<ip_family::IpFamily>()
        .with::<labels::Labels>()
        .with::<implied::Warm>()
        .with::<zone_affinity::ZoneAffinity>()
}

/// What a narrow does when no candidate is what it wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fallback {
    /// Leaves the candidates as they are.
    #[default]
    Keep,
    /// Leaves none.
    Empty,
}

/// A narrow to instances that were found when the pool was prepared.
struct Wanted {
    mask: Mask,
    fallback: Fallback,
}

impl Wanted {
    fn prepare(pool: &[Instance], fallback: Fallback, wanted: impl FnMut(&Instance) -> bool) -> Arc<dyn Narrow> {
        Arc::new(Self { mask: Mask::of(pool, wanted), fallback })
    }
}

impl Narrow for Wanted {
    fn narrow(&self, _cx: &mut PickCx<'_>, candidates: &mut Candidates<'_>) {
        if self.fallback == Fallback::Empty || candidates.intersects(&self.mask) {
            candidates.retain_mask(&self.mask);
        }
    }
}
