//! Who changed a traffic document that a config center holds, and why: a comment in it, so that every gateway which follows
//! the center can note it in its own history, and a gateway that knows nothing of it reads the same document. A digest ties
//! the comment to what it was written with: whoever edits the document in the center's console and leaves the comment as it
//! is gets nobody else blamed for it.

use std::fmt::{self, Write};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::change::{Actor, to_yaml};
use super::history::Entry;
use crate::conf::Traffic;

/// What the line of the comment begins with.
const MARK: &str = "# Changed: ";

/// Who made the latest change to a document.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Signature {
    #[serde(flatten)]
    pub(super) actor: Actor,
    pub(super) action: String,
    pub(super) reason: String,
    digest: String,
}

impl Signature {
    /// The same as a gateway notes it that learnt of it from a center.
    pub(super) fn through(mut self, center: &str) -> Self {
        if self.actor.from != center {
            self.actor.from = format!("{}, by {center}", self.actor.from);
        }
        self
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} by {}", self.action, self.actor.by)?;
        if self.reason.is_empty() { Ok(()) } else { write!(f, " ({})", self.reason) }
    }
}

/// A document as it is written to a center, with the change that made it.
pub(super) fn signed(traffic: &Traffic, entry: &Entry) -> String {
    let text = to_yaml(traffic);
    let signature = Signature {
        actor: entry.actor.clone(),
        action: entry.action.clone(),
        reason: entry.reason.clone(),
        digest: digest(&text),
    };
    // Its types always are JSON.
    let json = serde_json::to_string(&signature).unwrap_or_default();
    let mut signed = String::with_capacity(text.len() + MARK.len() + json.len() + 1);
    signed.push_str(MARK);
    for letter in json.chars() {
        // What YAML takes for the end of a line, or for nothing that belongs into a text, is written as JSON may write it.
        match letter {
            '\u{7f}'..='\u{a0}' | '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}' => {
                // Writing to a text does not fail.
                let _ = write!(signed, "\\u{:04x}", u32::from(letter));
            }
            _ => signed.push(letter),
        }
    }
    signed.push('\n');
    signed.push_str(&text);
    signed
}

/// Who made the latest change to a document; none if nobody says so, or it was changed since.
pub(super) fn of(text: &str, traffic: &Traffic) -> Option<Signature> {
    let json = text.lines().find_map(|line| line.strip_prefix(MARK))?;
    let signature: Signature = serde_json::from_str(json).ok()?;
    (signature.digest == digest(&to_yaml(traffic))).then_some(signature)
}

fn digest(text: &str) -> String {
    format!("{:016x}", xxh3_64(text.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conf::{self, Source};

    fn entry(reason: &str, after: &Traffic) -> Entry {
        let actor = Actor { by: "alice".to_owned(), from: "10.0.0.1".to_owned(), token: Some("ops".to_owned()) };
        Entry::flip(&actor, "switch canary on", reason, &Traffic::default(), after)
    }

    #[test]
    fn a_change_is_read_again_whatever_the_reason_is() {
        let mut traffic = Traffic { revision: 7, ..Traffic::default() };
        traffic.switches.canary.all = true;
        let routing = conf::Routing { services: Default::default(), routes: Default::default() };
        for reason in ["", "errors: \"#1\"\nrevision: 9", "\u{85}\u{2028}\u{feff}\u{7f}\u{0}\u{9f}", "naïve 😀 # {"]
        {
            let entry = entry(reason, &traffic);
            let text = signed(&traffic, &entry);
            assert_eq!(conf::traffic(&Source::inline("t", &text), &routing).unwrap(), traffic, "{text}");
            let read = of(&text, &traffic).unwrap();
            assert_eq!((&read.actor, &*read.action, &*read.reason), (&entry.actor, "switch canary on", reason));
        }
    }

    #[test]
    fn nobody_is_blamed_for_what_somebody_else_edited() {
        let traffic = Traffic { revision: 7, ..Traffic::default() };
        let text = signed(&traffic, &entry("", &traffic));
        let mut edited = traffic.clone();
        edited.switches.balancer.all = true;
        assert!(of(&text, &edited).is_none());
        assert!(of(&text, &Traffic { revision: 8, ..traffic.clone() }).is_none(), "copied under another number");
        assert!(of(&to_yaml(&traffic), &traffic).is_none(), "nobody says");
        assert!(of(&format!("{MARK}{{]\n{}", to_yaml(&traffic)), &traffic).is_none());
    }
}
