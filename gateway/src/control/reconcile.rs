//! What a config center holds comes into force, and what it does not have yet goes there.

use std::time::{Duration, Instant};

use super::change::{self, Actor};
use super::fleet::Link;
use super::history::Entry;
use super::merge::{Merged, merge};
use super::signature::{self, Signature};
use super::take::refuse;
use super::{Control, DocumentState, Local, State, recheck};
use crate::conf::{self, Traffic};
use crate::sources::{Seen, Version};
use crate::telemetry::names::TRAFFIC;

/// How long after a write to a center that may not compare somebody who was about to write as well may write over it.
const OVERWRITTEN: Duration = Duration::from_secs(1);

impl Control {
    /// Takes the traffic document over as its config center has it.
    pub(super) fn take_traffic_of(&self, link: &Link, state: &mut State, seen: Seen) {
        let began = Instant::now();
        let current = self.current();
        let written = state.local.as_ref().and_then(|local| local.published);
        if written.is_some_and(|written| written.elapsed() >= OVERWRITTEN) {
            self.settle(state, &[], &current.traffic);
        }
        let settled = state.local.is_none() || written.is_some();
        if state.traffic.version.as_ref() == Some(&seen.version) && settled {
            self.confirm(TRAFFIC, &state.traffic, began);
            return;
        }
        // Nobody has made the document yet: the first change does.
        let fresh = seen.version == Version::Absent && (state.local.is_some() || current.traffic.revision == 0);
        if fresh && state.local.is_none() {
            state.traffic.version = Some(seen.version);
            self.confirm(TRAFFIC, &state.traffic, began);
            return;
        }
        let read = if fresh { Ok(Traffic::default()) } else { parse(link, &seen, &current.routing) };
        let theirs = match self.conclude(TRAFFIC, began, read.as_ref().map(|_| ()).map_err(Clone::clone)) {
            Ok(()) => read.unwrap_or_default(),
            Err(problems) => {
                let State { history, traffic, .. } = state;
                refuse(
                    history,
                    traffic,
                    (seen.text.as_deref().unwrap_or_default().to_owned(), Some(seen.version), current.routing_revision),
                    TRAFFIC,
                    &link.actor(),
                    problems,
                );
                return;
            }
        };
        self.metrics().sources.loaded(TRAFFIC, began);
        let Merged { traffic: mut wanted, overruled } =
            self.settled(state, &current.traffic, &theirs, &current.routing);
        let agrees = change::same(&wanted, &current.traffic);
        wanted.revision = match (agrees, change::same(&wanted, &theirs)) {
            // The same is the same, whoever counted further.
            (true, true) => theirs.revision.max(current.traffic_revision),
            (false, true) if theirs.revision > current.traffic_revision => theirs.revision,
            _ => theirs.revision.max(current.traffic_revision) + 1,
        };
        let entry = self.entry(link, state.local.as_ref(), &current.traffic, &theirs, &wanted, seen.text.as_deref());
        if !agrees || wanted.revision != current.traffic_revision {
            self.publish(self.workshop.reflow(&current, wanted.clone()));
            if !agrees {
                state.history.append(entry.clone());
            }
        }
        let text = signature::signed(&wanted, &entry);
        if change::same(&wanted, &theirs) && wanted.revision == theirs.revision {
            self.settle(state, &overruled, &theirs);
            self.share(state, seen.text.as_deref().map_or(text, str::to_owned), seen.version, &theirs);
        } else if let Ok(version) = self.fleet.publish(link, &text, &seen.version) {
            // The center held something else than what is in force, or the same under a lower number.
            match &mut state.local {
                Some(local) if !link.compares() => {
                    // Others bring their changes at the same moment: who is written over sees it, and writes once more.
                    local.published = Some(Instant::now());
                    state.traffic = DocumentState::of(text, Some(version));
                }
                _ => {
                    self.settle(state, &overruled, &wanted);
                    self.share(state, text, version, &wanted);
                }
            }
        } else {
            // Somebody else was faster, or it is lost again: the next look will tell.
            state.traffic.version = None;
        }
    }

    /// What is noted of it, here and in the center: who changed it there, if it says so, or that both sides were brought
    /// together, and what this side brought.
    fn entry(
        &self,
        link: &Link,
        local: Option<&Local>,
        current: &Traffic,
        theirs: &Traffic,
        wanted: &Traffic,
        text: Option<&str>,
    ) -> Entry {
        let signed = text.and_then(|text| signature::of(text, theirs)).map(|signed| signed.through(&link.name()));
        if let Some(local) = local {
            let by = Actor { by: self.node().id.to_string(), from: "gateway".to_owned(), token: None };
            let theirs = signed.filter(|_| theirs.revision > local.base_revision);
            let theirs = theirs.map(|signed| format!("in the center: {signed}"));
            let reason = local.changes.iter().cloned().chain(theirs).collect::<Vec<_>>().join("; ");
            return Entry::flip(&by, "reconcile", &reason, current, wanted);
        }
        // A number that was there before is that of a document which somebody put there again.
        let newer = theirs.revision.checked_sub(current.revision).filter(|newer| *newer > 0);
        let Some((newer, Signature { actor, action, reason, .. })) = newer.zip(signed) else {
            return Entry::flip(&link.actor(), "edit", "", current, wanted);
        };
        let action = if newer == 1 { action } else { format!("{action} (and {} changes before)", newer - 1) };
        Entry::flip(&actor, &action, &reason, current, wanted)
    }

    /// What is to be in force: what the center holds, with what was changed here while it could not be reached.
    fn settled(&self, state: &State, current: &Traffic, theirs: &Traffic, routing: &conf::Routing) -> Merged {
        let plain = || Merged { traffic: theirs.clone(), overruled: Vec::new() };
        let (Some(_), Some(base)) = (&state.local, &state.shared) else { return plain() };
        let merged = merge(base, current, theirs);
        match recheck(&merged.traffic, routing) {
            Ok(()) => merged,
            Err(problems) => {
                tracing::error!("changes made without the config center do not fit what it holds:\n{problems}");
                Merged { overruled: vec!["everything".to_owned()], ..plain() }
            }
        }
    }

    /// Notes that nothing is left which the center does not have.
    pub(super) fn settle(&self, state: &mut State, overruled: &[String], in_force: &Traffic) {
        let Some(local) = state.local.take() else { return };
        self.fleet.store.forget_local();
        if !overruled.is_empty() {
            let lost = overruled.join(", ");
            tracing::error!(services = lost, "changed here and in the config center: what was changed here is lost");
        }
        tracing::info!(revision = in_force.revision, "the config center has all changes: {}", local.changes.join("; "));
    }
}

fn parse(link: &Link, seen: &Seen, routing: &conf::Routing) -> Result<Traffic, conf::Problems> {
    conf::traffic(&link.source(seen)?, routing)
}
