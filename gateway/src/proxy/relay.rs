//! The short way of a request without a body from an HTTP/1.1 client to an HTTP/1.1 upstream: head there, response
//! back, written on pingora's sessions. Such requests are most of all traffic, and pingora's own proxy, which is built
//! for bodies that flow both ways at once, spends a third of its time on channels that they do not need. The decision,
//! the verdicts and the edits are the same functions on both ways.

use std::time::Instant;

use http::{HeaderName, HeaderValue, Method, StatusCode, Version, header};
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::protocols::http::ServerSession;
use pingora::protocols::http::v1::client::HttpSession as Upstream;
use pingora::protocols::http::v1::server::HttpSession as Downstream;
use pingora::proxy::Session;
use pingora::{Error, ErrorType, Result};

use super::ctx::Ctx;
use super::peer::{self, Protocol};
use super::steps::{Turn, no_service};
use super::{Edge, failure};
use crate::pool::shelf::Kind;

/// Fields of a request that mean more to a proxy than this way knows of. `Connection` itself may say the usual.
static UNUSUAL: [HeaderName; 8] = [
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::TE,
    header::TRAILER,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

/// A connection to an instance, with a request on it.
pub(super) struct Connection {
    /// pingora's side of it; in a box, for it is handed around.
    pub(super) upstream: Box<Upstream>,
    /// Whether it carried a request before.
    pub(super) reused: bool,
    kind: Kind,
}

/// Whether a request may go this way.
pub(super) fn fits(session: &mut Session, ctx: &Ctx) -> bool {
    let protocol = ctx.service_side().and_then(|side| side.pools.first()).map(|pool| pool.policy().protocol);
    let upgrade = ctx.upstream.as_ref().is_none_or(|upstream| upstream.upgrade);
    protocol == Some(Protocol::Http1)
        && !upgrade
        && matches!(session.as_downstream(), ServerSession::H1(_))
        && session.is_body_empty()
        && is_plain(session.req_header())
}

/// Whether a head says nothing that only pingora's own proxy deals with.
fn is_plain(head: &RequestHeader) -> bool {
    head.version == Version::HTTP_11
        && head.uri.authority().is_none()
        && head.raw_path_is_utf8()
        && head.headers.get(header::CONNECTION).is_none_or(is_usual)
        && !head.headers.keys().any(|name| UNUSUAL.contains(name))
}

/// Whether `Connection` names no field.
fn is_usual(connection: &HeaderValue) -> bool {
    let value = connection.as_bytes();
    value.eq_ignore_ascii_case(b"keep-alive") || value.eq_ignore_ascii_case(b"close")
}

impl Edge {
    /// Sends the request upstream, as often as retries allow, and the response back.
    ///
    /// # Errors
    /// If the client is gone, or its response broke off. All else is answered.
    pub(super) async fn relay(&self, session: &mut Session, ctx: &mut Ctx) -> Result<()> {
        let error = loop {
            match self.attempt(session, ctx).await {
                Ok((connection, head)) => return self.pass_on(session, ctx, connection, head).await,
                Err(error) if error.retry() => self.back_off(ctx).await,
                Err(error) => break error,
            }
        };
        if *error.esource() == pingora::ErrorSource::Downstream {
            return Err(error);
        }
        ctx.error = ctx.error.or(Some(failure::name(&error)));
        ctx.replied = Some(failure::answer(session, ctx, &error, self.forwarding.request_id.as_ref()).await);
        Ok(())
    }

    /// One attempt, up to the head of a response that is good enough.
    async fn attempt(&self, session: &mut Session, ctx: &mut Ctx) -> Result<(Connection, Box<ResponseHeader>)> {
        let index = self.choose(session, ctx, Turn::next(ctx))?;
        let mut connection = self.ask(session, ctx, index).await?;
        if let Some(after) = failure::hedges_after(session, ctx) {
            // Rare, and large: without the box every request would carry it.
            return Box::pin(self.hedged(session, ctx, connection, after)).await;
        }
        match self.answer(session, ctx, &mut connection).await {
            Ok(head) => Ok((connection, head)),
            Err(error) => Err(self.broke(session, ctx, error, connection.reused)),
        }
    }

    /// Connects to the instance that was picked and sends it the request's head.
    pub(super) async fn ask(&self, session: &mut Session, ctx: &mut Ctx, index: u32) -> Result<Connection> {
        self.enter(session, ctx, index).await?;
        let mut connection = match self.reach(ctx, index).await {
            Ok(connection) => connection,
            Err(error) => return Err(self.not_connected(session, ctx, error)),
        };
        match self.send(session, ctx, &mut connection.upstream).await {
            Ok(()) => Ok(connection),
            Err(error) => Err(self.broke(session, ctx, error, connection.reused)),
        }
    }

    /// A connection to the instance, an idle one if there is one.
    async fn reach(&self, ctx: &mut Ctx, index: u32) -> Result<Connection> {
        let side = ctx.service_side().cloned().ok_or_else(no_service)?;
        let (pool, template) = (&side.pools[index as usize], &side.peers[index as usize]);
        let (timeouts, left) = (ctx.timeouts().ok_or_else(no_service)?, ctx.time_left(ctx.mark));
        let chosen = ctx.upstream.as_mut().ok_or_else(no_service)?;
        let kind = pool.kind(template.group_key, ctx.mark);
        let (stream, used, reused) = match pool.take(template.group_key, ctx.mark) {
            Some((stream, used)) => (stream, Some(used), true),
            None => {
                let peer = peer::connect_to(template, template.group_key, timeouts, left, chosen);
                let stream = pool.connect(&self.connector, &peer).await?;
                let used = pool.using(stream.id(), false);
                (stream, used, false)
            }
        };
        chosen.lease.used = used;
        chosen.status = None;
        if let Some(permit) = &mut chosen.permit {
            permit.connected();
        }
        let mut upstream = Box::new(Upstream::new(stream));
        upstream.read_timeout = Some(peer::bounded(peer::patience(timeouts, chosen), left));
        upstream.write_timeout = Some(timeouts.idle);
        Ok(Connection { upstream, kind, reused })
    }

    /// The request's head to the instance.
    async fn send(&self, session: &Session, ctx: &Ctx, upstream: &mut Upstream) -> Result<()> {
        let mut head = session.req_header().as_owned_parts();
        head.version = Version::HTTP_11;
        head.headers.remove(header::CONNECTION);
        self.edit_request(session, &mut head, ctx)?;
        let sent = upstream.write_request_header(Box::new(head.into())).await;
        sent.map_err(Error::into_up)?;
        Ok(())
    }

    /// Waits for the head of the response and judges it.
    pub(super) async fn answer(
        &self,
        session: &mut Session,
        ctx: &mut Ctx,
        connection: &mut Connection,
    ) -> Result<Box<ResponseHeader>> {
        loop {
            let downstream = client(session)?;
            tokio::select! {
                biased;
                read = connection.upstream.read_response() => read.map_err(Error::into_up)?,
                left = downstream.read_body_or_idle(true) => return Err(gone(left)),
            };
            if let Some(head) = self.final_head(session, ctx, connection).await? {
                return Ok(head);
            }
        }
    }

    /// The head that was just read, judged; `None` if it only says that one is to come, which the client is told.
    pub(super) async fn final_head(
        &self,
        session: &mut Session,
        ctx: &mut Ctx,
        connection: &Connection,
    ) -> Result<Option<Box<ResponseHeader>>> {
        let head = connection.upstream.resp_header().ok_or_else(|| headless().into_up())?;
        if head.status == StatusCode::SWITCHING_PROTOCOLS {
            return Err(headless().into_up());
        }
        if head.status.is_informational() {
            let head = Box::new(head.clone());
            client(session)?.write_response_header(head).await.map_err(Error::into_down)?;
            return Ok(None);
        }
        let mut head = copy(head)?;
        self.judge_response(session, ctx, &mut head)?;
        Ok(Some(head))
    }

    /// The response to the client, as it comes.
    async fn pass_on(
        &self,
        session: &mut Session,
        ctx: &mut Ctx,
        mut connection: Connection,
        head: Box<ResponseHeader>,
    ) -> Result<()> {
        match self.pass_on_unjudged(session, ctx, &mut connection.upstream, head).await {
            Ok(()) => {
                keep(ctx, connection).await;
                Ok(())
            }
            Err(error) => Err(self.broke(session, ctx, error, connection.reused)),
        }
    }

    async fn pass_on_unjudged(
        &self,
        session: &mut Session,
        ctx: &mut Ctx,
        upstream: &mut Upstream,
        mut head: Box<ResponseHeader>,
    ) -> Result<()> {
        frame(&session.req_header().method, &mut head)?;
        self.edit_response(session, &mut head, ctx)?;
        let downstream = client(session)?;
        downstream.write_response_header(head).await.map_err(Error::into_down)?;
        if let Some(timeouts) = ctx.timeouts() {
            upstream.read_timeout = Some(peer::bounded(timeouts.idle, ctx.time_left(ctx.mark)));
        }
        loop {
            let chunk = tokio::select! {
                biased;
                chunk = upstream.read_body_ref() => chunk.map_err(Error::into_up)?,
                left = downstream.read_body_or_idle(true) => return Err(gone(left)),
            };
            let Some(chunk) = chunk else { break };
            downstream.write_body(chunk).await.map_err(Error::into_down)?;
            self.check_deadline(ctx)?;
        }
        downstream.finish_body().await.map_err(Error::into_down)?;
        Ok(())
    }
}

/// The client's side of a session that fits.
pub(super) fn client(session: &mut Session) -> Result<&mut Downstream> {
    match session.as_downstream_mut() {
        ServerSession::H1(session) => Ok(session),
        _ => Error::e_explain(ErrorType::InternalError, "only HTTP/1 goes this way"),
    }
}

/// Keeps the connection for the next request, if both sides would.
async fn keep(ctx: &mut Ctx, mut connection: Connection) {
    connection.upstream.respect_keepalive();
    let Some(stream) = connection.upstream.reuse().await else { return };
    let Some((side, upstream)) = ctx.service_side().zip(ctx.upstream.as_ref()) else { return };
    if let (Some(&index), Some(used)) = (upstream.tried.last(), &upstream.lease.used) {
        side.pools[index as usize].keep(stream, used, connection.kind, Instant::now());
    }
}

/// A copy of a head without the spelling of its names, which is half the work and which edits throw away.
fn copy(head: &ResponseHeader) -> Result<Box<ResponseHeader>> {
    let mut copy = Box::new(ResponseHeader::from(head.as_owned_parts()));
    let reason = head.get_reason_phrase();
    if reason != head.status.canonical_reason() {
        copy.set_reason_phrase(reason)?;
    }
    Ok(copy)
}

/// A response that would end with its connection is sent in chunks, so that the client's connection can stay (RFC 9112
/// section 6.3).
fn frame(method: &Method, head: &mut ResponseHeader) -> Result<()> {
    let bodyless = *method == Method::HEAD || matches!(head.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    let framed =
        head.headers.contains_key(header::CONTENT_LENGTH) || head.headers.contains_key(header::TRANSFER_ENCODING);
    if !bodyless && !framed {
        head.set_version(Version::HTTP_11);
        head.insert_header(header::TRANSFER_ENCODING, "chunked")?;
    }
    Ok(())
}

/// The client left, or sent what does not belong to its request.
pub(super) fn gone<T>(read: Result<T>) -> Box<Error> {
    let error = read.err().unwrap_or_else(|| Error::explain(ErrorType::ConnectionClosed, "the client sends no more"));
    error.into_down()
}

fn headless() -> Box<Error> {
    Error::explain(ErrorType::InvalidHTTPHeader, "no final response came")
}
