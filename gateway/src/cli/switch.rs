//! `serin switch`: the kill switches.

use clap::{Args, ValueEnum};
use http::Method;

use super::canary::done;
use super::client::Client;
use super::{Change, Failure, Out};
use crate::admin::{SwitchTo, Written};
use crate::conf::Name;

/// Turn a kill switch on or off.
#[derive(Debug, Args)]
pub(super) struct Switch {
    /// Which one.
    #[arg(value_enum)]
    switch: Kind,
    /// On or off.
    #[arg(value_enum)]
    to: To,
    /// For one service only.
    #[arg(long)]
    service: Option<Name>,
    #[command(flatten)]
    change: Change,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    /// Every chain becomes plain round robin.
    Balancer,
    /// All traffic goes to the stable subset.
    Canary,
    /// Rate limits and concurrency limits only count; for all services at once.
    Limits,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum To {
    /// Pull it.
    On,
    /// Back to normal.
    Off,
}

impl Switch {
    pub(super) fn run(&self, client: &Client, out: Out) -> Result<(), Failure> {
        let (name, meaning) = match self.switch {
            Kind::Balancer => ("balancer", "every chain is plain round robin"),
            Kind::Canary => ("canary", "all traffic goes to the stable subset"),
            Kind::Limits => ("limits", "limits only count"),
        };
        let on = self.to == To::On;
        let body = SwitchTo { on, service: self.service.clone(), reason: Some(self.change.reason.clone()) };
        let path = format!("/v1/switches/{name}");
        let written: Written = client.change(Method::PUT, &path, &body, self.change.expect)?;
        out.write(&written, || {
            let whose = self.service.as_ref().map_or("all services".to_owned(), |service| format!("service {service}"));
            let state = if on { format!("on: {meaning}") } else { "off".to_owned() };
            format!("The {name} switch of {whose} is {state}.\n{}", done(&written))
        })
    }
}
