//! `serin canary`: weights and aborts of a service.

use std::fmt::Write as _;

use clap::Subcommand;
use http::Method;
use indexmap::IndexMap;
use serde::Serialize;

use super::client::{Client, segment};
use super::text::{on_off, pairs, table};
use super::{Change, Failure, Out};
use crate::admin::{ServicePatch, ServiceView, Written};
use crate::conf::{Abort, Name, Percent};
use crate::explain::SwitchesInForce;
use crate::explain::preview::{Preview, Proposal};

/// Weights and aborts of a service.
#[derive(Debug, Subcommand)]
pub(super) enum Canary {
    /// Show weights, aborts and kill switches of a service.
    Get {
        /// The service.
        service: Name,
    },
    /// Set weights. Says who moves, and changes only what that was said of.
    Set {
        /// The service.
        service: Name,
        /// Weights of all subsets that are to have traffic, together 100%: `v1=85.5% v2=14.5%`.
        #[arg(required = true, value_parser = weight, value_name = "SUBSET=PERCENT")]
        weights: Vec<(Name, Percent)>,
        #[command(flatten)]
        change: Change,
    },
    /// Say who would move under new weights, and change nothing.
    Preview {
        /// The service.
        service: Name,
        /// New weights. Without any: what the end of an abort or of the canary switch would do.
        #[arg(value_parser = weight, value_name = "SUBSET=PERCENT")]
        weights: Vec<(Name, Percent)>,
    },
    /// Send everything to the stable subset, tagged or not. Weights are kept for when the rollout is resumed.
    Abort {
        /// The service.
        service: Name,
        /// Only take the weights out of force: tagged requests still follow their tag.
        #[arg(long)]
        weights_only: bool,
        #[command(flatten)]
        change: Change,
    },
    /// End an abort.
    Resume {
        /// The service.
        service: Name,
        #[command(flatten)]
        change: Change,
    },
}

fn weight(text: &str) -> Result<(Name, Percent), String> {
    let (subset, weight) = text.split_once('=').ok_or("expected SUBSET=PERCENT such as v1=85.5%")?;
    Ok((subset.parse()?, weight.parse()?))
}

/// What was previewed and then done.
#[derive(Serialize)]
struct Set {
    preview: Preview,
    written: Written,
}

impl Canary {
    pub(super) fn run(&self, client: &Client, out: Out) -> Result<(), Failure> {
        match self {
            Self::Get { service } => {
                let view: ServiceView = client.get(&format!("/v1/services/{}", segment(service)))?;
                out.write(&view, || show(&view))
            }
            Self::Preview { service, weights } => {
                let preview = preview(client, service, (!weights.is_empty()).then(|| named(weights)))?;
                out.write(&preview, || describe(&preview))
            }
            Self::Set { service, weights, change } => set(client, out, service, named(weights), change),
            Self::Abort { service, weights_only, change } => {
                let abort = if *weights_only { Abort::Weights } else { Abort::All };
                end(client, out, service, abort, change)
            }
            Self::Resume { service, change } => end(client, out, service, Abort::Off, change),
        }
    }
}

fn named(weights: &[(Name, Percent)]) -> IndexMap<Name, Percent> {
    weights.iter().cloned().collect()
}

fn preview(client: &Client, service: &Name, weights: Option<IndexMap<Name, Percent>>) -> Result<Preview, Failure> {
    client.post("/v1/preview", &Proposal { service: service.clone(), weights })
}

fn patch(client: &Client, service: &Name, patch: &ServicePatch, expect: Option<u64>) -> Result<Written, Failure> {
    client.change(Method::PATCH, &format!("/v1/traffic/services/{}", segment(service)), patch, expect)
}

fn set(
    client: &Client,
    out: Out,
    service: &Name,
    weights: IndexMap<Name, Percent>,
    change: &Change,
) -> Result<(), Failure> {
    let preview = preview(client, service, Some(weights.clone()))?;
    let new = ServicePatch { weights: Some(weights), reason: Some(change.reason.clone()), abort: None };
    let written = patch(client, service, &new, Some(change.expect.unwrap_or(preview.revision)))?;
    let set = Set { preview, written };
    out.write(&set, || format!("{}{}", describe(&set.preview), done(&set.written)))
}

