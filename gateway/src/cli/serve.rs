//! `serin run`.

use std::path::PathBuf;

use clap::Args;
use serin_core::plugin::Catalogue;

use super::Failure;
use crate::conf::{self, Source};
use crate::server;
use crate::telemetry::log;

/// What is logged. pingora's proxy and the HTTP/2 codec have a line for every client that breaks off or floods: the metrics
/// say that as well, and strangers could fill a disk with it.
const LOGGED: &str = "info,pingora=warn,pingora_core=warn,pingora_proxy=off,h2=error";

/// Run the gateway until it is told to stop: SIGTERM lets requests finish, SIGINT does not.
#[derive(Debug, Args)]
pub(super) struct Run {
    /// The bootstrap document.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

impl Run {
    pub(super) fn run(&self, catalogue: Catalogue) -> Result<(), Failure> {
        let _log = log::to_stderr(LOGGED);
        let bootstrap = conf::bootstrap(&Source::read(&self.config)?)?;
        server::run(bootstrap, catalogue).map_err(|error| Failure::failed(error.to_string()))
    }
}
