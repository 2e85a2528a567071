//! One upstream instance and its vitals: the numbers that balancers read and requests write.

use std::net::SocketAddr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::condition::{Condition, Observed, Standing};
use crate::outlier::{Cause, Outcome, OutlierPolicy};
use crate::signals::Signals;
use crate::slow_start::SlowStart;

/// Weight of an instance that has none, or an unparsable one. Nacos and Envoy's edge examples use the same scale.
pub const DEFAULT_WEIGHT: u32 = 100;

/// Time constant of the latency average, as in finagle's and tower's peak EWMA.
const EWMA_DECAY: Duration = Duration::from_secs(10);

/// The least part that a sample below the latency average has in the new one. By time alone a single outlier among
/// 1,000 requests/s would stand for 10 s against 10,000 good answers; so it is gone after some 100 of them.
const EWMA_STEP: f64 = 1.0 / 32.0;

/// One upstream instance. Cheap to clone: the vitals are shared between snapshots.
#[derive(Clone, Debug)]
pub struct Instance {
    /// Position in the service's list of instances, which is ordered by address.
    pub index: u32,
    /// Where to connect.
    pub address: SocketAddr,
    /// Labels by name, in order of their names.
    pub labels: Arc<[(Box<str>, Box<str>)]>,
    /// Zone, for `zone_affinity`.
    pub zone: Option<Arc<str>>,
    /// Cluster, for `cluster`.
    pub cluster: Option<Arc<str>>,
    /// Weight relative to the other instances; 0 takes no traffic.
    pub weight: u32,
    /// Live numbers, carried over from snapshot to snapshot.
    pub vitals: Arc<Vitals>,
}

impl Instance {
    /// The value of a label.
    #[must_use]
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(key, _)| &**key == name).map(|(_, value)| &**value)
    }

    /// Whether the instance has every one of these labels with these values.
    #[must_use]
    pub fn has_labels(&self, wanted: &[(Box<str>, Box<str>)]) -> bool {
        wanted.iter().all(|(name, value)| self.label(name) == Some(value))
    }
}

/// Whether an instance may take traffic, as far as health is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Health {
    /// Takes traffic.
    Healthy,
    /// Failed its checks.
    Unhealthy,
    /// Taken out by outlier detection until its ejection time is over.
    Ejected,
}

impl Health {
    /// Its name in the API.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Unhealthy => "unhealthy",
            Self::Ejected => "ejected",
        }
    }
}

/// Counts changes of health and weight, so that whoever made something of them knows that it is out of date. Shared by
/// the instances of a service.
#[derive(Debug, Default)]
pub struct Changes(AtomicU64);

impl Changes {
    /// Number of changes so far.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.load(Acquire)
    }

    fn bump(&self) {
        self.0.fetch_add(1, Release);
    }
}

/// Live numbers of one instance. What balancers read are atomics; what outlier detection keeps is behind a lock that is
/// held for a few instructions.
#[derive(Debug)]
#[repr(align(64))]
pub struct Vitals {
    epoch: Instant,
    in_flight: AtomicU32,
    signals: Signals,
    checks_failed: AtomicBool,
    ejected: AtomicBool,
    picks: AtomicU64,
    ewma_nanos: AtomicU64,
    ewma_stamp: AtomicU64,
    changes: Arc<Changes>,
    condition: Mutex<Condition>,
}

