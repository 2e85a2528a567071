//! A ledger: every request has an id and exactly one outcome, and what may not be repeated reached upstreams at most once.

use std::collections::BTreeMap;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use http::Method;

use crate::client::{Call, Conn};
use crate::rogue::ID;

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// A response with this status, whole.
    Answered(u16),
    /// The connection or the stream broke before the response was whole.
    Broken,
}

/// What was sent, and what became of it.
#[derive(Default)]
pub struct Ledger {
    entries: Mutex<BTreeMap<String, (Method, Outcome)>>,
}

/// An id that no other request of this process has.
#[must_use]
pub fn new_id() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("r{:06}", NEXT.fetch_add(1, Relaxed))
}

impl Ledger {
    /// Sends a request with a new id and notes its outcome. A POST or PUT has a body.
    pub async fn send(&self, method: &str, path: &str, conn: &mut Conn) -> (String, Outcome) {
        let id = new_id();
        let body = if matches!(method, "POST" | "PUT") { "pay" } else { "" };
        let outcome = Call::new(method, path).header(ID, &id).body(body).try_on(conn).await;
        let outcome = outcome.map(|reply| reply.status.as_u16());
        (id.clone(), self.note(&id, method, outcome))
    }

    /// Notes the outcome of a request.
    ///
    /// # Panics
    /// If the request hung, or has an outcome already.
    pub fn note(&self, id: &str, method: &str, outcome: io::Result<u16>) -> Outcome {
        let outcome = match outcome {
            Ok(status) => Outcome::Answered(status),
            Err(error) => {
                assert_ne!(error.kind(), io::ErrorKind::TimedOut, "{method} {id} has no outcome");
                Outcome::Broken
            }
        };
        let entry = (method.parse().unwrap(), outcome);
        let before = self.entries.lock().unwrap().insert(id.to_owned(), entry);
        assert!(before.is_none(), "{id} has two outcomes");
        outcome
    }

    /// How many requests of a method had each outcome.
    #[must_use]
    pub fn outcomes(&self, method: &str) -> BTreeMap<Outcome, usize> {
        let mut counts = BTreeMap::new();
        for (_, outcome) in self.entries.lock().unwrap().values().filter(|(sent, _)| sent == method) {
            *counts.entry(*outcome).or_default() += 1;
        }
        counts
    }

    /// Holds the ledger against the ids that reached upstreams, as often as they did.
    ///
    /// # Panics
    /// If an id reached them that nobody sent, one more often than there are `attempts`, or one of a method that is not
    /// idempotent more than once.
    pub fn balance(&self, attempts: usize, arrived: impl IntoIterator<Item = String>) {
        let mut counts = BTreeMap::<_, usize>::new();
        for id in arrived {
            *counts.entry(id).or_default() += 1;
        }
        let entries = self.entries.lock().unwrap();
        for (id, count) in counts {
            let (method, outcome) = entries.get(&id).unwrap_or_else(|| panic!("{id} was never sent"));
            let most = if method.is_idempotent() { attempts } else { 1 };
            assert!(count <= most, "{method} {id} ({outcome:?}) arrived {count} times");
        }
    }
}
