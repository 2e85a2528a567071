//! The spans of a request that has ended: HTTP and RPC semantic conventions
//! (<https://opentelemetry.io/docs/specs/semconv/http/http-spans/>), and the decision.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use http::header;
use pingora::proxy::Session;

use crate::proxy::ctx::{Ctx, Upstream};
use crate::proxy::peer::Protocol;
use crate::proxy::{head, is_tls, reply};
use crate::telemetry::traces::context::TRACESTATE;
use crate::telemetry::traces::span::{Attributes, Head, Kind, Spans, Text, TraceContext};
use crate::telemetry::traces::{Attempt, Trace};

/// Methods that spans are named after (RFC 9110 section 9 and RFC 5789); all others are `_OTHER`.
const METHODS: [&str; 9] = ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];
/// The status codes of gRPC by their numbers.
const CODES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];
/// Tells of a request that has ended.
pub(super) struct Telling<'a> {
    pub(super) session: &'a Session,
    pub(super) ctx: &'a Ctx,
    pub(super) trace: &'a Trace,
    pub(super) status: u16,
    pub(super) failed: bool,
    pub(super) now: Instant,
    pub(super) end: SystemTime,
}

impl Telling<'_> {
    /// All of them.
    pub(super) fn spans(&self) -> Spans {
        let headers = &self.session.req_header().headers;
        let state = headers.get(&TRACESTATE).filter(|_| self.trace.keeps_state());
        let state = state.and_then(|state| state.to_str().ok()).unwrap_or_default();
        let context = TraceContext { trace_id: self.trace.trace_id, flags: self.trace.flags(), state };
        let mut spans = Spans::with_capacity(1 + self.trace.attempts.len());
        let pattern = self.ctx.route_side().and_then(|route| route.pattern.as_deref());
        let (method, _) = self.method();
        let rpc = self.rpc();
        // A path that anybody may choose is no name.
        let name = pattern.map(|pattern| format!(" {pattern}")).unwrap_or_default();
        let head = Head {
            span_id: self.trace.span_id,
            parent: self.trace.parent,
            name: (method, &name),
            kind: Kind::Server,
            times: (self.nanos(self.ctx.start), self.nanos(self.now)),
            failed: self.failed,
        };
        spans.add(&context, &head, |attributes| self.server(attributes, pattern, rpc));
        for (at, attempt) in self.trace.attempts.iter().enumerate() {
            let head = Head {
                span_id: attempt.span_id,
                parent: Some(self.trace.span_id),
                name: (method, ""),
                kind: Kind::Client,
                times: (self.nanos(attempt.start), self.nanos(attempt.end.unwrap_or(self.now))),
                failed: self.attempt_error(attempt).is_some(),
            };
            spans.add(&context, &head, |attributes| self.client(attributes, at, attempt, rpc));
        }
        spans
    }

    /// What the span of the request says.
    fn server(&self, out: &mut Attributes<'_>, pattern: Option<&str>, rpc: Option<&str>) {
        let (session, ctx) = (self.session, self.ctx);
        let head = session.req_header();
        self.request(out, rpc);
        out.text("url.scheme", if is_tls(session) { "https" } else { "http" });
        out.text("url.path", head.uri.path());
        if let Some(query) = head.uri.query() {
            out.text("url.query", &without_values(query));
        }
        out.maybe("http.route", pattern);
        let host = head::host(head);
        out.maybe("server.address", Some(&*host).filter(|host| !host.is_empty()));
        if let Some(local) = session.server_addr().and_then(|address| address.as_inet()) {
            out.number("server.port", u64::from(local.port()));
        }
        let client = Text::of(ctx.client_ip);
        out.text("client.address", client.as_str());
        if let Some(peer) = session.client_addr().and_then(|address| address.as_inet()) {
            // Mostly they are the same, and showing an address takes its time.
            let other = (peer.ip() != ctx.client_ip).then(|| Text::of(peer.ip()));
            out.text("network.peer.address", other.as_ref().unwrap_or(&client).as_str());
            out.number("network.peer.port", u64::from(peer.port()));
        }
        out.text("network.protocol.version", if session.is_http2() { "2" } else { version(head.version) });
        out.maybe("user_agent.original", head.headers.get(header::USER_AGENT).and_then(|agent| agent.to_str().ok()));
        if self.status > 0 {
            out.number("http.response.status_code", u64::from(self.status));
        }
        out.number("http.request.body.size", session.body_bytes_read() as u64);
        out.number("http.response.body.size", session.body_bytes_sent() as u64);
        if self.failed {
            self.error_type(out, ctx.error, Some(self.status));
        }
        out.text("serin.request_id", ctx.request_id.as_str());
        self.decision(out);
    }

    /// Where the request was sent, and why.
    fn decision(&self, out: &mut Attributes<'_>) {
        let Some(generation) = &self.ctx.generation else { return };
        let (routing, traffic) = (generation.routing_revision, generation.traffic_revision);
        out.shown("serin.revision", format_args!("{routing}.{traffic}"));
        let routes = generation.core.routes.routes();
        out.maybe("serin.route", self.ctx.route.map(|route| &*routes[route].name));
        out.maybe("serin.limit", self.ctx.limited_by.as_deref());
        let Some(upstream) = &self.ctx.upstream else { return };
        let service = &generation.core.services[upstream.service];
        out.text("serin.service", &service.name);
        self.subset(out, upstream, upstream.subset);
        let assignment = &upstream.assignment;
        out.text("serin.assigned_subset", &service.subsets[assignment.subset].name);
        out.text("serin.why", assignment.why.as_str());
        out.maybe("serin.tag", assignment.rule.map(|rule| &*service.tags[rule].name));
        if upstream.is_keyed() {
            out.text("serin.bucket", Text::hex(assignment.bucket.0).as_str());
        }
        out.maybe("serin.fallback_reason", upstream.fallback.map(|reason| reason.as_str()));
        out.number("serin.attempts", upstream.tried.len() as u64);
        out.number("serin.decision_ns", u64::try_from(self.ctx.decision.as_nanos()).unwrap_or(u64::MAX));
    }

    /// What the span of an attempt says.
    fn client(&self, out: &mut Attributes<'_>, at: usize, attempt: &Attempt, rpc: Option<&str>) {
        let Some((generation, upstream)) = self.ctx.generation.as_ref().zip(self.ctx.upstream.as_ref()) else { return };
        let (service, side) = (&generation.core.services[upstream.service], &generation.services[upstream.service]);
        let address = service.instances[attempt.instance as usize].address;
        let instance = Text::of(address);
        let instance = instance.as_str();
        let ip = instance.rsplit_once(':').map_or(instance, |(ip, _)| ip.trim_matches(['[', ']']));
        let policy = side.pools[attempt.instance as usize].policy();
        self.request(out, rpc);
        let uri = &self.session.req_header().uri;
        let scheme = if policy.tls.is_some() { "https" } else { "http" };
        let path = self.ctx.chosen().map(|(route, _)| route.rewrite.path.apply(&route.path, uri.path()));
        let path = path.as_deref().unwrap_or_default();
        let query = uri.query().map(|query| format!("?{}", without_values(query))).unwrap_or_default();
        out.text("url.full", &[scheme, "://", instance, path, &query].concat());
        out.text("server.address", ip);
        out.number("server.port", u64::from(address.port()));
        out.text("network.peer.address", ip);
        out.number("network.peer.port", u64::from(address.port()));
        out.text("network.protocol.version", if policy.protocol == Protocol::Http1 { "1.1" } else { "2" });
        if at > 0 {
            out.number("http.request.resend_count", at as u64);
        }
        if let Some(status) = attempt.status {
            out.number("http.response.status_code", u64::from(status));
        }
        if self.attempt_error(attempt).is_some() {
            self.error_type(out, attempt.error, attempt.status);
        }
        out.number("serin.attempt", at as u64 + 1);
        out.text("serin.instance", instance);
        out.text("serin.service", &service.name);
        self.subset(out, upstream, attempt.subset);
        out.text("serin.balancer", if attempt.plain { "round_robin" } else { &side.metrics.strategy });
        out.maybe("serin.fallback_reason", attempt.fallback.map(|reason| reason.as_str()));
        out.maybe("serin.breaker", attempt.breaker.map(|phase| phase.as_str()));
    }

    /// What both kinds of spans say of the request.
    fn request(&self, out: &mut Attributes<'_>, rpc: Option<&str>) {
        let (_, method) = self.method();
        out.text("http.request.method", if METHODS.contains(&method) { method } else { "_OTHER" });
        if !METHODS.contains(&method) {
            out.text("http.request.method_original", method);
        }
        let Some(rpc) = rpc else { return };
        out.text("rpc.system.name", "grpc");
        out.text("rpc.method", rpc);
        if let Some(code) = self.trace.grpc_status {
            match CODES.get(usize::from(code)) {
                Some(name) => out.text("rpc.response.status_code", name),
                None => out.shown("rpc.response.status_code", code),
            }
        }
    }

    fn subset(&self, out: &mut Attributes<'_>, upstream: &Upstream, subset: Option<usize>) {
        let Some(generation) = &self.ctx.generation else { return };
        let subsets = &generation.core.services[upstream.service].subsets;
        out.text("serin.subset", subset.map_or("any", |subset| &subsets[subset].name));
    }

    /// The method as spans are named after it, and as it was sent.
    fn method(&self) -> (&str, &str) {
        let method = self.session.req_header().method.as_str();
        (if METHODS.contains(&method) { method } else { "HTTP" }, method)
    }

    /// The method of a gRPC call: `package.Service/Method`.
    fn rpc(&self) -> Option<&str> {
        let path = self.session.req_header().uri.path();
        path.strip_prefix('/').filter(|path| reply::is_grpc(self.session) && path.contains('/'))
    }

    /// What went wrong with an attempt: a client's span has failed from status 400 on.
    fn attempt_error(&self, attempt: &Attempt) -> Option<()> {
        let last = self.trace.attempts.last().is_some_and(|last| last.span_id == attempt.span_id);
        let grpc = last && self.trace.grpc_status.is_some_and(|code| code != 0);
        let failed = attempt.error.is_some() || grpc || attempt.status.is_none_or(|status| status >= 400);
        failed.then_some(())
    }

    /// `error.type`: what went wrong by name, or else the status.
    fn error_type(&self, out: &mut Attributes<'_>, error: Option<&str>, status: Option<u16>) {
        let grpc = self.trace.grpc_status.filter(|code| *code != 0).and_then(|code| CODES.get(usize::from(code)));
        match (error, status) {
            (Some(error), _) => out.text("error.type", error),
            (None, Some(status)) if status >= 400 => out.shown("error.type", status),
            (None, _) => out.text("error.type", grpc.unwrap_or(&"_OTHER")),
        }
    }

    /// A moment on the wall clock.
    fn nanos(&self, at: Instant) -> u64 {
        let at = self.end.checked_sub(self.now.saturating_duration_since(at)).unwrap_or(UNIX_EPOCH);
        u64::try_from(at.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos()).unwrap_or(u64::MAX)
    }
}

fn version(version: http::Version) -> &'static str {
    if version == http::Version::HTTP_10 { "1.0" } else { "1.1" }
}

/// A query without its values: there are keys of users among them, which nothing tells.
fn without_values(query: &str) -> String {
    let pairs = query.split('&').take(32).map(|pair| match pair.split_once('=') {
        Some((name, _)) => format!("{name}=REDACTED"),
        None => pair.to_owned(),
    });
    pairs.collect::<Vec<_>>().join("&")
}