impl Vitals {
    /// Fresh vitals of an instance that was first seen at `now`, apart from any others.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self::among(now, &Arc::default())
    }

    /// Fresh vitals of an instance that was first seen at `now`, beside others with the same count of changes.
    #[must_use]
    pub fn among(now: Instant, changes: &Arc<Changes>) -> Self {
        Self {
            epoch: now,
            in_flight: AtomicU32::new(0),
            signals: Signals::default(),
            checks_failed: AtomicBool::new(false),
            ejected: AtomicBool::new(false),
            picks: AtomicU64::new(0),
            ewma_nanos: AtomicU64::new(0),
            ewma_stamp: AtomicU64::new(0),
            changes: Arc::clone(changes),
            condition: Mutex::new(Condition::new(now)),
        }
    }

    /// When the instance was first seen.
    #[must_use]
    pub fn epoch(&self) -> Instant {
        self.epoch
    }

    /// What some chains and services want to know besides.
    #[must_use]
    pub fn signals(&self) -> &Signals {
        &self.signals
    }

    /// What counts changes of its health and weight.
    #[must_use]
    pub fn changes(&self) -> &Arc<Changes> {
        &self.changes
    }

    /// Requests that were sent and have not finished.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(Relaxed)
    }

    /// How often the instance was picked since it was first seen.
    #[must_use]
    pub fn picks(&self) -> u64 {
        self.picks.load(Relaxed)
    }

    /// What is known of its health: unhealthy if its checks failed, else ejected until that is over.
    #[must_use]
    pub fn health(&self) -> Health {
        if self.checks_failed.load(Relaxed) {
            Health::Unhealthy
        } else if self.ejected.load(Relaxed) {
            Health::Ejected
        } else {
            Health::Healthy
        }
    }

    /// What its checks say: whether it passes them. That alone ends no ejection: see [`Self::end_ejection`].
    pub fn set_checked(&self, healthy: bool) {
        let was_failed = self.checks_failed.swap(!healthy, Relaxed);
        if was_failed == healthy {
            if healthy {
                self.condition().come_back();
            }
            self.changes.bump();
        }
    }

    /// Whether it is ejected, whatever its checks say.
    #[must_use]
    pub fn is_ejected(&self) -> bool {
        self.ejected.load(Relaxed)
    }

    /// Whether the instance passes its active checks, or has none.
    #[must_use]
    pub fn passes_checks(&self) -> bool {
        !self.checks_failed.load(Relaxed)
    }

    /// Ends an ejection before its time, as an active check that passes does.
    pub fn end_ejection(&self) {
        if self.ejected.load(Relaxed) {
            let mut condition = self.condition();
            condition.end_ejection();
            self.ejected.store(false, Relaxed);
            drop(condition);
            self.changes.bump();
        }
    }

    /// Takes the instance out until its ejection is over; gives how long that is.
    pub fn eject(&self, policy: &OutlierPolicy, now: Instant, cause: Cause) -> Duration {
        let mut condition = self.condition();
        let time = condition.eject(policy, now, cause);
        self.ejected.store(true, Relaxed);
        drop(condition);
        self.changes.bump();
        time
    }

    /// Takes an attempt in, which outlier detection judges by. What arrives while it is ejected does not count.
    pub fn observe(&self, policy: &OutlierPolicy, now: Instant, outcome: Outcome, latency: Duration) -> Observed {
        let (observed, weight_changed) = self.condition().observe(policy, now, outcome, latency);
        if weight_changed {
            self.changes.bump();
        }
        observed
    }

    /// Its ejection was refused: it is asked for again after a while only.
    pub fn spare(&self, now: Instant) {
        self.condition().spare(now);
    }

    /// Outlier detection is switched off: what it did is undone.
    pub fn pardon(&self) {
        self.end_ejection();
        if self.condition().pardon() {
            self.changes.bump();
        }
    }

    /// Does what is due at `now`: ends an ejection that is over, begins slow start. Gives when to look again.
    pub fn settle(&self, now: Instant) -> Option<Instant> {
        let mut condition = self.condition();
        let was_ejected = self.ejected.load(Relaxed);
        let next = condition.settle(now);
        if was_ejected && !condition.is_ejected() {
            self.ejected.store(false, Relaxed);
            drop(condition);
            self.changes.bump();
        }
        next
    }

    /// The share of its weight that is in force, in 0..=1: slow start, outlier detection and load reports taken together.
    #[must_use]
    pub fn factor(&self, now: Instant) -> f64 {
        self.condition().factor(now)
    }

    /// How slow start goes on from here; `None` is without.
    pub fn set_slow_start(&self, slow_start: Option<SlowStart>) {
        if self.condition().set_slow_start(slow_start) {
            self.changes.bump();
        }
    }

    /// The instance is new beside others: slow start begins.
    pub fn start_warming(&self) {
        self.condition().come_back();
        self.changes.bump();
    }

    /// The share of its weight that the load it reports leaves it, in 0..=1, and until when that holds.
    pub fn set_load_share(&self, share: f64, until: Instant) {
        if self.condition().set_load_share(share, until) {
            self.changes.bump();
        }
    }

    /// The share of its weight that the load it reports leaves it at `now`; 1 without reports that hold.
    #[must_use]
    pub fn load_share(&self, now: Instant) -> f64 {
        self.condition().load_share(now)
    }

    /// All that is known of its health and weight, for people to read.
    #[must_use]
    pub fn standing(&self, now: Instant) -> Standing {
        self.settle(now);
        Standing { health: self.health(), ..self.condition().standing(now) }
    }

    fn condition(&self) -> MutexGuard<'_, Condition> {
        self.condition.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Latency average at `now`, in nanoseconds; 0 until the first sample. Without new samples it decays towards 0,
    /// so that an instance that was slow once is tried again.
    #[must_use]
    pub fn ewma_nanos(&self, now: Instant) -> f64 {
        let value = f64::from_bits(self.ewma_nanos.load(Relaxed));
        let age = self.since_epoch(now).saturating_sub(self.ewma_stamp.load(Relaxed));
        value * decay(age)
    }

    /// Adds a latency sample. A sample above the average replaces it (the "peak" of peak EWMA), one below is averaged
    /// in with a weight that grows with the time since the last one, and is 1/32 at least. Two writers at once may lose
    /// one sample.
    pub fn record_latency(&self, now: Instant, latency: Duration) {
        let sample = latency.as_nanos() as f64;
        let stamp = self.since_epoch(now);
        let age = stamp.saturating_sub(self.ewma_stamp.load(Relaxed));
        let old = f64::from_bits(self.ewma_nanos.load(Relaxed));
        let keep = decay(age).min(1.0 - EWMA_STEP);
        let new = if sample > old { sample } else { old * keep + sample * (1.0 - keep) };
        self.ewma_nanos.store(new.to_bits(), Relaxed);
        self.ewma_stamp.store(stamp, Relaxed);
    }

    /// The latency that a failure counts as, so that fast errors attract nothing: ten times the average, so that one costs
    /// the instance little and a run of them ever more; at least what was waited for it, and at most `cap`, which it is
    /// for an instance that was never heard of. The average is not aged for this: a pause forgives nothing.
    #[must_use]
    pub fn penalty(&self, waited: Duration, cap: Duration) -> Duration {
        let average = f64::from_bits(self.ewma_nanos.load(Relaxed));
        let tenfold = if average > 0.0 { Duration::from_nanos((average * 10.0) as u64) } else { cap };
        tenfold.min(cap).max(waited)
    }

    /// Notes a request that nobody waited for any longer after `waited`: its latency is at least that, so it can raise
    /// the average and never lowers it.
    pub fn record_abandoned(&self, now: Instant, waited: Duration) {
        if waited.as_nanos() as f64 > self.ewma_nanos(now) {
            self.record_latency(now, waited);
        }
    }

    fn since_epoch(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.epoch).as_nanos()).unwrap_or(u64::MAX)
    }
}

