//! `serin run`.

use std::io::IsTerminal;
use std::path::PathBuf;

use clap::Args;
use serin_core::plugin::Catalogue;
use tracing_subscriber::EnvFilter;

use super::Failure;
use crate::conf::{self, Source};
use crate::server;

/// Environment variable that chooses what is logged, as `tracing` has it.
const LOG: &str = "SERIN_LOG";

/// Run the gateway until it is told to stop: SIGTERM lets requests finish, SIGINT does not.
#[derive(Debug, Args)]
pub(super) struct Run {
    /// The bootstrap document.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

impl Run {
    pub(super) fn run(&self, catalogue: Catalogue) -> Result<(), Failure> {
        log_to_stderr("info,pingora=warn,pingora_core=warn,pingora_proxy=warn");
        let bootstrap = conf::bootstrap(&Source::read(&self.config)?)?;
        server::run(bootstrap, catalogue).map_err(|error| Failure::failed(error.to_string()))
    }
}

/// Logs to standard error; what is logged is chosen by `SERIN_LOG`, else by `default`.
pub(super) fn log_to_stderr(default: &str) {
    let filter = EnvFilter::try_from_env(LOG).unwrap_or_else(|_| EnvFilter::new(default));
    let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colours);
    // Fails only if there is a subscriber already, which then goes on.
    let _ = subscriber.try_init();
}
