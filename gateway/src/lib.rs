//! Serin, an edge API gateway: tags requests, routes them to version subsets with fallback, and picks instances with a
//! pluggable balancer chain. Operators flip weights and kill switches while it runs.

pub mod admin;
pub mod checks;
pub mod cli;
pub mod conf;
pub mod connection;
pub mod control;
pub mod drain;
pub mod ease;
pub mod explain;
pub mod identity;
pub mod jwt;
pub mod limits;
pub mod listen;
pub mod overload;
pub mod pool;
pub mod proxy;
pub mod pulse;
pub mod registries;
pub mod server;
pub mod sources;
pub mod telemetry;
pub mod text;
pub mod upkeep;

#[cfg(test)]
mod reference;

pub use serin_core as core;
pub use serin_plugins::builtin;

/// Runs the command line with this catalogue of balancers and narrows; see [`cli`].
#[must_use]
pub fn run(catalogue: serin_core::plugin::Catalogue) -> std::process::ExitCode {
    cli::run(catalogue)
}
