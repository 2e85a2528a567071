//! The way of a request through pingora's callbacks, forward only. Each callback translates to the core, calls it, and
//! translates back:
//!
//! 1. `early_request_filter` takes the snapshot that every later step uses.
//! 2. `request_filter` refuses what is malformed, normalises the path, finds the route and the subset. An answer of our
//!    own ends here.
//! 3. `upstream_peer` locates the pool and picks the instance.
//! 4. `upstream_request_filter` and `response_filter` edit header fields.
//! 5. `fail_to_connect`, `error_while_proxy` and `upstream_response_filter` ask for one retry verdict; step 3 again.
//! 6. `logging` makes one event of it all.

pub mod bounds;
pub mod ctx;
pub mod deadline;
pub mod failure;
pub mod guarded;
pub mod head;
pub mod headers;
pub mod load;
pub mod peer;
pub mod reply;

mod guard;
mod hedge;
mod inspect;
mod limits;
mod live;
mod outcome;
mod relay;
mod steps;
mod trace;

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use async_trait::async_trait;
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderName, StatusCode, Version};
use ipnet::IpNet;
use pingora::connectors::TransportConnector;
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::modules::http::HttpModules;
use pingora::protocols::Digest;
use pingora::protocols::http::ServerSession;
use pingora::proxy::{FailToProxy, ProxyHttp, Session};
use pingora::upstreams::peer::HttpPeer;
use pingora::{Error, ErrorSource, ErrorType, Result};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serin_core::strict::Policy;
use serin_core::tag::Trust;

use self::ctx::{Answered, Ctx};
use self::headers::ForwardingHeaders;
use self::limits::Leases;
use self::reply::Reply;
use self::steps::Turn;
use crate::connection::BadBody;
use crate::connection::is_at;
use crate::connection::limits::{Limit, ListenerLimits, Refusals};
use crate::control::generation::Generation;
use crate::listen::Accepts;
use crate::overload::Overload;
use crate::telemetry::access_log::AccessLog;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::traces::Tracer;

thread_local! {
    static RNG: RefCell<SmallRng> = RefCell::new(SmallRng::from_rng(&mut rand::rng()));
}

fn with_rng<R>(act: impl FnOnce(&mut SmallRng) -> R) -> R {
    RNG.with_borrow_mut(act)
}

/// The gateway as pingora calls it.
pub struct Edge {
    /// The generation in force.
    pub live: Arc<ArcSwap<Generation>>,
    /// Networks whose word on client addresses and tags is taken.
    pub trusted: Vec<IpNet>,
    /// What clients may take up.
    pub limits: ListenerLimits,
    /// Counts what they are refused for.
    pub refusals: Arc<Refusals>,
    /// Forwarding headers.
    pub forwarding: ForwardingHeaders,
    /// What clear-text listeners serve, where pingora accepts more than they are for.
    pub protocols: Vec<(SocketAddr, Accepts)>,
    /// Metrics.
    pub metrics: Arc<Metrics>,
    /// The access log, if there is one.
    pub access_log: Option<Arc<AccessLog>>,
    /// How strictly heads are read.
    pub policy: Policy,
    /// Headers that only trusted peers may send.
    pub guarded: Vec<HeaderName>,
    /// Makes traces, if any are made.
    pub tracer: Option<Tracer>,
    /// The header that has a request sampled, which is nobody else's business, traces or not.
    pub debug_header: Option<HeaderName>,
    /// Set when the gateway is about to stop: connections are not kept any more.
    pub draining: Arc<AtomicBool>,
    /// Whether the gateway as a whole sheds load.
    pub overload: Arc<Overload>,
    /// Makes the connections that the relay uses.
    pub connector: Arc<TransportConnector>,
}

#[async_trait]
impl ProxyHttp for Edge {
    type CTX = Ctx;

    fn new_ctx(&self) -> Ctx {
        self.metrics.in_flight.inc();
        Ctx::default()
    }

    fn init_downstream_modules(&self, _modules: &mut HttpModules) {}

