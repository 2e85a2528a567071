//! `serin health`: for containers, which have no other client to ask with.

use clap::Args;
use serde_json::Value;

use super::client::Client;
use super::{Failure, Out};

/// Succeed if the gateway is ready.
#[derive(Debug, Args)]
pub(super) struct Health {}

impl Health {
    pub(super) fn run(&self, client: &Client, out: Out) -> Result<(), Failure> {
        let answer: Value = client.get("/readyz")?;
        out.write(&answer, || "ready".to_owned())
    }
}
