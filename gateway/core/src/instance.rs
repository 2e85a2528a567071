//! One upstream instance and its vitals: the numbers that balancers read and requests write.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::signals::Signals;

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

/// The instance fails its active checks.
const CHECKS_FAILED: u8 = 1;
/// Outlier detection took the instance out.
const EJECTED: u8 = 2;

/// Whether an instance may take traffic, as far as health is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Health {
    /// Takes traffic.
    Healthy = 0,
    /// Failed its checks.
    Unhealthy = 1,
    /// Taken out by outlier detection until its ejection time is over.
    Ejected = 2,
}

/// Live numbers of one instance. All of them are atomics: no request waits for another.
#[derive(Debug)]
#[repr(align(64))]
pub struct Vitals {
    epoch: Instant,
    in_flight: AtomicU32,
    /// [`CHECKS_FAILED`] and [`EJECTED`].
    health: AtomicU8,
    picks: AtomicU64,
    ewma_nanos: AtomicU64,
    ewma_stamp: AtomicU64,
    signals: Signals,
}

impl Vitals {
    /// Fresh vitals of an instance that was first seen at `now`.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            epoch: now,
            in_flight: AtomicU32::new(0),
            health: AtomicU8::new(0),
            picks: AtomicU64::new(0),
            ewma_nanos: AtomicU64::new(0),
            ewma_stamp: AtomicU64::new(0),
            signals: Signals::default(),
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

    /// What is known of its health. Failed checks weigh more than an ejection.
    #[must_use]
    pub fn health(&self) -> Health {
        match self.health.load(Relaxed) {
            0 => Health::Healthy,
            flags if flags & CHECKS_FAILED != 0 => Health::Unhealthy,
            _ => Health::Ejected,
        }
    }

    /// Sets what is known of its health.
    pub fn set_health(&self, health: Health) {
        let flags = match health {
            Health::Healthy => 0,
            Health::Unhealthy => CHECKS_FAILED,
            Health::Ejected => EJECTED,
        };
        self.health.store(flags, Relaxed);
    }

    /// Notes what the active checks came to: whether the instance passes them.
    pub fn set_checked(&self, healthy: bool) {
        if healthy {
            self.health.fetch_and(!CHECKS_FAILED, Relaxed);
        } else {
            self.health.fetch_or(CHECKS_FAILED, Relaxed);
        }
    }

    /// Whether the instance passes its active checks, or has none.
    #[must_use]
    pub fn passes_checks(&self) -> bool {
        self.health.load(Relaxed) & CHECKS_FAILED == 0
    }

    /// Ends an ejection before its time: the instance was found to work.
    pub fn end_ejection(&self) {
        self.health.fetch_and(!EJECTED, Relaxed);
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
    fn checks_and_ejections_are_told_apart() {
        let vitals = Vitals::new(Instant::now());
        vitals.set_health(Health::Ejected);
        assert!(vitals.passes_checks());
        vitals.set_checked(false);
        assert_eq!((vitals.health(), vitals.passes_checks()), (Health::Unhealthy, false));
        vitals.set_checked(true);
        assert_eq!(vitals.health(), Health::Ejected, "checks that pass again do not end an ejection by themselves");
        vitals.end_ejection();
        assert_eq!(vitals.health(), Health::Healthy);
        vitals.set_checked(false);
        vitals.end_ejection();
        assert_eq!(vitals.health(), Health::Unhealthy);
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
