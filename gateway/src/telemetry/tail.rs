//! Decisions as they happen, for whoever listens. Nobody listening costs one read of a counter per request; who reads too
//! slowly loses lines and is told how many.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

use arc_swap::ArcSwap;
use bytes::Bytes;
use prometheus::IntCounter;
use serde::Serialize;
use serin_core::tag::Bucketing;
use tokio::sync::mpsc;

use super::Finished;
use super::access_log::Line;

/// Lines that may wait for a reader.
const QUEUE: usize = 1_024;
/// Lines that a reader gets at a time.
const BATCH: usize = 64;
/// Readers at a time.
pub const MOST: usize = 32;

/// Which requests a reader wants: all that fit every part that is given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Name of the service.
    pub service: Option<String>,
    /// Name of the subset that served.
    pub subset: Option<String>,
    /// User key in clear; it is compared by its bucket and never shown.
    pub user: Option<String>,
}

impl Filter {
    fn wants(&self, finished: &Finished<'_>, bucketing: Option<&Bucketing>) -> bool {
        let is =
            |wanted: &Option<String>, got: Option<&str>| wanted.as_deref().is_none_or(|wanted| got == Some(wanted));
        let user = |key: &str| bucketing.is_some_and(|bucketing| finished.bucket == Some(bucketing.bucket(key)));
        is(&self.service, finished.service)
            && is(&self.subset, finished.subset)
            && self.user.as_deref().is_none_or(user)
    }
}

struct Listener {
    id: u64,
    filter: Filter,
    lines: mpsc::Sender<Bytes>,
    /// Lines that were lost and not told of yet.
    lost: Arc<AtomicU64>,
}

impl Listener {
    fn send(&self, line: Bytes) -> bool {
        let told = self.lost.load(Relaxed) == 0 || (self.lines.capacity() >= 2 && self.tell_lost());
        let sent = told && self.lines.try_send(line).is_ok();
        if !sent {
            self.lost.fetch_add(1, Relaxed);
        }
        sent
    }

    /// Tells of what was lost, in its place among the lines.
    fn tell_lost(&self) -> bool {
        match self.lost.swap(0, Relaxed) {
            0 => true,
            lost => {
                let told = self.lines.try_send(note(lost)).is_ok();
                if !told {
                    self.lost.fetch_add(lost, Relaxed);
                }
                told
            }
        }
    }
}

fn note(lost: u64) -> Bytes {
    format!("{{\"dropped\": {lost}}}\n").into()
}

/// Everybody who listens.
pub struct Tail {
    listeners: ArcSwap<Vec<Arc<Listener>>>,
    count: AtomicUsize,
    next: AtomicU64,
    closed: AtomicBool,
    dropped: IntCounter,
}

/// Why nobody else may listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// [`MOST`] do already.
    Full,
    /// The gateway is about to stop.
    Stopping,
}

impl Tail {
    /// Nobody listens yet. `dropped` counts the lines that readers lost.
    #[must_use]
    pub fn new(dropped: IntCounter) -> Self {
        Self {
            listeners: ArcSwap::default(),
            count: AtomicUsize::new(0),
            next: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            dropped,
        }
    }

    /// Whether nobody listens.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.count.load(Relaxed) == 0
    }

    /// Tells of a finished request. `bucketing` is that of its service.
    pub fn tell(&self, finished: &Finished<'_>, bucketing: Option<&Bucketing>) {
        let mut line: Option<Bytes> = None;
        for listener in self.listeners.load().iter().filter(|each| each.filter.wants(finished, bucketing)) {
            let line = line.get_or_insert_with(|| text(finished));
            if !line.is_empty() && !listener.send(line.clone()) {
                self.dropped.inc();
            }
        }
    }

    /// Begins to listen.
    ///
    /// # Errors
    /// If too many do, or the gateway is about to stop.
    pub fn listen(self: &Arc<Self>, filter: Filter) -> Result<Listening, Refused> {
        if self.closed.load(Relaxed) {
            return Err(Refused::Stopping);
        }
        if self.count.fetch_add(1, Relaxed) >= MOST {
            self.count.fetch_sub(1, Relaxed);
            return Err(Refused::Full);
        }
        let (lines, received) = mpsc::channel(QUEUE);
        let (id, lost) = (self.next.fetch_add(1, Relaxed), Arc::new(AtomicU64::new(0)));
        let listener = Arc::new(Listener { id, filter, lines, lost: Arc::clone(&lost) });
        self.listeners.rcu(|all| all.iter().chain([&listener]).cloned().collect::<Vec<_>>());
        Ok(Listening { received, lost, id, tail: Arc::clone(self) })
    }

    /// Ends all streams: the gateway stops.
    pub fn close(&self) {
        self.closed.store(true, Relaxed);
        self.listeners.store(Arc::default());
    }
}

/// The end of a stream that is read.
pub struct Listening {
    received: mpsc::Receiver<Bytes>,
    lost: Arc<AtomicU64>,
    id: u64,
    tail: Arc<Tail>,
}

