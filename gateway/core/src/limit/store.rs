//! The state of a rule's keys: 16 bytes each, in shards with a lock of their own that is held for one look-up and one
//! addition. The number of keys is bounded. A key whose quota is whole again is as good as one that was never seen, and
//! goes when it is swept.
//!
//! A key that finds no room even then shares one bucket per shard with the others that find none. So a flood of made-up
//! keys gets the limit of a few keys, not a free pass; keys that are known already are not touched by it; and a newcomer
//! still gets through as far as the shared bucket goes.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use foldhash::fast::FixedState;
use governor::nanos::Nanos;
use governor::state::StateStore;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Most shards of a store.
const SHARDS: usize = 64;
/// Fewest keys for which another shard is worth it.
const KEYS_PER_SHARD: usize = 4_096;
/// How long a full shard is not swept again: a sweep looks at all of its keys.
const PAUSE: Duration = Duration::from_millis(100);

/// The state of all keys of one rule: when the quota of each is whole again, unless it is something else.
pub struct Store<V = Nanos> {
    epoch: Instant,
    seed: u64,
    max_keys: usize,
    shards: Box<[Shard<V>]>,
}

/// The state of one key.
pub trait Settled {
    /// Whether it is as good as none.
    fn is_settled(&self, now: Nanos) -> bool;
}

impl Settled for Nanos {
    fn is_settled(&self, now: Nanos) -> bool {
        *self <= now
    }
}

/// Cache lines of its own.
#[repr(align(64))]
struct Shard<V>(Mutex<Keys<V>>);

pub(super) struct Keys<V> {
    /// By the hash of a key.
    states: HashMap<u64, V, FixedState>,
    swept: Nanos,
}

/// Where the state of a key is, and where it is if there is no room for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Slot {
    pub(super) key: u64,
    pub(super) spill: u64,
}

impl<V: Settled> Store<V> {
    /// An empty store of at most `max_keys` keys, and at least one. With a random `seed`, nobody can know which keys share a shard.
    #[must_use]
    pub fn new(max_keys: usize, seed: u64, now: Instant) -> Self {
        let shards = (max_keys / KEYS_PER_SHARD).clamp(1, SHARDS);
        let shards = 1 << shards.ilog2();
        let shards = (0..shards).map(|_| Shard(Mutex::new(Keys::default()))).collect();
        Self { epoch: now, seed, max_keys: max_keys.max(1), shards }
    }

    /// Keys that there is room for.
    #[must_use]
    pub fn max_keys(&self) -> usize {
        self.max_keys
    }

    /// Keys that are in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().states.len()).sum()
    }

    /// Whether no key is in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Drops the keys whose quota is whole again at `now`, and memory that is not needed any more. This is governor's
    /// `retain_recent`, for keys under several quotas.
    pub fn sweep(&self, now: Instant) {
        let now = self.nanos(now);
        for shard in &self.shards {
            shard.lock().sweep(now);
        }
    }

    pub(super) fn nanos(&self, now: Instant) -> Nanos {
        let nanos = now.saturating_duration_since(self.epoch).as_nanos();
        Nanos::new(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    pub(super) fn hash(&self, bytes: &[u8]) -> u64 {
        xxh3_64_with_seed(bytes, self.seed)
    }

    fn shard(&self, key: u64) -> MutexGuard<'_, Keys<V>> {
        self.shards[key as usize % self.shards.len()].lock()
    }

    /// Whether there is room for a new key; `may_sweep` to make some.
    fn has_room(&self, keys: &mut Keys<V>, now: Nanos, may_sweep: bool) -> bool {
        let most = self.max_keys.div_ceil(self.shards.len());
        if keys.states.len() < most {
            return true;
        }
        let due = keys.swept.as_u64() + PAUSE.as_nanos() as u64 <= now.as_u64();
        if may_sweep && due {
            keys.sweep(now);
        }
        keys.states.len() < most
    }

    /// Acts on the state of a key, if there is one: its own, or else the one that it would share.
    pub(super) fn look<R>(&self, slot: Slot, act: impl FnOnce(&mut V) -> R) -> Option<R> {
        let mut keys = self.shard(slot.key);
        let key = if keys.states.contains_key(&slot.key) { slot.key } else { slot.spill };
        keys.states.get_mut(&key).map(act)
    }

    /// Acts on the state of a key, or on the one that it shares, as it was found before.
    pub(super) fn look_again<R>(&self, slot: Slot, full: bool, act: impl FnOnce(&mut V) -> R) -> Option<R> {
        self.shard(slot.key).states.get_mut(if full { &slot.spill } else { &slot.key }).map(act)
    }

    /// Acts on the state of a key, which is made if need be. Says whether it is shared for want of room.
    pub(super) fn with<R>(&self, slot: Slot, now: Nanos, fresh: V, act: impl FnOnce(&mut V) -> R) -> (R, bool) {
        let mut keys = self.shard(slot.key);
        if let Some(state) = keys.states.get_mut(&slot.key) {
            return (act(state), false);
        }
        let full = !self.has_room(&mut keys, now, true);
        let state = keys.states.entry(if full { slot.spill } else { slot.key }).or_insert(fresh);
        (act(state), full)
    }
}

impl<V> std::fmt::Debug for Store<V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("max_keys", &self.max_keys).finish_non_exhaustive()
    }
}

impl<V> Shard<V> {
    fn lock(&self) -> MutexGuard<'_, Keys<V>> {
        // What is behind it is sound between any two statements.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<V> Default for Keys<V> {
    fn default() -> Self {
        Self { states: HashMap::default(), swept: Nanos::default() }
    }
}

impl<V: Settled> Keys<V> {
    fn sweep(&mut self, now: Nanos) {
        self.swept = now;
        self.states.retain(|_, state| !state.is_settled(now));
        if self.states.capacity() > 4 * self.states.len().max(16) {
            let room = 2 * self.states.len();
            self.states.shrink_to(room);
        }
    }
}

/// One look at a store.
pub(super) struct Access<'a> {
    store: &'a Store,
    now: Nanos,
    /// Leave everything as it is.
    peek: bool,
    full: Cell<bool>,
}

impl<'a> Access<'a> {
    pub(super) fn new(store: &'a Store, now: Nanos, peek: bool) -> Self {
        Self { store, now, peek, full: Cell::new(false) }
    }

    /// Whether the key found no room.
    pub(super) fn was_full(&self) -> bool {
        self.full.get()
    }
}

impl StateStore for Access<'_> {
    type Key = Slot;

    fn measure_and_replace<T, F, E>(&self, slot: &Slot, decide: F) -> Result<T, E>
    where
        F: Fn(Option<Nanos>) -> Result<(T, Nanos), E>,
    {
        let mut keys = self.store.shard(slot.key);
        if let Some(whole_at) = keys.states.get_mut(&slot.key) {
            let (outcome, next) = decide(Some(*whole_at))?;
            if !self.peek {
                *whole_at = next;
            }
            return Ok(outcome);
        }
        // The shared buckets come on top of the bound: one per shard and quota of the rule.
        let full = !self.store.has_room(&mut keys, self.now, !self.peek);
        self.full.set(full);
        let key = if full { slot.spill } else { slot.key };
        let (outcome, next) = decide(keys.states.get(&key).copied())?;
        if !self.peek {
            keys.states.insert(key, next);
        }
        Ok(outcome)
    }
}