    async fn early_request_filter(&self, session: &mut Session, ctx: &mut Ctx) -> Result<()> {
        let limits = self.limits(session);
        if self.draining.load(Relaxed) {
            session.set_keepalive(None);
        } else if session.get_keepalive().is_some_and(|seconds| seconds > 0) {
            session.set_keepalive(Some(limits.idle.as_secs()));
        }
        if let ServerSession::H1(session) = session.as_downstream_mut() {
            // Who sends no more may still read (RFC 9112 section 9.6).
            session.set_abort_on_close(false);
            // RFC 9110 section 15.2: no interim response to HTTP/1.0.
            session.set_ignore_info_resp(session.req_header().version == Version::HTTP_10);
        }
        ctx.generation = Some(self.live.load_full());
        let peer = peer_ip(session);
        let head = session.req_header();
        ctx.client_ip = head::client_ip(peer, &head.headers, &self.trusted);
        ctx.trusted = !self.trusted.is_empty() && head::is_trusted(peer, &self.trusted);
        let random = with_rng(|rng| [rng.next_u64(), rng.next_u64()]);
        ctx.request_id = self.forwarding.identify(&head.headers, ctx.trusted, random);
        self.check_head(session, limits)?;
        self.check_protocol(session)
    }

    async fn request_filter(&self, session: &mut Session, ctx: &mut Ctx) -> Result<bool> {
        let mut waited = Duration::ZERO;
        let verdict = match self.decide(session, ctx) {
            Ok(verdict) => verdict,
            Err(leases) => {
                let asked = Instant::now();
                let holds = leases.await;
                ctx.mark = Instant::now();
                waited = ctx.mark.saturating_duration_since(asked);
                self.admit(session, ctx, &holds)
            }
        };
        let verdict = verdict.or_else(|| self.check_length(session, ctx));
        self.begin_trace(session, ctx);
        ctx.mark = Instant::now();
        ctx.decision = ctx.mark.saturating_duration_since(ctx.start).saturating_sub(waited);
        match verdict {
            None if relay::fits(session, ctx) => self.relay(session, ctx).await.map(|()| true),
            None => {
                self.await_body(session, ctx);
                Ok(false)
            }
            Some(reply) => {
                ctx.replied = Some(reply.status.as_u16());
                let too_long = reply.status == StatusCode::PAYLOAD_TOO_LARGE;
                // What a route answers by itself has it already.
                let reply = if ctx.error.is_some() { self.identified(reply, ctx) } else { reply };
                reply.send(session).await?;
                if too_long {
                    failure::linger(session).await;
                }
                Ok(true)
            }
        }
    }

    async fn upstream_peer(&self, session: &mut Session, ctx: &mut Ctx) -> Result<Box<HttpPeer>> {
        let turn = Turn::next(ctx);
        if turn == Turn::Again {
            self.back_off(ctx).await;
        }
        let index = self.choose(session, ctx, turn)?;
        self.enter(session, ctx, index).await?;
        self.peer(ctx, index)
    }

    async fn connected_to_upstream(
        &self,
        _session: &mut Session,
        reused: bool,
        peer: &HttpPeer,
        fd: std::os::unix::io::RawFd,
        digest: Option<&Digest>,
        ctx: &mut Ctx,
    ) -> Result<()> {
        if let Some(pool) = self.connected(ctx, fd, reused) {
            // In a box: most services ask for no identity, and it is large.
            Box::pin(self.confirm(&pool, fd, digest, peer)).await?;
        }
        if let Some(permit) = ctx.upstream.as_mut().and_then(|upstream| upstream.permit.as_mut()) {
            permit.connected();
        }
        Ok(())
    }

    async fn upstream_request_filter(
        &self,
        session: &mut Session,
        upstream: &mut RequestHeader,
        ctx: &mut Ctx,
    ) -> Result<()> {
        headers::edit_request(upstream, |head| self.edit_request(session, head, ctx))
    }

    async fn request_body_filter(
        &self,
        session: &mut Session,
        body: &mut Option<Bytes>,
        end_of_stream: bool,
        ctx: &mut Ctx,
    ) -> Result<()> {
        if ctx.upstream.as_ref().is_some_and(|upstream| upstream.upgrade) && !session.was_upgraded() {
            // The placeholder, where the upstream declined.
            *body = None;
        }
        self.check_body(session, ctx, body.as_ref().map_or(0, Bytes::len), end_of_stream)?;
        if let Some(answered) = &mut ctx.answered {
            failure::discard(body, end_of_stream, answered)?;
        }
        // An empty last DATA frame would write the terminator of a chunked body twice (pingora issue 935).
        if end_of_stream && body.as_ref().is_some_and(Bytes::is_empty) {
            *body = None;
        }
        Ok(())
    }

