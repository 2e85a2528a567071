//! Sends spans, a batch at a time: as soon as one is full, and every second what there is. What cannot be delivered is
//! counted and gone.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use opentelemetry_proto::tonic::common::v1::InstrumentationScope;
use opentelemetry_proto::tonic::resource::v1::Resource;
use pingora::server::ShutdownWatch;
use pingora::services::background::BackgroundService;
use prometheus::IntCounter;
use prost::Message as _;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{MissedTickBehavior, interval};

use super::client::Client;
use super::receiver::{Env, Variable};
use super::{Complaint, SCHEMA, SCOPE, Signal, deliver};
use crate::telemetry::traces::queue::{Batch, Batching, Queue};
use crate::telemetry::traces::span::{MAX_HEAD, begin, bytes, size};

/// Spans wait for others for so long at least.
const LEAST_DELAY: Duration = Duration::from_millis(10);

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
            queue: size(number("OTEL_BSP_MAX_QUEUE_SIZE", 8_192)?),
            batch: size(number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 512)?),
        })
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
    queue: Arc<Queue>,
    delay: Duration,
    flushes: mpsc::Receiver<oneshot::Sender<()>>,
    envelope: Envelope,
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
    ) -> (Self, Arc<Queue>, Flush) {
        let (flush, flushes) = mpsc::channel(1);
        let envelope = Envelope::new(resource);
        let queue = Arc::new(Queue::new(batching, envelope.room()));
        let (delay, complaint) = (batching.delay.max(LEAST_DELAY), Complaint::default());
        let export = Export { client, queue: Arc::clone(&queue), delay, flushes, envelope, counters, complaint };
        (Self(Mutex::new(Some(export))), queue, Flush(flush))
    }
}

#[async_trait]
impl BackgroundService for SpanExport {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        let taken = self.0.lock().ok().and_then(|mut export| export.take());
        let Some(mut export) = taken else { return };
        let mut due = interval(export.delay);
        due.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = export.queue.filled() => export.empty(false).await,
                _ = due.tick() => export.empty(true).await,
                Some(done) = export.flushes.recv() => {
                    export.empty(true).await;
                    // Whoever asked may have left.
                    let _ = done.send(());
                }
                _ = shutdown.changed() => return,
            }
        }
    }
}

impl Export {
    /// Sends what is full, or everything that waits now: what comes in the meantime fills the next batch.
    async fn empty(&mut self, everything: bool) {
        while let Some(batch) = self.queue.take(false) {
            self.send(batch).await;
        }
        if everything && let Some(batch) = self.queue.take(true) {
            self.send(batch).await;
        }
    }

    async fn send(&mut self, batch: Batch) {
        let count = batch.spans;
        let outcome = deliver(&mut self.client, self.envelope.around(batch)).await;
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

/// What is around the spans in each message.
struct Envelope {
    /// The resource and the scope, each as a field.
    resource: Vec<u8>,
    scope: Vec<u8>,
}

impl Envelope {
    fn new(resource: &Resource) -> Self {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let scope = InstrumentationScope { name: SCOPE.to_owned(), version, ..InstrumentationScope::default() };
        let field = |message: Vec<u8>| {
            let mut field = Vec::new();
            bytes(&mut field, 1, &message);
            field
        };
        Self { resource: field(resource.encode_to_vec()), scope: field(scope.encode_to_vec()) }
    }

    /// What comes before the spans takes up no more: two fields, and the heads of those that they are in.
    fn room(&self) -> usize {
        self.resource.len() + self.scope.len() + 2 * MAX_HEAD
    }

    /// An `ExportTraceServiceRequest`. The spans stay where they are: what comes before them is written to end where they
    /// begin.
    fn around(&self, batch: Batch) -> Bytes {
        let (room, mut message) = (self.room(), batch.bytes);
        bytes(&mut message, 3, SCHEMA.as_bytes());
        let length = self.scope.len() + message.len() - room;
        let mut first = Vec::with_capacity(room);
        begin(&mut first, 1, self.resource.len() + size(length));
        first.extend_from_slice(&self.resource);
        begin(&mut first, 2, length);
        first.extend_from_slice(&self.scope);
        let start = room - first.len();
        message[start..room].copy_from_slice(&first);
        Bytes::from(message).slice(start..)
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::{SpanId, TraceId};
    use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;

    use super::*;
    use crate::telemetry::traces::span::{Head, Kind, Spans, TraceContext};

    #[test]
    fn a_batch_is_one_message() {
        let batching = Batching { delay: Duration::ZERO, queue: 2_000, batch: 2_000 };
        let envelope = Envelope::new(&Resource { dropped_attributes_count: 7, ..Resource::default() });
        let queue = Queue::new(batching, envelope.room());
        let trace = TraceContext { trace_id: TraceId::from(7), flags: 1, state: "" };
        // Lengths before what is in it take up to three bytes.
        for count in [1, 5, 1_000] {
            for id in 1..=count {
                let (span_id, name) = (SpanId::from(id), ("GET", None));
                let head = Head { span_id, parent: None, name, kind: Kind::Server, times: (1, 2), failed: false };
                let mut spans = Spans::default();
                spans.add(&trace, &head, |attributes| attributes.text("a", "b"));
                assert!(queue.push(&spans));
            }
            let message = envelope.around(queue.take(true).unwrap());
            let read = ExportTraceServiceRequest::decode(message).unwrap();
            let [resource] = &read.resource_spans[..] else { panic!("{read:?}") };
            let [scope] = &resource.scope_spans[..] else { panic!("{resource:?}") };
            assert_eq!(resource.resource.as_ref().unwrap().dropped_attributes_count, 7);
            assert_eq!((&*scope.scope.as_ref().unwrap().name, &*scope.schema_url), ("serin", SCHEMA));
            let ids: Vec<_> = scope.spans.iter().map(|span| span.span_id.clone()).collect();
            assert_eq!(ids, (1..=count).map(|id| id.to_be_bytes().to_vec()).collect::<Vec<_>>());
        }
    }

    #[test]
    fn the_environment_says_how_spans_are_batched() {
        let env = |name: &str| (name == "OTEL_BSP_MAX_QUEUE_SIZE").then(|| "16".to_owned());
        let batching = Batching::resolve(&env).unwrap();
        assert_eq!((batching.queue, batching.batch), (16, 512));
        assert!(Batching::resolve(&|_| Some("many".to_owned())).unwrap_err().contains("OTEL_BSP_SCHEDULE_DELAY"));
    }
}
