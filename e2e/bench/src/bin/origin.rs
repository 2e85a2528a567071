//! The upstreams: as little work per request as a socket allows, on one thread.
//!
//! `origin ADDRESS=VERSION[=DELAY_MS]...` answers every GET with 64 bytes, after the delay if there is one. A path
//! that contains `/echo` is answered with a line of version and address and then the request head as it arrived, so
//! that a probe sees what a proxy did to it. `/mode?status=503&delay_ms=200&fault=hang&slots=4` makes an upstream ill
//! from then on, `/count` says how many requests it got; neither counts itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};

/// The longest request head that is accepted, in bytes.
const HEAD_LIMIT: usize = 16 * 1024;

/// How an upstream behaves.
#[derive(Clone)]
struct Mode {
    delay: Duration,
    response: Arc<[u8]>,
    fault: Fault,
    /// How many requests are worked on at a time; the others wait.
    slots: Option<Arc<Semaphore>>,
}

#[derive(Clone, Copy, PartialEq)]
enum Fault {
    None,
    /// Never answers.
    Hang,
    /// Closes the connection instead of answering.
    Close,
    /// Closes it in the middle of the body.
    Truncate,
}

impl Mode {
    /// From a query such as `status=503&delay_ms=20`; what is not named is well.
    fn parse(query: &str, version: &str) -> Option<Self> {
        let mut status = 200;
        let mut mode = Self { delay: Duration::ZERO, response: Arc::default(), fault: Fault::None, slots: None };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=')? {
                ("status", value) => status = value.parse().ok()?,
                ("delay_ms", value) => mode.delay = Duration::from_millis(value.parse().ok()?),
                ("slots", value) => mode.slots = Some(Arc::new(Semaphore::new(value.parse().ok()?))),
                ("fault", "hang") => mode.fault = Fault::Hang,
                ("fault", "close") => mode.fault = Fault::Close,
                ("fault", "truncate") => mode.fault = Fault::Truncate,
                _ => return None,
            }
        }
        mode.response = reply(status, &format!("{:<63}\n", format!("hello from {version}"))).into();
        Some(mode)
    }
}

#[derive(Clone)]
struct Upstream {
    version: String,
    /// Version and address.
    name: String,
    mode: watch::Sender<Mode>,
    requests: Arc<AtomicU64>,
}

impl Upstream {
    fn new(address: &str, version: &str, mode: Mode) -> Self {
        let name = format!("{version} {address}");
        Self { version: version.to_owned(), name, mode: watch::Sender::new(mode), requests: Arc::default() }
    }

    /// Serves one connection until the peer closes it. Requests carry no body and are not pipelined.
    async fn serve(self, mut stream: TcpStream) -> std::io::Result<()> {
        stream.set_nodelay(true)?;
        let mut head = Vec::with_capacity(2048);
        while stream.read_buf(&mut head).await? > 0 {
            if !head.ends_with(b"\r\n\r\n") {
                if head.len() > HEAD_LIMIT {
                    break;
                }
                continue;
            }
            let line = head.split(|&b| b == b'\r').next().unwrap_or_default();
            if let Some(answer) = self.control(line) {
                stream.write_all(&answer).await?;
            } else if !self.answer(&head, line, &mut stream).await? {
                break;
            }
            head.clear();
        }
        Ok(())
    }

    /// Answers what is asked of the upstream itself.
    fn control(&self, line: &[u8]) -> Option<Vec<u8>> {
        let target = std::str::from_utf8(line).ok()?.split(' ').nth(1)?;
        if target == "/count" {
            return Some(reply(200, &self.requests.load(Relaxed).to_string()));
        }
        let query = target.strip_prefix("/mode?")?;
        Some(match Mode::parse(query, &self.version) {
            Some(mode) => {
                self.mode.send_replace(mode);
                reply(200, "ok")
            }
            None => reply(400, "no such mode"),
        })
    }

    /// Answers a request; false if the connection is to be closed.
    async fn answer(&self, head: &[u8], line: &[u8], stream: &mut TcpStream) -> std::io::Result<bool> {
        self.requests.fetch_add(1, Relaxed);
        let mode = self.mode.borrow().clone();
        // The semaphore is never closed, so that there is always a permit in the end.
        let _slot = match &mode.slots {
            Some(slots) => slots.acquire().await.ok(),
            None => None,
        };
        if !mode.delay.is_zero() {
            tokio::time::sleep(mode.delay).await;
        }
        match mode.fault {
            Fault::None if line.windows(5).any(|w| w == b"/echo") => {
                let echo = format!("{}\n{}", self.name, String::from_utf8_lossy(head));
                stream.write_all(&reply(200, &echo)).await?;
            }
            Fault::None => stream.write_all(&mode.response).await?,
            Fault::Hang => std::future::pending().await,
            Fault::Close => return Ok(false),
            Fault::Truncate => {
                stream.write_all(&mode.response[..mode.response.len() - 32]).await?;
                return Ok(false);
            }
        }
        Ok(true)
    }
}

fn reply(status: u16, body: &str) -> Vec<u8> {
    let head = format!("HTTP/1.1 {status} -\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\r\n", body.len());
    (head + body).into_bytes()
}

async fn listen(listener: TcpListener, upstream: Upstream) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => drop(tokio::spawn(upstream.clone().serve(stream))),
            Err(error) => {
                eprintln!("origin: accept: {error}");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    for arg in std::env::args().skip(1) {
        let mut parts = arg.split('=');
        let (Some(address), Some(version)) = (parts.next(), parts.next()) else {
            return Err("usage: origin ADDRESS=VERSION[=DELAY_MS]...".into());
        };
        let query = format!("delay_ms={}", parts.next().unwrap_or("0"));
        let mode = Mode::parse(&query, version).ok_or("the delay is a number of milliseconds")?;
        tokio::spawn(listen(TcpListener::bind(address).await?, Upstream::new(address, version, mode)));
    }
    std::future::pending::<()>().await;
    Ok(())
}