    async fn upstream_response_filter(
        &self,
        session: &mut Session,
        response: &mut ResponseHeader,
        ctx: &mut Ctx,
    ) -> Result<()> {
        if response.status.is_informational() && response.status != StatusCode::SWITCHING_PROTOCOLS {
            return Ok(());
        }
        if response.status == StatusCode::SWITCHING_PROTOCOLS {
            inspect::check_switch(session, response)?;
        }
        self.judge_response(session, ctx, response)
    }

    fn upstream_response_trailer_filter(
        &self,
        _session: &mut Session,
        trailers: &mut HeaderMap,
        ctx: &mut Ctx,
    ) -> Result<()> {
        self.judge_trailers(ctx, trailers);
        if self.note_report(ctx, trailers) {
            load::strip(|name| drop(trailers.remove(name)));
        }
        Ok(())
    }

    async fn response_filter(&self, session: &mut Session, response: &mut ResponseHeader, ctx: &mut Ctx) -> Result<()> {
        let informational = response.status.is_informational() && response.status != StatusCode::SWITCHING_PROTOCOLS;
        if !informational && failure::ends_with_its_head(response) {
            answered(session, ctx);
        }
        if informational { Ok(()) } else { self.edit_response(session, response, ctx) }
    }

    fn response_body_filter(
        &self,
        session: &mut Session,
        _body: &mut Option<Bytes>,
        end_of_stream: bool,
        ctx: &mut Ctx,
    ) -> Result<Option<Duration>> {
        if end_of_stream {
            answered(session, ctx);
        } else {
            self.check_deadline(ctx)?;
        }
        Ok(None)
    }

    fn fail_to_connect(&self, session: &mut Session, _peer: &HttpPeer, ctx: &mut Ctx, error: Box<Error>) -> Box<Error> {
        self.not_connected(session, ctx, error)
    }

    fn error_while_proxy(
        &self,
        _peer: &HttpPeer,
        session: &mut Session,
        error: Box<Error>,
        ctx: &mut Ctx,
        client_reused: bool,
    ) -> Box<Error> {
        self.broke(session, ctx, error, client_reused)
    }

    async fn fail_to_proxy(&self, session: &mut Session, error: &Error, ctx: &mut Ctx) -> FailToProxy {
        ctx.error = ctx.error.or(Some(failure::name(error)));
        if *error.esource() == ErrorSource::Downstream && *error.etype() == ErrorType::ReadTimedout {
            self.refusals.count(Limit::MinBodyRate);
        }
        if let Some(refusal) = BadBody::of(error) {
            self.metrics.count_refusal(refusal);
        }
        // pingora closes the connection after a failed attempt whatever it is told, so the client is told as well.
        session.set_keepalive(None);
        let status = failure::answer(session, ctx, error, self.forwarding.request_id.as_ref()).await;
        ctx.replied = Some(status);
        if status == StatusCode::PAYLOAD_TOO_LARGE {
            failure::linger(session).await;
        }
        FailToProxy { error_code: status, can_reuse_downstream: false }
    }

    fn suppress_error_log(&self, _session: &Session, _ctx: &Ctx, _error: &Error) -> bool {
        // The access log and the metrics say it, without formatting anything for nobody.
        true
    }

    fn suppress_proxy_warn_log(
        &self,
        _session: &Session,
        _ctx: &Ctx,
        _error: &Error,
        _context: pingora::proxy::ProxyWarnLogContext,
    ) -> bool {
        true
    }

    async fn logging(&self, session: &mut Session, error: Option<&Error>, ctx: &mut Ctx) {
        self.metrics.in_flight.dec();
        if ctx.error.is_none() {
            ctx.error = error.map(failure::name);
        }
        self.finish(session, ctx);
    }
}

impl Edge {
    /// Everything up to the limits. `Some` is an answer of our own.
    ///
    /// # Errors
    /// If the request has to wait for what it needs of limits that a fleet shares.
    fn decide(&self, session: &mut Session, ctx: &mut Ctx) -> std::result::Result<Option<Reply>, Leases> {
        let verdict = match self.inspect(session, ctx) {
            Ok(()) => self.shed(session, ctx).or_else(|| self.route(session, ctx)),
            Err(refusal) => Some(self.refuse(session, ctx, refusal)),
        };
        match verdict {
            None => self.lease(session, ctx).map(|holds| self.admit(session, ctx, &holds)),
            answer => Ok(answer),
        }
    }

