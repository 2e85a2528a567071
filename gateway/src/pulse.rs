//! The gateway's second hand: ends the seconds of the live numbers, and looks after ramps.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use async_trait::async_trait;
use pingora::server::ShutdownWatch;
use pingora::services::background::BackgroundService;
use tokio::time::MissedTickBehavior;

use crate::control::Control;
use crate::control::ramp::driver;
use crate::drain::{Drain, Office};

/// How often it ticks.
const TICK: Duration = Duration::from_millis(250);
/// Ticks in a second.
const SECOND: u32 = 4;

/// Runs it.
pub struct Pulse {
    /// What it looks after.
    pub control: Arc<Control>,
    /// Whether ramps are this process's to look after.
    pub drain: Arc<Drain>,
}

#[async_trait]
impl BackgroundService for Pulse {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        let mut ticks = tokio::time::interval(TICK);
        // A tick that comes late is made up for, so that as many seconds pass here as elsewhere.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let mut count = 0;
        loop {
            tokio::select! {
                _ = ticks.tick() => {
                    count = (count + 1) % SECOND;
                    if count == 0 {
                        self.control.metrics().live.tick();
                    }
                    if self.drain.is(Office::Held) && driver::any(&self.control.live.load()) {
                        self.look_after_ramps().await;
                    }
                }
                stopping = shutdown.changed() => if stopping.is_err() || *shutdown.borrow() { return },
            }
        }
    }
}

impl Pulse {
    /// A flip is written to disk, which may take its time.
    async fn look_after_ramps(&self) {
        let control = Arc::clone(&self.control);
        let look = move || driver::tick(&control, Instant::now(), SystemTime::now());
        if let Err(error) = tokio::task::spawn_blocking(look).await {
            tracing::error!(%error, "a look at the ramps failed");
        }
    }
}
