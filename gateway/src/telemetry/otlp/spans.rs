//! Sends spans. Requests leave theirs in a bounded queue, which is emptied some times a second and not at every span:
//! waking somebody up costs more than a span does. What finds no room, or cannot be delivered, is counted and gone.

use std::future;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use opentelemetry_proto::tonic::common::v1::InstrumentationScope;
use opentelemetry_proto::tonic::resource::v1::Resource;
use pingora::server::ShutdownWatch;
use pingora::services::background::BackgroundService;
use prometheus::IntCounter;
use prost::Message as _;
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;

use super::client::Client;
use super::receiver::{Env, Variable};
use super::{Complaint, SCHEMA, SCOPE, Signal, deliver};
use crate::telemetry::traces::span::{Spans, bytes, nested};

/// How long the queue is left alone once there is something in it, if a lot comes: no longer than it takes to fill it.
const SHORT: Duration = Duration::from_millis(20);
/// The longest that is, if little comes, for a queue of the usual size.
const LONG: Duration = Duration::from_millis(80);
/// The usual size of the queue.
const QUEUE: u32 = 8_192;
/// Most bytes of a message.
const MAX_BYTES: usize = 2 << 20;

/// How spans are batched: the variables of the batch span processor
/// (<https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/>).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batching {
    /// How long spans wait for others at most (`OTEL_BSP_SCHEDULE_DELAY`).
    pub delay: Duration,
    /// Requests whose spans may wait (`OTEL_BSP_MAX_QUEUE_SIZE`).
    pub queue: usize,
    /// Most spans of a message (`OTEL_BSP_MAX_EXPORT_BATCH_SIZE`).
    pub batch: usize,
}

impl Batching {
    /// As the environment has it. Batches are as large as the specification has them, but due every second, and sent as soon
    /// as they are full: what is larger does not stay in the caches of a core and costs more.
    ///
    /// # Errors
    /// A variable that is no number.
    pub fn resolve(env: Env<'_>) -> Result<Self, String> {
        let number = |name, default| Variable::named(name, env).map_or(Ok(default), |told| told.number());
        let size = |number: u64| usize::try_from(number).unwrap_or(usize::MAX).min(1 << 20);
        Ok(Self {
            delay: Duration::from_millis(number("OTEL_BSP_SCHEDULE_DELAY", 1_000)?),
            queue: size(number("OTEL_BSP_MAX_QUEUE_SIZE", QUEUE.into())?),
            batch: size(number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 512)?),
        })
    }

    /// How long the queue is left alone after a pause in which so much came: a core is not woken up for little, and a
    /// queue in which there is a lot does not run over.
    fn pause(self, before: Duration, came: usize) -> Duration {
        let much = came > self.queue / 16;
        // Queues are no longer than a million.
        let longest = (LONG * self.queue as u32 / QUEUE).clamp(SHORT, LONG);
        if much { SHORT } else { (before * 2).min(longest) }.min(self.delay)
    }
}

/// Counters of spans.
#[derive(Clone)]
pub struct SpanCounters {
    /// Those that the receiver took.
    pub sent: IntCounter,
    /// Those that found the queue full.
    pub overflow: IntCounter,
    /// Those that could not be delivered.
    pub undelivered: IntCounter,
    /// Those that the receiver rejected.
    pub rejected: IntCounter,
}

/// Sends spans in the background.
pub struct SpanExport(Mutex<Option<Export>>);

/// Has what waits sent at once.
#[derive(Clone)]
pub struct Flush(mpsc::Sender<oneshot::Sender<()>>);

impl Flush {
    /// Returns when everything that waits was sent, or could not be.
    pub async fn now(&self) {
        let (done, told) = oneshot::channel();
        if self.0.send(done).await.is_ok() {
            // An exporter that is gone has nothing left.
            let _ = told.await;
        }
    }
}

