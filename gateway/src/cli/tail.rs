//! `serin tail`: decisions as they happen.

use std::fmt::Write as _;
use std::io::{BufRead, ErrorKind, IsTerminal, Write};
use std::os::fd::AsFd;
use std::time::Duration;

use clap::Args;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use super::client::Client;
use super::{Failure, Out, exit};
use crate::conf::Name;

/// How long to wait before a gateway that is gone is asked again.
const AGAIN: Duration = Duration::from_millis(300);

/// Show decisions as they happen, a line each, until Ctrl-C. A gateway that restarts is found again.
#[derive(Debug, Args)]
pub(super) struct Tail {
    /// Only of this service.
    #[arg(long)]
    service: Option<Name>,
    /// Only those that this subset served.
    #[arg(long)]
    subset: Option<Name>,
    /// Only those of this user, by the user key; only its bucket is shown.
    #[arg(long, value_name = "KEY")]
    user: Option<String>,
}

impl Tail {
    pub(super) fn run(&self, client: &Client, out: Out) -> Result<(), Failure> {
        let colour = !out.json && std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        let path = self.path();
        end_with_the_reader();
        let mut lines = client.stream(&path)?;
        loop {
            if !copy(&mut lines, out.json, colour)? {
                return Ok(());
            }
            eprintln!("note: the gateway ended the stream; waiting for it to come back");
            lines = self.again(client, &path)?;
            eprintln!("note: listening again; what happened in between is not shown");
        }
    }

    fn again(&self, client: &Client, path: &str) -> Result<Box<dyn BufRead>, Failure> {
        loop {
            std::thread::sleep(AGAIN);
            match client.stream(path) {
                Err(failure) if failure.code == exit::UNREACHABLE => {}
                other => return other,
            }
        }
    }

    fn path(&self) -> String {
        let parts = [
            ("service", self.service.as_ref().map(Name::as_str)),
            ("subset", self.subset.as_ref().map(Name::as_str)),
            ("user", self.user.as_deref()),
        ];
        let given = parts.into_iter().filter_map(|(name, value)| Some((name, value?)));
        let pairs = given.map(|(name, value)| format!("{name}={}", utf8_percent_encode(value, NON_ALPHANUMERIC)));
        let query = pairs.collect::<Vec<_>>().join("&");
        if query.is_empty() { "/v1/tail".to_owned() } else { format!("/v1/tail?{query}") }
    }
}

/// Ends the process when nobody reads its output any more, also while nothing happens: `serin tail | head -1`.
fn end_with_the_reader() {
    std::thread::spawn(|| {
        let stdout = std::io::stdout();
        let mut watched = [PollFd::new(stdout.as_fd(), PollFlags::empty())];
        // Asked for nothing, a pipe reports only that its other end is gone; terminals and files never do.
        while let Ok(_) | Err(Errno::EINTR) = poll(&mut watched, PollTimeout::NONE) {
            if watched[0].revents().is_some_and(|seen| seen.intersects(PollFlags::POLLERR | PollFlags::POLLNVAL)) {
                std::process::exit(exit::OK.into());
            }
        }
    });
}

/// Copies lines to standard output until they end; false if nobody reads there any more.
fn copy(lines: &mut impl BufRead, json: bool, colour: bool) -> Result<bool, Failure> {
    let mut stdout = std::io::stdout().lock();
    let mut line = String::new();
    loop {
        line.clear();
        match lines.read_line(&mut line) {
            Ok(0) | Err(_) => return Ok(true),
            Ok(_) => {}
        }
        let text = if json { line.trim_end().to_owned() } else { readable(&line, colour) };
        match writeln!(stdout, "{text}").and_then(|()| stdout.flush()) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(false),
            Err(error) => return Err(Failure::failed(error.to_string())),
        }
    }
}

