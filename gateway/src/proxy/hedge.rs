//! Hedging: an idempotent request whose response does not begin in time is sent to a second instance as well, and the
//! first good response is the client's ("hedged requests" of Dean and Barroso, The Tail at Scale, 2013). The second
//! attempt is one of the request's attempts and taken off the retry budget. The attempt that loses is broken off, which
//! says nothing of its instance but that it took so long.

use std::pin::pin;
use std::time::{Duration, Instant};

use pingora::http::ResponseHeader;
use pingora::proxy::Session;
use pingora::{Error, ErrorType, Result};

use super::ctx::{Aside, Ctx, Upstream};
use super::relay::{Connection, client, gone};
use super::steps::Turn;
use super::{Edge, failure, trace};

/// Two attempts at one request. The one that is under way is the context's; the other is set aside.
struct Race {
    current: Connection,
    other: Connection,
    aside: Aside,
    /// Whether the one under way is the second.
    second: bool,
}

/// Which of the two has something to say.
enum Spoke {
    Current,
    Other,
}

impl Edge {
    /// Waits for the first attempt alone for so long, and then for either of two.
    pub(super) async fn hedged(
        &self,
        session: &mut Session,
        ctx: &mut Ctx,
        mut first: Connection,
        after: Duration,
    ) -> Result<(Connection, Box<ResponseHeader>)> {
        let mut patience = pin!(tokio::time::sleep(after));
        loop {
            let downstream = client(session)?;
            let read = tokio::select! {
                biased;
                read = first.upstream.read_response() => read.map(drop).map_err(Error::into_up),
                left = downstream.read_body_or_idle(true) => Err(gone(left)),
                () = patience.as_mut() => break,
            };
            let head = match read {
                Ok(()) => self.final_head(session, ctx, &first).await,
                Err(error) => Err(error),
            };
            match head {
                Ok(Some(head)) => return Ok((first, head)),
                Ok(None) => {}
                Err(error) => return Err(self.broke(session, ctx, error, first.reused)),
            }
        }
        match self.second(session, ctx, first).await {
            Ok(race) => self.run(session, ctx, race).await,
            Err(first) => self.alone(session, ctx, first).await,
        }
    }

    /// Makes the second attempt. Where that cannot be, the first goes on alone.
    async fn second(
        &self,
        session: &mut Session,
        ctx: &mut Ctx,
        first: Connection,
    ) -> std::result::Result<Race, Connection> {
        if !failure::within_budget(ctx, Instant::now()) {
            return Err(first);
        }
        let Some(upstream) = &mut ctx.upstream else { return Err(first) };
        let aside = upstream.set_aside();
        match self.beside(session, ctx).await {
            Ok(current) => Ok(Race { current, other: first, aside, second: true }),
            Err(_) => {
                // Judged already; the first is not touched by it.
                resume(ctx, aside);
                ctx.error = None;
                Err(first)
            }
        }
    }

    /// A second attempt at another instance.
    async fn beside(&self, session: &mut Session, ctx: &mut Ctx) -> Result<Connection> {
        let index = self.choose(session, ctx, Turn::Beside)?;
        let before = |upstream: &Upstream| upstream.tried.iter().rev().skip(1).any(|tried| *tried == index);
        if ctx.upstream.as_ref().is_some_and(before) {
            trace::attempt_unmade(ctx);
            return Error::e_explain(ErrorType::InternalError, "there is no other instance");
        }
        self.ask(session, ctx, index).await
    }

    async fn run(
        &self,
        session: &mut Session,
        ctx: &mut Ctx,
        mut race: Race,
    ) -> Result<(Connection, Box<ResponseHeader>)> {
        loop {
            let downstream = client(session)?;
            let (spoke, read) = tokio::select! {
                biased;
                read = race.other.upstream.read_response() => (Spoke::Other, read),
                read = race.current.upstream.read_response() => (Spoke::Current, read),
                left = downstream.read_body_or_idle(true) => {
                    let error = gone(left);
                    self.end(ctx, &race.aside);
                    return Err(error);
                }
            };
            if matches!(spoke, Spoke::Other) {
                race = swap(ctx, race);
            }
            let head = match read {
                Ok(_) => self.final_head(session, ctx, &race.current).await,
                Err(error) => Err(error.into_up()),
            };
            match head {
                Ok(Some(head)) => return Ok(self.won(ctx, race, head)),
                Ok(None) => {}
                Err(error) => {
                    // This one is out; the other is not.
                    self.note_break(ctx, &error, race.current.reused);
                    resume(ctx, race.aside);
                    return self.alone(session, ctx, race.other).await;
                }
            }
        }
    }

    /// Waits for the one attempt that is left.
    async fn alone(
        &self,
        session: &mut Session,
        ctx: &mut Ctx,
        mut connection: Connection,
    ) -> Result<(Connection, Box<ResponseHeader>)> {
        match self.answer(session, ctx, &mut connection).await {
            Ok(head) => Ok((connection, head)),
            Err(error) => Err(self.broke(session, ctx, error, connection.reused)),
        }
    }

    /// The attempt under way won: the other one is broken off.
    fn won(&self, ctx: &mut Ctx, race: Race, head: Box<ResponseHeader>) -> (Connection, Box<ResponseHeader>) {
        if let Some(side) = ctx.service_side() {
            let guard = &side.metrics.guard;
            if race.second { guard.hedge_won.inc() } else { guard.hedge_lost.inc() }
        }
        self.abandon_aside(ctx, &race.aside, Instant::now());
        (race.current, head)
    }

    /// Both are broken off: nobody waits any more.
    fn end(&self, ctx: &mut Ctx, aside: &Aside) {
        let now = Instant::now();
        self.abandon_aside(ctx, aside, now);
        self.abandon_attempt(ctx, now);
    }
}

/// Changes the attempt that is under way for the one that was set aside.
fn swap(ctx: &mut Ctx, race: Race) -> Race {
    let Some(upstream) = &mut ctx.upstream else { return race };
    let aside = upstream.set_aside();
    upstream.resume(race.aside);
    Race { current: race.other, other: race.current, aside, second: !race.second }
}

fn resume(ctx: &mut Ctx, aside: Aside) {
    if let Some(upstream) = &mut ctx.upstream {
        upstream.resume(aside);
    }
}
