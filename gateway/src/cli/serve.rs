//! `serin run`.

use std::path::PathBuf;

use clap::Args;
use serin_core::plugin::Catalogue;

use super::Failure;
use crate::conf::{self, Source};
use crate::server::{self, Start};
use crate::telemetry::log;

/// What is logged. pingora's proxy and the HTTP/2 codec have a line for every client that breaks off or floods: the metrics
/// say that as well, and strangers could fill a disk with it.
const LOGGED: &str = "info,pingora=warn,pingora_core=warn,pingora_proxy=off,h2=error";

/// Run the gateway until it is told to stop: SIGTERM lets requests finish, SIGINT does not. SIGUSR2 has it start its own
/// successor, with the binary that is there then.
#[derive(Debug, Args)]
pub(super) struct Run {
    /// The bootstrap document.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Take over from the gateway that runs with the same state directory: its listening sockets come to this process, and
    /// it drains once this one serves. No connection is refused.
    #[arg(long)]
    upgrade: bool,
}

impl Run {
    pub(super) fn run(&self, catalogue: Catalogue) -> Result<(), Failure> {
        let _log = log::to_stderr(LOGGED);
        let bootstrap = conf::bootstrap(&Source::read(&self.config)?)?;
        let start = if self.upgrade { Start::Upgrade } else { Start::Fresh };
        server::run(bootstrap, catalogue, start).map_err(|error| Failure::failed(error.to_string()))
    }
}
