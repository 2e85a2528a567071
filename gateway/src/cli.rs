//! The command line. What changes a running gateway, or asks it, goes through its admin API.

mod canary;
mod client;
mod demo;
mod explain;
mod health;
mod history;
mod instances;
mod offline;
mod ramp;
mod rearm;
mod serve;
mod switch;
mod tail;
mod text;
mod tls;
mod top;
mod upstream;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use serde::Serialize;
use serin_core::plugin::Catalogue;

use self::client::Client;
use crate::admin::ProblemDocument;
use crate::conf::Problems;

/// Exit codes.
pub mod exit {
    /// All went well.
    pub const OK: u8 = 0;
    /// A document or a change was refused, or something failed; standard error says what.
    pub const FAILED: u8 = 1;
    /// The command line is wrong.
    pub const USAGE: u8 = 2;
    /// The admin API cannot be reached.
    pub const UNREACHABLE: u8 = 3;
    /// Somebody else changed the traffic document in between; nothing was changed.
    pub const CONFLICT: u8 = 4;
    /// The admin API wants a token, or another one.
    pub const UNAUTHORIZED: u8 = 5;
}

const AFTER_HELP: &str = "\
Exit codes:
  0  all went well
  1  a document or a change was refused, or something failed; standard error says what
  2  the command line is wrong
  3  the admin API cannot be reached
  4  somebody else changed the traffic document in between; nothing was changed
  5  the admin API wants a token, or another one";

/// Serin, an edge API gateway: routes requests by tag, user and weight, and lets operators flip that while it runs.
#[derive(Debug, Parser)]
#[command(name = "serin", version, after_help = AFTER_HELP, propagate_version = true)]
struct Args {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    command: Command,
}

/// What every command takes.
#[derive(Debug, clap::Args)]
struct Common {
    /// Write JSON instead of text.
    #[arg(long, global = true)]
    json: bool,
    /// Where the admin API is.
    #[arg(long, global = true, env = "SERIN_ADMIN", default_value = "http://127.0.0.1:9901", value_name = "URL")]
    admin: String,
    /// File of the admin API's token.
    #[arg(long, global = true, env = "SERIN_TOKEN_FILE", value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// PEM file of the authorities that the admin API's certificate is trusted for [default: those of the system].
    #[arg(long, global = true, env = "SERIN_CA", value_name = "FILE")]
    ca: Option<PathBuf>,
    /// PEM file of the certificate to show to the admin API, with `--key`.
    #[arg(long, global = true, env = "SERIN_CERT", value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// PEM file of its private key.
    #[arg(long, global = true, env = "SERIN_KEY", value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
    /// Who you are, for the history [default: the name you are logged in with].
    #[arg(long, global = true, env = "SERIN_OPERATOR", value_name = "NAME")]
    operator: Option<String>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the gateway.
    Run(serve::Run),
    /// Check a bootstrap document with what it names, or a routing or traffic document alone.
    Check(offline::Check),
    /// Print the JSON schema of a document.
    Schema(offline::PrintSchema),
    /// Run a gateway with three demo upstreams in this process.
    Demo(demo::Demo),
    /// Run upstreams to try things on.
    Upstream(upstream::Upstreams),
    /// Show what the running gateway does with a request, and why.
    Explain(explain::Explain),
    /// Weights and aborts of a service.
    #[command(subcommand)]
    Canary(canary::Canary),
    /// Guarded ramps: a share that grows step by step for as long as its guards hold.
    #[command(subcommand)]
    Ramp(ramp::Ramp),
    /// Turn a kill switch on or off.
    Switch(switch::Switch),
    /// Put a balancer chain back in force that the gateway took out.
    Rearm(rearm::Rearm),
    /// Show what was changed and what was refused, newest first.
    History(history::History),
    /// Go back to the traffic document of an earlier revision.
    Rollback(history::Rollback),
    /// Show instances with their weight, health and load.
    Instances(instances::Instances),
    /// Show requests, errors and latencies of services and subsets as they change.
    Top(top::Top),
    /// Show decisions as they happen, until Ctrl-C.
    Tail(tail::Tail),
    /// Succeed if the gateway is ready.
    Health(health::Health),
    /// Override tags.
    #[command(subcommand)]
    Tag(offline::Tag),
}

