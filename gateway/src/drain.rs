//! How the gateway ends: the steps of a drain, and what the parts of it look at to know which one was taken.
//!
//! 1. *Unready*: `/readyz` answers 503, and everything goes on as before, until load balancers have noticed.
//! 2. *Closing*: listeners are closed, HTTP/2 clients get GOAWAY, every HTTP/1.1 answer says `Connection: close`.
//! 3. *Idle*: connections that no request came in on any more are closed.
//! 4. What is left is waited for, and cut in the end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering::Relaxed};

use tokio::sync::watch;

/// Which steps were taken.
pub struct Drain {
    unready: Arc<AtomicBool>,
    closing: Arc<AtomicBool>,
    stop: watch::Sender<bool>,
    idle: watch::Sender<bool>,
    open: Arc<AtomicUsize>,
    office: AtomicU8,
}

/// Whether this process looks after what only one may look after: ramps, and the documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Office {
    /// Another process still does.
    Waiting,
    /// It does.
    Held,
    /// It has handed that over.
    Left,
}

impl Drain {
    /// Nothing is over. The office is held at once unless there is a predecessor.
    #[must_use]
    pub fn new(office: Office) -> Self {
        Self {
            unready: Arc::default(),
            closing: Arc::default(),
            stop: watch::Sender::new(false),
            idle: watch::Sender::new(false),
            open: Arc::default(),
            office: AtomicU8::new(office as u8),
        }
    }

    /// The first step.
    pub fn become_unready(&self) {
        self.unready.store(true, Relaxed);
    }

    /// The second step.
    pub fn close(&self) {
        self.closing.store(true, Relaxed);
        self.stop.send_replace(true);
    }

    /// The third step.
    pub fn close_idle(&self) {
        self.idle.send_replace(true);
    }

    /// Whether readiness fails.
    #[must_use]
    pub fn unready(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.unready)
    }

    /// Whether every answer closes its connection.
    #[must_use]
    pub fn closing(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.closing)
    }

    /// Becomes true when listeners close.
    #[must_use]
    pub fn stopping(&self) -> watch::Receiver<bool> {
        self.stop.subscribe()
    }

    /// Becomes true when idle connections close.
    #[must_use]
    pub fn closing_idle(&self) -> watch::Receiver<bool> {
        self.idle.subscribe()
    }

    /// Counts a client connection for as long as the guard lives.
    #[must_use]
    pub fn connection(&self) -> Open {
        self.open.fetch_add(1, Relaxed);
        Open(Arc::clone(&self.open))
    }

    /// Client connections that are open.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.open.load(Relaxed)
    }

    /// Takes or leaves the office.
    pub fn set_office(&self, office: Office) {
        self.office.store(office as u8, Relaxed);
    }

    /// Whether this is how things stand with the office.
    #[must_use]
    pub fn is(&self, office: Office) -> bool {
        self.office.load(Relaxed) == office as u8
    }
}

/// A client connection that is open.
pub struct Open(Arc<AtomicUsize>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_seen_by_whoever_looks() {
        let drain = Drain::new(Office::Waiting);
        let (unready, closing, stop, idle) = (drain.unready(), drain.closing(), drain.stopping(), drain.closing_idle());
        let seen = || (unready.load(Relaxed), closing.load(Relaxed), *stop.borrow(), *idle.borrow());
        assert_eq!(seen(), (false, false, false, false));
        drain.become_unready();
        assert_eq!(seen(), (true, false, false, false));
        drain.close();
        assert_eq!(seen(), (true, true, true, false));
        drain.close_idle();
        assert_eq!(seen(), (true, true, true, true));
        let connections = [drain.connection(), drain.connection()];
        assert_eq!(drain.connections(), 2);
        drop(connections);
        assert_eq!(drain.connections(), 0);
        assert!(drain.is(Office::Waiting) && !drain.is(Office::Held));
        drain.set_office(Office::Held);
        assert!(drain.is(Office::Held));
    }
}
