//! What the process itself uses, under the names that Prometheus clients have for it, and what its log lost.

use std::fs;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Counter, Gauge};

use super::log;
use super::names::OWN_LOG_DROPPED;
use crate::overload::{most_descriptors, open_descriptors, resident_memory};

/// Ticks of a second in `/proc`; Linux tells user space in this unit whatever its own is.
const TICKS: f64 = 100.0;

/// Reads `/proc` when metrics are asked for.
#[derive(Clone)]
pub(super) struct Process {
    cpu: Counter,
    start: Gauge,
    memory: Gauge,
    open: Gauge,
    most: Gauge,
    lost: Counter,
}

impl Process {
    pub(super) fn new() -> Result<Self, prometheus::Error> {
        let start = Gauge::new("process_start_time_seconds", "Start time of the process, since the Unix epoch.")?;
        start.set(start_time().unwrap_or_default());
        Ok(Self {
            cpu: Counter::new("process_cpu_seconds_total", "User and system CPU time of the process.")?,
            start,
            memory: Gauge::new("process_resident_memory_bytes", "Resident memory of the process.")?,
            open: Gauge::new("process_open_fds", "Open file descriptors.")?,
            most: Gauge::new("process_max_fds", "Most file descriptors that may be open.")?,
            lost: Counter::new(OWN_LOG_DROPPED, "Lines of the process's own log that were lost.")?,
        })
    }

    fn all(&self) -> [&dyn Collector; 6] {
        [&self.cpu, &self.start, &self.memory, &self.open, &self.most, &self.lost]
    }
}

impl Collector for Process {
    fn desc(&self) -> Vec<&Desc> {
        self.all().into_iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        if let Some(seconds) = cpu_seconds() {
            self.cpu.inc_by((seconds - self.cpu.get()).max(0.0));
        }
        self.lost.inc_by((log::lost() as f64 - self.lost.get()).max(0.0));
        let set = |gauge: &Gauge, value: Option<u64>| value.into_iter().for_each(|value| gauge.set(value as f64));
        set(&self.memory, resident_memory().ok());
        set(&self.open, open_descriptors().ok());
        set(&self.most, most_descriptors());
        self.all().into_iter().flat_map(Collector::collect).collect()
    }
}

/// A field of `/proc/self/stat`, counted as in proc(5), from the third on.
fn stat(text: &str, field: usize) -> Option<f64> {
    // The second field is the name in parentheses, which may hold spaces and parentheses itself.
    let (_, rest) = text.rsplit_once(')')?;
    rest.split_whitespace().nth(field.checked_sub(3)?)?.parse().ok()
}

fn cpu_seconds() -> Option<f64> {
    let text = fs::read_to_string("/proc/self/stat").ok()?;
    Some((stat(&text, 14)? + stat(&text, 15)?) / TICKS)
}

fn start_time() -> Option<f64> {
    let own = fs::read_to_string("/proc/self/stat").ok()?;
    let system = fs::read_to_string("/proc/stat").ok()?;
    let boot: f64 = system.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    Some(boot + stat(&own, 22)? / TICKS)
}

#[cfg(test)]
mod tests {
    use std::time::{SystemTime, UNIX_EPOCH};

    use super::*;

    #[test]
    fn names_may_hold_anything() {
        let text = "7 (a) b (c)) S 1 2 3 4 5 6 7 8 9 10 140 15 16";
        assert_eq!((stat(text, 4), stat(text, 14), stat(text, 15)), (Some(1.0), Some(140.0), Some(15.0)));
        assert_eq!((stat(text, 2), stat(text, 99), stat("", 3)), (None, None, None));
    }

    #[test]
    fn the_process_is_told_as_it_is() {
        let process = Process::new().unwrap();
        let families = process.collect();
        assert_eq!(families.len(), process.desc().len());
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        let age = now - process.start.get();
        assert!((-1.0..86_400.0).contains(&age), "started {age} s ago");
        assert!(process.memory.get() > 1e6 && process.open.get() > 2.0 && process.most.get() >= process.open.get());
        let before = process.cpu.get();
        while cpu_seconds().unwrap() <= before {}
        process.collect();
        assert!(process.cpu.get() > before);
    }
}
