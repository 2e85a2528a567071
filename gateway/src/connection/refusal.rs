//! The answer to a head that is refused before pingora has seen it all.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use pingora::protocols::Stream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use super::limits::Limit;

/// How long the rest of what a client sends is taken in: closing at once would reset the connection, and with it what the
/// client has not read of the answer (RFC 9112 section 9.6).
const LINGER: Duration = Duration::from_millis(500);
/// The most of it that is.
const MOST: usize = 1 << 20;

/// An answer that is under way.
pub(super) struct Refusal {
    answer: &'static [u8],
    sent: usize,
    step: Step,
    taken: usize,
    timer: Pin<Box<Sleep>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Send,
    Flush,
    Shutdown,
    Linger,
}

impl Refusal {
    /// The answer to a head that is over a limit.
    pub(super) fn new(limit: Limit) -> Self {
        let (answer, timer) = (answer(limit), Box::pin(tokio::time::sleep(LINGER)));
        Self { answer, sent: 0, step: Step::Send, taken: 0, timer }
    }

    /// Sends the answer. Ready when the connection is to be closed.
    pub(super) fn poll(&mut self, stream: &mut Stream, cx: &mut Context<'_>) -> Poll<()> {
        if self.timer.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        loop {
            let mut stream = Pin::new(&mut *stream);
            let done = match self.step {
                Step::Send => match ready!(stream.as_mut().poll_write(cx, &self.answer[self.sent..])) {
                    Ok(sent) => {
                        self.sent += sent;
                        (sent > 0).then_some(self.sent == self.answer.len())
                    }
                    Err(_) => None,
                },
                Step::Flush => ready!(stream.as_mut().poll_flush(cx)).ok().map(|()| true),
                Step::Shutdown => ready!(stream.as_mut().poll_shutdown(cx)).ok().map(|()| true),
                Step::Linger => {
                    let mut scrap = [0; 2_048];
                    let mut scrap = ReadBuf::new(&mut scrap);
                    let read = ready!(stream.as_mut().poll_read(cx, &mut scrap));
                    self.taken += scrap.filled().len();
                    (read.is_ok() && !scrap.filled().is_empty() && self.taken < MOST).then_some(false)
                }
            };
            self.step = match (done, self.step) {
                (None, _) => return Poll::Ready(()),
                (Some(false), step) => step,
                (Some(true), Step::Send) => Step::Flush,
                (Some(true), Step::Flush) => Step::Shutdown,
                (Some(true), Step::Shutdown | Step::Linger) => Step::Linger,
            };
        }
    }
}

/// A problem document (RFC 9457) as a whole response.
macro_rules! problem {
    ($status:literal, $title:literal, $detail:literal, $length:literal) => {
        concat!(
            "HTTP/1.1 ",
            $status,
            " ",
            $title,
            "\r\nContent-Type: application/problem+json\r\nContent-Length: ",
            $length,
            "\r\nConnection: close\r\n\r\n{\"type\":\"about:blank\",\"title\":\"",
            $title,
            "\",\"status\":",
            $status,
            ",\"detail\":\"",
            $detail,
            "\"}\n"
        )
        .as_bytes()
    };
}

fn answer(limit: Limit) -> &'static [u8] {
    match limit {
        Limit::TargetBytes => problem!(414, "URI Too Long", "The target is too long.", 94),
        Limit::HeadTimeout => problem!(408, "Request Timeout", "The head did not arrive in time.", 106),
        _ => problem!(431, "Request Header Fields Too Large", "The head is too large.", 112),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_as_long_as_they_say() {
        for (limit, status) in [(Limit::TargetBytes, 414), (Limit::HeadTimeout, 408), (Limit::HeaderBytes, 431)] {
            let text = std::str::from_utf8(answer(limit)).unwrap();
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
            assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{} in {head}", body.len());
            let problem: serde_json::Value = serde_json::from_str(body).unwrap();
            assert_eq!(problem["status"], status);
        }
    }
}
