//! A client's stream as pingora gets it: it ends where the request ends. What a client sends after that is kept for the
//! next head, which so is checked like the first; pingora would take it for garbage and drop the request that is under
//! way. A chunked body that breaks the form of chunks breaks off where it does.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll, ready};

use async_trait::async_trait;
use bytes::BytesMut;
use http::HeaderValue;
use pingora::protocols::http::ServerSession;
use pingora::protocols::{Peek, Stream};
use serin_core::strict::{Chunks, Refusal};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::forward::forward_stream;
use super::inbound::Inbound;

/// Most that is kept of what a client sends ahead. The rest waits in the kernel.
const AHEAD: usize = 4 << 10;

/// The length of body that a request for another protocol has towards pingora; see [`Client::expect_switch`].
pub const PLACEHOLDER: HeaderValue = HeaderValue::from_static("1");

/// What reading fails with where a body breaks the form of chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(transparent)]
pub struct BadBody(#[from] Refusal);

impl BadBody {
    /// Finds it among the causes of an error.
    #[must_use]
    pub fn of(error: &pingora::Error) -> Option<Refusal> {
        let mut cause = error.cause.as_deref().map(|cause| cause as &(dyn std::error::Error + 'static));
        while let Some(error) = cause {
            let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
            if let Some(Self(refusal)) = inner.and_then(|inner| inner.downcast_ref()) {
                return Some(*refusal);
            }
            cause = error.source();
        }
        None
    }
}

/// What is still to come of a request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Rest {
    /// So many bytes.
    Bytes(u64),
    /// The rest of a body in chunks.
    Chunks(Chunks),
    /// A byte that never was: see [`Client::expect_switch`].
    Declined,
    /// Whatever comes, in another protocol.
    Tunnel,
}

/// The stream of a client.
pub struct Client {
    /// The stream itself.
    pub(super) stream: Box<Inbound>,
    /// What was read of the next request already.
    pub(super) ahead: BytesMut,
    /// What is to come of the request that is under way.
    pub(super) rest: Rest,
    /// Whether the request asks for another protocol and has no answer yet.
    asks: AtomicBool,
}

impl Client {
    /// A client that has sent nothing yet.
    pub(super) fn new(stream: Box<Inbound>) -> Self {
        Self { stream, ahead: BytesMut::new(), rest: Rest::Bytes(0), asks: AtomicBool::new(false) }
    }

    /// The client in a stream that pingora gives back.
    pub(super) fn back(stream: Stream) -> Option<Box<Self>> {
        stream.into_any().downcast().ok()
    }

    /// The request asks for another protocol: what comes after the answer is a tunnel, or the next request, as the answer
    /// says. pingora has to be told that a body of one byte is to come ([`PLACEHOLDER`]), or else an answer that is quicker
    /// than the end of the request on pingora's inner channel ends the tunnel. It gets that byte if there is no tunnel.
    pub fn expect_switch(session: &ServerSession) {
        if let Some(client) = session.stream().and_then(|stream| stream.as_any().downcast_ref::<Self>()) {
            client.asks.store(true, Relaxed);
        }
    }

    /// Takes note of the head of a response to such a request, which pingora writes at once.
    fn answered(&mut self, head: &[u8]) {
        self.rest = match head.get(9..12) {
            Some(b"101") => Rest::Tunnel,
            Some([b'1', ..]) | None => return,
            Some(_) => Rest::Declined,
        };
        *self.asks.get_mut() = false;
    }

    /// Reads on while no more of the request is to come, so that the end of the connection is seen.
    fn poll_ahead(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.ahead.len() < AHEAD {
            let mut piece = [0; 512];
            let mut buf = ReadBuf::new(&mut piece);
            ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buf))?;
            if buf.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            self.ahead.extend_from_slice(buf.filled());
        }
        // Whoever sends so much ahead is not looked at before the response is out.
        Poll::Pending
    }
}

impl Rest {
    /// Takes what belongs to the request off the front of `bytes`, and says how much that is.
    ///
    /// # Errors
    /// If a chunked body breaks its form.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Result<usize, Refusal> {
        match self {
            Self::Tunnel => Ok(bytes.len()),
            Self::Declined => Ok(0),
            Self::Bytes(left) => {
                let taken = usize::try_from(*left).map_or(bytes.len(), |left| left.min(bytes.len()));
                *left -= taken as u64;
                Ok(taken)
            }
            Self::Chunks(chunks) => {
                let taken = chunks.feed(bytes)?;
                if chunks.is_done() {
                    *self = Self::Bytes(0);
                }
                Ok(taken)
            }
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("stream", &self.stream).field("rest", &self.rest).finish_non_exhaustive()
    }
}

impl AsyncRead for Client {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        match this.rest {
            Rest::Bytes(0) => return this.poll_ahead(cx),
            Rest::Declined if buf.remaining() > 0 => {
                buf.put_slice(b"\0");
                this.rest = Rest::Bytes(0);
                return Poll::Ready(Ok(()));
            }
            Rest::Tunnel if !this.ahead.is_empty() => {
                let early = this.ahead.split_to(this.ahead.len().min(buf.remaining()));
                buf.put_slice(&early);
                return Poll::Ready(Ok(()));
            }
            _ => {}
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut this.stream).poll_read(cx, buf))?;
        let bytes = &buf.filled()[before..];
        let taken = match this.rest.take(bytes) {
            Ok(taken) => taken,
            Err(refusal) => return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, BadBody(refusal)))),
        };
        this.ahead.extend_from_slice(&bytes[taken..]);
        buf.set_filled(before + taken);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Client {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if *self.asks.get_mut() {
            self.answered(buf);
        }
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

forward_stream!(Client);

#[async_trait]
impl Peek for Client {}
