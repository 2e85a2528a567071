//! Sheds load before the process runs out of memory or descriptors. A thread of its own looks at what is used, a few
//! times a second; requests only read what it found.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use prometheus::{IntCounter, IntGauge};
use schemars::JsonSchema;
use serde::Serialize;

use crate::conf;
use crate::control::generation::Generation;
use crate::limits;

/// How often is looked at what is used.
const LOOK: Duration = Duration::from_millis(100);
/// How often keys of rate limits are swept.
const SWEEP: Duration = Duration::from_secs(30);
/// How many measurements in a row the queue has to be long for: a burst that is served is no overload (the idea of CoDel,
/// RFC 8289: what counts is the least delay of an interval).
const LONG: usize = 5;
/// Shedding ends when this much, in percent of what it began at, is used.
const ENOUGH: u64 = 95;

/// What may run out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Resource {
    /// Resident memory, in bytes.
    Memory = 0,
    /// Open descriptors.
    Descriptors = 1,
    /// Requests in flight.
    InFlight = 2,
    /// Time that work waits for a worker thread, in microseconds: the least one of half a second.
    QueueDelay = 3,
}

impl Resource {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Memory, Self::Descriptors, Self::InFlight, Self::QueueDelay];

    /// Its name in metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Descriptors => "descriptors",
            Self::InFlight => "in_flight",
            Self::QueueDelay => "queue_delay",
        }
    }
}

/// Counters of what is shed.
pub struct OverloadMetrics {
    /// Requests that were refused, by resource.
    pub shed: [IntCounter; Resource::ALL.len()],
    /// 1 while requests are refused for want of it, by resource.
    pub shedding: [IntGauge; Resource::ALL.len()],
    /// How much is used.
    pub used: [IntGauge; Resource::ALL.len()],
    /// Tasks of the runtime that is probed.
    pub tasks: IntGauge,
}

/// Whether the gateway is overloaded.
pub struct Overload {
    /// From how much on requests are refused, by resource; never for those that nothing is configured for.
    limits: [Option<u64>; Resource::ALL.len()],
    used: [AtomicU64; Resource::ALL.len()],
    /// A bit for each resource of which too much is used.
    state: AtomicU8,
    probing: Once,
    metrics: OverloadMetrics,
}

/// State of one resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ResourceStatus {
    /// What it is.
    pub resource: &'static str,
    /// How much is used: bytes, descriptors, requests or microseconds.
    pub used: u64,
    /// From how much on requests are refused.
    pub limit: Option<u64>,
    /// Whether they are.
    pub shedding: bool,
}

impl Overload {
    /// Sheds as configured. Shares are of what the process may use now.
    #[must_use]
    pub fn new(conf: &conf::Overload, metrics: OverloadMetrics) -> Self {
        let share = |of: u64, share: &conf::Percent| of.saturating_mul(u64::from(share.hundredths())) / 10_000;
        let limits = [
            conf.memory.as_option().and_then(|memory| memory.of(available_memory())),
            conf.descriptors.as_option().and_then(|part| Some(share(most_descriptors()?, part))),
            conf.in_flight.map(|most| u64::from(most.get())),
            conf.queue_delay.as_option().map(|most| micros(most.duration())),
        ];
        Self { limits, used: Default::default(), state: AtomicU8::new(0), probing: Once::new(), metrics }
    }

    /// The resource for want of which a request has to be refused, with so many in flight, itself included. It is
    /// counted as refused.
    #[must_use]
    pub fn sheds(&self, in_flight: i64) -> Option<Resource> {
        let state = self.state.load(Relaxed);
        let crowd = self.limits[Resource::InFlight as usize].is_some_and(|most| in_flight > most as i64);
        let resource = match state {
            0 if !crowd => return None,
            0 => Resource::InFlight,
            _ => Resource::ALL[state.trailing_zeros() as usize],
        };
        self.metrics.shed[resource as usize].inc();
        Some(resource)
    }

    /// Whether a new connection is closed at once, so that descriptors are left for what is under way and for the admin
    /// API. It is counted as refused.
    #[must_use]
    pub fn refuses_connections(&self) -> bool {
        let refuses = self.state.load(Relaxed) & (1 << Resource::Descriptors as u8) != 0;
        if refuses {
            self.metrics.shed[Resource::Descriptors as usize].inc();
        }
        refuses
    }

