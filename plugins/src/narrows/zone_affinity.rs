//! `zone_affinity`: the instances of the gateway's own zone, as long as there are any and they are not too busy.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use serde::{Deserialize, Deserializer, de::Error};
use serin_core::candidates::{Candidates, Mask};
use serin_core::chain::{Narrow, Narrowing, PickCx};
use serin_core::instance::Instance;
use serin_core::plugin::{BuildError, Node, Plugin};

/// Up to this many candidates are looked at anew for every pick.
const LOOK_ALWAYS: usize = 64;

/// Keeps the candidates of the gateway's own zone. If there are none, it keeps all of them, counts that, and warns
/// once. A gateway without a zone keeps all.
///
/// Above `spill_at` a part of the requests goes to the other zones: none at the threshold, all at a load of 100 %. The
/// load of the zone is the greater one of requests in flight by `max_in_flight`, and mean utilisation by the instances'
/// own reports.
#[derive(Debug)]
pub struct ZoneAffinity {
    own: Option<Arc<str>>,
    conf: Conf,
}

/// Configuration.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Conf {
    /// Load of the own zone above which requests spill to other zones, 1% to 100% [80%].
    #[serde(default)]
    pub spill_at: SpillAt,
    /// Requests in flight that an instance is meant to have at most, from 1 [none: only load reports count].
    #[serde(default)]
    pub max_in_flight: Option<u32>,
}

/// A load above which requests spill.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SpillAt(f64);

impl Default for SpillAt {
    fn default() -> Self {
        Self(0.8)
    }
}

impl<'de> Deserialize<'de> for SpillAt {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let percent = text.strip_suffix('%').and_then(|number| number.trim().parse().ok());
        match percent.filter(|percent| (1.0..=100.0).contains(percent)) {
            Some(percent) => Ok(Self(percent / 100.0)),
            None => Err(D::Error::custom(format!(
                "spill_at: expected a percentage from 1% to 100%, such as 80%, found {text:?}"
            ))),
        }
    }
}

impl Plugin for ZoneAffinity {
    const NAME: &'static str = "zone_affinity";
    type Conf = Conf;
    type Made = dyn Narrowing;

    fn build(conf: Conf, node: &Node) -> Result<Arc<dyn Narrowing>, BuildError> {
        match conf.max_in_flight {
            Some(0) => Err(BuildError("max_in_flight: expected at least 1, found 0".into())),
            _ => Ok(Arc::new(Self { own: node.zone.clone(), conf })),
        }
    }
}

impl Narrowing for ZoneAffinity {
    fn prepare(&self, pool: &[Instance]) -> Arc<dyn Narrow> {
        let is_own = |instance: &Instance| instance.zone == self.own;
        Arc::new(Prepared {
            zone: self.own.clone(),
            conf: self.conf,
            own: Mask::of(pool, is_own),
            others: Mask::of(pool, |instance| !is_own(instance)),
            load: AtomicU64::new(0),
            looks: AtomicU64::new(0),
            missed: AtomicU64::new(0),
            warned: AtomicBool::new(false),
        })
    }
}

struct Prepared {
    zone: Option<Arc<str>>,
    conf: Conf,
    own: Mask,
    others: Mask,
    /// Load of the own zone when it was last looked at, as the bits of an `f64`.
    load: AtomicU64,
    looks: AtomicU64,
    missed: AtomicU64,
    warned: AtomicBool,
}

impl Narrow for Prepared {
    fn narrow(&self, cx: &mut PickCx<'_>, candidates: &mut Candidates<'_>) {
        let Some(zone) = &self.zone else { return };
        if !candidates.intersects(&self.own) {
            self.miss(zone, cx, candidates);
            return;
        }
        let spills = spilled(self.load(candidates, cx.now), self.conf.spill_at.0);
        let away = spills > 0.0 && (cx.rng.next_u64() >> 11) as f64 / ((1u64 << 53) as f64) < spills;
        let wanted = if away && candidates.intersects(&self.others) { &self.others } else { &self.own };
        candidates.retain_mask(wanted);
    }

