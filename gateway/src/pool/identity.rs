//! Who an instance is, by the SPIFFE id in its certificate (X.509-SVID). pingora verifies that a certificate is of the
//! right authorities and holds, and compares host names; ids are compared here, after the handshake and before anything
//! is sent.
//!
//! Connections that the gateway makes itself have their certificate with them. Of those that pingora makes, it tells the
//! SHA-256 of the certificate alone. Where that is one that was seen on a connection of the gateway's own, its id is known;
//! where it is not, such a connection is made once.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pingora::connectors::TransportConnector;
use pingora::protocols::{Digest, Stream};
use pingora::upstreams::peer::HttpPeer;
use pingora::{Error, ErrorType, OkOrErr, Result};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use crate::conf::SpiffeId;

/// Certificates that are remembered of one instance: it has one, and a new one every now and then.
const REMEMBERED: usize = 32;

/// Who an instance has to be.
#[derive(Debug)]
pub struct Identity {
    /// Who it may be.
    ids: Vec<SpiffeId>,
    /// Certificates that were looked at, the latest first, and whether they are of one of the ids.
    seen: Mutex<VecDeque<Seen>>,
}

#[derive(Debug)]
struct Seen {
    digest: [u8; 32],
    fine: bool,
}

impl Identity {
    /// One of these ids; `None` if there are none, and so nothing is asked for.
    #[must_use]
    pub fn one_of(ids: &[SpiffeId]) -> Option<Self> {
        (!ids.is_empty()).then(|| Self { ids: ids.to_vec(), seen: Mutex::default() })
    }

    /// That a connection of the gateway's own is to one of them.
    ///
    /// # Errors
    /// If it is not.
    pub fn check(&self, stream: &Stream) -> Result<()> {
        let found = stream.get_ssl_digest().map(|tls| digest(&tls.cert_digest)).transpose()?;
        let found = found.or_err(ErrorType::InvalidCert, "no TLS")?;
        if let Some(fine) = self.recall(found) {
            return verdict(fine);
        }
        let der = stream.get_ssl().and_then(|tls| tls.peer_certificate_der());
        let fine = der.and_then(id).is_some_and(|id| self.ids.iter().any(|known| known.covers(&id)));
        let mut seen = self.lock();
        seen.truncate(REMEMBERED - 1);
        seen.push_front(Seen { digest: found, fine });
        drop(seen);
        verdict(fine)
    }

    /// That a connection of pingora's is to one of them. What is not known of it is found out on another one to `peer`.
    ///
    /// # Errors
    /// If it is not, or that cannot be found out.
    pub async fn confirm(
        &self,
        connection: Option<&Digest>,
        connector: &TransportConnector,
        peer: &HttpPeer,
    ) -> Result<()> {
        let tls = connection.and_then(|digest| digest.ssl_digest.as_ref());
        let found = digest(&tls.or_err(ErrorType::InvalidCert, "no TLS")?.cert_digest)?;
        if let Some(fine) = self.recall(found) {
            return verdict(fine);
        }
        self.check(&connector.new_stream(peer).await?)?;
        // The other connection may be to another server at the same address, or be shown a newer certificate.
        verdict(self.recall(found).unwrap_or(false))
    }

    fn recall(&self, digest: [u8; 32]) -> Option<bool> {
        self.lock().iter().find(|seen| seen.digest == digest).map(|seen| seen.fine)
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Seen>> {
        // Nothing panics while it holds this.
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn digest(bytes: &[u8]) -> Result<[u8; 32]> {
    bytes.try_into().ok().or_err(ErrorType::InvalidCert, "no certificate")
}

fn verdict(fine: bool) -> Result<()> {
    if fine {
        return Ok(());
    }
    // Nothing was sent on it, so that another instance may be asked.
    Err(Error::explain(ErrorType::InvalidCert, "the instance's certificate bears none of its SPIFFE ids").into_up())
}

/// The id in a certificate: its only URI (X.509-SVID section 2).
fn id(der: &[u8]) -> Option<SpiffeId> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let names = certificate.subject_alternative_name().ok()??;
    let mut uris = names.value.general_names.iter().filter_map(|name| match name {
        GeneralName::URI(uri) => Some(*uri),
        _ => None,
    });
    let (only, more) = (uris.next()?, uris.next());
    if more.is_some() { None } else { only.parse().ok() }
}
