//! `serin top`: the live view in a terminal.

mod model;
mod screen;
mod terminal;

use std::io::IsTerminal;

use clap::Args;

use self::model::{Order, Page, Row};
use super::client::Client;
use super::text::table;
use super::{Failure, Out};

/// Seconds that the figures are over.
const FIGURES: u32 = 10;
/// Seconds of the curves.
const CURVES: u32 = 60;

/// Show requests, errors and latencies of services and their subsets as they change. Keys: q quits, arrows or j and k
/// select, s sorts, p pauses, ? helps. What is no terminal gets one plain table.
#[derive(Debug, Args)]
pub(super) struct Top {
    /// Print one plain table, or with --json one document, and end.
    #[arg(long)]
    once: bool,
}

impl Top {
    pub(super) fn run(&self, client: Client, out: Out) -> Result<(), Failure> {
        if self.once || out.json || !std::io::stdout().is_terminal() {
            let page = Page::fetch(&client, None)?;
            return out.write(&page, || plain(&page));
        }
        terminal::run(client)
    }
}

/// One plain table.
fn plain(page: &Page) -> String {
    let cells = |row: &Row| {
        let name = if row.subset.is_some() { format!("  {}", row.name()) } else { row.service.clone() };
        let [rate, errors, p50, p99, share, weight, in_flight] = row.cells();
        [name, rate, errors, p50, p99, share, weight, in_flight]
    };
    let rows: Vec<_> = page.rows(Order::Name).iter().map(cells).collect();
    let head = ["SERVICE", "REQ/S", "ERRORS", "P50", "P99", "SHARE", "WEIGHT", "IN FLIGHT"];
    let mut text = table(head, &rows);
    text.push_str(&format!("{}; figures of the last {} s\n", page.state(), page.live.seconds));
    text.extend(page.notes().iter().map(|note| format!("{note}\n")));
    text
}