    fn missed(&self) -> Option<&AtomicU64> {
        Some(&self.missed)
    }
}

impl Prepared {
    fn miss(&self, zone: &str, cx: &PickCx<'_>, candidates: &Candidates<'_>) {
        if cx.dry_run || candidates.is_empty() {
            return;
        }
        self.missed.fetch_add(1, Relaxed);
        if !self.warned.swap(true, Relaxed) {
            let anybody = candidates.iter().next().map(|(_, instance)| instance.address);
            tracing::warn!(zone, instance = ?anybody, "no instance of the own zone can serve: requests go to all zones");
        }
    }

    /// Load of the own zone's candidates. In a large pool it is taken only so often that a pick looks at 16 instances
    /// on average.
    fn load(&self, candidates: &Candidates<'_>, now: Instant) -> f64 {
        let n = candidates.len();
        if n > LOOK_ALWAYS && !self.looks.fetch_add(1, Relaxed).is_multiple_of(n as u64 / 16) {
            return f64::from_bits(self.load.load(Relaxed));
        }
        let (mut instances, mut in_flight, mut reports, mut used) = (0.0, 0.0, 0.0, 0.0);
        for (_, instance) in candidates.iter().filter(|(slot, _)| self.own.contains(*slot)) {
            instances += 1.0;
            in_flight += f64::from(instance.vitals.in_flight());
            if let Some(utilization) = instance.vitals.utilization(now) {
                reports += 1.0;
                used += utilization;
            }
        }
        let busy = self.conf.max_in_flight.map_or(0.0, |most| in_flight / (f64::from(most) * instances));
        let load = if reports > 0.0 { busy.max(used / reports) } else { busy };
        self.load.store(load.to_bits(), Relaxed);
        load
    }
}

