//! What a balancer chain can be made of: picks in [`balancers`], narrows in [`narrows`]. A new one is one file (its
//! configuration, behaviour and tests) and one line in the table of its kind.

pub mod balancers;
pub mod laws;
pub mod narrows;

mod affinity;
mod draw;
mod key;
mod overload;

#[cfg(test)]
mod testing;

use serin_core::plugin::Catalogue;

/// Every balancer and narrow of this crate.
#[must_use]
pub fn builtin() -> Catalogue {
    Catalogue { balancers: balancers::table(), narrows: narrows::table() }
}

/// The configuration of what has nothing to configure.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Empty {}
