//! What may refuse a request before anything goes upstream: an overloaded gateway, rate limits, and the concurrency
//! limit of a service. None of it counts against an instance.

use std::pin::Pin;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use pingora::proxy::Session;
use serin_core::limit::{Fields, Judgement, Limiter, Subject, fields, judge, seconds};
use smallvec::SmallVec;

use super::Edge;
use super::ctx::Ctx;
use super::reply::Reply;
use crate::control::generation::Generation;
use crate::limits::RateLimit;
use crate::limits::bank::{Account, Holds, Standing};
use crate::overload::Resource;

static RETRY_AFTER: HeaderName = http::header::RETRY_AFTER;
static RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
static RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// After how many seconds who was refused for want of capacity may come again.
const SOON: u64 = 1;

/// What clients are told when the gateway or a service has no capacity left.
const OVERLOADED: &str = "Too many requests are being served at the moment.";

/// What a request has of limits that a fleet shares, when that ends.
pub(super) type Leases = Pin<Box<dyn Future<Output = Holds> + Send>>;

impl Edge {
    /// Refuses a request if the gateway as a whole is overloaded.
    pub(super) fn shed(&self, session: &mut Session, ctx: &mut Ctx) -> Option<Reply> {
        let resource = self.overload.sheds(self.metrics.in_flight.get())?;
        ctx.error = Some("overload");
        if resource != Resource::InFlight {
            // A connection costs what is short.
            session.set_keepalive(None);
        }
        Some(busy())
    }

    /// What a request has of limits that a fleet shares.
    ///
    /// # Errors
    /// If it has to wait for it: hardly ever, as most is leased before it is needed.
    pub(super) fn lease(&self, session: &Session, ctx: &Ctx) -> Result<Holds, Leases> {
        let known = || Ok(Holds::new());
        let Some((generation, upstream)) = ctx.generation.as_ref().zip(ctx.upstream.as_ref()) else { return known() };
        let side = generation.services.get(upstream.service);
        let Some((side, route)) = side.zip(ctx.route.and_then(|at| generation.routes.get(at))) else { return known() };
        let limits = || side.rate_limits.iter().chain(&route.rate_limits);
        if limits().all(|limit| limit.account.is_none()) {
            return known();
        }
        let Some(subject) = subject(session, ctx, generation) else { return known() };
        let (mut holds, mut claims) = (Holds::new(), SmallVec::new());
        for (at, limit) in limits().enumerate() {
            let prepare = |account: &Account| account.prepare(at, &limit.limiter, &subject, ctx.start);
            holds.push(match limit.account.as_ref().map(prepare) {
                None => None,
                Some(Standing::Known(hold)) => hold,
                Some(Standing::Later(claim)) => {
                    claims.push(claim);
                    None
                }
            });
        }
        if claims.is_empty() { Ok(holds) } else { Err(Box::pin(Account::wait(claims, holds))) }
    }

    /// Refuses a request that is over a rate limit or over the concurrency limit of its service.
    pub(super) fn limit(
        &self,
        session: &Session,
        ctx: &mut Ctx,
        generation: &Generation,
        holds: &Holds,
    ) -> Option<Reply> {
        let side = generation.services.get(ctx.upstream.as_ref()?.service)?;
        let route = generation.routes.get(ctx.route?)?;
        let observe = generation.traffic.switches.limits;
        if !side.rate_limits.is_empty() || !route.rate_limits.is_empty() {
            let limits: SmallVec<[&RateLimit; 4]> = side.rate_limits.iter().chain(&route.rate_limits).collect();
            if let Some(reply) = judge_rates(&limits, holds, session, ctx, generation, observe) {
                return Some(reply);
            }
        }
        let concurrency = side.concurrency.as_ref()?;
        ctx.permit = concurrency.limit.admit(observe);
        if ctx.permit.is_some() {
            return None;
        }
        concurrency.refused.inc();
        ctx.error = Some("concurrency_limit");
        Some(busy())
    }
}

fn judge_rates(
    limits: &[&RateLimit],
    holds: &Holds,
    session: &Session,
    ctx: &mut Ctx,
    generation: &Generation,
    observe: bool,
) -> Option<Reply> {
    let limiters: SmallVec<[&Limiter; 4]> = limits.iter().map(|limit| &limit.limiter).collect();
    // The mark is later than the start where the request has waited for a lease.
    let judgement = judge(&limiters, holds, &subject(session, ctx, generation)?, ctx.start.max(ctx.mark), observe);
    count(limits, &judgement, observe);
    let told = fields(&limiters, &judgement, observe);
    let Some(by) = judgement.refused_by else {
        ctx.rate_limit = told;
        return None;
    };
    ctx.error = Some("rate_limit");
    ctx.limited_by = Some(std::sync::Arc::clone(&limiters[by].rule.name));
    let mut reply = Reply::problem(StatusCode::TOO_MANY_REQUESTS, "Too many requests: a rate limit is used up.");
    reply.headers.push((RETRY_AFTER.clone(), seconds(judgement.standings[by].wait).into()));
    if let Some(Fields { policy, state }) = told {
        reply.headers.extend([(RATE_LIMIT_POLICY.clone(), policy), (RATE_LIMIT.clone(), state)]);
    }
    Some(reply)
}

fn subject<'a>(session: &'a Session, ctx: &'a Ctx, generation: &'a Generation) -> Option<Subject<'a>> {
    let upstream = ctx.upstream.as_ref()?;
    let service = &generation.core.services[upstream.service];
    Some(Subject {
        request: ctx.view(session.req_header(), ""),
        route: &generation.core.routes.routes()[ctx.route?].name,
        service: &service.name,
        subset: &service.subsets[upstream.assignment.subset].name,
    })
}

/// Counts what the rules decided; of a request that is refused only what refused it, for nothing else was taken.
fn count(limits: &[&RateLimit], judgement: &Judgement<'_>, observe: bool) {
    match judgement.refused_by {
        Some(by) => limits[by].count(&judgement.standings[by], observe),
        None => {
            for (limit, standing) in limits.iter().zip(&judgement.standings) {
                limit.count(standing, observe);
            }
        }
    }
}

/// Tells the client of an admitted request what it has left. What the upstream says of limits of its own is replaced.
pub(super) fn tell(headers: &mut HeaderMap, told: &Fields) {
    headers.insert(&RATE_LIMIT_POLICY, told.policy.clone());
    headers.insert(&RATE_LIMIT, told.state.clone());
}

fn busy() -> Reply {
    let mut reply = Reply::problem(StatusCode::SERVICE_UNAVAILABLE, OVERLOADED);
    reply.headers.push((RETRY_AFTER.clone(), HeaderValue::from(SOON)));
    reply
}
