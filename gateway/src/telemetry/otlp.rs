//! Telemetry that is sent: OTLP over gRPC or HTTP (<https://opentelemetry.io/docs/specs/otlp/>). Everything here runs in
//! background services, whose runtimes are their own: a receiver that is down, slow or hung costs what is meant for it.

pub mod client;
pub mod metrics;
pub mod receiver;
pub mod resource;
pub mod spans;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use rand::RngExt as _;

use self::client::{Client, Refusal};

/// Name and version of the instrumentation, and the conventions that its names follow.
const SCOPE: &str = "serin";
/// The semantic conventions of attributes.
pub const SCHEMA: &str = "https://opentelemetry.io/schemas/1.44.0";

/// Attempts to send a message.
const ATTEMPTS: u32 = 4;
/// How long to wait after the first attempt that failed; it doubles, up to the longest.
const BACKOFF: Duration = Duration::from_millis(100);
const MAX_BACKOFF: Duration = Duration::from_secs(5);

/// What is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Spans.
    Traces,
    /// Metrics.
    Metrics,
}

impl Signal {
    /// As it is called in variables of the environment.
    fn variable(self) -> &'static str {
        match self {
            Self::Traces => "TRACES",
            Self::Metrics => "METRICS",
        }
    }

    /// Path of the gRPC method.
    fn method(self) -> &'static str {
        match self {
            Self::Traces => "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
            Self::Metrics => "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
        }
    }

    /// Path over HTTP.
    fn path(self) -> &'static str {
        match self {
            Self::Traces => "/v1/traces",
            Self::Metrics => "/v1/metrics",
        }
    }
}

/// A time in nanoseconds: enough for five hundred years.
#[must_use]
pub fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// A moment in nanoseconds since the Unix epoch, as OTLP has them.
#[must_use]
pub fn unix_nanos(at: SystemTime) -> u64 {
    nanos(at.duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// Sends a message, again if that is worth while. Answers how many of its items were rejected.
///
/// # Errors
/// What kept it from arriving.
async fn deliver(client: &mut Client, message: Bytes) -> Result<u64, Refusal> {
    let mut wait = BACKOFF;
    for attempt in 1.. {
        let refusal = match client.send(message.clone()).await {
            Ok(rejected) => return Ok(rejected),
            Err(refusal) => refusal,
        };
        if attempt == ATTEMPTS || !refusal.transient {
            return Err(refusal);
        }
        let jitter = rand::rng().random_range(0.5..1.0);
        let pause = refusal.retry_after.unwrap_or_else(|| wait.mul_f64(jitter)).min(MAX_BACKOFF);
        tokio::time::sleep(pause).await;
        wait *= 2;
    }
    unreachable!("the last attempt answers")
}

/// Says what went wrong with a receiver, once per change: a collector that is down for a day is no reason for a line a
/// second.
#[derive(Default)]
struct Complaint(Option<String>);

impl Complaint {
    fn note(&mut self, signal: Signal, outcome: Result<(), &Refusal>) {
        match outcome {
            Ok(()) => {
                if self.0.take().is_some() {
                    tracing::info!(?signal, "the OTLP receiver takes telemetry again");
                }
            }
            Err(refusal) if self.0.as_ref() != Some(&refusal.what) => {
                tracing::warn!(?signal, problem = %refusal.what, "the OTLP receiver does not take telemetry");
                self.0 = Some(refusal.what.clone());
            }
            Err(_) => {}
        }
    }
}
