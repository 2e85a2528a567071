//! Holds back lists that are hardly true: an empty one, or one that has lost too many instances at once, is more often a
//! registry in trouble than a service that is gone.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::listed::List;

/// The instances of one service.
#[derive(Debug, Default)]
pub(super) struct Shelf {
    accepted: Option<List>,
    held: Option<Held>,
}

/// A list that is held back.
#[derive(Debug)]
struct Held {
    list: List,
    since: Instant,
}

/// When a list is held back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    /// How long.
    pub(super) hold: Duration,
    /// The share of instances that may leave at once, in hundredths of a per cent.
    pub(super) max_shrink: u32,
}

/// What checks say of an instance: none if it is not checked.
pub(super) type Checked<'a> = &'a dyn Fn(SocketAddr) -> Option<bool>;

impl Shelf {
    /// As it was before a restart.
    pub(super) fn restored(list: List) -> Self {
        Self { accepted: Some(list), held: None }
    }

    /// The list that is good; none before there was one.
    pub(super) fn accepted(&self) -> Option<&List> {
        self.accepted.as_ref()
    }

    /// How many instances the list has that is held back, and since when.
    pub(super) fn held(&self) -> Option<(usize, Instant)> {
        self.held.as_ref().map(|held| (held.list.len(), held.since))
    }

    /// Takes the newest list; true if the good one is another one now.
    pub(super) fn offer(&mut self, list: List, rules: Rules, now: Instant, checked: Checked<'_>) -> bool {
        let Some(accepted) = &self.accepted else {
            self.accepted = Some(list);
            return true;
        };
        if *accepted == list {
            self.held = None;
            return false;
        }
        if !is_doubtful(accepted, &list, rules) {
            self.held = None;
            self.accepted = Some(list);
            return true;
        }
        let since = self.held.as_ref().map_or(now, |held| held.since);
        self.held = Some(Held { list, since });
        self.look(rules, now, checked)
    }

    /// Looks at what is held back once more; true if the good list is another one now.
    ///
    /// Instances that are checked stay as long as their checks pass, and go one by one when they fail; what is not
    /// checked goes when the time is over.
    pub(super) fn look(&mut self, rules: Rules, now: Instant, checked: Checked<'_>) -> bool {
        let (Some(held), Some(accepted)) = (&self.held, &self.accepted) else { return false };
        let over = now.saturating_duration_since(held.since) >= rules.hold;
        let is_gone = |at: SocketAddr| held.list.binary_search_by_key(&at, |instance| instance.address.0).is_err();
        let stays = |at: SocketAddr| checked(at).unwrap_or(!over);
        let gone = accepted.iter().filter(|instance| is_gone(instance.address.0));
        let kept: Vec<_> = gone.filter(|instance| stays(instance.address.0)).cloned().collect();
        let nothing_kept = kept.is_empty();
        let mut merged: Vec<_> = held.list.iter().cloned().chain(kept).collect();
        merged.sort_by_key(|instance| instance.address.0);
        let changed = **accepted != *merged;
        if nothing_kept {
            self.held = None;
        }
        if changed {
            self.accepted = Some(merged.into());
        }
        changed
    }
}

/// Whether a list has lost more than may leave at once.
fn is_doubtful(accepted: &List, list: &List, rules: Rules) -> bool {
    let stays = |at: SocketAddr| list.binary_search_by_key(&at, |instance| instance.address.0).is_ok();
    let gone = accepted.iter().filter(|instance| !stays(instance.address.0)).count();
    let empty = list.is_empty() && !accepted.is_empty();
    // A service of one or two instances may well lose one; and one that moves as a whole loses all, but is not less.
    let shrunk = list.len() < accepted.len() && gone > 1;
    !rules.hold.is_zero()
        && (empty || shrunk && gone as u64 * 10_000 > accepted.len() as u64 * u64::from(rules.max_shrink))
}

#[cfg(test)]
mod tests {
    use super::super::listed::{in_order, plain};
    use super::*;

    const RULES: Rules = Rules { hold: Duration::from_secs(30), max_shrink: 5_000 };

    fn list(ports: impl IntoIterator<Item = u16>) -> List {
        in_order(ports.into_iter().map(|port| plain(SocketAddr::from(([127, 0, 0, 1], port)))).collect())
    }

    fn ports(shelf: &Shelf) -> Vec<u16> {
        shelf.accepted().unwrap().iter().map(|instance| instance.address.port()).collect()
    }

    fn unchecked(_: SocketAddr) -> Option<bool> {
        None
    }

    #[test]
    fn what_is_hardly_true_is_held_back_for_a_while() {
        let now = Instant::now();
        let cases = [
            (vec![1, 2, 3, 4], vec![], true),
            (vec![1], vec![], true),
            (vec![1, 2, 3, 4], vec![1], true),
            (vec![1, 2, 3, 4], vec![1, 2], false),
            (vec![1, 2], vec![1], false),
            (vec![1, 2, 3, 4], vec![5, 6, 7, 8], false),
            (vec![1, 2, 3, 4], vec![5, 6], true),
            (vec![], vec![1], false),
            (vec![], vec![], false),
        ];
        for (before, after, held) in cases {
            let mut shelf = Shelf::default();
            assert!(shelf.offer(list(before.clone()), RULES, now, &unchecked), "the first is taken as it is");
            let changed = shelf.offer(list(after.clone()), RULES, now, &unchecked);
            assert_eq!(shelf.held().is_some(), held, "{before:?} {after:?}");
            // New instances are taken even so, and nothing is lost.
            assert!(
                !held || before.iter().chain(&after).all(|port| ports(&shelf).contains(port)),
                "{before:?} {after:?}"
            );
            assert!(held || changed == (before != after) && ports(&shelf) == after, "{before:?} {after:?}");
            shelf.look(RULES, now + RULES.hold, &unchecked);
            assert!(shelf.held().is_none() && ports(&shelf) == after, "after the time is over");
        }
    }

    #[test]
    fn a_list_that_is_whole_again_ends_the_doubt() {
        let now = Instant::now();
        let mut shelf = Shelf::restored(list([1, 2, 3, 4]));
        assert!(!shelf.offer(list([]), RULES, now, &unchecked));
        assert!(!shelf.offer(list([1]), RULES, now + RULES.hold / 2, &unchecked), "still less than half");
        assert!(shelf.held().is_some_and(|(_, since)| since == now), "the time began with the first doubt");
        assert!(shelf.offer(list([1, 2, 3]), RULES, now, &unchecked));
        assert!(shelf.held().is_none());
        let never = Rules { hold: Duration::ZERO, ..RULES };
        assert!(shelf.offer(list([]), never, now, &unchecked), "the operator says so");
    }

    #[test]
    fn checks_say_who_is_gone() {
        let (now, late) = (Instant::now(), Instant::now() + 100 * RULES.hold);
        let mut shelf = Shelf::restored(list([1, 2, 3, 4]));
        assert!(!shelf.offer(list([]), RULES, now, &|_| Some(true)));
        assert!(!shelf.look(RULES, late, &|_| Some(true)), "who passes stays, however long");
        assert!(shelf.look(RULES, now, &|at| Some(at.port() > 2)), "who fails goes at once");
        assert_eq!(ports(&shelf), [3, 4]);
        assert!(shelf.held().is_some());
        assert!(shelf.look(RULES, now, &|_| Some(false)));
        assert!(shelf.held().is_none() && ports(&shelf).is_empty());
    }
}