/// What a change is made with.
#[derive(Debug, clap::Args)]
struct Change {
    /// Why, for the history.
    #[arg(long, default_value = "")]
    reason: String,
    /// Change only this revision of the traffic document; if another one is in force, do nothing.
    #[arg(long, value_name = "REVISION")]
    expect: Option<u64>,
}

/// Runs the command line with this catalogue of balancers and narrows.
#[must_use]
pub fn run(catalogue: Catalogue) -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            // Help goes to standard output, mistakes to standard error; a closed pipe is no matter.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { exit::USAGE } else { exit::OK });
        }
    };
    match dispatch(&args, catalogue) {
        Ok(()) => ExitCode::from(exit::OK),
        Err(failure) => {
            failure.print(args.common.json);
            ExitCode::from(failure.code)
        }
    }
}

fn dispatch(args: &Args, catalogue: Catalogue) -> Result<(), Failure> {
    let common = &args.common;
    let out = Out { json: common.json };
    let client = || Client::new(common);
    match &args.command {
        Command::Run(run) => run.run(catalogue),
        Command::Check(check) => check.run(&catalogue, out),
        Command::Schema(schema) => schema.run(),
        Command::Demo(demo) => demo.run(catalogue),
        Command::Upstream(upstreams) => upstreams.run(),
        Command::Explain(explain) => explain.run(&client()?, out),
        Command::Canary(canary) => canary.run(&client()?, out),
        Command::Ramp(ramp) => ramp.run(&client()?, out),
        Command::Switch(switch) => switch.run(&client()?, out),
        Command::Rearm(rearm) => rearm.run(&client()?, out),
        Command::History(history) => history.run(&client()?, out),
        Command::Rollback(rollback) => rollback.run(&client()?, out),
        Command::Instances(instances) => instances.run(&client()?, out),
        Command::Top(top) => top.run(client()?, out),
        Command::Tail(tail) => tail.run(&client()?, out),
        Command::Health(health) => health.run(&client()?, out),
        Command::Tag(tag) => tag.run(out),
    }
}

/// Where results go.
#[derive(Clone, Copy)]
struct Out {
    json: bool,
}

impl Out {
    /// Writes a result: as JSON, or as text for people.
    fn write(self, value: &impl Serialize, text: impl FnOnce() -> String) -> Result<(), Failure> {
        let text = if self.json {
            serde_json::to_string_pretty(value).map_err(|error| Failure::failed(error.to_string()))?
        } else {
            text()
        };
        let mut stdout = std::io::stdout().lock();
        match writeln!(stdout, "{}", text.trim_end()) {
            // Whoever reads has seen enough.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
            Err(error) => Err(Failure::failed(error.to_string())),
            Ok(()) => Ok(()),
        }
    }
}

/// Why a command did not succeed.
#[derive(Debug)]
struct Failure {
    code: u8,
    what: What,
}

#[derive(Debug)]
enum What {
    Message(String),
    Documents(Problems),
    Refused(ProblemDocument),
}

impl Failure {
    fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, what: What::Message(message.into()) }
    }

    fn failed(message: impl Into<String>) -> Self {
        Self::new(exit::FAILED, message)
    }

    fn usage(message: impl Into<String>) -> Self {
        Self::new(exit::USAGE, message)
    }

    /// Says on standard error what was wrong.
    fn print(&self, json: bool) {
        let text = match (&self.what, json) {
            (What::Message(message), false) => format!("error: {message}"),
            (What::Documents(problems), false) => problems.to_string(),
            (What::Refused(document), false) => text::problem(document),
            (What::Message(message), true) => serde_json::json!({ "error": message }).to_string(),
            (What::Documents(problems), true) => serde_json::json!({ "problems": problems }).to_string(),
            (What::Refused(document), true) => serde_json::to_string(document).unwrap_or_default(),
        };
        // If the stream is closed, there is nobody to tell. Problems of documents are what `check --json` is for.
        let _ = match (&self.what, json) {
            (What::Documents(_), true) => writeln!(std::io::stdout().lock(), "{text}"),
            _ => writeln!(std::io::stderr().lock(), "{text}"),
        };
    }
}

impl From<Problems> for Failure {
    fn from(problems: Problems) -> Self {
        Self { code: exit::FAILED, what: What::Documents(problems) }
    }
}

#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;

#[cfg(test)]
pub(crate) use self::reference::page as reference;
