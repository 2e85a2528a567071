//! Adaptive concurrency limit of a service: gradient2 of Netflix's concurrency-limits. Per window of answers, latency is
//! compared with what it is without a queue (the baseline): while it is not above 1.5 times that, the limit grows by its
//! square root; beyond, it shrinks in proportion.
//!
//! Two things differ. In gradient2 the baseline is a long average of everything, which under lasting overload learns the
//! queue. Here it learns only from windows that ran at half of the limit or less and show no queue; if there is none for
//! a while, the limit itself is halved for two windows to make one. A limit that is far above what makes a queue comes
//! down to what is in flight at once. And the limit doubles per window until the first sign of a queue,
//! as TCP does, so that a gateway that starts under load does not refuse for long.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// What the limit begins with.
const INITIAL: f64 = 100.0;
/// Latency, as a multiple of the baseline, up to which there is no queue to speak of.
const TOLERANCE: f64 = 1.5;
/// How much of a new limit is taken over per window.
const SMOOTHING: f64 = 0.2;
/// Shortest window, and fewest answers in one.
const WINDOW: Duration = Duration::from_millis(100);
const SAMPLES: u32 = 10;
/// How much of a lower, and of a higher, latency without a queue the baseline takes over.
const DOWN: f64 = 0.5;
const UP: f64 = 0.3;
/// Windows without a look at the latency without a queue, until one is made.
const UNTIL_PROBE: u32 = 30;
/// How many times as many in flight as throughput and baseline account for (Little's law) are a queue, and how few are
/// none in any case: a service that became slower has more in flight as well.
const CROWD: f64 = 3.0;
const FEW: f64 = 10.0;
/// Share of failures in a window that is a sign of overload by itself.
const FAILURES: f64 = 0.1;

/// The limit of one service, and what counts against it.
#[derive(Debug)]
pub struct Concurrency {
    limit: AtomicU32,
    in_flight: AtomicU32,
    /// Most requests in flight since the window began.
    peak: AtomicU32,
    gradient: Mutex<Gradient>,
}

impl Concurrency {
    /// A limit that stays within `min` and `max`.
    #[must_use]
    pub fn new(min: u32, max: u32) -> Self {
        let gradient = Gradient::new(min, max);
        Self {
            limit: AtomicU32::new(gradient.limit()),
            in_flight: AtomicU32::new(0),
            peak: AtomicU32::new(0),
            gradient: Mutex::new(gradient),
        }
    }

    /// The limit in force.
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.limit.load(Relaxed)
    }

    /// Requests that hold a permit.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(Relaxed)
    }

    /// Lets a request in, unless the limit is reached. With `observe` it is let in all the same.
    #[must_use]
    pub fn admit(self: &Arc<Self>, observe: bool) -> Option<Permit> {
        let before = self.in_flight.fetch_add(1, Relaxed);
        let permit = Permit(Arc::clone(self));
        self.peak.fetch_max(before + 1, Relaxed);
        (observe || before < self.limit()).then_some(permit)
    }

    /// Takes the latency of an attempt that ended at `now`. `failed` is one that was not answered, or that the upstream
    /// refused for want of capacity. If two end at once, one of them may not be counted.
    pub fn sample(&self, now: Instant, latency: Duration, failed: bool) {
        let Ok(mut gradient) = self.gradient.try_lock() else { return };
        if gradient.sample(now, latency, failed, self.peak.load(Relaxed)) {
            self.limit.store(gradient.limit(), Relaxed);
            self.peak.store(self.in_flight(), Relaxed);
        }
    }
}

/// Counts one request against the limit for as long as it lives.
#[derive(Debug)]
pub struct Permit(Arc<Concurrency>);

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Relaxed);
    }
}

/// The arithmetic: samples in, a limit out.
#[derive(Debug)]
struct Gradient {
    min: f64,
    max: f64,
    limit: f64,
    /// Latency without a queue, in seconds; 0 until the first window.
    baseline: f64,
    /// Whether there was no sign of a queue yet.
    starting: bool,
    /// Windows without a look at the latency without a queue.
    since_look: u32,
    probe: Probe,
    window: Window,
}

