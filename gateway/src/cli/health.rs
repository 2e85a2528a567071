//! `serin health`: for containers, which have no other client to ask with.

use std::time::Instant;

use clap::Args;
use serde_json::Value;

use super::client::Client;
use super::{Failure, Out};
use crate::conf::Span;

/// Pause between two looks at a gateway that is not ready yet.
const AGAIN: std::time::Duration = std::time::Duration::from_millis(50);

/// Succeed if the gateway is ready.
#[derive(Debug, Args)]
pub(super) struct Health {
    /// How long to wait for a gateway that is about to start.
    #[arg(long, value_name = "DURATION")]
    wait: Option<Span>,
}

impl Health {
    pub(super) fn run(&self, client: &Client, out: Out) -> Result<(), Failure> {
        let (began, patience) = (Instant::now(), self.wait.map_or(std::time::Duration::ZERO, |wait| wait.duration()));
        let answer: Value = loop {
            match client.get("/readyz") {
                Err(_) if began.elapsed() < patience => std::thread::sleep(AGAIN),
                answer => break answer?,
            }
        };
        out.write(&answer, || "ready".to_owned())
    }
}
