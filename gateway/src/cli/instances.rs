//! `serin instances`.

use clap::Args;

use super::client::{Client, segment};
use super::text::{NONE, table};
use super::{Failure, Out};
use crate::admin::{InstanceView, ServiceList, ServiceView};
use crate::conf::Name;

/// Show instances with their weight, health and load.
#[derive(Debug, Args)]
pub(super) struct Instances {
    /// Of one service only.
    service: Option<Name>,
}

impl Instances {
    pub(super) fn run(&self, client: &Client, out: Out) -> Result<(), Failure> {
        let names = match &self.service {
            Some(service) => vec![service.to_string()],
            None => {
                let all: ServiceList = client.get("/v1/services")?;
                all.services.into_iter().map(|service| service.name).collect()
            }
        };
        let ask = |name: &String| client.get(&format!("/v1/services/{}", segment(name)));
        let views: Vec<ServiceView> = names.iter().map(ask).collect::<Result<_, _>>()?;
        out.write(&views, || show(&views))
    }
}

fn show(views: &[ServiceView]) -> String {
    let of = |view: &ServiceView| view.instances.iter().map(|instance| row(&view.name, instance)).collect::<Vec<_>>();
    let rows: Vec<_> = views.iter().flat_map(of).collect();
    let head = ["SERVICE", "ADDRESS", "SUBSETS", "ZONE", "WEIGHT", "HEALTH", "IN FLIGHT", "PICKS", "LATENCY", "LOAD"];
    let out = views.iter().filter_map(|view| Some((&view.name, view.switches.tripped?)));
    let warnings = out.map(|(name, why)| {
        format!("\nThe balancer chain of {name} had {}: plain round robin until `serin rearm {name}`.", why.as_words())
    });
    format!("{}{}", table(head, &rows), warnings.collect::<String>())
}

fn row(service: &str, instance: &InstanceView) -> [String; 10] {
    let or_none = |text: String| if text.is_empty() { NONE.to_owned() } else { text };
    [
        service.to_owned(),
        instance.address.clone(),
        or_none(instance.subsets.join(",")),
        or_none(instance.zone.clone().unwrap_or_default()),
        instance.weight.to_string(),
        instance.health.clone(),
        instance.in_flight.to_string(),
        instance.picks.to_string(),
        format!("{:.2} ms", instance.ewma_ms),
        instance
            .load
            .map_or(NONE.to_owned(), |load| format!("{:.0} % (x {:.2})", load.utilization * 100.0, load.factor)),
    ]
}
