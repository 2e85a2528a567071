//! A client that sends bytes as it likes, over clear text or TLS.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Both directions of a connection.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// A connection.
pub struct Raw {
    stream: Box<dyn Duplex>,
    read: Vec<u8>,
}

/// What came back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A whole response.
    Response {
        /// Its status.
        status: u16,
        /// Its head, in lower case.
        head: String,
        /// Its body.
        body: String,
    },
    /// The connection ended with this of a response.
    Closed(String),
    /// Neither in time.
    Silent,
}

impl Outcome {
    /// The status; 0 if there was no response.
    #[must_use]
    pub fn status(&self) -> u16 {
        if let Self::Response { status, .. } = self { *status } else { 0 }
    }
}

impl Raw {
    /// Connects in clear text.
    pub async fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream: Box::new(stream), read: Vec::new() }
    }

    /// Connects over TLS to the name `sni`.
    pub async fn connect_tls(address: SocketAddr, sni: &str, config: Arc<ClientConfig>) -> Self {
        Self::connect_tls_after(address, b"", sni, config).await
    }

    /// The same, with bytes before the handshake.
    pub async fn connect_tls_after(address: SocketAddr, first: &[u8], sni: &str, config: Arc<ClientConfig>) -> Self {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        stream.write_all(first).await.unwrap();
        let name = ServerName::try_from(sni.to_owned()).unwrap();
        let stream = TlsConnector::from(config).connect(name, stream).await.unwrap();
        Self { stream: Box::new(stream), read: Vec::new() }
    }

    /// Sends bytes.
    ///
    /// # Errors
    /// If the connection is closed.
    pub async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await?;
        self.stream.flush().await
    }

    /// Sends pieces, each on its own; stops where the other side closed the connection.
    pub async fn send_pieces(&mut self, pieces: &[&[u8]]) {
        for piece in pieces {
            if self.send(piece).await.is_err() {
                return;
            }
            tokio::task::yield_now().await;
        }
    }

    /// Closes the sending side.
    pub async fn finish(&mut self) {
        let _ = self.stream.shutdown().await;
    }

    /// Waits for a final response.
    pub async fn response(&mut self, patience: Duration) -> Outcome {
        loop {
            let head = self.head(patience).await;
            if !(100..200).contains(&head.status()) || head.status() == 101 {
                return head;
            }
        }
    }

    /// Waits for a response, be it interim.
    pub async fn head(&mut self, patience: Duration) -> Outcome {
        tokio::time::timeout(patience, async {
            loop {
                if let Some(outcome) = self.take() {
                    return outcome;
                }
                let mut piece = [0; 4096];
                match self.stream.read(&mut piece).await {
                    Ok(read) if read > 0 => self.read.extend_from_slice(&piece[..read]),
                    _ => return Outcome::Closed(String::from_utf8_lossy(&self.read).into_owned()),
                }
            }
        })
        .await
        .unwrap_or(Outcome::Silent)
    }

    /// Waits for bytes; `None` at the end of the connection.
    pub async fn read(&mut self) -> Option<Vec<u8>> {
        let mut piece = [0; 4096];
        match self.stream.read(&mut piece).await {
            Ok(read) if read > 0 => Some(piece[..read].to_vec()),
            _ => None,
        }
    }

    /// Reads to the end of the connection; `None` if there is none in time.
    pub async fn rest(&mut self, patience: Duration) -> Option<Vec<u8>> {
        let read = async {
            // A connection that is reset has ended as well.
            let _ = self.stream.read_to_end(&mut self.read).await;
        };
        tokio::time::timeout(patience, read).await.ok()?;
        Some(std::mem::take(&mut self.read))
    }

    /// Takes a whole response off what was read. One without a length has no body here.
    fn take(&mut self) -> Option<Outcome> {
        let end = self.read.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
        let head = String::from_utf8_lossy(&self.read[..end]).to_lowercase();
        let status: u16 = head.split(' ').nth(1)?.parse().ok()?;
        let length = head.split("\r\n").find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
        let body = self.read.get(end..end + length.unwrap_or(0))?;
        let body = String::from_utf8_lossy(body).into_owned();
        self.read.drain(..end + length.unwrap_or(0));
        Some(Outcome::Response { status, head, body })
    }
}
