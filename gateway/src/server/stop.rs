//! Decides when and how to stop: SIGINT at once; SIGTERM, and a process that took over, step by step (see
//! [`crate::drain`]). SIGUSR2 starts the process that is to take over.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use pingora::server::{ShutdownSignal, ShutdownSignalWatch};
use sd_notify::NotifyState;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::sockets::Spare;
use super::upgrade::{self, Offer};
use crate::control::Control;
use crate::drain::{Drain, Office};
use crate::telemetry::otlp::spans::Flush;

/// How often a draining gateway looks whether the last connection is closed.
const POLL: Duration = Duration::from_millis(10);

/// How long the last spans may take.
const FLUSH: Duration = Duration::from_secs(1);

/// Tells pingora when to stop.
pub(super) struct Stop {
    pub(super) control: Arc<Control>,
    pub(super) drain: Arc<Drain>,
    pub(super) spare: Arc<Spare>,
    /// Becomes true once this process serves and no other one does.
    pub(super) alone: watch::Receiver<bool>,
    /// Becomes true when the admin API is to close.
    pub(super) close_admin: Arc<watch::Sender<bool>>,
    /// Has spans that wait sent.
    pub(super) flush: Option<Flush>,
}

/// Why it ends.
enum Why {
    Told,
    TakenOver(u32),
}

#[async_trait]
impl ShutdownSignalWatch for Stop {
    async fn recv(&self) -> ShutdownSignal {
        let (Ok(mut interrupt), Ok(terminate), Ok(upgrade)) =
            (signal(SignalKind::interrupt()), signal(SignalKind::terminate()), signal(SignalKind::user_defined2()))
        else {
            tracing::error!("signals cannot be received");
            return std::future::pending().await;
        };
        tokio::select! {
            () = self.end(terminate, upgrade) => {}
            _ = interrupt.recv() => {}
        }
        // Whatever there was to wait for has been waited for.
        ShutdownSignal::FastShutdown
    }
}

impl Stop {
    async fn end(&self, mut terminate: Signal, mut upgrade: Signal) {
        let mut successor = std::pin::pin!(self.successor());
        let why = loop {
            tokio::select! {
                _ = terminate.recv() => break Why::Told,
                pid = &mut successor => break Why::TakenOver(pid),
                _ = upgrade.recv() => if let Err(error) = upgrade::start_successor() {
                    tracing::error!(%error, "the next process cannot be started");
                },
            }
        };
        self.drain(&why).await;
    }

    /// Returns the process id of the one that took over, when one did.
    async fn successor(&self) -> u32 {
        // An error means that the sender is gone, and the gateway with it.
        let _ = self.alone.clone().wait_for(|alone| *alone).await;
        let (drain, close_admin) = (Arc::clone(&self.drain), Arc::clone(&self.close_admin));
        let last = move || {
            drain.set_office(Office::Left);
            close_admin.send_replace(true);
        };
        let directory = self.control.bootstrap.state_dir();
        let offer = Offer::open(&directory);
        match offer.and_then(|offer| upgrade::wait_for_successor(offer, Arc::clone(&self.spare), last)) {
            Ok(told) => {
                if let Ok(pid) = told.await {
                    return pid;
                }
            }
            Err(error) => {
                tracing::warn!(%error, directory = %directory.display(), "no other process will be able to take over");
            }
        }
        std::future::pending().await
    }

    /// Takes the steps, one after the other.
    async fn drain(&self, why: &Why) {
        let conf = self.control.bootstrap.drain;
        match why {
            Why::Told => {
                tell(&[NotifyState::Stopping]);
                self.drain.become_unready();
                tracing::info!(readiness = %conf.readiness, "draining: not ready any more");
                self.control.leave().await;
                sleep(conf.readiness.duration()).await;
            }
            Why::TakenOver(pid) => {
                tell(&[NotifyState::MainPid(*pid)]);
                self.control.relieve();
                tracing::info!(pid, "draining: another process took over");
            }
        }
        tracing::info!(connections = self.drain.connections(), "draining: listeners are closed");
        self.drain.close();
        self.spare.close();
        let ended = timeout(conf.timeout.duration(), async {
            sleep(conf.idle.duration()).await;
            self.drain.close_idle();
            while self.drain.connections() > 0 {
                sleep(POLL).await;
            }
        });
        match ended.await {
            Ok(()) => tracing::info!("drained"),
            Err(_) => tracing::warn!(connections = self.drain.connections(), "the time to drain is over"),
        }
        if let Some(flush) = &self.flush {
            // A receiver that does not answer is not waited for.
            let _ = timeout(FLUSH, flush.now()).await;
        }
    }
}

/// Tells the service manager, if there is one that wants to know.
pub(super) fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(false, state) {
        tracing::warn!(%error, "the service manager cannot be told");
    }
}