fn end(client: &Client, out: Out, service: &Name, abort: Abort, change: &Change) -> Result<(), Failure> {
    let new = ServicePatch { abort: Some(abort), reason: Some(change.reason.clone()), weights: None };
    let written = patch(client, service, &new, change.expect)?;
    let what = match abort {
        Abort::Off => "The rollout goes on.",
        Abort::All => "Everything goes to the stable subset.",
        Abort::Weights => "Everything but tagged requests goes to the stable subset.",
    };
    out.write(&written, || format!("{service}: {what}\n{}", done(&written)))
}

/// That a change is in force.
pub(super) fn done(written: &Written) -> String {
    let warning = written.warning.as_ref().map_or(String::new(), |warning| format!("\nwarning: {warning}"));
    format!("Revision {} is in force.{warning}", written.revision)
}

fn show(view: &ServiceView) -> String {
    let rows: Vec<[String; 4]> = view
        .subsets
        .iter()
        .map(|subset| {
            let stable = if subset.name == view.stable { " (stable)" } else { "" };
            [
                format!("{}{stable}", subset.name),
                subset.weight.to_string(),
                subset.configured_weight.to_string(),
                subset
                    .unusable
                    .clone()
                    .map_or(subset.instances.to_string(), |why| format!("{} ({why})", subset.instances)),
            ]
        })
        .collect();
    let table = table(["SUBSET", "IN FORCE", "CONFIGURED", "INSTANCES"], &rows);
    let ramp = view
        .ramp
        .as_ref()
        .map_or(String::new(), |ramp| format!("\nramp {}; see `serin ramp status {}`", ramp.place(), view.name));
    format!("{table}{}; traffic revision {}{ramp}", switches(view.switches), view.revision.traffic)
}

/// Switches and abort in words.
pub(super) fn switches(switches: SwitchesInForce) -> String {
    let abort = match switches.abort {
        Abort::Off => "no abort",
        Abort::All => "aborted",
        Abort::Weights => "weights aborted",
    };
    let limits = if switches.limits { ", limits switch on" } else { "" };
    let tripped = switches.tripped.map_or(String::new(), |why| {
        format!(", BALANCER CHAIN OUT: it had {}, round robin until `serin rearm`", why.as_words())
    });
    format!(
        "{abort}, canary switch {}, balancer switch {}{limits}{tripped}",
        on_off(switches.canary),
        on_off(switches.balancer)
    )
}

fn describe(preview: &Preview) -> String {
    let mut text = format!("{}: {} -> {}\n", preview.service, pairs(preview.from.iter()), pairs(preview.to.iter()),);
    for step in &preview.moves {
        // Writing to memory cannot fail.
        let _ = writeln!(text, "  {} of the users move from {} to {}", step.share, step.from, step.to);
    }
    let _ = match preview.moves.len() {
        0 => writeln!(text, "  Nobody moves."),
        1 => writeln!(text, "  Nobody else moves."),
        _ => writeln!(text, "  In all {} of the users move.", preview.moved),
    };
    if let Some(held) = &preview.held {
        let _ = writeln!(text, "  Not at once: {held}.");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explain::preview::Move;

    #[test]
    fn weights_are_pairs_of_subset_and_percentage() {
        let cases = [
            ("v1=85.5%", Some(("v1", "85.5%"))),
            ("v1=0%", Some(("v1", "0%"))),
            ("v1=85.555%", None),
            ("v1=85.5", None),
            ("v1", None),
            ("=1%", None),
            ("v1=", None),
        ];
        for (text, expected) in cases {
            let got = weight(text).ok().map(|(subset, weight)| (subset.to_string(), weight.to_string()));
            assert_eq!(got, expected.map(|(s, w)| (s.to_owned(), w.to_owned())), "{text}");
        }
    }

    #[test]
    fn previews_say_who_moves() {
        let percent = |text: &str| text.parse::<Percent>().unwrap();
        let preview = Preview {
            service: "users".to_owned(),
            revision: 3,
            from: [("v1".to_owned(), percent("90%")), ("v2".to_owned(), percent("10%"))].into_iter().collect(),
            to: [("v1".to_owned(), percent("85.5%")), ("v2".to_owned(), percent("14.5%"))].into_iter().collect(),
            moves: vec![Move { from: "v1".to_owned(), to: "v2".to_owned(), share: "4.50%".to_owned() }],
            moved: "4.50%".to_owned(),
            switches: SwitchesInForce::default(),
            held: None,
        };
        let expected = "users: v1 90%, v2 10% -> v1 85.5%, v2 14.5%\n  4.50% of the users move from v1 to v2\n  \
                        Nobody else moves.\n";
        assert_eq!(describe(&preview), expected);
    }
}
