//! What the gateway knows of one request while it is being served.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::request::Parts;
use serin_core::breaker;
use serin_core::concurrency;
use serin_core::decide::{Assignment, Why};
use serin_core::instance::InFlight;
use serin_core::limit::Fields;
use serin_core::request::{Claims, RequestView};
use serin_core::route::Route;
use serin_core::snapshot::Service;
use serin_core::subset::FallbackReason;
use smallvec::SmallVec;

use super::bounds::Body;
use crate::control::generation::{Generation, RouteSide, ServiceSide, Timeouts};
use crate::identity::RequestId;
use crate::pool::Lease;
use crate::telemetry::traces::{SpanContext, Trace};

/// State of one request.
pub struct Ctx {
    /// When its head was read.
    pub start: Instant,
    /// The generation it began with.
    pub generation: Option<Arc<Generation>>,
    /// Position of the route.
    pub route: Option<usize>,
    /// Service, assignment and attempts, once it is known to go to a service.
    pub upstream: Option<Upstream>,
    /// Address of the client.
    pub client_ip: IpAddr,
    /// Whether the peer is a trusted proxy.
    pub trusted: bool,
    /// Wall clock, in seconds since the epoch; 0 where no rule needs it.
    pub unix_time: u64,
    /// Claims of a verified JWT.
    pub claims: Option<Arc<Claims>>,
    /// Identity of the request.
    pub request_id: RequestId,
    /// Time spent deciding.
    pub decision: Duration,
    /// When the latest step of the decision ended, or began.
    pub mark: Instant,
    /// Status of an answer by the gateway itself; for gRPC, the one that its gRPC status stands for.
    pub replied: Option<u16>,
    /// Set when the upstream's response ended before the request did.
    pub answered: Option<Answered>,
    /// How much of the request's body came, where that matters.
    pub body: Option<Body>,
    /// What went wrong.
    pub error: Option<&'static str>,
    /// Name of the rate limit that refused it.
    pub limited_by: Option<Arc<str>>,
    /// What the client is told of rate limits.
    pub rate_limit: Option<Fields>,
    /// Counts the request against the concurrency limit of its service.
    pub permit: Option<concurrency::Permit>,
    /// When it may be worth to ask again, for an answer of 503.
    pub retry_after: Option<Duration>,
    /// What other services are told of its trace, if traces are made.
    pub span_context: Option<SpanContext>,
    /// Its trace, if its spans are sent or may be.
    pub trace: Option<Trace>,
}

/// A request that goes on after its response.
pub struct Answered {
    /// When the response ended.
    pub at: Instant,
    /// Whether some of the request was not passed on.
    pub lost: bool,
}

/// The part of a request that goes to a service.
pub struct Upstream {
    /// Position of the service.
    pub service: usize,
    /// The subset it is meant for.
    pub assignment: Assignment,
    /// The subset that serves the attempt; `None` is any.
    pub subset: Option<usize>,
    /// Why it is another one.
    pub fallback: Option<FallbackReason>,
    /// Instances that were tried, the current one last.
    pub tried: SmallVec<[u32; 4]>,
    /// Counts the attempt as in flight.
    pub flight: Option<InFlight>,
    /// What it holds of its instance's pool.
    pub lease: Lease,
    /// The attempt's place in the breaker of its subset.
    pub permit: Option<breaker::Permit>,
    /// What has yet to come for an attempt with a good head to be a success, and the latency of the head.
    pub proof: Option<(Proof, Duration)>,
    /// When the attempt began.
    pub attempt_start: Instant,
    /// Status of the upstream's response.
    pub status: Option<u16>,
    /// When the head of that response came.
    pub head_at: Option<Instant>,
    /// Whether the latest attempt was judged a failure.
    pub failed: bool,
    /// Whether the client asks for another protocol (WebSocket).
    pub upgrade: bool,
    /// Whether this is a stream, which has no deadline but one that its client sets.
    pub stream: bool,
    /// The time that a client gives its gRPC call.
    pub grpc_timeout: Option<Duration>,
}

/// What belongs to one attempt alone, while another one of the same request is under way.
pub struct Aside {
    /// Position of its instance.
    pub index: Option<u32>,
    /// Counts it as in flight.
    pub flight: Option<InFlight>,
    /// When it began.
    pub attempt_start: Instant,
    subset: Option<usize>,
    lease: Lease,
    permit: Option<breaker::Permit>,
}

