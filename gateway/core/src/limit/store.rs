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

/// The state of all keys of one rule.
pub struct Store {
    epoch: Instant,
    seed: u64,
    max_keys: usize,
    shards: Box<[Shard]>,
}

/// Cache lines of its own.
#[repr(align(64))]
struct Shard(Mutex<Keys>);

#[derive(Default)]
struct Keys {
    /// By the hash of a key, when its quota is whole again.
    whole_at: HashMap<u64, Nanos, FixedState>,
    swept: Nanos,
}

/// Where the state of a key is, and where it is if there is no room for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Slot {
    pub(super) key: u64,
    pub(super) spill: u64,
}

impl Store {
    /// An empty store of at most `max_keys` keys, and at least one. With a random `seed`, nobody can know which keys share a shard.
    #[must_use]
    pub fn new(max_keys: usize, seed: u64, now: Instant) -> Self {
        let shards = (max_keys / KEYS_PER_SHARD).clamp(1, SHARDS);
        let shards = 1 << shards.ilog2();
        let shards = (0..shards).map(|_| Shard(Mutex::default())).collect();
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
        self.shards.iter().map(|shard| shard.lock().whole_at.len()).sum()
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

    fn shard(&self, key: u64) -> MutexGuard<'_, Keys> {
        self.shards[key as usize % self.shards.len()].lock()
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("max_keys", &self.max_keys).finish_non_exhaustive()
    }
}

impl Shard {
    fn lock(&self) -> MutexGuard<'_, Keys> {
        // What is behind it is sound between any two statements.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Keys {
    fn sweep(&mut self, now: Nanos) {
        self.swept = now;
        self.whole_at.retain(|_, whole_at| *whole_at > now);
        if self.whole_at.capacity() > 4 * self.whole_at.len().max(16) {
            let room = 2 * self.whole_at.len();
            self.whole_at.shrink_to(room);
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

    /// Whether there is room for a new key.
    fn has_room(&self, keys: &mut Keys) -> bool {
        let most = self.store.max_keys.div_ceil(self.store.shards.len());
        if keys.whole_at.len() < most {
            return true;
        }
        let due = keys.swept.as_u64() + PAUSE.as_nanos() as u64 <= self.now.as_u64();
        if !self.peek && due {
            keys.sweep(self.now);
        }
        keys.whole_at.len() < most
    }
}

impl StateStore for Access<'_> {
    type Key = Slot;

    fn measure_and_replace<T, F, E>(&self, slot: &Slot, decide: F) -> Result<T, E>
    where
        F: Fn(Option<Nanos>) -> Result<(T, Nanos), E>,
    {
        let mut keys = self.store.shard(slot.key);
        if let Some(whole_at) = keys.whole_at.get_mut(&slot.key) {
            let (outcome, next) = decide(Some(*whole_at))?;
            if !self.peek {
                *whole_at = next;
            }
            return Ok(outcome);
        }
        // The shared buckets come on top of the bound: one per shard and quota of the rule.
        let full = !self.has_room(&mut keys);
        self.full.set(full);
        let key = if full { slot.spill } else { slot.key };
        let (outcome, next) = decide(keys.whole_at.get(&key).copied())?;
        if !self.peek {
            keys.whole_at.insert(key, next);
        }
        Ok(outcome)
    }
}
