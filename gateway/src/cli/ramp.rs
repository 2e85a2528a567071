//! `serin ramp`: guarded ramps.

use std::fmt::Write as _;

use clap::Subcommand;
use http::Method;
use serde::Serialize;

use super::canary::done;
use super::client::{Client, segment};
use super::{Change, Failure, Out};
use crate::admin::{GuardView, RampList, RampStart, RampView, Reason, Written};
use crate::conf::{Guard, Name, Percent, RampState, Span};

/// Characters of a bar.
const BAR: usize = 20;

/// Guarded ramps: a share that grows step by step for as long as its guards hold.
#[derive(Debug, Subcommand)]
pub(super) enum Ramp {
    /// Start a ramp: the share of a subset grows step by step. A broken guard sends everything to the stable subset;
    /// too few requests hold the ramp where it is.
    Start {
        /// The service.
        service: Name,
        /// The subset whose share is to grow.
        #[arg(long, value_name = "SUBSET")]
        to: Name,
        /// Its shares, ascending.
        #[arg(long, value_delimiter = ',', default_value = "1%,5%,25%,50%,100%", value_name = "PERCENT,...")]
        steps: Vec<Percent>,
        /// How long a step lasts at least.
        #[arg(long, default_value = "5m", value_name = "DURATION")]
        every: Span,
        /// What has to hold, such as `success_rate >= 99%`, `error_rate < 0.5%`, `p99 <= 250ms` or
        /// `p99 <= 1.2 x stable`. Also p50 and mean; any number of them.
        #[arg(long = "guard", value_name = "GUARD")]
        guards: Vec<Guard>,
        /// Requests of a step below which nothing is concluded.
        #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
        min_requests: u64,
        #[command(flatten)]
        change: Change,
    },
    /// Pause a ramp; weights stay.
    Pause {
        /// The service.
        service: Name,
        #[command(flatten)]
        change: Change,
    },
    /// Go on with a paused ramp; the time of its step begins anew.
    Resume {
        /// The service.
        service: Name,
        #[command(flatten)]
        change: Change,
    },
    /// End a ramp: everything goes to the stable subset.
    Abort {
        /// The service.
        service: Name,
        #[command(flatten)]
        change: Change,
    },
    /// Show how ramps stand.
    Status {
        /// Of one service only.
        service: Option<Name>,
    },
}

impl Ramp {
    pub(super) fn run(&self, client: &Client, out: Out) -> Result<(), Failure> {
        match self {
            Self::Start { service, to, steps, every, guards, min_requests, change } => {
                let start = RampStart {
                    to: to.clone(),
                    steps: steps.clone(),
                    every: Some(*every),
                    guards: guards.clone(),
                    min_requests: Some(*min_requests),
                    reason: Some(change.reason.clone()),
                };
                act(client, out, service, "", &start, change.expect)
            }
            Self::Pause { service, change } => act(client, out, service, "/pause", &reason(change), change.expect),
            Self::Resume { service, change } => act(client, out, service, "/resume", &reason(change), change.expect),
            Self::Abort { service, change } => act(client, out, service, "/abort", &reason(change), change.expect),
            Self::Status { service: Some(service) } => {
                let view: RampView = client.get(&format!("/v1/ramps/{}", segment(service)))?;
                out.write(&view, || show(&view))
            }
            Self::Status { service: None } => {
                let list: RampList = client.get("/v1/ramps")?;
                out.write(&list, || match &list.ramps[..] {
                    [] => "There are no ramps.".to_owned(),
                    ramps => ramps.iter().map(show).collect::<Vec<_>>().join("\n"),
                })
            }
        }
    }
}

fn reason(change: &Change) -> Reason {
    Reason { reason: Some(change.reason.clone()) }
}

fn act(
    client: &Client,
    out: Out,
    service: &Name,
    verb: &str,
    body: &impl Serialize,
    expect: Option<u64>,
) -> Result<(), Failure> {
    let path = format!("/v1/ramps/{}{verb}", segment(service));
    let written: Written = client.change(Method::POST, &path, body, expect)?;
    out.write(&written, || {
        let ramp = written.traffic.services.get(service.as_str()).and_then(|entry| entry.ramp.as_ref());
        let place = ramp.map_or(String::new(), |ramp| format!("{service}: ramp {}\n", ramp.place()));
        format!("{place}{}", done(&written))
    })
}

