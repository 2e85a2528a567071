//! Of the gateways of a fleet, one leads its ramps. Who does is in a document beside the traffic document, in the same
//! config center, written by compare-and-set: whoever leads writes it again and again, and if it stays the same for a
//! while, somebody else writes it. No clocks are compared.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::fleet::{Fleet, Link};
use crate::sources::{PublishError, Version};

/// How often the leader writes, and the others look.
const BEAT: Duration = Duration::from_secs(1);
/// How long the document stays the same until somebody else leads.
const TAKE_OVER: Duration = Duration::from_secs(5);

/// Whether this gateway leads.
pub(super) struct Leadership {
    /// The document; none if there is no config center, and this gateway is on its own.
    link: Option<Arc<Link>>,
    node: Arc<str>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    leads: bool,
    beats: u64,
    looked: Option<Instant>,
    /// The version of the document, and since when it has been that.
    seen: Option<(Version, Instant)>,
}

impl Leadership {
    pub(super) fn new(link: Option<Arc<Link>>, node: Arc<str>) -> Self {
        Self { link, node, state: Mutex::default() }
    }

    /// Whether this gateway leads, as far as it knows.
    pub(super) fn leads(&self) -> bool {
        self.link.is_none() || self.state.lock().unwrap_or_else(PoisonError::into_inner).leads
    }

    /// Looks after the document, if it is time. May wait for the config center.
    pub(super) fn tick(&self, fleet: &Fleet, now: Instant) {
        let Some(link) = &self.link else { return };
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.looked.is_some_and(|looked| now.saturating_duration_since(looked) < BEAT) {
            return;
        }
        state.looked = Some(now);
        let led = state.leads;
        state.leads = match fleet.read(link) {
            Ok(seen) => {
                let ours = led && state.seen.as_ref().is_some_and(|(version, _)| *version == seen.version);
                let same = state.seen.take().filter(|(version, _)| *version == seen.version);
                let since = same.map_or(now, |(_, since)| since);
                let dead = seen.version == Version::Absent || now.saturating_duration_since(since) >= TAKE_OVER;
                state.seen = Some((seen.version.clone(), since));
                (ours || dead) && self.write(fleet, link, &mut state, &seen.version, now)
            }
            // Without the center nobody leads: whoever did may have been replaced meanwhile.
            Err(_) => false,
        };
        if state.leads != led {
            tracing::info!(leads = state.leads, "the leader of ramps");
        }
    }

    fn write(&self, fleet: &Fleet, link: &Link, state: &mut State, expected: &Version, now: Instant) -> bool {
        state.beats += 1;
        let text = format!("leader: {}\nbeat: {}\n", self.node, state.beats);
        match fleet.publish(link, &text, expected) {
            Ok(version) => {
                state.seen = Some((version, now));
                true
            }
            Err(PublishError::Stale | PublishError::Lost(_)) => false,
        }
    }
}