struct Export {
    client: Client,
    queue: mpsc::Receiver<Spans>,
    flushes: mpsc::Receiver<oneshot::Sender<()>>,
    batch: Batch,
    counters: SpanCounters,
    complaint: Complaint,
}

impl SpanExport {
    /// The service, the queue that it empties, and a way to have it done at once.
    #[must_use]
    pub fn new(
        client: Client,
        resource: &Resource,
        batching: Batching,
        counters: SpanCounters,
    ) -> (Self, mpsc::Sender<Spans>, Flush) {
        let (sender, queue) = mpsc::channel(batching.queue);
        let (flush, flushes) = mpsc::channel(1);
        let batch = Batch::new(resource, batching);
        let export = Export { client, queue, flushes, batch, counters, complaint: Complaint::default() };
        (Self(Mutex::new(Some(export))), sender, Flush(flush))
    }
}

#[async_trait]
impl BackgroundService for SpanExport {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        let taken = self.0.lock().ok().and_then(|mut export| export.take());
        let Some(mut export) = taken else { return };
        let mut pause = SHORT;
        loop {
            tokio::select! {
                () = gather(&mut export.queue, &mut export.batch, pause) => {
                    let taken = export.look(false).await;
                    pause = export.batch.batching.pause(pause, taken);
                }
                Some(done) = export.flushes.recv() => {
                    export.look(true).await;
                    // Whoever asked may have left.
                    let _ = done.send(());
                }
                _ = shutdown.changed() => return,
            }
        }
    }
}

/// Returns some time after spans have come: until then, nobody looks.
async fn gather(queue: &mut mpsc::Receiver<Spans>, batch: &mut Batch, pause: Duration) {
    if batch.count == 0 {
        match queue.recv().await {
            Some(spans) => batch.add(&spans),
            // Whoever makes spans is gone, and there are none to come.
            None => future::pending().await,
        }
    }
    sleep(pause).await;
}

impl Export {
    /// Sends what is due, or everything; says of how many requests there was something in the queue.
    async fn look(&mut self, everything: bool) -> usize {
        let mut taken = 0;
        loop {
            while !self.batch.is_full() {
                let Ok(spans) = self.queue.try_recv() else { break };
                self.batch.add(&spans);
                taken += 1;
            }
            let due = self.batch.is_full() || self.batch.is_old() || (everything && self.batch.count > 0);
            if !due {
                return taken;
            }
            let (message, count) = self.batch.take();
            self.send(message, count).await;
        }
    }

    async fn send(&mut self, message: Bytes, count: u64) {
        let outcome = deliver(&mut self.client, message).await;
        match &outcome {
            Ok(rejected) => {
                let rejected = count.min(*rejected);
                self.counters.sent.inc_by(count - rejected);
                self.counters.rejected.inc_by(rejected);
            }
            Err(_) => self.counters.undelivered.inc_by(count),
        }
        self.complaint.note(Signal::Traces, outcome.map(drop).as_ref().copied());
    }
}

/// Spans that are sent together.
struct Batch {
    /// The resource as bytes, and the scope.
    resource: Vec<u8>,
    scope: Vec<u8>,
    batching: Batching,
    spans: Vec<u8>,
    count: u64,
    since: Option<Instant>,
}

impl Batch {
    fn new(resource: &Resource, batching: Batching) -> Self {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let scope = InstrumentationScope { name: SCOPE.to_owned(), version, ..InstrumentationScope::default() };
        let (resource, scope) = (resource.encode_to_vec(), scope.encode_to_vec());
        Self { resource, scope, batching, spans: Vec::new(), count: 0, since: None }
    }

    fn add(&mut self, spans: &Spans) {
        self.since.get_or_insert_with(Instant::now);
        self.spans.extend_from_slice(spans.bytes());
        self.count += u64::from(spans.count());
    }

    fn is_full(&self) -> bool {
        self.count >= self.batching.batch as u64 || self.spans.len() >= MAX_BYTES
    }

