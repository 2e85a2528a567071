//! A client's stream within its limits: frames of HTTP/2 are measured as they come in, and how fast what goes out is taken.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use pingora::protocols::{Peek, Stream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;
use tokio::time::Sleep;

use super::forward::forward_stream;
use super::frames::{Endless, Frames};
use super::limits::{Limit, Limits, Refusals};
use super::pace::Pace;
use super::permits::Permit;

/// A client's stream within its limits.
pub(super) struct Inbound {
    stream: Stream,
    limits: Arc<Limits>,
    refusals: Arc<Refusals>,
    state: State,
    /// When what is owed must have come.
    deadline: Option<Pin<Box<Sleep>>>,
    pace: Pace,
    /// Told when an HTTP/2 connection has had its requests.
    full: Option<watch::Sender<bool>>,
    /// What was read of a preface of HTTP/2.
    unread: BytesMut,
    _permits: [Option<Permit>; 2],
}

/// What comes in.
enum State {
    /// HTTP/1, which is read elsewhere.
    Http1,
    /// Frames of HTTP/2.
    Frames(Box<Frames>),
    /// Nothing that counts: the HTTP/2 codec is made to close the connection.
    Flooded(Endless),
    /// Nothing any more.
    Over,
}

impl Inbound {
    /// A new connection of HTTP/1.
    pub(super) fn new(
        stream: Stream,
        limits: Arc<Limits>,
        refusals: Arc<Refusals>,
        permits: [Option<Permit>; 2],
    ) -> Box<Self> {
        let (state, pace, unread) = (State::Http1, Pace::default(), BytesMut::new());
        Box::new(Self { stream, limits, refusals, state, deadline: None, pace, full: None, unread, _permits: permits })
    }

    /// Puts back what was read of a preface of HTTP/2.
    pub(super) fn unread(&mut self, bytes: BytesMut) {
        self.unread = bytes;
    }

    /// What comes next are frames. `full` is told when they had so many requests as may be.
    pub(super) fn expect_frames(&mut self, full: Option<watch::Sender<bool>>) {
        self.state = State::Frames(Box::default());
        self.full = full;
    }

    /// Reads and measures.
    fn read(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = self.poll_source(cx, buf);
        let State::Frames(frames) = &mut self.state else { return read };
        match read {
            Poll::Ready(Ok(())) => {
                if let Some(flood) = frames.read(&buf.filled()[before..], &self.limits) {
                    buf.set_filled(before + flood.after);
                    self.refusals.count(flood.limit);
                    self.state = State::Flooded(Endless::after(flood));
                    return Poll::Ready(Ok(()));
                }
                if self.limits.requests.is_some_and(|most| frames.requests >= most)
                    && let Some(full) = self.full.take()
                {
                    full.send_replace(true);
                }
                if frames.owes() { self.owed() } else { self.deadline = None }
            }
            Poll::Pending if frames.owes() => {
                self.owed();
                ready!(self.poll_deadline(cx));
                self.refusals.count(Limit::HeadTimeout);
                self.state = State::Over;
                return Poll::Ready(Ok(()));
            }
            _ => {}
        }
        read
    }

    fn poll_source(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.unread.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, buf);
        }
        let first = self.unread.split_to(self.unread.len().min(buf.remaining()));
        buf.put_slice(&first);
        Poll::Ready(Ok(()))
    }

    /// Starts the clock for what is owed, unless it runs.
    fn owed(&mut self) {
        let limit = self.limits.head_timeout;
        self.deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
    }

    fn poll_deadline(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.deadline.as_mut().map_or(Poll::Pending, |timer| timer.as_mut().poll(cx))
    }

    /// Notes how a write went.
    fn sent(&mut self, sent: Poll<io::Result<usize>>, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let Some(rate) = self.limits.min_send_rate else { return sent };
        match sent {
            Poll::Ready(Ok(bytes)) => self.pace.took(bytes, rate),
            Poll::Ready(Err(_)) => {}
            Poll::Pending => {
                ready!(self.pace.waits(rate, cx));
                self.refusals.count(Limit::MinSendRate);
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
        }
        sent
    }
}

impl AsyncRead for Inbound {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut self.state {
            State::Http1 => Pin::new(&mut self.stream).poll_read(cx, buf),
            State::Frames(_) => self.read(cx, buf),
            State::Flooded(endless) => {
                while let Some(frame) = (buf.remaining() >= super::frames::HEAD).then(|| endless.next()).flatten() {
                    buf.put_slice(&frame);
                }
                Poll::Ready(Ok(()))
            }
            State::Over => Poll::Ready(Ok(())),
        }
    }
}

impl AsyncWrite for Inbound {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let sent = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.sent(sent, cx)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.sent(flushed.map_ok(|()| 0), cx).map_ok(|_| ())
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let closed = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.sent(closed.map_ok(|()| 0), cx).map_ok(|_| ())
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let sent = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.sent(sent, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

impl fmt::Debug for Inbound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.stream.fmt(f)
    }
}

forward_stream!(Inbound);

/// Not peeked into: pingora would wait there for as long as the client likes.
impl Peek for Inbound {}
