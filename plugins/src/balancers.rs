//! The picks.

use serin_core::chain::Balancer;
use serin_core::plugin::Table;

pub mod adaptive;
pub mod first;
pub mod least_request;
pub mod maglev;
pub mod p2c;
pub mod peak_ewma;
pub mod random;
pub mod ring_hash;
pub mod round_robin;
pub mod weighted_random;
pub mod weighted_round_robin;

/// Every pick of this crate by name.
#[must_use]
pub fn table() -> Table<dyn Balancer> {
    Table::default()
        .with::<adaptive::Adaptive>()
        .with::<first::First>()
        .with::<least_request::LeastRequest>()
        .with::<maglev::Maglev>()
        .with::<p2c::P2c>()
        .with::<peak_ewma::PeakEwma>()
        .with::<random::Random>()
        .with::<ring_hash::RingHash>()
        .with::<round_robin::RoundRobin>()
        .with::<weighted_random::WeightedRandom>()
        .with::<weighted_round_robin::WeightedRoundRobin>()
}