impl Listening {
    /// The next lines; none when the gateway stops.
    pub async fn next(&mut self) -> Option<Bytes> {
        let first = match self.received.try_recv() {
            Ok(line) => line,
            Err(_) => match self.lost.swap(0, Relaxed) {
                0 => self.received.recv().await?,
                lost => note(lost),
            },
        };
        let mut lines = first.to_vec();
        for _ in 1..BATCH {
            let Ok(line) = self.received.try_recv() else { break };
            lines.extend_from_slice(&line);
        }
        Some(lines.into())
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.tail.listeners.rcu(|all| all.iter().filter(|each| each.id != self.id).cloned().collect::<Vec<_>>());
        self.tail.count.fetch_sub(1, Relaxed);
    }
}

/// A line: what the access log says, and the user's bucket.
#[derive(Serialize)]
struct TailLine<'a> {
    #[serde(flatten)]
    line: Line<'a>,
    bucket: Option<String>,
}

fn text(finished: &Finished<'_>) -> Bytes {
    let bucket = finished.bucket.map(|bucket| format!("{:016x}", bucket.0));
    let mut line = serde_json::to_vec(&TailLine { line: Line::of(finished), bucket }).unwrap_or_default();
    if !line.is_empty() {
        line.push(b'\n');
    }
    line.into()
}

#[cfg(test)]
mod tests {
    use serin_core::tag::Bucket;

    use super::super::access_log::tests::finished;
    use super::*;

    fn tail() -> Arc<Tail> {
        Arc::new(Tail::new(IntCounter::new("a", "b").unwrap()))
    }

    fn request<'a>(service: &'a str, subset: &'a str, bucket: Bucket) -> Finished<'a> {
        Finished { service: Some(service), subset: Some(subset), bucket: Some(bucket), ..finished("a") }
    }

    #[test]
    fn filters() {
        let users = Bucketing::new("salt", "users");
        let anna = request("users", "v2", users.bucket("anna"));
        let some = |text: &str| Some(text.to_owned());
        let cases = [
            (None, None, None, true),
            (some("users"), None, None, true),
            (some("orders"), None, None, false),
            (some("users"), some("v2"), some("anna"), true),
            (None, some("v1"), None, false),
            (None, None, some("anna"), true),
            (None, None, some("berta"), false),
        ];
        for (service, subset, user, wanted) in cases {
            let filter = Filter { service, subset, user };
            assert_eq!(filter.wants(&anna, Some(&users)), wanted, "{filter:?}");
        }
        let filter = Filter { user: some("anna"), ..Filter::default() };
        assert!(!filter.wants(&finished("a"), None), "no service, no bucket");
    }

    #[tokio::test]
    async fn who_reads_too_slowly_is_told_what_he_lost_in_its_place() {
        let tail = tail();
        assert!(tail.is_idle());
        let mut reader = tail.listen(Filter::default()).unwrap_or_else(|refused| panic!("{refused:?}"));
        assert!(!tail.is_idle());
        let tell = |count: usize| (0..count).for_each(|_| tail.tell(&request("users", "v1", Bucket(7)), None));
        tell(QUEUE + 5);
        let mut lines = Vec::new();
        lines.extend_from_slice(&reader.next().await.unwrap());
        tell(1);
        while lines.iter().filter(|byte| **byte == b'\n').count() < QUEUE + 2 {
            lines.extend_from_slice(&reader.next().await.unwrap());
        }
        let lines = String::from_utf8(lines).unwrap();
        let lines: Vec<serde_json::Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines[0]["bucket"], "0000000000000007");
        assert_eq!(lines[QUEUE], serde_json::json!({"dropped": 5}));
        assert_eq!((&lines[QUEUE + 1]["service"], tail.dropped.get()), (&"users".into(), 5));
        tell(QUEUE + 1);
        let mut told = false;
        while !told {
            // Nobody says anything any more, and still he is told.
            let lines = tokio::time::timeout(std::time::Duration::from_secs(5), reader.next()).await.unwrap();
            told = lines.unwrap().starts_with(b"{\"dropped\": 1}");
        }
        drop(reader);
        assert!(tail.is_idle() && tail.listeners.load().is_empty());
    }

    #[tokio::test]
    async fn streams_end_when_the_gateway_stops_and_are_bounded_in_number() {
        let tail = tail();
        let mut all: Vec<_> = (0..MOST).filter_map(|_| tail.listen(Filter::default()).ok()).collect();
        assert_eq!(all.len(), MOST);
        assert_eq!(tail.listen(Filter::default()).err(), Some(Refused::Full));
        drop(all.pop());
        all.push(tail.listen(Filter::default()).unwrap_or_else(|refused| panic!("{refused:?}")));
        tail.close();
        for reader in &mut all {
            assert_eq!(reader.next().await, None);
        }
        assert_eq!(tail.listen(Filter::default()).err(), Some(Refused::Stopping));
    }
}
