//! `serin history` and `serin rollback`.

use clap::Args;
use http::Method;

use super::canary::done;
use super::client::Client;
use super::text::{NONE, table};
use super::{Change, Failure, Out};
use crate::admin::{HistoryEntry, HistoryPage, RollbackTo, Written};
use crate::control::history::Outcome;

/// Show what was changed and what was refused, newest first.
#[derive(Debug, Args)]
pub(super) struct History {
    /// At most so many entries, 1 to 1,000.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    limit: u16,
}

/// Go back to the traffic document of an earlier revision. What it said comes into force under a new revision.
#[derive(Debug, Args)]
pub(super) struct Rollback {
    /// A revision of the traffic document, as the history shows it.
    revision: u64,
    #[command(flatten)]
    change: Change,
}

impl History {
    pub(super) fn run(&self, client: &Client, out: Out) -> Result<(), Failure> {
        let page: HistoryPage = client.get(&format!("/v1/history?limit={}", self.limit))?;
        out.write(&page, || show(&page.entries))
    }
}

fn show(entries: &[HistoryEntry]) -> String {
    let row = |entry: &HistoryEntry| {
        let outcome = match entry.outcome {
            Outcome::Applied => "applied",
            Outcome::Refused => "refused",
        };
        let why = match (&entry.problems[..], &*entry.reason) {
            ([problem], _) => problem.clone(),
            ([problem, more @ ..], _) => format!("{problem} (and {} more)", more.len()),
            ([], "") => NONE.to_owned(),
            ([], reason) => reason.to_owned(),
        };
        [
            entry.document.clone(),
            entry.revision.map_or(NONE.to_owned(), |revision| revision.to_string()),
            entry.at.clone(),
            format!("{} ({})", entry.actor.by, entry.actor.from),
            outcome.to_owned(),
            entry.action.clone(),
            why,
        ]
    };
    let rows: Vec<_> = entries.iter().map(row).collect();
    table(["DOCUMENT", "REVISION", "WHEN", "WHO", "OUTCOME", "WHAT", "WHY"], &rows)
}

impl Rollback {
    pub(super) fn run(&self, client: &Client, out: Out) -> Result<(), Failure> {
        let body = RollbackTo { revision: self.revision, reason: Some(self.change.reason.clone()) };
        let written: Written = client.change(Method::POST, "/v1/rollback", &body, self.change.expect)?;
        out.write(&written, || format!("What revision {} said is in force again.\n{}", self.revision, done(&written)))
    }
}
