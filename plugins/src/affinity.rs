//! What the consistent hashing picks share: from the order in which a table prefers the slots to one candidate.

use serin_core::candidates::{Candidates, Slot};
use serin_core::chain::PickCx;
use serin_core::instance::Instance;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::key::{Key, mix};
use crate::overload::{Bound, Factor, Room};

/// How many preferences of a table are looked at before the candidates are gone through one by one.
const STEPS: usize = 64;

/// The key, the bound, and what is needed when the table has no answer.
#[derive(Debug)]
pub(crate) struct Affinity {
    key: Key,
    bound: Option<Bound>,
    /// One hash per instance, for rendezvous hashing.
    hashes: Box<[u64]>,
}

impl Affinity {
    pub(crate) fn new(key: &Key, factor: Option<Factor>, pool: &[Instance]) -> Self {
        let hashes = pool.iter().map(|instance| hash(instance, u64::MAX)).collect();
        Self { key: key.clone(), bound: factor.map(Bound::new), hashes }
    }

    /// Takes the first candidate with room that the table prefers for the request's key.
    pub(crate) fn pick<I: Iterator<Item = Slot>>(
        &self,
        cx: &PickCx<'_>,
        candidates: &Candidates<'_>,
        preferences: impl FnOnce(u64) -> I,
    ) -> Option<Slot> {
        let key = self.key.hash(cx);
        let room = self.bound.as_ref().map(|bound| bound.room(candidates));
        let fits = |slot: Slot| room.is_none_or(|room: Room| room.fits(candidates.instance(slot)));
        let mut preferred = None;
        for slot in preferences(key).take(STEPS).filter(|&slot| candidates.contains(slot)) {
            if fits(slot) {
                return Some(slot);
            }
            preferred = preferred.or(Some(slot));
        }
        self.rendezvous(key, candidates, fits).or(preferred).or_else(|| self.rendezvous(key, candidates, |_| true))
    }

    /// Weighted rendezvous hashing over the candidates that satisfy `keep`: exact, and O(candidates).
    fn rendezvous(&self, key: u64, candidates: &Candidates<'_>, keep: impl Fn(Slot) -> bool) -> Option<Slot> {
        let score = |slot: Slot, instance: &Instance| {
            let draw = ((mix(key ^ self.hashes[slot]) >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
            draw.ln() / f64::from(instance.weight)
        };
        let kept = candidates.iter().filter(|&(slot, _)| keep(slot));
        let scored = kept.map(|(slot, instance)| (slot, score(slot, instance)));
        scored.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(slot, _)| slot)
    }
}

/// Hash number `n` of an instance. It depends on the address alone, so that every gateway finds the same one.
pub(crate) fn hash(instance: &Instance, n: u64) -> u64 {
    let mut bytes = [0; 18];
    match instance.address.ip().to_canonical() {
        std::net::IpAddr::V4(ip) => bytes[..4].copy_from_slice(&ip.octets()),
        std::net::IpAddr::V6(ip) => bytes[..16].copy_from_slice(&ip.octets()),
    }
    bytes[16..].copy_from_slice(&instance.address.port().to_be_bytes());
    xxh3_64_with_seed(&bytes, n)
}
