//! `serin rearm`.

use clap::Args;
use http::Method;

use super::client::{Client, segment};
use super::{Failure, Out};
use crate::admin::{Rearmed, Reason};
use crate::conf::Name;

/// Put a service's balancer chain back in force, after the gateway took it out because it panicked or was slow.
#[derive(Debug, Args)]
pub(super) struct Rearm {
    /// The service.
    service: Name,
    /// Why, for the history.
    #[arg(long, default_value = "")]
    reason: String,
}

impl Rearm {
    pub(super) fn run(&self, client: &Client, out: Out) -> Result<(), Failure> {
        let body = Reason { reason: Some(self.reason.clone()) };
        let path = format!("/v1/services/{}/rearm", segment(&self.service));
        let rearmed: Rearmed = client.change(Method::POST, &path, &body, None)?;
        out.write(&rearmed, || match rearmed.was {
            Some(why) => {
                format!("The balancer chain of {} is in force again; it had {}.", self.service, why.as_words())
            }
            None => format!("The balancer chain of {} was in force already.", self.service),
        })
    }
}
