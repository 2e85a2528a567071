//! What the end-to-end tests share: origins to route to, a gateway process to route through, and clients.
//!
//! Everything runs on real sockets and against the real binary; nothing here knows the gateway's insides.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::needless_pass_by_value,
    reason = "a harness fails its test by panicking, and takes values that tests write in place"
)]

pub mod admin;
pub mod book;
pub mod client;
pub mod conf;
pub mod frames;
pub mod gateway;
pub mod island;
pub mod ledger;
pub mod load;
pub mod origin;
pub mod otlp;
pub mod peers;
pub mod prometheus;
pub mod raw;
pub mod recorder;
pub mod rogue;
pub mod servers;
pub mod session;
pub mod streams;
pub mod tls;
pub mod wait;
pub mod wire;
pub mod world;

pub use client::{Call, Conn, Reply};
pub use conf::Conf;
pub use gateway::Gateway;
pub use origin::{Behaviour, Origin};
pub use raw::Raw;
pub use recorder::Recorder;
pub use rogue::Rogue;
pub use world::World;
