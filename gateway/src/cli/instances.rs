//! `serin instances`.

use clap::Args;

use super::client::{Client, segment};
use super::text::{NONE, table};
use super::{Failure, Out};
use crate::admin::{CheckView, ConnectionsView, InstanceView, ServiceList, ServiceView, SubsetView};
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
        "LAST CHECK",
        "SUCCESS",
        "EJECTIONS",
        "IN FLIGHT",
        "CONNECTIONS",
        "PICKS",
        "EWMA",
        "LOAD",
        "WHY",
    ];
    let mut text = table(head, &rows);
    for view in views {
        if let Some(seen) = view.concurrency {
            let (name, in_flight, limit) = (&view.name, seen.in_flight, seen.limit);
            text.push_str(&format!("{name}: {in_flight} requests in flight, concurrency limit {limit}\n"));
        }
    }
    let subsets = views.iter().flat_map(|view| view.subsets.iter().map(move |subset| (view, subset)));
    text.extend(subsets.filter_map(|(view, subset)| note(&view.name, subset)));
    let out = views.iter().filter_map(|view| Some((&view.name, view.switches.tripped?)));
    let warnings = out.map(|(name, why)| {
        format!("\nThe balancer chain of {name} had {}: plain round robin until `serin rearm {name}`.", why.as_words())
    });
    text.extend(warnings);
    text
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

fn row(service: &str, instance: &InstanceView) -> [String; 16] {
    let or_none = |text: String| if text.is_empty() { NONE.to_owned() } else { text };
    [
        service.to_owned(),
        instance.address.clone(),
        or_none(instance.subsets.join(",")),
        or_none(instance.zone.clone().unwrap_or_default()),
        instance.weight.to_string(),
        instance.weight_in_force.to_string(),
        instance.health.clone(),
        instance.last_check.as_ref().map_or_else(|| NONE.to_owned(), check),
        instance.success_rate.map_or(NONE.to_owned(), |rate| format!("{:.1}%", rate * 100.0)),
        instance.ejections.to_string(),
        instance.in_flight.to_string(),
        connections(&instance.connections),
        instance.picks.to_string(),
        if instance.ewma_ms > 0.0 { format!("{:.2} ms", instance.ewma_ms) } else { NONE.to_owned() },
        instance
            .load
            .map_or(NONE.to_owned(), |load| format!("{:.0} % (x {:.2})", load.utilization * 100.0, load.factor)),
        or_none(instance.why.join("; ")),
    ]
}

/// Outcome, reason and time of day, such as `fail x3 (status 503) 12:30:05Z`.
fn check(last: &CheckView) -> String {
    let reason = last.reason.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default();
    let time = last.at.get(11..19).unwrap_or_default();
    format!("{} x{}{reason} {time}Z", last.outcome, last.in_a_row)
}

/// Used of open ones, and the bound on the used ones if there is one.
fn connections(connections: &ConnectionsView) -> String {
    let max = connections.max.map(|max| format!(", max {max}")).unwrap_or_default();
    format!("{}/{}{max}", connections.in_use, connections.open)
}
