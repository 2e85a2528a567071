//! The access log: one JSON object a line. Requests append to a bounded buffer in memory and never wait; a thread of
//! its own writes. A sink that is full, blocked or broken costs lines, which are counted, and nothing else.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use opentelemetry::trace::TraceId;
use prometheus::IntCounter;
use serde::Serialize;

use super::Finished;

/// Bytes that may wait for the writer; beyond, lines are dropped.
const CAPACITY: usize = 4 << 20;
/// How long a line may wait before it is written.
const FLUSH: Duration = Duration::from_millis(100);

/// Where lines go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sink {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// A file, which is opened for appending. It is opened again when it was moved away, for log rotation.
    File(PathBuf),
}

#[derive(Default)]
struct Buffer {
    bytes: Vec<u8>,
    lines: u64,
    closed: bool,
}

#[derive(Default)]
struct Shared {
    buffer: Mutex<Buffer>,
    filled: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Buffer> {
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The access log of the process. Dropping it writes what is left.
pub struct AccessLog {
    shared: Arc<Shared>,
    dropped: IntCounter,
    writer: Option<std::thread::JoinHandle<()>>,
}

impl AccessLog {
    /// Starts the writer.
    ///
    /// # Errors
    /// If the file cannot be opened or the thread cannot be started.
    pub fn start(sink: &Sink, dropped: IntCounter) -> io::Result<Self> {
        let mut out = Out::open(sink.clone())?;
        let shared = Arc::new(Shared::default());
        let (theirs, lost) = (Arc::clone(&shared), dropped.clone());
        let writer = std::thread::Builder::new()
            .name("access-log".to_owned())
            .spawn(move || while write_batch(&theirs, &mut out, &lost) {})?;
        Ok(Self { shared, dropped, writer: Some(writer) })
    }

    /// Appends one line, or drops and counts it when too much is waiting already.
    pub fn write(&self, finished: &Finished<'_>) {
        let mut buffer = self.shared.lock();
        if buffer.bytes.len() >= CAPACITY {
            self.dropped.inc();
            return;
        }
        let before = buffer.bytes.len();
        if serde_json::to_writer(&mut buffer.bytes, &Line::of(finished)).is_err() {
            buffer.bytes.truncate(before);
            self.dropped.inc();
            return;
        }
        buffer.bytes.push(b'\n');
        buffer.lines += 1;
        if before == 0 {
            self.shared.filled.notify_one();
        }
    }
}

impl Drop for AccessLog {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.filled.notify_one();
        if let Some(writer) = self.writer.take() {
            // A writer that is stuck on a blocked pipe must not keep the process from ending.
            let deadline = std::time::Instant::now() + Duration::from_secs(1);
            while !writer.is_finished() && std::time::Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

/// Writes what has been waiting; false once the log is closed and empty.
fn write_batch(shared: &Shared, out: &mut Out, dropped: &IntCounter) -> bool {
    let mut buffer = shared.lock();
    while buffer.bytes.is_empty() {
        if buffer.closed {
            return false;
        }
        buffer = shared.filled.wait(buffer).unwrap_or_else(PoisonError::into_inner);
    }
    if !buffer.closed {
        // Let a batch gather, so that a busy gateway writes large blocks.
        let waited = shared.filled.wait_timeout_while(buffer, FLUSH, |b| !b.closed && b.bytes.len() < CAPACITY / 8);
        buffer = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
    let batch = std::mem::take(&mut *buffer);
    buffer.closed = batch.closed;
    drop(buffer);
    if out.write(&batch.bytes).is_err() {
        dropped.inc_by(batch.lines);
    }
    true
}

struct Out {
    sink: Sink,
    file: Option<std::fs::File>,
    /// Whether the latest line may be there in part: a disk was full.
    torn: bool,
}

impl Out {
    fn open(sink: Sink) -> io::Result<Self> {
        let mut out = Self { sink, file: None, torn: false };
        out.reopen_if_moved()?;
        Ok(out)
    }

    fn reopen_if_moved(&mut self) -> io::Result<()> {
        if let Sink::File(path) = &self.sink
            && (self.file.is_none() || !path.exists())
        {
            self.file = Some(OpenOptions::new().create(true).append(true).open(path)?);
        }
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.reopen_if_moved()?;
        let end: &[u8] = if self.torn { b"\n" } else { b"" };
        let written = match (&self.sink, &mut self.file) {
            (_, Some(file)) => file.write_all(end).and_then(|()| file.write_all(bytes)),
            (Sink::Stderr, None) => {
                let mut out = io::stderr().lock();
                out.write_all(end).and_then(|()| out.write_all(bytes))
            }
            (_, None) => {
                let mut out = io::stdout().lock();
                out.write_all(end).and_then(|()| out.write_all(bytes)).and_then(|()| out.flush())
            }
        };
        self.torn = written.is_err();
        written
    }
}

/// A line of the log. The names are part of the interface.
#[derive(Serialize)]
pub(super) struct Line<'a> {
    at: Timestamp,
    method: &'a str,
    host: &'a str,
    path: &'a str,
    status: u16,
    route: Option<&'a str>,
    service: Option<&'a str>,
    subset: Option<&'a str>,
    why: Option<&'static str>,
    tag: Option<&'a str>,
    instance: Option<std::net::SocketAddr>,
    fallback: Option<&'static str>,
    duration_ms: f64,
    decision_us: f64,
    request_id: &'a str,
    client_ip: std::net::IpAddr,
    bytes_in: u64,
    bytes_out: u64,
    attempts: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    limit: Option<&'a str>,
    routing_revision: u64,
    traffic_revision: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace_id: Option<Hex>,
}

/// The identity of a trace, as its digits.
struct Hex(TraceId);

impl Serialize for Hex {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'a> Line<'a> {
    pub(super) fn of(finished: &Finished<'a>) -> Self {
        Self {
            at: Timestamp(SystemTime::now()),
            method: finished.method,
            host: finished.host,
            path: finished.path,
            status: finished.status,
            route: finished.route,
            service: finished.service,
            subset: finished.subset,
            why: finished.why.map(|why| why.as_str()),
            tag: finished.tag,
            instance: finished.instance,
            fallback: finished.fallback.map(|reason| reason.as_str()),
            duration_ms: round(finished.duration.as_secs_f64() * 1e3),
            decision_us: round(finished.decision.as_secs_f64() * 1e6),
            request_id: finished.request_id,
            client_ip: finished.client_ip,
            bytes_in: finished.bytes_in,
            bytes_out: finished.bytes_out,
            attempts: finished.attempts,
            error: finished.error,
            limit: finished.limit,
            routing_revision: finished.revision.0,
            traffic_revision: finished.revision.1,
            trace_id: finished.trace_id.map(Hex),
        }
    }
}

fn round(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

/// A point in time that is written as RFC 3339 with milliseconds, in UTC.
#[derive(Clone, Copy, Debug)]
pub struct Timestamp(pub SystemTime);

impl Serialize for Timestamp {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&humantime::format_rfc3339_millis(self.0))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn finished(host: &str) -> Finished<'_> {
        Finished {
            method: "GET",
            host,
            path: "/",
            status: 200,
            route: None,
            service: None,
            subset: None,
            why: None,
            bucket: None,
            tag: None,
            instance: None,
            fallback: None,
            duration: Duration::from_micros(1500),
            decision: Duration::ZERO,
            request_id: "1",
            client_ip: [127, 0, 0, 1].into(),
            bytes_in: 0,
            bytes_out: 0,
            attempts: 1,
            error: None,
            limit: None,
            revision: (1, 2),
            trace_id: None,
        }
    }

    #[test]
    fn lines_are_whole_json_objects_whatever_the_client_sent() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("access.log");
        let log = AccessLog::start(&Sink::File(path.clone()), IntCounter::new("a", "b").unwrap()).unwrap();
        log.write(&finished("a\", \"user\":\"root\n\u{1b}[2J"));
        log.write(&finished("b"));
        drop(log);
        let text = std::fs::read_to_string(path).unwrap();
        let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0]["host"], "a\", \"user\":\"root\n\u{1b}[2J");
        assert_eq!(lines[0]["duration_ms"], 1.5);
        assert!(lines[0].get("user").is_none());
    }

    #[test]
    fn a_full_buffer_drops_and_counts() {
        let dropped = IntCounter::new("a", "b").unwrap();
        let log = AccessLog { shared: Arc::default(), dropped: dropped.clone(), writer: None };
        log.shared.lock().bytes = vec![b' '; CAPACITY];
        log.write(&finished("a"));
        assert_eq!(dropped.get(), 1);
    }
}
