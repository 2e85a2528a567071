//! An upstream that notes every byte that reaches it, and answers each whole HTTP/1.1 request with what it asked for.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// A running one; it ends when it is dropped.
pub struct Recorder {
    /// Where it listens.
    pub address: SocketAddr,
    noted: Arc<Mutex<Noted>>,
    closing: watch::Sender<bool>,
}

/// What reached it.
#[derive(Clone, Debug, Default)]
struct Noted {
    requests: Vec<Recorded>,
    bytes: usize,
}

/// A whole request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// Its head, from the request line to the empty line.
    pub head: String,
    /// Its body, as it was on the wire.
    pub body: Vec<u8>,
}

impl Recorded {
    /// Its request line.
    #[must_use]
    pub fn line(&self) -> &str {
        self.head.split("\r\n").next().unwrap_or_default()
    }

    /// The values of a header field, in order.
    #[must_use]
    pub fn fields(&self, name: &str) -> Vec<&str> {
        let fields = self.head.split("\r\n").skip(1).filter_map(|line| line.split_once(':'));
        fields.filter(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim()).collect()
    }
}

impl Recorder {
    /// Starts it on a free port.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let noted = Arc::new(Mutex::new(Noted::default()));
        let closing = watch::Sender::new(false);
        tokio::spawn(accept(listener, Arc::clone(&noted), closing.subscribe()));
        Self { address, noted, closing }
    }

    /// The requests that arrived as a whole, in order.
    #[must_use]
    pub fn requests(&self) -> Vec<Recorded> {
        self.noted.lock().unwrap().requests.clone()
    }

    /// How many bytes arrived in all.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.noted.lock().unwrap().bytes
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.closing.send_replace(true);
    }
}

async fn accept(listener: TcpListener, noted: Arc<Mutex<Noted>>, mut closing: watch::Receiver<bool>) {
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => accepted.unwrap().0,
            _ = closing.wait_for(|closed| *closed) => return,
        };
        let (noted, mut closing) = (Arc::clone(&noted), closing.clone());
        tokio::spawn(async move {
            tokio::select! {
                _ = converse(stream, &noted) => {}
                _ = closing.wait_for(|closed| *closed) => {}
            }
        });
    }
}

async fn converse(mut stream: TcpStream, noted: &Mutex<Noted>) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut bytes = Vec::new();
    loop {
        while let Some((request, length)) = whole(&bytes) {
            bytes.drain(..length);
            let target = request.line().split(' ').nth(1).unwrap_or_default().to_owned();
            noted.lock().unwrap().requests.push(request);
            let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{target}", target.len());
            stream.write_all(answer.as_bytes()).await?;
        }
        let before = bytes.len();
        if stream.read_buf(&mut bytes).await? == 0 {
            return Ok(());
        }
        noted.lock().unwrap().bytes += bytes.len() - before;
    }
}

/// The request that bytes begin with, and its length, if it is there as a whole.
fn whole(bytes: &[u8]) -> Option<(Recorded, usize)> {
    let end = find(bytes, b"\r\n\r\n")? + 4;
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let mut request = Recorded { head, body: Vec::new() };
    let length = match request.fields("content-length").first() {
        Some(length) => length.parse().ok()?,
        None if request.fields("transfer-encoding").is_empty() => 0,
        None => chunks(&bytes[end..])?,
    };
    request.body = bytes.get(end..end + length)?.to_vec();
    Some((request, end + length))
}

/// The length of a chunked body, trailers included, if it is there as a whole.
fn chunks(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        let line = find(&bytes[at..], b"\r\n")?;
        let digits = bytes[at..at + line].iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
        let size = usize::from_str_radix(std::str::from_utf8(&bytes[at..at + digits]).ok()?, 16).ok()?;
        at += line + 2;
        if size == 0 {
            let rest = bytes.get(at..)?;
            let trailers = if rest.starts_with(b"\r\n") { 0 } else { find(rest, b"\r\n\r\n")? + 2 };
            return Some(at + trailers + 2);
        }
        at = at.checked_add(size)?.checked_add(2)?;
        bytes.get(..at)?;
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}
