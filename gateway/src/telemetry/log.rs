//! The process's own log. It goes to standard error by way of a thread: whoever logs never waits for a pipe that is not
//! read or a disk that is full. Lines beyond what may wait are dropped and counted.

use std::io::IsTerminal;
use std::sync::OnceLock;

use tracing_appender::non_blocking::{ErrorCounter, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;

/// Environment variable that chooses what is logged, as `tracing` has it.
const CHOICE: &str = "SERIN_LOG";
/// Lines that may wait.
const LINES: usize = 8_192;

static LOST: OnceLock<ErrorCounter> = OnceLock::new();

/// Logs to standard error for as long as the guard is kept; what is logged is chosen by `SERIN_LOG`, else by `default`.
pub fn to_stderr(default: &str) -> WorkerGuard {
    let filter = EnvFilter::try_from_env(CHOICE).unwrap_or_else(|_| EnvFilter::new(default));
    let builder = NonBlockingBuilder::default().lossy(true).buffered_lines_limit(LINES).thread_name("log");
    let (writer, guard) = builder.finish(std::io::stderr());
    // Both fail only if there is a log already, which then goes on.
    let _ = LOST.set(writer.error_counter());
    let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer).with_ansi(colours).try_init();
    guard
}

/// Lines that were dropped.
#[must_use]
pub fn lost() -> usize {
    LOST.get().map_or(0, ErrorCounter::dropped_lines)
}
