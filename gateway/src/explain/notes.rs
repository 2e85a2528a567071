//! Listens to a decision and writes down what it hears.

use serin_core::candidates::Candidates;
use serin_core::decide::Recorder;
use serin_core::subset::FallbackReason;
use serin_core::tag::{KeySource, TagVerdict};

use super::{Narrowed, RuleSeen, UserKeyFound};

/// Addresses that are written down per narrow.
const MOST_ADDRESSES: usize = 100;

/// What was heard.
#[derive(Default)]
pub(super) struct Notes {
    pub(super) user_key: Option<UserKeyFound>,
    pub(super) rules: Vec<(usize, TagVerdict)>,
    pub(super) unusable: Vec<(usize, FallbackReason)>,
    pub(super) narrows: Vec<Narrowed>,
    pub(super) panic: bool,
}

impl Recorder for Notes {
    const DRY_RUN: bool = true;

    fn user_key(&mut self, source: &KeySource, key: &str) {
        self.user_key = Some(UserKeyFound { source: source.to_string(), value: key.to_owned() });
    }

    fn tag(&mut self, rule: usize, verdict: TagVerdict) {
        self.rules.push((rule, verdict));
    }

    fn unusable(&mut self, subset: usize, reason: FallbackReason) {
        self.unusable.push((subset, reason));
    }

    fn narrowed(&mut self, name: &str, left: &Candidates<'_>) {
        let addresses = left.iter().take(MOST_ADDRESSES).map(|(_, instance)| instance.address.to_string());
        self.narrows.push(Narrowed { name: name.to_owned(), count: left.len(), left: addresses.collect() });
    }
}

/// A rule and its verdict, by name.
pub(super) fn rule_seen(name: String, verdict: TagVerdict) -> RuleSeen {
    let verdict = match verdict {
        TagVerdict::Accepted => "accepted",
        TagVerdict::Untrusted => "untrusted",
        TagVerdict::NoMatch => "no_match",
    };
    RuleSeen { name, verdict: verdict.to_owned() }
}