    fn is_old(&self) -> bool {
        self.since.is_some_and(|since| since.elapsed() >= self.batching.delay)
    }

    /// An `ExportTraceServiceRequest` of what there is, and how many spans that are.
    fn take(&mut self) -> (Bytes, u64) {
        let mut message = Vec::with_capacity(self.spans.len() + self.resource.len() + self.scope.len() + 128);
        nested(&mut message, 1, |out| {
            bytes(out, 1, &self.resource);
            nested(out, 2, |out| {
                bytes(out, 1, &self.scope);
                out.extend_from_slice(&self.spans);
                bytes(out, 3, SCHEMA.as_bytes());
            });
        });
        self.spans.clear();
        self.since = None;
        (message.into(), std::mem::take(&mut self.count))
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::{SpanId, TraceId};
    use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;

    use super::*;
    use crate::telemetry::traces::span::{Head, Kind, TraceContext};

    fn spans(count: u64) -> Spans {
        let mut spans = Spans::with_capacity(2);
        let trace = TraceContext { trace_id: TraceId::from(7), flags: 1, state: "" };
        for id in 1..=count {
            let head = Head {
                span_id: SpanId::from(id),
                parent: None,
                name: ("GET", ""),
                kind: Kind::Server,
                times: (1, 2),
                failed: false,
            };
            spans.add(&trace, &head, |attributes| attributes.text("a", "b"));
        }
        spans
    }

    #[test]
    fn a_batch_is_one_message() {
        let batching = Batching { delay: Duration::ZERO, queue: 8, batch: 5 };
        let mut batch = Batch::new(&Resource::default(), batching);
        assert!(!batch.is_full() && !batch.is_old());
        batch.add(&spans(2));
        assert!(!batch.is_full() && batch.is_old());
        batch.add(&spans(3));
        assert!(batch.is_full());
        let (message, count) = batch.take();
        let read = ExportTraceServiceRequest::decode(message).unwrap();
        let scope = &read.resource_spans[0].scope_spans[0];
        assert_eq!((count, scope.spans.len(), scope.schema_url.as_str()), (5, 5, SCHEMA));
        assert_eq!(scope.scope.as_ref().unwrap().name, "serin");
        assert!(!batch.is_full() && !batch.is_old());
    }

    #[test]
    fn the_queue_is_left_alone_for_longer_while_little_comes() {
        let ms = Duration::from_millis;
        let pauses = |queue, delay, came: &[usize]| {
            let batching = Batching { delay: ms(delay), queue, batch: 512 };
            let mut pause = SHORT;
            came.iter().map(|&came| (pause = batching.pause(pause, came), pause).1.as_millis()).collect::<Vec<_>>()
        };
        assert_eq!(pauses(8_192, 1_000, &[1, 512, 0, 513, 8_192, 3]), [40, 80, 80, 20, 20, 40]);
        assert_eq!(pauses(1 << 20, 1_000, &[1, 1, 1]), [40, 80, 80], "not for longer, though");
        assert_eq!(pauses(2_048, 1_000, &[1, 1]), [20, 20], "a short queue is full soon");
        assert_eq!(pauses(16, 1_000, &[1, 2]), [20, 20]);
        assert_eq!(pauses(8_192, 50, &[1, 1]), [40, 50], "nothing waits for longer than it may");
        assert_eq!(pauses(8_192, 0, &[1]), [0]);
    }

    #[test]
    fn the_environment_says_how_spans_are_batched() {
        let env = |name: &str| (name == "OTEL_BSP_MAX_QUEUE_SIZE").then(|| "16".to_owned());
        let batching = Batching::resolve(&env).unwrap();
        assert_eq!((batching.queue, batching.batch), (16, 512));
        assert!(Batching::resolve(&|_| Some("many".to_owned())).unwrap_err().contains("OTEL_BSP_SCHEDULE_DELAY"));
    }
}
