//! A receiver of telemetry that takes everything and looks at nothing: OTLP over HTTP/1.1, on one thread.
//!
//! `sink ADDRESS` answers every POST with 200 and no body, and `/count` with how many bytes of bodies it got.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// Size of the buffer that bodies are read into.
const BUFFER: usize = 256 << 10;

static RECEIVED: AtomicU64 = AtomicU64::new(0);

/// Serves one connection until the peer closes it.
async fn serve(stream: TcpStream) -> std::io::Result<()> {
    let mut stream = BufReader::with_capacity(BUFFER, stream);
    let mut line = String::new();
    loop {
        let (mut length, mut count) = (0, false);
        loop {
            line.clear();
            if stream.read_line(&mut line).await? == 0 {
                return Ok(());
            }
            match line.trim_end().split_once(':') {
                _ if line == "\r\n" => break,
                Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                    length = value.trim().parse().map_err(std::io::Error::other)?;
                }
                _ => count |= line.starts_with("GET /count "),
            }
        }
        tokio::io::copy_buf(&mut (&mut stream).take(length), &mut tokio::io::sink()).await?;
        RECEIVED.fetch_add(length, Relaxed);
        let body = if count { RECEIVED.load(Relaxed).to_string() } else { String::new() };
        let reply = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        stream.write_all(reply.as_bytes()).await?;
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).ok_or("usage: sink ADDRESS")?;
    let listener = TcpListener::bind(address).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        drop(tokio::spawn(serve(stream)));
    }
}
