//! How fast a client takes what it is sent. Only the time counts in which the gateway waits for it: a client that has
//! nothing to take is not slow.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

/// How long a client may make the gateway wait beside what its pace allows.
const GRACE: Duration = Duration::from_secs(10);

/// The pace of a client that made the gateway wait; there is none for all the others.
#[derive(Default)]
pub(super) struct Pace(Option<Box<Slow>>);

struct Slow {
    /// Since when the gateway waits.
    since: Option<Instant>,
    /// How long it waited before.
    waited: Duration,
    /// Bytes that were taken since it first waited.
    taken: u64,
    timer: Pin<Box<Sleep>>,
}

impl Pace {
    /// The client took so many bytes.
    pub(super) fn took(&mut self, bytes: usize, rate: u64) {
        let Some(slow) = &mut self.0 else { return };
        if let Some(since) = slow.since.take() {
            slow.waited += since.elapsed();
        }
        slow.taken += bytes as u64;
        if slow.allowed(rate) >= slow.waited + GRACE {
            self.0 = None;
        }
    }

    /// The client takes nothing now. Ready if that has gone on for too long.
    pub(super) fn waits(&mut self, rate: u64, cx: &mut Context<'_>) -> Poll<()> {
        let now = Instant::now();
        let slow = self.0.get_or_insert_with(|| {
            let timer = Box::pin(tokio::time::sleep_until(now + GRACE));
            Box::new(Slow { since: None, waited: Duration::ZERO, taken: 0, timer })
        });
        if slow.since.is_none() {
            slow.since = Some(now);
            let left = (slow.allowed(rate) + GRACE).saturating_sub(slow.waited);
            slow.timer.as_mut().reset(now + left);
        }
        slow.timer.as_mut().poll(cx)
    }
}

impl Slow {
    /// The time that what was taken may have taken.
    fn allowed(&self, rate: u64) -> Duration {
        Duration::from_millis(self.taken.saturating_mul(1_000) / rate.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits until the client is too slow; `taken` bytes are taken each second.
    async fn until_slow(taken: usize, rate: u64, most: Duration) -> Option<Duration> {
        let (mut pace, start) = (Pace::default(), Instant::now());
        while start.elapsed() < most {
            let second = Instant::now() + Duration::from_secs(1);
            let waiting = std::future::poll_fn(|cx| pace.waits(rate, cx));
            if tokio::time::timeout_at(second, waiting).await.is_ok() {
                return Some(start.elapsed());
            }
            pace.took(taken, rate);
        }
        None
    }

    #[tokio::test(start_paused = true)]
    async fn who_takes_nothing_has_ten_seconds() {
        let end = until_slow(0, 240, Duration::from_secs(60)).await.unwrap();
        assert_eq!(end.as_secs(), 10);
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_slower_than_allowed_is_found_out_and_who_is_faster_is_not() {
        let end = until_slow(200, 240, Duration::from_secs(600)).await.unwrap();
        assert_eq!(end.as_secs(), 55);
        assert_eq!(until_slow(260, 240, Duration::from_secs(600)).await, None);
        assert_eq!(until_slow(1 << 20, 240, Duration::from_secs(600)).await, None);
    }
}