/// The part of the requests that spills at this load. It reaches 1 at a load of 1, so that the own zone stays below its
/// limit however much there is to do.
fn spilled(load: f64, spill_at: f64) -> f64 {
    if load <= spill_at {
        return 0.0;
    }
    if load >= 1.0 { 1.0 } else { (load - spill_at) / (1.0 - spill_at) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};
    use serin_core::candidates::Slot;
    use serin_core::instance::InFlight;
    use serin_core::load::{LoadBoard, LoadPolicy, LoadReport};

    use super::*;
    use crate::laws::with_cx;
    use crate::testing::{left, pool, rng};

    fn zoned(zones: &[&str]) -> Vec<Instance> {
        let mut pool = pool(&vec![1; zones.len()]);
        for (instance, &zone) in pool.iter_mut().zip(zones) {
            instance.zone = Some(zone.into());
        }
        pool
    }

    fn node(zone: Option<&str>) -> Node {
        Node { zone: zone.map(Into::into), ..Node::default() }
    }

    fn prepared(conf: Value, pool: &[Instance]) -> Arc<dyn Narrow> {
        crate::builtin().narrows.build("zone_affinity", conf, &node(Some("a"))).unwrap().unwrap().prepare(pool)
    }

    /// The share of 10,000 requests that leave the own zone `a`.
    fn away(narrow: &dyn Narrow, pool: &[Instance], now: Instant) -> f64 {
        let mut rng = rng(5);
        let mut once = || {
            let mut candidates = Candidates::new(pool);
            with_cx(&mut rng, 0, &[], |cx| {
                cx.now = now;
                narrow.narrow(cx, &mut candidates);
            });
            let mut zones = candidates.iter().map(|(_, instance)| instance.zone.as_deref() == Some("a"));
            let home = zones.next().unwrap();
            assert!(zones.all(|other| other == home), "either the own zone or the others");
            !home
        };
        (0..10_000).filter(|_| once()).count() as f64 / 10_000.0
    }

    #[test]
    fn the_own_zone_comes_first() {
        let mut pool = zoned(&["a", "b", "a", "c", ""]);
        (pool[3].weight, pool[4].zone) = (0, None);
        let cases: [(Option<&str>, &[Slot]); 5] = [
            (Some("a"), &[0, 2]),
            (Some("b"), &[1]),
            (Some("c"), &[0, 1, 2, 4]), // its only instance has no weight
            (Some("d"), &[0, 1, 2, 4]),
            (None, &[0, 1, 2, 4]),
        ];
        for (own, wanted) in cases {
            assert_eq!(left("zone_affinity", json!({}), &node(own), &pool).unwrap(), wanted, "{own:?}");
        }
    }

    #[test]
    fn what_is_too_much_in_flight_spills() {
        let conf = json!({ "spill_at": "80%", "max_in_flight": 10 });
        for (in_flight, wanted) in [(0, 0.0), (16, 0.0), (17, 0.25), (18, 0.5), (20, 1.0), (40, 1.0)] {
            let pool = zoned(&["a", "b", "a", "c"]);
            let _busy: Vec<_> = (0..in_flight).map(|n| InFlight::start(&pool[n % 2 * 2].vitals)).collect();
            let away = away(&*prepared(conf.clone(), &pool), &pool, Instant::now());
            assert!((away - wanted).abs() < 0.02, "{in_flight} in flight: {away}");
        }
        let pool = zoned(&["a", "a"]);
        let _busy: Vec<_> = (0..50).map(|_| InFlight::start(&pool[0].vitals)).collect();
        assert_eq!(away(&*prepared(conf, &pool), &pool, Instant::now()), 0.0, "nowhere to spill to");
    }

    #[test]
    fn reported_load_spills_until_it_is_stale() {
        let (pool, now) = (zoned(&["a", "b", "a"]), Instant::now());
        let (second, zero) = (Duration::from_secs(1), Duration::ZERO);
        let policy =
            LoadPolicy { expire_after: second, update_every: zero, blackout: zero, error_penalty: 1.0, weights: false };
        let board = LoadBoard::new(policy, now);
        for (slot, cpu) in [(0, 0.95), (2, 0.85), (1, 1.0)] {
            board.note(&pool, &pool[slot].vitals, LoadReport { cpu, ..LoadReport::default() }, now);
        }
        let narrow = prepared(json!({}), &pool);
        assert!((away(&*narrow, &pool, now) - 0.5).abs() < 0.02);
        assert_eq!(away(&*narrow, &pool, now + second), 0.0);
    }

    #[test]
    fn a_large_pool_is_looked_at_now_and_then() {
        let pool = zoned(&(0..256).map(|slot| if slot % 2 == 0 { "a" } else { "b" }).collect::<Vec<_>>());
        let _busy: Vec<_> = (0..256).map(|n| InFlight::start(&pool[n / 2 * 2].vitals)).collect();
        assert!(away(&*prepared(json!({ "max_in_flight": 2 }), &pool), &pool, Instant::now()) > 0.99);
    }

    #[test]
    fn a_zone_without_instances_is_counted() {
        let pool = zoned(&["b", "b"]);
        let narrow = prepared(json!({}), &pool);
        let narrowed = |dry_run| {
            let mut candidates = Candidates::new(&pool);
            with_cx(&mut rng(0), 0, &[], |cx| {
                cx.dry_run = dry_run;
                narrow.narrow(cx, &mut candidates);
            });
            candidates.len()
        };
        assert_eq!([narrowed(false), narrowed(true), narrowed(false)], [2, 2, 2]);
        assert_eq!(narrow.missed().unwrap().load(Relaxed), 2, "explaining counts nothing");
    }

    #[test]
    fn refusals_say_what_was_expected() {
        let refusal = |conf| left("zone_affinity", conf, &node(None), &[]).unwrap_err();
        for spill_at in ["0%", "101%", "80", "x%"] {
            let told = refusal(json!({ "spill_at": spill_at }));
            assert_eq!(
                told,
                format!("spill_at: expected a percentage from 1% to 100%, such as 80%, found {spill_at:?}")
            );
        }
        assert_eq!(refusal(json!({ "max_in_flight": 0 })), "max_in_flight: expected at least 1, found 0");
        assert!(refusal(json!({ "spil_at": "80%" })).contains("`spill_at`"));
    }
}