fn decay(age_nanos: u64) -> f64 {
    (-(age_nanos as f64) / EWMA_DECAY.as_nanos() as f64).exp()
}

/// Counts one request as in flight for as long as it lives; a cancelled request is counted off as well.
#[derive(Debug)]
pub struct InFlight(Arc<Vitals>);

impl InFlight {
    /// Counts one picked request.
    #[must_use]
    pub fn start(vitals: &Arc<Vitals>) -> Self {
        vitals.in_flight.fetch_add(1, Relaxed);
        vitals.picks.fetch_add(1, Relaxed);
        Self(Arc::clone(vitals))
    }

    /// The vitals that are being counted on.
    #[must_use]
    pub fn vitals(&self) -> &Vitals {
        &self.0
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peak_is_taken_at_once_and_forgotten_slowly() {
        let start = Instant::now();
        let vitals = Vitals::new(start);
        vitals.record_latency(start, Duration::from_millis(10));
        vitals.record_latency(start, Duration::from_millis(200));
        assert_eq!(vitals.ewma_nanos(start), 2e8);
        vitals.record_latency(start + Duration::from_secs(1), Duration::from_millis(10));
        let after = vitals.ewma_nanos(start + Duration::from_secs(1));
        assert!((1.7e8..1.9e8).contains(&after), "{after}");
        assert!(vitals.ewma_nanos(start + Duration::from_secs(60)) < 1e6);
    }

    #[test]
    fn a_hundred_good_answers_outweigh_an_outlier() {
        let start = Instant::now();
        let vitals = Vitals::new(start);
        vitals.record_latency(start, Duration::from_millis(500));
        for answer in 0..100 {
            vitals.record_latency(start + Duration::from_millis(answer), Duration::from_millis(10));
        }
        let after = vitals.ewma_nanos(start + Duration::from_millis(100));
        assert!((1e7..4e7).contains(&after), "{after}");
    }

    #[test]
    fn a_run_of_failures_counts_ever_more() {
        let start = Instant::now();
        let vitals = Vitals::new(start);
        let (waited, cap) = (Duration::from_millis(1), Duration::from_secs(5));
        assert_eq!(vitals.penalty(waited, cap), cap, "nothing is known yet");
        vitals.record_latency(start, Duration::from_millis(2));
        for (step, expected) in [20, 200, 2_000, 5_000, 5_000].into_iter().enumerate() {
            let penalty = vitals.penalty(waited, cap);
            assert_eq!(penalty, Duration::from_millis(expected), "{step}");
            vitals.record_latency(start + Duration::from_secs(60 * step as u64), penalty);
        }
        assert_eq!(vitals.penalty(Duration::from_secs(7), cap), Duration::from_secs(7));
    }

    #[test]
    fn an_abandoned_request_raises_the_average_and_never_lowers_it() {
        let start = Instant::now();
        let vitals = Vitals::new(start);
        vitals.record_latency(start, Duration::from_millis(20));
        vitals.record_abandoned(start, Duration::from_millis(5));
        assert_eq!(vitals.ewma_nanos(start), 2e7);
        vitals.record_abandoned(start, Duration::from_millis(90));
        assert_eq!(vitals.ewma_nanos(start), 9e7);
    }

    #[test]
    fn checks_and_ejections_make_up_health() {
        let (start, policy) = (Instant::now(), crate::outlier::tests::policy());
        let vitals = Vitals::new(start);
        let after = |secs| start + Duration::from_secs(secs);
        let mut seen = vitals.changes().count();
        let mut is = |health: Health, what: &str| {
            assert_eq!(vitals.health(), health, "{what}");
            let count = vitals.changes().count();
            assert!(std::mem::replace(&mut seen, count) < count, "{what} is a change");
        };
        vitals.eject(&policy, start, Cause::Consecutive5xx);
        is(Health::Ejected, "ejected");
        assert_eq!(vitals.settle(after(29)), Some(after(30)));
        vitals.settle(after(30));
        is(Health::Healthy, "the time is over");
        vitals.eject(&policy, after(31), Cause::Consecutive5xx);
        is(Health::Ejected, "a second time");
        vitals.set_checked(false);
        is(Health::Unhealthy, "checks failed, which weighs more");
        vitals.set_checked(true);
        is(Health::Ejected, "checks pass again, which is not the end of the ejection");
        vitals.end_ejection();
        is(Health::Healthy, "that is for whoever makes the checks to say");
        assert_eq!(vitals.standing(after(40)).ejections, 2);
    }

    #[test]
    fn in_flight_is_given_back_on_drop() {
        let vitals = Arc::new(Vitals::new(Instant::now()));
        let guard = InFlight::start(&vitals);
        assert_eq!((vitals.in_flight(), vitals.picks()), (1, 1));
        drop(guard);
        assert_eq!((vitals.in_flight(), vitals.picks()), (0, 1));
    }
}