/// Where a look at the latency without a queue stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Probe {
    No,
    /// The limit is halved, and what is in flight goes down to it.
    Draining,
    /// What is measured now is without a queue.
    Looking,
}

#[derive(Debug, Default)]
struct Window {
    began: Option<Instant>,
    samples: u32,
    failed: u32,
    seconds: f64,
}

impl Gradient {
    fn new(min: u32, max: u32) -> Self {
        let min = f64::from(min.max(1));
        let max = f64::from(max).max(min);
        Self {
            min,
            max,
            limit: INITIAL.clamp(min, max),
            baseline: 0.0,
            starting: true,
            since_look: 0,
            probe: Probe::No,
            window: Window::default(),
        }
    }

    /// The limit in force.
    fn limit(&self) -> u32 {
        let share = if self.probe == Probe::No { 1.0 } else { 0.5 };
        (self.limit * share).max(self.min) as u32
    }

    /// Takes one latency; true if a window ended with it. `peak` is how many were in flight in the window at most.
    fn sample(&mut self, now: Instant, latency: Duration, failed: bool, peak: u32) -> bool {
        let began = *self.window.began.get_or_insert(now);
        self.window.samples += 1;
        self.window.failed += u32::from(failed);
        self.window.seconds += latency.as_secs_f64();
        // What is measured follows the limit with a delay of one latency.
        let least = WINDOW.as_secs_f64().max(2.0 * self.baseline);
        let lasted = now.saturating_duration_since(began).as_secs_f64();
        if lasted < least || self.window.samples < SAMPLES {
            return false;
        }
        let window = std::mem::take(&mut self.window);
        let samples = f64::from(window.samples);
        let (latency, failed) = (window.seconds / samples, f64::from(window.failed) / samples);
        self.end_window(latency, failed, f64::from(peak), samples / lasted);
        true
    }

    /// `rate` is how many were answered in a second.
    fn end_window(&mut self, latency: f64, failed: f64, peak: f64, rate: f64) {
        let probe = std::mem::replace(&mut self.probe, Probe::No);
        if probe == Probe::Draining {
            self.probe = Probe::Looking;
            return;
        }
        let slow = self.baseline > 0.0 && latency > TOLERANCE * self.baseline;
        let queued = slow && peak > (CROWD * rate * self.baseline).max(FEW);
        let idle = peak <= self.limit / 2.0 && !queued;
        self.look(latency, probe == Probe::Looking || idle);
        if idle && failed < FAILURES {
            return;
        }
        if probe == Probe::No {
            if queued {
                // There is a queue with what is in flight: a limit above that says nothing.
                self.limit = self.limit.min(peak).max(self.min);
            }
            self.adjust(latency, failed);
        }
        self.since_look += 1;
        if self.since_look > UNTIL_PROBE && self.limit > self.min {
            self.probe = Probe::Draining;
        }
    }

    /// Learns the latency without a queue. What is below the baseline has none, whatever the load.
    fn look(&mut self, latency: f64, without_queue: bool) {
        if self.baseline == 0.0 {
            self.baseline = latency;
        } else if latency < self.baseline {
            self.baseline += (latency - self.baseline) * DOWN;
        } else if without_queue {
            self.baseline += (latency - self.baseline) * UP;
        }
        if without_queue {
            self.since_look = 0;
        }
    }

    fn adjust(&mut self, latency: f64, failed: f64) {
        let queued = (TOLERANCE * self.baseline / latency).clamp(0.5, 1.0);
        let overloaded = failed >= FAILURES;
        let gradient = if overloaded { queued.min(0.9) } else { queued };
        if self.starting && gradient >= 1.0 {
            self.limit = (self.limit * 2.0).min(self.max);
            return;
        }
        self.starting = false;
        let room = if overloaded { 0.0 } else { self.limit.sqrt() };
        let next = self.limit * gradient + room;
        self.limit = (self.limit + (next - self.limit) * SMOOTHING).clamp(self.min, self.max);
    }
}

#[cfg(test)]
mod tests;
