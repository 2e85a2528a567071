//! What the gateway tells of itself. Every finished request becomes one [`Finished`], which metrics and access log read.

pub mod access_log;
pub mod exemplars;
pub mod guard;
pub mod in_force;
pub mod live;
pub mod log;
pub mod metrics;
pub mod names;
pub mod observe;
pub mod openmetrics;
pub mod otlp;
mod process;
pub mod setup;
pub mod sources;
pub mod tail;
pub mod traces;

use std::net::IpAddr;
use std::time::Duration;

use opentelemetry::trace::TraceId;
use serin_core::decide::Why;
use serin_core::subset::FallbackReason;
use serin_core::tag::Bucket;

/// One finished request with its decision.
#[derive(Debug)]
pub struct Finished<'a> {
    /// Request method.
    pub method: &'a str,
    /// Host that was asked for.
    pub host: &'a str,
    /// Path that was routed.
    pub path: &'a str,
    /// Status sent to the client; 0 if it was gone before one was sent.
    pub status: u16,
    /// Route by name.
    pub route: Option<&'a str>,
    /// Service by name.
    pub service: Option<&'a str>,
    /// Subset that served, or that should have; `None` if it was any.
    pub subset: Option<&'a str>,
    /// Why the request was meant for its subset.
    pub why: Option<Why>,
    /// Bucket of the user, where there is one. The user's key is in nothing that is told.
    pub bucket: Option<Bucket>,
    /// Tag rule that decided.
    pub tag: Option<&'a str>,
    /// Instance that served.
    pub instance: Option<std::net::SocketAddr>,
    /// Why another subset served.
    pub fallback: Option<FallbackReason>,
    /// Time since the head was read.
    pub duration: Duration,
    /// Time of the decision alone, all attempts together.
    pub decision: Duration,
    /// Identity of the request.
    pub request_id: &'a str,
    /// Address of the client.
    pub client_ip: IpAddr,
    /// Bytes of the request's body.
    pub bytes_in: u64,
    /// Bytes of the response's body.
    pub bytes_out: u64,
    /// Attempts that were sent upstream.
    pub attempts: usize,
    /// What went wrong, for requests that the gateway answered itself or broke off.
    pub error: Option<&'a str>,
    /// Rate limit that refused it.
    pub limit: Option<&'a str>,
    /// Revisions in force: routing, traffic.
    pub revision: (u64, u64),
    /// Its trace, if its spans are sent.
    pub trace_id: Option<TraceId>,
}
