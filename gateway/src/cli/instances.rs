//! `serin instances`.

use clap::Args;

use super::client::{Client, segment};
use super::text::{NONE, table};
use super::{Failure, Out};
use crate::admin::{InstanceView, ServiceList, ServiceView, SubsetView};
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
    let head = [
        "SERVICE",
        "ADDRESS",
        "SUBSETS",
        "ZONE",
        "WEIGHT",
        "IN FORCE",
        "HEALTH",
        "SUCCESS",
        "EJECTIONS",
        "IN FLIGHT",
        "PICKS",
        "LATENCY",
        "WHY",
    ];
    let subsets = views.iter().flat_map(|view| view.subsets.iter().map(move |subset| (view, subset)));
    let notes: String = subsets.filter_map(|(view, subset)| note(&view.name, subset)).collect();
    format!("{}{notes}", table(head, &rows))
}

/// What is to be said of a subset: the state of its breaker, and that health is ignored.
fn note(service: &str, subset: &SubsetView) -> Option<String> {
    let breaker = subset.breaker.as_ref().map(|breaker| {
        let left = if breaker.open_for > 0.0 { format!(" for {:.1} s yet", breaker.open_for) } else { String::new() };
        let judged = format!("{} calls, {} failed, {} slow", breaker.calls, breaker.failed, breaker.slow);
        format!("breaker {}{left} ({judged})", breaker.state.replace('_', " "))
    });
    let panic = subset.panic.then(|| format!("panic: health is ignored, {} are healthy", subset.healthy));
    let notes: Vec<_> = breaker.into_iter().chain(panic).collect();
    (!notes.is_empty()).then(|| format!("{service}/{}: {}\n", subset.name, notes.join("; ")))
}

fn row(service: &str, instance: &InstanceView) -> [String; 13] {
    let or_none = |text: String| if text.is_empty() { NONE.to_owned() } else { text };
    [
        service.to_owned(),
        instance.address.clone(),
        or_none(instance.subsets.join(",")),
        or_none(instance.zone.clone().unwrap_or_default()),
        instance.weight.to_string(),
        instance.weight_in_force.to_string(),
        instance.health.clone(),
        instance.success_rate.map_or(NONE.to_owned(), |rate| format!("{:.1}%", rate * 100.0)),
        instance.ejections.to_string(),
        instance.in_flight.to_string(),
        instance.picks.to_string(),
        format!("{:.2} ms", instance.ewma_ms),
        or_none(instance.why.join("; ")),
    ]
}