    /// The state of every resource, with so many requests in flight.
    #[must_use]
    pub fn status(&self, in_flight: i64) -> Vec<ResourceStatus> {
        let status = |resource: Resource| {
            let (at, crowd) = (resource as usize, u64::try_from(in_flight).unwrap_or(0));
            let (used, limit) = match resource {
                Resource::InFlight => (crowd, self.limits[at]),
                _ => (self.used[at].load(Relaxed), self.limits[at]),
            };
            let shedding = match resource {
                Resource::InFlight => limit.is_some_and(|limit| used >= limit),
                _ => self.state.load(Relaxed) & (1 << at) != 0,
            };
            ResourceStatus { resource: resource.as_str(), used, limit, shedding }
        };
        Resource::ALL.map(status).to_vec()
    }

    /// Takes note of how much of a resource is used. Shedding that began goes on until clearly less is.
    fn note(&self, resource: Resource, used: u64) {
        let at = resource as usize;
        let bit = 1 << at;
        let was = self.state.load(Relaxed) & bit != 0;
        let is = self.limits[at].is_some_and(|limit| used >= if was { limit * ENOUGH / 100 } else { limit });
        self.used[at].store(used, Relaxed);
        self.metrics.used[at].set(i64::try_from(used).unwrap_or(i64::MAX));
        if was == is {
            return;
        }
        self.metrics.shedding[at].set(i64::from(is));
        if is {
            self.state.fetch_or(bit, Relaxed);
            tracing::warn!(resource = resource.as_str(), used, limit = self.limits[at], "shedding load");
        } else {
            self.state.fetch_and(!bit, Relaxed);
            tracing::info!(resource = resource.as_str(), used, limit = self.limits[at], "no longer shedding load");
        }
    }

    fn look(&self, in_flight: i64) {
        if let Ok(bytes) = resident_memory() {
            self.note(Resource::Memory, bytes);
        }
        if let Ok(open) = open_descriptors() {
            self.note(Resource::Descriptors, open);
        }
        let (at, crowd) = (Resource::InFlight as usize, u64::try_from(in_flight).unwrap_or(0));
        self.metrics.used[at].set(in_flight);
        self.metrics.shedding[at].set(i64::from(self.limits[at].is_some_and(|limit| crowd >= limit)));
    }

    /// Starts to measure how long work waits for a worker, on the runtime of the caller and once: a task that sleeps is
    /// late by what is done before timers are looked at, and then waits at the end of the queue like everybody else. (A
    /// worker runs first what a timer wakes, so that being late alone says nothing of the queue.)
    pub fn probe(self: &Arc<Self>) {
        self.probing.call_once(|| {
            let this = Arc::clone(self);
            tokio::spawn(async move {
                let mut delays = Delays::default();
                let runtime = tokio::runtime::Handle::current();
                loop {
                    let due = tokio::time::Instant::now() + LOOK;
                    tokio::time::sleep_until(due).await;
                    tokio::task::yield_now().await;
                    this.note(Resource::QueueDelay, micros(delays.add(due.elapsed())));
                    let tasks = runtime.metrics().num_alive_tasks();
                    this.metrics.tasks.set(i64::try_from(tasks).unwrap_or(i64::MAX));
                }
            });
        });
    }

    /// Starts the thread that looks. It also sweeps the keys of rate limits, for as long as the process lives.
    ///
    /// # Errors
    /// If there can be no thread.
    pub fn watch(self: &Arc<Self>, live: Arc<ArcSwap<Generation>>, in_flight: IntGauge) -> io::Result<()> {
        let this = Arc::clone(self);
        let mut swept = Instant::now();
        let look = move || {
            loop {
                this.look(in_flight.get());
                if swept.elapsed() >= SWEEP {
                    swept = Instant::now();
                    limits::rate_limits(&live.load()).for_each(|limit| limit.sweep(swept));
                }
                std::thread::sleep(LOOK);
            }
        };
        std::thread::Builder::new().name("overload".to_owned()).spawn(look).map(drop)
    }
}

/// The latest delays of the queue.
#[derive(Default)]
struct Delays {
    latest: [Duration; LONG],
    next: usize,
}

