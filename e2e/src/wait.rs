//! Waiting for an event instead of sleeping: poll until it is there, or fail at a deadline.

use std::fmt::Display;
use std::future::Future;
use std::time::{Duration, Instant};

/// How long anything may take before its test fails.
pub const DEADLINE: Duration = Duration::from_secs(10);

/// Polls every 2 ms until `check` answers something.
///
/// # Panics
/// After [`DEADLINE`], naming `what`.
pub async fn until<T, F: Future<Output = Option<T>>>(what: impl Display, mut check: impl FnMut() -> F) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = check().await {
            return found;
        }
        assert!(start.elapsed() < DEADLINE, "waited {DEADLINE:?} in vain for {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
