//! The four steps of a decision, on pingora's session: each translates the request to the core and the outcome back.

use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::StatusCode;
use pingora::http::RequestHeader;
use pingora::protocols::Digest;
use pingora::proxy::Session;
use pingora::upstreams::peer::HttpPeer;
use pingora::{Error, ErrorType, Result};
use serin_core::decide::{self, Attempt, Recorder};
use serin_core::instance::InFlight;
use serin_core::retry::Failure;
use serin_core::route::{Action, Origin, Route};
use serin_core::tag::Trust;

use super::ctx::{Ctx, Upstream};
use super::reply::{self, Reply};
use super::{Edge, deadline, failure, guarded, head, is_tls, peer, trace, with_rng};
use crate::control::generation::Generation;
use crate::limits::bank::Holds;
use crate::pool::{InstancePool, Lease, Overflow};

/// Which attempt an instance is picked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// The first.
    First,
    /// One after a failure, which may go to another subset.
    Again,
    /// One beside another that is still under way.
    Beside,
}

impl Turn {
    /// The turn of the next attempt, after those that there were.
    pub(super) fn next(ctx: &Ctx) -> Self {
        let first = ctx.upstream.as_ref().is_none_or(|upstream| upstream.tried.is_empty());
        if first { Self::First } else { Self::Again }
    }
}

impl Edge {
    /// Steps 1 and 2 of the decision: route, then subset. `Some` is an answer of our own.
    pub(super) fn route(&self, session: &Session, ctx: &mut Ctx) -> Option<Reply> {
        let generation = Arc::clone(ctx.generation.as_ref()?);
        let head = session.req_header();
        let host = head::host(head);
        let found = generation.core.routes.find(&ctx.view(head, &host));
        let Some(found) = found else {
            ctx.error = Some("no_route");
            return Some(Reply::problem(StatusCode::NOT_FOUND, "No route matches this request."));
        };
        ctx.route = Some(found.route);
        let route = &generation.core.routes.routes()[found.route];
        match &route.action {
            Action::Service(service) => {
                self.assign(session, ctx, &generation, *service);
                None
            }
            Action::Redirect(redirect) => {
                let origin = Origin { scheme: if is_tls(session) { "https" } else { "http" }, port: asked_port(head) };
                let location = redirect.location(&route.path, &ctx.view(head, &host), origin);
                Some(own_answer(self.identified(Reply::redirect(redirect.status(), &location), ctx), route))
            }
            Action::Respond(respond) => {
                let reply = Reply {
                    status: respond.status,
                    headers: Vec::new(),
                    content_type: respond.content_type.clone(),
                    body: Bytes::copy_from_slice(respond.body.as_bytes()),
                };
                Some(own_answer(self.identified(reply, ctx), route))
            }
        }
    }

    /// Whether a request that goes to a service may do so now; `holds` is what it has of limits of the fleet. `Some` is an answer of our own.
    pub(super) fn admit(&self, session: &Session, ctx: &mut Ctx, holds: &Holds) -> Option<Reply> {
        let generation = Arc::clone(ctx.generation.as_ref()?);
        self.limit(session, ctx, &generation, holds).or_else(|| unavailable(ctx, &generation))
    }

    fn assign(&self, session: &Session, ctx: &mut Ctx, generation: &Generation, position: usize) {
        let service = &generation.core.services[position];
        let head = session.req_header();
        if let Some(jwt) = &generation.services[position].jwt {
            ctx.claims = jwt.claims(&head.headers);
        }
        if service.tags.iter().any(|rule| rule.trust == Trust::Signed) {
            ctx.unix_time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        }
        let key = generation.core.signing_key.as_ref();
        let traffic = &generation.core.traffic[position];
        let assignment = with_rng(|rng| decide::assign(service, traffic, key, &ctx.view(head, ""), rng, &mut ()));
        let metrics = &generation.services[position].metrics;
        metrics.assignments[assignment.subset][assignment.why as usize].inc();
        if let Some(rule) = assignment.rule {
            metrics.tags[rule].inc();
        }
        let upgrade = session.is_upgrade_req();
        let grpc = reply::is_grpc(session);
        ctx.upstream = Some(Upstream {
            service: position,
            assignment,
            subset: Some(assignment.subset),
            fallback: None,
            tried: smallvec::SmallVec::new(),
            flight: None,
            lease: Lease::default(),
            permit: None,
            proof: None,
            attempt_start: ctx.start,
            status: None,
            head_at: None,
            failed: false,
            upgrade,
            stream: upgrade || grpc || failure::wants_event_stream(head),
            grpc_timeout: if grpc { deadline::of(&head.headers) } else { None },
        });
    }