impl Upstream {
    /// Takes out what belongs to the attempt under way, to make room for one beside it. Neither has a response yet.
    pub fn set_aside(&mut self) -> Aside {
        Aside {
            index: self.tried.last().copied(),
            subset: self.subset,
            flight: self.flight.take(),
            lease: std::mem::take(&mut self.lease),
            permit: self.permit.take(),
            attempt_start: self.attempt_start,
        }
    }

    /// Makes an attempt that was set aside the one under way again.
    pub fn resume(&mut self, aside: Aside) {
        let Aside { index, subset, flight, lease, permit, attempt_start } = aside;
        self.tried.retain(|tried| Some(*tried) != index);
        self.tried.extend(index);
        (self.subset, self.flight, self.lease, self.permit) = (subset, flight, lease, permit);
        (self.attempt_start, self.proof, self.status) = (attempt_start, None, None);
        self.failed = false;
    }

    /// Whether its bucket is that of a user.
    #[must_use]
    pub fn is_keyed(&self) -> bool {
        !matches!(self.assignment.why, Why::Random | Why::Stable)
    }
}

/// What makes a success of an attempt with a good head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// The whole body.
    Body,
    /// Trailers that say so (gRPC).
    Trailers,
}

impl Default for Ctx {
    /// A request whose head was just read.
    fn default() -> Self {
        let start = Instant::now();
        Self {
            start,
            mark: start,
            generation: None,
            route: None,
            upstream: None,
            client_ip: Ipv4Addr::UNSPECIFIED.into(),
            trusted: false,
            unix_time: 0,
            claims: None,
            request_id: RequestId::Given(Box::default()),
            decision: Duration::ZERO,
            replied: None,
            answered: None,
            body: None,
            error: None,
            limited_by: None,
            rate_limit: None,
            permit: None,
            retry_after: None,
            span_context: None,
            trace: None,
        }
    }
}

impl Ctx {
    /// The status that a request counts as whose head had this one: a response that broke off, or a gRPC call that failed,
    /// is an error of the server although its head said 200.
    #[must_use]
    pub fn judged(&self, status: u16) -> u16 {
        let own = self.replied.filter(|own| *own > 0).unwrap_or(status);
        let failed = self.upstream.as_ref().is_some_and(|upstream| upstream.failed);
        if failed && own > 0 { own.max(500) } else { own }
    }

    /// The request as decisions see it. Only routes match on the host: later steps leave it empty.
    #[must_use]
    pub fn view<'a>(&'a self, head: &'a Parts, host: &'a str) -> RequestView<'a> {
        RequestView {
            method: &head.method,
            host,
            path: head.uri.path(),
            query: head.uri.query(),
            headers: &head.headers,
            client_ip: self.client_ip,
            from_trusted_proxy: self.trusted,
            claims: self.claims.as_deref(),
            unix_time: self.unix_time,
        }
    }

    /// The route and the service, once both are known.
    #[must_use]
    pub fn chosen(&self) -> Option<(&Route, &Service)> {
        let core = &self.generation.as_ref()?.core;
        let service = core.services.get(self.upstream.as_ref()?.service)?;
        Some((core.routes.routes().get(self.route?)?, service))
    }

    /// The gateway's side of the route.
    #[must_use]
    pub fn route_side(&self) -> Option<&RouteSide> {
        self.generation.as_ref()?.routes.get(self.route?)
    }

    /// The gateway's side of the service.
    #[must_use]
    pub fn service_side(&self) -> Option<&Arc<ServiceSide>> {
        self.generation.as_ref()?.services.get(self.upstream.as_ref()?.service)
    }

    /// The timeouts that hold for the request.
    #[must_use]
    pub fn timeouts(&self) -> Option<Timeouts> {
        self.route_side().and_then(|route| route.timeouts).or_else(|| Some(self.service_side()?.timeouts))
    }

    /// What is left at `now` of the time for the whole request; `None` if it is unlimited.
    #[must_use]
    pub fn time_left(&self, now: Instant) -> Option<Duration> {
        let upstream = self.upstream.as_ref()?;
        let request = self.timeouts()?.request;
        let limit = match upstream.grpc_timeout {
            Some(given) => request.map_or(given, |request| request.min(given)),
            None if upstream.stream => return None,
            None => request?,
        };
        Some(limit.saturating_sub(now.saturating_duration_since(self.start)))
    }
}