/// A decision on one line: time, status, latency, request, where it went, why.
fn readable(line: &str, colour: bool) -> String {
    let Ok(value) = serde_json::from_str::<Value>(line) else { return line.trim_end().to_owned() };
    if let Some(dropped) = value["dropped"].as_u64() {
        return format!("... {dropped} lines were dropped: this reader is too slow");
    }
    let text = |key: &str| value[key].as_str().unwrap_or_default();
    let time = text("at").get(11..23).unwrap_or_default();
    let status = value["status"].as_u64().unwrap_or(0);
    let shown = if status == 0 { "---".to_owned() } else { status.to_string() };
    let (on, off) = if colour { (paint(status), "\u{1b}[0m") } else { ("", "") };
    let took = value["duration_ms"].as_f64().unwrap_or(0.0);
    let mut out = format!("{took:>8.1} ms  {} {}{}", text("method"), text("host"), text("path"));
    if !text("service").is_empty() {
        let subset = if text("subset").is_empty() { "any" } else { text("subset") };
        // Writing to memory cannot fail.
        let _ = write!(out, " -> {}/{subset}", text("service"));
    }
    if !text("instance").is_empty() {
        let _ = write!(out, " at {}", text("instance"));
    }
    let notes = notes(&value);
    if !notes.is_empty() {
        let _ = write!(out, " ({})", notes.join(", "));
    }
    // What clients send must not reach the terminal's controls.
    let safe: String = out.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    format!("{time} {on}{shown}{off} {safe}")
}

/// Why it went there, and what was out of the ordinary.
fn notes(value: &Value) -> Vec<String> {
    let text = |key: &str| value[key].as_str().filter(|text| !text.is_empty());
    let mut notes = Vec::new();
    match (text("tag"), text("why")) {
        (Some(tag), _) => notes.push(format!("tag {tag}")),
        (None, Some(why)) => notes.push(why.replace('_', " ")),
        (None, None) => {}
    }
    notes.extend(text("bucket").and_then(|bucket| Some(format!("bucket {}", bucket.get(..4)?))));
    notes.extend(text("fallback").map(|reason| format!("fallback: {}", reason.replace('_', " "))));
    notes.extend(value["attempts"].as_u64().filter(|count| *count > 1).map(|count| format!("{count} attempts")));
    notes.extend(text("limit").map(|limit| format!("limit {limit}")));
    notes.extend(text("error").map(|error| error.replace('_', " ")));
    notes
}

fn paint(status: u64) -> &'static str {
    match status {
        200..300 => "\u{1b}[32m",
        300..400 => "\u{1b}[36m",
        400..500 => "\u{1b}[33m",
        _ => "\u{1b}[31m",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_for_people() {
        let good = r#"{"at": "2026-11-30T03:04:05.678Z", "method": "GET", "host": "a.b", "path": "/x", "status": 200,
            "service": "users", "subset": "v2", "why": "tag", "tag": "canary", "instance": "127.0.0.1:1",
            "fallback": null, "duration_ms": 1.52, "attempts": 2, "bucket": "0123456789abcdef"}"#;
        let cases = [
            (
                good,
                "03:04:05.678 200      1.5 ms  GET a.b/x -> users/v2 at 127.0.0.1:1 (tag canary, bucket 0123, 2 attempts)",
            ),
            (
                r#"{"at": "2026-11-30T03:04:05.678Z", "method": "GET", "host": "a.b", "path": "/\u001b[2J", "status": 404,
                "duration_ms": 0, "error": "no_route"}"#,
                "03:04:05.678 404      0.0 ms  GET a.b/?[2J (no route)",
            ),
            (r#"{"dropped": 7}"#, "... 7 lines were dropped: this reader is too slow"),
            ("no json\n", "no json"),
        ];
        for (line, wanted) in cases {
            assert_eq!(readable(line, false), wanted);
        }
        assert!(readable(good, true).contains("\u{1b}[32m200\u{1b}[0m"));
    }
}
