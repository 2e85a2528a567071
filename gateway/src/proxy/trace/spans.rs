//! The spans of a request that has ended: HTTP and RPC semantic conventions
//! (<https://opentelemetry.io/docs/specs/semconv/http/http-spans/>), and the decision.

use std::time::Instant;

use http::header;
use pingora::proxy::Session;

use crate::proxy::ctx::{Ctx, Upstream};
use crate::proxy::peer::Protocol;
use crate::proxy::{head, is_tls, reply};
use crate::telemetry::otlp::nanos;
use crate::telemetry::traces::context::TRACESTATE;
use crate::telemetry::traces::span::{Attributes, Head, Kind, Spans, TraceContext};
use crate::telemetry::traces::{Attempt, Trace};
use crate::text;

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
    /// The same moment in nanoseconds since the Unix epoch.
    pub(super) end: u64,
}

impl Telling<'_> {
    /// All of it.
    #[inline(never)] // Its kilobytes are not to lie between what every request runs.
    pub(super) fn tell(&self, spans: &mut Spans) {
        let state = self.trace.keeps_state.then(|| self.session.req_header().headers.get(&TRACESTATE)).flatten();
        let state = state.and_then(|state| state.to_str().ok()).unwrap_or_default();
        let context = TraceContext { trace_id: self.trace.trace_id, flags: self.trace.flags, state };
        // A path that anybody may choose is no name.
        let pattern = self.ctx.route_side().and_then(|route| route.pattern.as_deref());
        let call = self.call();
        let method = call.method.unwrap_or("HTTP");
        let head = Head {
            span_id: self.trace.span_id,
            parent: self.trace.parent,
            name: (method, pattern),
            kind: Kind::Server,
            times: (self.nanos(self.ctx.start), self.end),
            failed: self.failed,
        };
        spans.add(&context, &head, |attributes| self.server(attributes, pattern, call));
        for (at, attempt) in self.trace.attempts.iter().enumerate() {
            let head = Head {
                span_id: attempt.span_id,
                parent: Some(self.trace.span_id),
                name: (method, None),
                kind: Kind::Client,
                times: (self.nanos(attempt.start), attempt.end.map_or(self.end, |end| self.nanos(end))),
                failed: self.attempt_error(attempt).is_some(),
            };
            spans.add(&context, &head, |attributes| self.client(attributes, at, attempt, call));
        }
    }

    /// What the span of the request says.
    fn server(&self, out: &mut Attributes<'_>, pattern: Option<&str>, call: Call<'_>) {
        let (session, ctx) = (self.session, self.ctx);
        let head = session.req_header();
        self.request(out, call);
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
        let client = text::ip(ctx.client_ip);
        out.text("client.address", &client);
        if let Some(peer) = session.client_addr().and_then(|address| address.as_inet()) {
            // Mostly they are the same.
            let other = (peer.ip() != ctx.client_ip).then(|| text::ip(peer.ip()));
            out.text("network.peer.address", &other.unwrap_or(client));
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
        let revision = [generation.routing_revision, generation.traffic_revision];
        out.text("serin.revision", &text::numbers(revision, "."));
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
            out.text("serin.bucket", &format!("{:016x}", assignment.bucket.0));
        }
        out.maybe("serin.fallback_reason", upstream.fallback.map(|reason| reason.as_str()));
        out.number("serin.attempts", upstream.tried.len() as u64);
        out.number("serin.decision_ns", nanos(self.ctx.decision));
    }

    /// What the span of an attempt says.
    fn client(&self, out: &mut Attributes<'_>, at: usize, attempt: &Attempt, call: Call<'_>) {
        let Some((generation, upstream)) = self.ctx.generation.as_ref().zip(self.ctx.upstream.as_ref()) else { return };
        let (service, side) = (&generation.core.services[upstream.service], &generation.services[upstream.service]);
        let address = service.instances[attempt.instance as usize].address;
        let (instance, ip) = (text::socket(address), text::ip(address.ip()));
        let policy = side.pools[attempt.instance as usize].policy();
        self.request(out, call);
        let uri = &self.session.req_header().uri;
        let scheme = if policy.tls.is_some() { "https" } else { "http" };
        let path = self.ctx.chosen().map(|(route, _)| route.rewrite.path.apply(&route.path, uri.path()));
        let path = path.as_deref().unwrap_or_default();
        let query = uri.query().map(|query| format!("?{}", without_values(query))).unwrap_or_default();
        out.joined("url.full", &[scheme, "://", &instance, path, &query]);
        out.text("server.address", &ip);
        out.number("server.port", u64::from(address.port()));
        out.text("network.peer.address", &ip);
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
        out.text("serin.instance", &instance);
        out.text("serin.service", &service.name);
        self.subset(out, upstream, attempt.subset);
        out.text("serin.balancer", if attempt.plain { "round_robin" } else { &side.metrics.strategy });
        out.maybe("serin.fallback_reason", attempt.fallback.map(|reason| reason.as_str()));
        out.maybe("serin.breaker", attempt.breaker.map(|phase| phase.as_str()));
    }

    /// What both kinds of spans say of the request.
    fn request(&self, out: &mut Attributes<'_>, call: Call<'_>) {
        out.text("http.request.method", call.method.unwrap_or("_OTHER"));
        if call.method.is_none() {
            out.text("http.request.method_original", self.session.req_header().method.as_str());
        }
        let Some(rpc) = call.rpc else { return };
        out.text("rpc.system.name", "grpc");
        out.text("rpc.method", rpc);
        if let Some(code) = self.trace.grpc_status {
            match CODES.get(usize::from(code)) {
                Some(name) => out.text("rpc.response.status_code", name),
                None => out.text("rpc.response.status_code", &code.to_string()),
            }
        }
    }

    fn subset(&self, out: &mut Attributes<'_>, upstream: &Upstream, subset: Option<usize>) {
        let Some(generation) = &self.ctx.generation else { return };
        let subsets = &generation.core.services[upstream.service].subsets;
        out.text("serin.subset", subset.map_or("any", |subset| &subsets[subset].name));
    }

    /// What is called, by the head of the request.
    fn call(&self) -> Call<'_> {
        let head = self.session.req_header();
        let method = Some(head.method.as_str()).filter(|method| METHODS.contains(method));
        let rpc = || head.uri.path().strip_prefix('/').filter(|path| path.contains('/'));
        Call { method, rpc: reply::is_grpc(self.session).then(rpc).flatten() }
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
            (None, Some(status)) if status >= 400 => out.text("error.type", &status.to_string()),
            (None, _) => out.text("error.type", grpc.unwrap_or(&"_OTHER")),
        }
    }

    /// A moment on the wall clock.
    fn nanos(&self, at: Instant) -> u64 {
        self.end.saturating_sub(nanos(self.now.saturating_duration_since(at)))
    }
}

/// What is called.
#[derive(Clone, Copy)]
struct Call<'a> {
    /// The method, if it is one of those that spans are named after.
    method: Option<&'a str>,
    /// The method of a gRPC call: `package.Service/Method`.
    rpc: Option<&'a str>,
}

fn version(version: http::Version) -> &'static str {
    if version == http::Version::HTTP_10 { "1.0" } else { "1.1" }
}

/// A query without its values: there are keys of users among them, which nothing tells.
#[inline(never)]
fn without_values(query: &str) -> String {
    let pairs = query.split('&').take(32).map(|pair| match pair.split_once('=') {
        Some((name, _)) => format!("{name}=REDACTED"),
        None => pair.to_owned(),
    });
    pairs.collect::<Vec<_>>().join("&")
}