    /// Steps 3 and 4 of the decision: pool, then instance. Returns the position of the instance in the service.
    fn pick(&self, session: &Session, ctx: &mut Ctx, turn: Turn, now: Instant) -> Result<u32> {
        let Some(generation) = ctx.generation.clone() else {
            return Error::e_explain(ErrorType::InternalError, "no generation was loaded");
        };
        let upstream = ctx.upstream.as_ref().ok_or_else(no_service)?;
        let service = &generation.core.services[upstream.service];
        let side = &generation.services[upstream.service];
        let wanted = upstream.assignment.subset;
        let first = turn == Turn::First;
        if let Some(budget) = service.guards.budget.as_ref().filter(|_| first) {
            budget.count_request(now);
        }
        let located = match turn {
            Turn::First | Turn::Beside => decide::locate(service, wanted, now, &mut ()),
            Turn::Again => decide::locate_retry(service, wanted, now, &mut ()),
        };
        let location = located.map_err(|unavailable| {
            side.metrics.fallbacks[wanted][unavailable.reason as usize].inc();
            ctx.retry_after = unavailable.retry_after;
            ctx.error = Some(unavailable.reason.as_str());
            Error::explain(ErrorType::HTTPStatus(503), unavailable.reason.as_str())
        })?;
        if let Some(reason) = location.fallback.filter(|_| first) {
            side.metrics.fallbacks[wanted][reason as usize].inc();
        }
        let traffic = &generation.core.traffic[upstream.service];
        let bucket = upstream.assignment.bucket;
        let picked = with_rng(|rng| {
            let view = ctx.view(session.req_header(), "");
            let attempt = Attempt { request: view, bucket, tried: &upstream.tried, now };
            guarded::pick(side, &location, traffic, attempt, rng)
        });
        let Some(instance) = picked else { return Error::e_explain(ErrorType::HTTPStatus(503), "no instance") };
        side.metrics.instances[instance.index as usize].selections.inc();
        if !first {
            side.metrics.retries.inc();
        }
        let (subset, fallback, permit) = (location.subset, location.fallback, location.permit);
        if location.panic {
            side.metrics.guard.count_panic(subset);
        }
        let (index, flight) = (instance.index, InFlight::start(&instance.vitals));
        if let Some(upstream) = &mut ctx.upstream {
            upstream.subset = subset;
            upstream.fallback = upstream.fallback.or(fallback);
            upstream.tried.push(index);
            upstream.lease = Lease::default();
            upstream.flight = Some(flight);
            upstream.permit = permit;
            upstream.proof = None;
            upstream.failed = false;
            upstream.attempt_start = now;
        }
        trace::attempt_began(ctx, &generation);
        Ok(index)
    }
}

impl Edge {
    /// Picks an instance. Returns its position in the service.
    ///
    /// # Errors
    /// If no pool can serve.
    pub(super) fn choose(&self, session: &Session, ctx: &mut Ctx, turn: Turn) -> Result<u32> {
        let began = if turn == Turn::First { ctx.mark } else { Instant::now() };
        let index = self.pick(session, ctx, turn, began);
        ctx.mark = Instant::now();
        let took = ctx.mark.saturating_duration_since(began);
        ctx.decision += took;
        if let Some(side) = ctx.service_side() {
            guarded::note(side, ctx.mark, took);
        }
        index
    }

    /// Waits for leave to use a connection to the instance that was picked.
    ///
    /// # Errors
    /// If its pool is full and stays so.
    pub(super) async fn enter(&self, session: &Session, ctx: &mut Ctx, index: u32) -> Result<()> {
        let side = Arc::clone(ctx.service_side().ok_or_else(no_service)?);
        let acquired = side.pools[index as usize].acquire(ctx.time_left(ctx.mark)).await;
        if acquired.as_ref().map_or(true, |acquired| acquired.waited) {
            ctx.mark = Instant::now();
        }
        let now = ctx.mark;
        let upstream = ctx.upstream.as_mut().ok_or_else(no_service)?;
        match acquired {
            Ok(acquired) => {
                if acquired.waited {
                    upstream.attempt_start = now;
                }
                upstream.lease.permit = acquired.permit;
                Ok(())
            }
            Err(Overflow) => {
                upstream.flight = None;
                let mut error = Error::explain(ErrorType::Custom(failure::OVERFLOW), "the instance's pool is full");
                trace::attempt_failed(ctx, &error, now);
                error.set_retry(failure::retries(session, ctx, Failure::Overflow));
                Err(error)
            }
        }
    }

