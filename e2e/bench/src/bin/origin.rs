//! The upstreams: as little work per request as a socket allows, on one thread.
//!
//! `origin ADDRESS=VERSION[=DELAY_MS]...` answers every GET with 64 bytes, after the delay if there is one. A path
//! that contains `/echo` is answered with a line of version and address and then the request head as it arrived, so
//! that a probe sees what a proxy did to it.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// The longest request head that is accepted, in bytes.
const HEAD_LIMIT: usize = 16 * 1024;

#[derive(Clone)]
struct Upstream {
    /// Version and address.
    name: String,
    delay: Duration,
    response: Vec<u8>,
}

impl Upstream {
    fn new(address: &str, version: &str, delay: Duration) -> Self {
        let response = reply(&format!("{:<63}\n", format!("hello from {version}")));
        Self { name: format!("{version} {address}"), delay, response }
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
            if !self.delay.is_zero() {
                tokio::time::sleep(self.delay).await;
            }
            let line = head.split(|&b| b == b'\r').next().unwrap_or_default();
            if line.windows(5).any(|w| w == b"/echo") {
                let echo = format!("{}\n{}", self.name, String::from_utf8_lossy(&head));
                stream.write_all(&reply(&echo)).await?;
            } else {
                stream.write_all(&self.response).await?;
            }
            head.clear();
        }
        Ok(())
    }
}

fn reply(body: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
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
        let delay = Duration::from_millis(parts.next().unwrap_or("0").parse()?);
        tokio::spawn(listen(TcpListener::bind(address).await?, Upstream::new(address, version, delay)));
    }
    std::future::pending::<()>().await;
    Ok(())
}
