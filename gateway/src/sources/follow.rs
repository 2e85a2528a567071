//! Follows something that may be lost: again and again, with growing pauses that differ from gateway to gateway, so that
//! a center that comes back is not run over.

use std::time::{Duration, Instant};

use rand::RngExt;

/// The shortest and the longest pause before the next try.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Pauses between tries.
#[derive(Debug)]
pub(crate) struct Backoff {
    next: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { next: PAUSE.0 }
    }
}

impl Backoff {
    /// How long to wait now, if the try before began at `since`: one that lasted was none that failed.
    pub(crate) fn pause(&mut self, since: Instant) -> Duration {
        if since.elapsed() > 2 * PAUSE.1 {
            *self = Self::default();
        }
        let pause = self.next;
        self.next = (2 * pause).min(PAUSE.1);
        rand::rng().random_range(pause / 2..=pause)
    }
}
