//! TLS of the admin API. Handshakes run beside each other, so that nobody who is slow at it keeps others waiting.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::serve::Listener;
use rustls::RootCertStore;
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::server::WebPkiClientVerifier;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::conf::{self, AdminTls};
use crate::listen::Certificates;

/// How long a handshake may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Handshakes at a time, and connections that may wait to be served.
const MOST: usize = 64;
/// How long to wait when the system gives no connection, for want of descriptors for example.
const PAUSE: Duration = Duration::from_millis(100);

/// What TLS of the admin API needs.
#[derive(Clone)]
pub struct Tls {
    acceptor: TlsAcceptor,
    certificates: Arc<Certificates>,
}

impl Tls {
    /// Reads certificate, key and authorities.
    ///
    /// # Errors
    /// A sentence about a file that cannot be used.
    pub fn load(conf: &AdminTls) -> Result<Self, String> {
        let pair = conf::Certificate { cert: conf.cert.clone(), key: conf.key.clone() };
        let listener =
            conf::ListenerTls { certificates: vec![pair], min_version: conf::TlsVersion::V12, check_host: false };
        let certificates = Arc::new(Certificates::load(&listener)?);
        let builder = ServerConfig::builder();
        let builder = match &conf.client_ca {
            None => builder.with_no_client_auth(),
            Some(file) => {
                let bad = |error: &dyn std::fmt::Display| format!("{}: {error}", file.display());
                let mut roots = RootCertStore::empty();
                for der in CertificateDer::pem_file_iter(file).map_err(|error| bad(&error))? {
                    roots.add(der.map_err(|error| bad(&error))?).map_err(|error| bad(&error))?;
                }
                let verifier = WebPkiClientVerifier::builder(Arc::new(roots)).build().map_err(|error| bad(&error))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let resolver: Arc<Certificates> = Arc::clone(&certificates);
        let mut config = builder.with_cert_resolver(resolver);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self { acceptor: TlsAcceptor::from(Arc::new(config)), certificates })
    }

    /// The certificate, which is read again when its file changes.
    #[must_use]
    pub fn certificates(&self) -> &Arc<Certificates> {
        &self.certificates
    }
}

/// A listener whose connections have their handshake behind them.
pub(super) struct Entrance {
    address: SocketAddr,
    ready: mpsc::Receiver<(TlsStream<TcpStream>, SocketAddr)>,
}

impl Entrance {
    pub(super) fn open(listener: TcpListener, tls: Tls) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let (send, ready) = mpsc::channel(MOST);
        tokio::spawn(accept(listener, tls, send));
        Ok(Self { address, ready })
    }
}

impl Listener for Entrance {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        match self.ready.recv().await {
            Some(connection) => connection,
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }
}

/// Accepts until nobody takes connections any more.
async fn accept(listener: TcpListener, tls: Tls, send: mpsc::Sender<(TlsStream<TcpStream>, SocketAddr)>) {
    let places = Arc::new(Semaphore::new(MOST));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = send.closed() => return,
        };
        let Ok((stream, peer)) = accepted else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        // The semaphore is never closed.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let (tls, send) = (tls.clone(), send.clone());
        tokio::spawn(async move {
            match tokio::time::timeout(PATIENCE, tls.acceptor.accept(stream)).await {
                // If nobody takes it, the gateway ends.
                Ok(Ok(stream)) => drop(send.send((stream, peer)).await),
                Ok(Err(error)) => tracing::debug!(%peer, %error, "no TLS on the admin API"),
                Err(_) => tracing::debug!(%peer, "no TLS on the admin API in time"),
            }
            drop(place);
        });
    }
}