impl Delays {
    /// Adds one; returns the least.
    fn add(&mut self, delay: Duration) -> Duration {
        self.latest[self.next] = delay;
        self.next = (self.next + 1) % LONG;
        self.latest.iter().min().copied().unwrap_or_default()
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Resident memory of the process in bytes.
pub(crate) fn resident_memory() -> io::Result<u64> {
    let text = fs::read_to_string("/proc/self/status")?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    kib.map(|kib| kib << 10).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Memory that the process may use: the limit of its cgroup (v2, then v1), or else what the machine has.
fn available_memory() -> Option<u64> {
    let read = |path: &str| fs::read_to_string(path).ok();
    let machine = read("/proc/meminfo").and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
        Some(line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()? << 10)
    });
    let limits = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
    let cgroup = limits.iter().find_map(|path| read(path)?.trim().parse::<u64>().ok());
    // Without a limit, v2 says `max` and v1 says more than any machine has.
    match (cgroup, machine) {
        (Some(cgroup), Some(machine)) => Some(cgroup.min(machine)),
        (cgroup, machine) => cgroup.or(machine),
    }
}

/// Descriptors that the process may have open (the soft limit).
pub(crate) fn most_descriptors() -> Option<u64> {
    let text = fs::read_to_string("/proc/self/limits").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Open descriptors. Since Linux 6.2 the size of the directory is their number; before, they have to be counted.
pub(crate) fn open_descriptors() -> io::Result<u64> {
    let directory = Path::new("/proc/self/fd");
    match fs::metadata(directory)?.len() {
        0 => Ok(fs::read_dir(directory)?.count() as u64),
        number => Ok(number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::metrics::Metrics;

    fn overload(conf: &str) -> Overload {
        let conf = serde_json::from_str(conf).unwrap();
        Overload::new(&conf, Metrics::new().unwrap().overload())
    }

    #[test]
    fn shedding_begins_at_the_limit_and_ends_well_below() {
        let overload = overload(r#"{"memory": "1000B", "descriptors": "none", "in_flight": 5}"#);
        let steps = [(999, false), (1_000, true), (980, true), (949, false), (999, false), (1_500, true), (0, false)];
        for (used, shedding) in steps {
            overload.note(Resource::Memory, used);
            assert_eq!(overload.sheds(1), shedding.then_some(Resource::Memory), "{used}");
        }
        assert_eq!(overload.metrics.shed[Resource::Memory as usize].get(), 3);
        overload.note(Resource::Descriptors, 1 << 40);
        assert_eq!([5, 6].map(|in_flight| overload.sheds(in_flight)), [None, Some(Resource::InFlight)]);
    }

    #[test]
    fn a_queue_is_long_when_it_was_for_half_a_second() {
        let overload = overload(r#"{"queue_delay": "100ms"}"#);
        let mut delays = Delays::default();
        // One short delay among them says that the queue was drained.
        let before = [150, 200, 110, 900, 99].map(|delay| (delay, false));
        let then = [(500, false), (500, false), (500, false), (500, false), (500, true), (96, true), (94, false)];
        for (delay, shedding) in before.into_iter().chain(then) {
            overload.note(Resource::QueueDelay, micros(delays.add(Duration::from_millis(delay))));
            assert_eq!(overload.sheds(1).is_some(), shedding, "{delay} ms");
        }
    }

    #[test]
    fn connections_are_refused_for_want_of_descriptors_only() {
        let overload = overload(r#"{"memory": "1000B", "descriptors": "90%"}"#);
        overload.note(Resource::Memory, 2_000);
        assert!(!overload.refuses_connections());
        let most = most_descriptors().unwrap();
        overload.note(Resource::Descriptors, most * 9 / 10 - 1);
        assert!(!overload.refuses_connections());
        overload.note(Resource::Descriptors, most * 9 / 10);
        assert!(overload.refuses_connections());
        assert_eq!(overload.metrics.shed[Resource::Descriptors as usize].get(), 1);
    }

    #[test]
    fn what_is_used_and_what_there_is_can_be_told() {
        let overload = overload("{}");
        let file = fs::File::open("/proc/self/status").unwrap();
        overload.look(3);
        for status in &overload.status(3)[..2] {
            let (used, limit) = (status.used, status.limit.unwrap());
            assert!(used > 2 && used < limit && !status.shedding, "{status:?}");
        }
        assert_eq!((overload.status(3)[2].used, overload.status(3)[2].limit), (3, None));
        let counted = fs::read_dir("/proc/self/fd").unwrap().count() as u64;
        assert!(open_descriptors().unwrap().abs_diff(counted) <= 50);
        drop(file);
    }
}