    /// An answer of our own, with the identity of its request.
    fn identified(&self, reply: Reply, ctx: &Ctx) -> Reply {
        reply.with_request_id(self.forwarding.request_id.as_ref(), &ctx.request_id)
    }

    /// What changes in a request's head on its way to the upstream.
    fn edit_request(&self, session: &Session, head: &mut Parts, ctx: &Ctx) -> Result<()> {
        let Some((route, service)) = ctx.chosen() else { return Ok(()) };
        let (Some(chosen), Some(side)) = (&ctx.upstream, ctx.service_side()) else { return Ok(()) };
        self.forwarding.set(head, peer_ip(session), is_tls(session), ctx)?;
        let accepted = chosen.assignment.rule.map(|rule| service.tags[rule].trust);
        headers::strip_guarded(&mut head.headers, service, ctx.trusted || accepted == Some(Trust::Signed));
        let carried = self.propagate_trace(&mut head.headers, ctx);
        headers::propagate(&mut head.headers, &side.propagate, service, chosen, carried)?;
        if chosen.upgrade {
            // Not the placeholder; and if nothing were here, pingora would announce chunks.
            head.headers.insert(http::header::CONTENT_LENGTH, http::HeaderValue::from_static("0"));
        }
        if session.is_http2() {
            headers::join_cookies(&mut head.headers)?;
        }
        let path = route.rewrite.path.apply(&route.path, head.uri.path());
        if path != head.uri.path() {
            head.uri = headers::with_path(&head.uri, path.into_owned())?;
        }
        if let Some(host) = route.rewrite.host() {
            headers::set_host(head, host)?;
        }
        if let Some(left) = chosen.grpc_timeout.and(ctx.time_left(Instant::now())) {
            deadline::set(&mut head.headers, left);
        }
        route.request_headers.apply(&mut head.headers);
        Ok(())
    }

    /// What changes in a response's head on its way to the client.
    fn edit_response(&self, session: &Session, response: &mut ResponseHeader, ctx: &Ctx) -> Result<()> {
        let Some((route, service)) = ctx.chosen() else { return Ok(()) };
        headers::edit_response(response, |headers| {
            if let Some(id) = ctx.upstream.as_ref().and_then(|upstream| upstream.assignment.issue) {
                headers::issue_cookie(headers, service, id, is_tls(session))?;
            }
            if let Some(name) = &self.forwarding.request_id {
                headers::set_request_id(headers, name, &ctx.request_id)?;
            }
            if let Some(told) = &ctx.rate_limit {
                limits::tell(headers, told);
            }
            route.response_headers.apply(headers);
            Ok(())
        })
    }

    /// Breaks off a response whose time is over.
    fn check_deadline(&self, ctx: &Ctx) -> Result<()> {
        if ctx.time_left(Instant::now()).is_some_and(|left| left.is_zero()) {
            return Err(Error::explain(ErrorType::ReadTimedout, "the request took too long").into_up());
        }
        Ok(())
    }

    /// Refuses a protocol that the listener is not for.
    fn check_protocol(&self, session: &Session) -> Result<()> {
        if self.protocols.is_empty() || is_tls(session) {
            return Ok(());
        }
        let Some(local) = session.server_addr().and_then(|address| address.as_inet()) else { return Ok(()) };
        let here = self.protocols.iter().find(|(address, _)| is_at(address, local));
        let Some((_, accepts)) = here else { return Ok(()) };
        let fine = if session.is_http2() { accepts.h2c } else { accepts.http1 };
        if fine { Ok(()) } else { Error::e_explain(ErrorType::HTTPStatus(400), "not a protocol of this listener") }
    }
}

/// Notes that the response is complete, which ends an upload that is still under way.
fn answered(session: &mut Session, ctx: &mut Ctx) {
    if !session.is_body_done() && !session.was_upgraded() {
        ctx.answered.get_or_insert_with(|| Answered { at: Instant::now(), lost: false });
    }
}

fn peer_ip(session: &Session) -> IpAddr {
    let address = session.client_addr().and_then(|address| address.as_inet());
    address.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |address| address.ip())
}

fn is_tls(session: &Session) -> bool {
    session.digest().is_some_and(|digest| digest.ssl_digest.is_some())
}