/// A ramp in words: where it is, a bar per step, guards.
fn show(view: &RampView) -> String {
    let ramp = &view.ramp;
    let place = ramp.place();
    let place = place.strip_prefix("to ").unwrap_or(&place);
    let mut text = format!("{}: {} -> {place}\n", view.service, view.stable);
    if !ramp.reason.is_empty() {
        // Writing to memory cannot fail.
        let _ = writeln!(text, "  why: {}", ramp.reason);
    }
    for (at, share) in ramp.steps.iter().enumerate() {
        let _ = writeln!(text, "  {:>6}  {}", share.to_string(), bar(view, at));
    }
    if let Some(requests) = view.requests {
        let stable = view.stable_requests.unwrap_or(0);
        let least = ramp.min_requests;
        let _ = writeln!(text, "  {requests} requests to {} (at least {least}), {stable} to {}", ramp.to, view.stable);
    }
    for guard in &view.guards {
        let _ = writeln!(text, "  {}", guard_line(guard));
    }
    text
}

/// How far a step is.
fn bar(view: &RampView, at: usize) -> String {
    let ramp = &view.ramp;
    let whole = ramp.every.duration().as_secs_f64();
    let (filled, note) = if at < ramp.step || ramp.state == RampState::Done {
        (BAR, "done".to_owned())
    } else if at > ramp.step {
        (0, String::new())
    } else {
        let share = view.elapsed_seconds.map_or(0.0, |elapsed| (elapsed / whole).min(1.0));
        let note = match (ramp.state, view.left_seconds, &view.missing) {
            (RampState::Held, _, Some(missing)) => format!("held: {missing}"),
            (RampState::Running, Some(left), _) => format!("{} left", duration(left)),
            (state, ..) => state.to_string(),
        };
        ((share * BAR as f64) as usize, note)
    };
    format!("[{}{}] {note}", "#".repeat(filled), "-".repeat(BAR - filled)).trim_end().to_owned()
}

fn duration(seconds: f64) -> String {
    let whole = std::time::Duration::from_secs(seconds.max(0.0).ceil() as u64);
    humantime::format_duration(whole).to_string()
}

fn guard_line(view: &GuardView) -> String {
    match (view.good, &view.value, &view.bound) {
        (Some(good), Some(value), Some(bound)) => {
            let verdict = if good { "good" } else { "BROKEN" };
            format!("{verdict}: {} ({value} against {bound})", view.guard)
        }
        _ => format!("too little to tell: {}", view.guard),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conf;

    #[test]
    fn ramps_are_shown_with_a_bar_for_each_step() {
        let percent = |text: &str| text.parse::<Percent>().unwrap();
        let mut ramp = conf::Ramp::new("v2".parse().unwrap(), ["1%", "25%", "100%"].map(percent).to_vec());
        ramp.step = 1;
        let guard = |good, value: Option<&str>| GuardView {
            guard: "p99 <= 1.2 x stable".parse().unwrap(),
            good,
            value: value.map(str::to_owned),
            bound: value.map(|_| "24ms".to_owned()),
        };
        let mut view = RampView {
            service: "users".to_owned(),
            stable: "v1".to_owned(),
            weight: percent("25%"),
            elapsed_seconds: Some(150.0),
            left_seconds: Some(150.0),
            requests: Some(321),
            stable_requests: Some(963),
            missing: None,
            guards: vec![guard(Some(true), Some("21ms")), guard(None, None)],
            ramp,
        };
        let wanted = "\
users: v1 -> to v2, running, step 2 of 3 (25%)
      1%  [####################] done
     25%  [##########----------] 2m 30s left
    100%  [--------------------]
  321 requests to v2 (at least 200), 963 to v1
  good: p99 <= 1.2 x stable (21ms against 24ms)
  too little to tell: p99 <= 1.2 x stable
";
        assert_eq!(show(&view), wanted.replace("-> to v2", "-> v2"));
        (view.ramp.state, view.ramp.reason) = (RampState::Aborted, "because".to_owned());
        (view.elapsed_seconds, view.left_seconds, view.requests) = (None, None, None);
        assert!(show(&view).contains("  why: because\n") && show(&view).contains("[--------------------] aborted"));
    }
}