    /// How pingora connects to the instance.
    ///
    /// # Errors
    /// If no service was chosen, which the order of the steps rules out.
    pub(super) fn peer(&self, ctx: &Ctx, index: u32) -> Result<Box<HttpPeer>> {
        let side = ctx.service_side().ok_or_else(no_service)?;
        let upstream = ctx.upstream.as_ref().ok_or_else(no_service)?;
        let timeouts = ctx.timeouts().ok_or_else(no_service)?;
        let template = &side.peers[index as usize];
        let key = side.pools[index as usize].key(template.group_key, ctx.mark);
        Ok(peer::connect_to(template, key, timeouts, ctx.time_left(ctx.mark), upstream))
    }

    /// Notes which connection an attempt got. The answer is whose identity is still to be confirmed.
    pub(super) fn connected(&self, ctx: &mut Ctx, descriptor: i32, reused: bool) -> Option<Arc<InstancePool>> {
        let index = ctx.upstream.as_ref().and_then(|upstream| upstream.tried.last());
        let pool = index.zip(ctx.service_side()).and_then(|(&index, side)| side.pools.get(index as usize));
        let used = pool.and_then(|pool| pool.using(descriptor, reused));
        let unsure = pool.filter(|pool| pool.identity().is_some()).cloned();
        if let Some(upstream) = &mut ctx.upstream {
            upstream.lease.used = used;
            upstream.status = None;
        }
        unsure
    }

    /// That a connection of pingora's is to who the instance has to be; if not, it is closed.
    ///
    /// # Errors
    /// If it is not.
    pub(super) async fn confirm(
        &self,
        pool: &InstancePool,
        descriptor: i32,
        digest: Option<&Digest>,
        peer: &HttpPeer,
    ) -> Result<()> {
        let Some(identity) = pool.identity() else { return Ok(()) };
        let confirmed = identity.confirm(digest, &self.connector, peer).await;
        if confirmed.is_err() {
            pool.close(descriptor);
        }
        confirmed.map_err(Error::into_up)
    }
}

/// Which the order of the steps rules out.
pub(super) fn no_service() -> Box<Error> {
    Error::explain(ErrorType::InternalError, "no service was chosen")
}

/// A request that no pool can serve is answered at once, which keeps the client's connection.
fn unavailable(ctx: &mut Ctx, generation: &Generation) -> Option<Reply> {
    struct Peek;
    impl Recorder for Peek {
        const DRY_RUN: bool = true;
    }
    let upstream = ctx.upstream.as_ref()?;
    let wanted = upstream.assignment.subset;
    let service = &generation.core.services[upstream.service];
    let unavailable = decide::locate(service, wanted, Instant::now(), &mut Peek).err()?;
    generation.services[upstream.service].metrics.fallbacks[wanted][unavailable.reason as usize].inc();
    ctx.error = Some(unavailable.reason.as_str());
    let reply = Reply::problem(StatusCode::SERVICE_UNAVAILABLE, failure::UNAVAILABLE);
    Some(reply.with_retry_after(unavailable.retry_after))
}

/// What a route answers by itself; its own edits have the last word.
fn own_answer(mut reply: Reply, route: &Route) -> Reply {
    let mut edited: http::HeaderMap = reply.headers.drain(..).collect();
    route.response_headers.apply(&mut edited);
    let mut last = None;
    for (name, value) in edited {
        last = name.or(last);
        if let Some(name) = &last {
            reply.headers.push((name.clone(), value));
        }
    }
    reply
}

fn asked_port(head: &RequestHeader) -> Option<u16> {
    let authority: http::uri::Authority = match head.uri.authority() {
        Some(authority) => authority.clone(),
        None => head.headers.get(http::header::HOST)?.to_str().ok()?.parse().ok()?,
    };
    authority.port_u16()
}
