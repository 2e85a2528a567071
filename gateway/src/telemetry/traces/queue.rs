//! Where requests leave their spans: batches that fill up, of which the exporter takes the oldest. Nobody ever waits for
//! a receiver: what finds the queue full is dropped. The exporter is woken up for whole batches only, for that costs more
//! than a span does.

use std::collections::VecDeque;
use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::span::Spans;

/// Most bytes of a batch, but for one request's spans.
const MAX_BYTES: usize = 2 << 20;

/// How spans are batched: the variables of the batch span processor
/// (<https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/>).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batching {
    /// How long spans wait for others at most (`OTEL_BSP_SCHEDULE_DELAY`).
    pub delay: Duration,
    /// Requests whose spans may wait (`OTEL_BSP_MAX_QUEUE_SIZE`).
    pub queue: usize,
    /// Most spans of a batch, but for those of one request (`OTEL_BSP_MAX_EXPORT_BATCH_SIZE`).
    pub batch: usize,
}

/// Spans that are sent together.
#[derive(Debug)]
pub struct Batch {
    /// As repeated `spans` of a `ScopeSpans`, after as much room as was asked for.
    pub bytes: Vec<u8>,
    /// How many they are.
    pub spans: u64,
    requests: usize,
}

impl Batch {
    fn new(room: usize, capacity: usize) -> Self {
        let mut bytes = Vec::with_capacity(capacity);
        bytes.resize(room, 0);
        Self { bytes, spans: 0, requests: 0 }
    }

    fn add(&mut self, spans: &Spans) {
        self.bytes.extend_from_slice(spans.bytes());
        self.spans += u64::from(spans.count());
        self.requests += 1;
    }
}

/// Spans that wait to be sent.
pub struct Queue {
    batching: Batching,
    /// What is left free before the spans of each batch, in bytes.
    room: usize,
    waiting: Mutex<Waiting>,
    filled: Notify,
}

struct Waiting {
    full: VecDeque<Batch>,
    filling: Batch,
    requests: usize,
}

impl Queue {
    /// Nothing yet, in batches with so many bytes of room at their beginning.
    #[must_use]
    pub fn new(batching: Batching, room: usize) -> Self {
        let waiting = Waiting { full: VecDeque::new(), filling: Batch::new(room, 0), requests: 0 };
        Self { batching, room, waiting: Mutex::new(waiting), filled: Notify::new() }
    }

    /// Takes in the spans of a request; `false` if there is no room for them.
    #[must_use]
    pub fn push(&self, spans: &Spans) -> bool {
        let mut waiting = self.lock();
        if waiting.requests >= self.batching.queue {
            return false;
        }
        waiting.requests += 1;
        waiting.filling.add(spans);
        if self.is_full(&waiting.filling) {
            let full = waiting.close(self.room);
            waiting.full.push_back(full);
            drop(waiting);
            self.filled.notify_one();
        }
        true
    }

    /// Returns once a batch has been full since the last time that this returned.
    pub async fn filled(&self) {
        self.filled.notified().await;
    }

    /// The oldest batch that is full, or else, if everything is wanted, what there is.
    #[must_use]
    pub fn take(&self, everything: bool) -> Option<Batch> {
        let mut waiting = self.lock();
        let rest = everything && waiting.filling.requests > 0;
        let batch = waiting.full.pop_front().or_else(|| rest.then(|| waiting.close(self.room)))?;
        waiting.requests -= batch.requests;
        Some(batch)
    }

    /// Whether a batch is large enough, or has half of the queue: the other half is for those that come while it is sent.
    fn is_full(&self, batch: &Batch) -> bool {
        let Batching { queue, batch: most, .. } = self.batching;
        batch.spans >= most as u64 || batch.bytes.len() >= MAX_BYTES || batch.requests >= queue.div_ceil(2)
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // Nothing panics in between that would leave half a batch.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    /// Ends the batch that is filled. The next one is likely to be about as large.
    fn close(&mut self, room: usize) -> Batch {
        let next = Batch::new(room, self.filling.bytes.len() * 9 / 8);
        mem::replace(&mut self.filling, next)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use opentelemetry::trace::{SpanId, TraceId};

    use super::*;
    use crate::telemetry::traces::span::{Head, Kind, TraceContext};

    const ROOM: usize = 7;

    fn queue(queue: usize, batch: usize) -> Queue {
        Queue::new(Batching { delay: Duration::ZERO, queue, batch }, ROOM)
    }

    fn spans(count: u64) -> Spans {
        let mut spans = Spans::default();
        let trace = TraceContext { trace_id: TraceId::from(7), flags: 1, state: "" };
        for id in 1..=count {
            let (span_id, name) = (SpanId::from(id), ("GET", None));
            let head = Head { span_id, parent: None, name, kind: Kind::Server, times: (1, 2), failed: false };
            spans.add(&trace, &head, |attributes| attributes.text("a", "b"));
        }
        spans
    }

    /// How many spans the batches have that are taken.
    fn taken(queue: &Queue, everything: bool) -> Vec<u64> {
        std::iter::from_fn(|| queue.take(everything)).map(|batch| batch.spans).collect()
    }

    #[test]
    fn batches_are_full_at_their_size_and_the_oldest_is_first() {
        let queue = queue(100, 5);
        for count in [2, 3, 4, 6, 1] {
            assert!(queue.push(&spans(count)));
        }
        assert_eq!(taken(&queue, false), [5, 10]);
        assert_eq!(taken(&queue, true), [1]);
        assert_eq!(taken(&queue, true), [0; 0]);
    }

    #[test]
    fn a_batch_has_room_before_its_spans() {
        let queue = queue(100, 100);
        for _ in 0..2 {
            assert!(queue.push(&spans(3)));
            let batch = queue.take(true).unwrap();
            assert_eq!(batch.bytes, [&[0; ROOM][..], spans(3).bytes()].concat());
        }
    }

    #[test]
    fn what_finds_no_room_is_refused_until_something_is_taken() {
        let queue = queue(3, 4);
        let push = || queue.push(&spans(2));
        assert_eq!([push(), push(), push(), push()], [true, true, true, false]);
        assert_eq!(queue.take(false).unwrap().spans, 4);
        assert_eq!([push(), push(), push()], [true, true, false]);
        assert_eq!(taken(&queue, true), [4, 2]);
    }

    #[test]
    fn half_of_a_short_queue_is_a_batch() {
        let queue = queue(5, 512);
        for _ in 0..5 {
            assert!(queue.push(&spans(2)));
        }
        assert_eq!((taken(&queue, false), taken(&queue, true)), (vec![6], vec![4]));
    }

    #[test]
    fn a_batch_of_many_bytes_is_full_as_well() {
        let (queue, large) = (queue(1 << 20, 1 << 20), spans(1_000));
        while queue.lock().full.is_empty() {
            assert!(queue.push(&large));
        }
        let length = queue.take(false).unwrap().bytes.len();
        assert!((MAX_BYTES..MAX_BYTES + large.bytes().len()).contains(&length), "{length}");
    }

    #[test]
    fn whoever_waits_for_a_full_batch_is_told_once() {
        let queue = queue(100, 2);
        assert!(queue.push(&spans(1)) && queue.filled().now_or_never().is_none());
        assert!(queue.push(&spans(1)) && queue.push(&spans(2)));
        assert!(queue.filled().now_or_never().is_some());
        assert!(queue.filled().now_or_never().is_none());
    }
}
