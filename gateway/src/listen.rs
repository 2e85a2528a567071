//! Where clients connect: listeners, their protocols and their certificates.

mod served;

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use pingora::listeners::ListenerConfig;
use pingora::listeners::tls::TlsSettings;
use pingora::protocols::ALPN;
use pingora::protocols::l4::stream::L4BufferSettings;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, SubjectPublicKeyInfoDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::{CertifiedKey, Signer, SigningKey};
use rustls::{SignatureAlgorithm, SignatureScheme};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use self::served::Note;
pub use self::served::{Names, Served};
use crate::conf;

/// Buffers of a client connection, most of what an idle one costs (pingora's are 64 KiB). Larger reads and writes go past
/// them.
const READ_BUFFER: usize = 4 << 10;
const WRITE_BUFFER: usize = 2 << 10;

/// Protocols that a clear-text listener serves. TLS listeners agree on one in their handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepts {
    /// HTTP/1.1.
    pub http1: bool,
    /// HTTP/2 in clear text.
    pub h2c: bool,
}

impl Accepts {
    /// What a listener's configuration says.
    #[must_use]
    pub fn of(listener: &conf::Listener) -> Self {
        Self { http1: listener.speaks(conf::Protocol::Http1), h2c: listener.speaks(conf::Protocol::H2c) }
    }
}

/// The certificates of one listener, by the names they are for. Reloading swaps all of them at once.
pub struct Certificates {
    files: Vec<conf::Certificate>,
    loaded: ArcSwap<Loaded>,
    oldest: conf::TlsVersion,
    /// Why the files are not what is served, if they are not.
    refused: Mutex<Option<String>>,
}

/// What became of a look at the files.
#[derive(Debug, PartialEq, Eq)]
pub enum Reload {
    /// They are as they were, be it good or bad.
    Same,
    /// They are others, and served from now on.
    Fresh,
    /// They cannot be used, for this reason; the old ones stay.
    Refused(String),
}

struct Loaded {
    all: Vec<Arc<Certificate>>,
    by_name: HashMap<String, Arc<Certificate>>,
    first: Arc<Certificate>,
}

/// One certificate, with its key.
struct Certificate {
    key: Arc<CertifiedKey>,
    names: Arc<Names>,
    expiry: Expiry,
}

/// Until when a certificate holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expiry {
    /// Its first DNS name, or its subject if it has none.
    pub name: String,
    /// Seconds since 1970.
    pub at: i64,
}

impl Loaded {
    /// The certificate for a name, in lower case.
    fn find(&self, name: Option<&str>) -> &Arc<Certificate> {
        let found = name.and_then(|name| {
            let wildcard = || self.by_name.get(&format!("*.{}", name.split_once('.')?.1));
            self.by_name.get(name).or_else(wildcard)
        });
        found.unwrap_or(&self.first)
    }
}

impl Certificates {
    /// Reads the certificates.
    ///
    /// # Errors
    /// A sentence about a file that cannot be used.
    pub fn load(tls: &conf::ListenerTls) -> Result<Self, String> {
        pingora::tls::install_default_crypto_provider();
        Ok(Self {
            loaded: ArcSwap::from_pointee(read(&tls.certificates, tls.min_version)?),
            files: tls.certificates.clone(),
            oldest: tls.min_version,
            refused: Mutex::default(),
        })
    }

    /// Reads the certificates again; the old ones stay if that fails, which is told once.
    pub fn reload(&self) -> Reload {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = match read(&self.files, self.oldest) {
            Ok(fresh) => fresh,
            Err(problem) if refused.as_ref() == Some(&problem) => return Reload::Same,
            Err(problem) => {
                *refused = Some(problem.clone());
                return Reload::Refused(problem);
            }
        };
        let was_refused = refused.take().is_some();
        let current = self.loaded.load();
        let same = fresh.all.iter().map(|one| &one.key.cert).eq(current.all.iter().map(|one| &one.key.cert));
        if same && !was_refused {
            return Reload::Same;
        }
        self.loaded.store(Arc::new(fresh));
        Reload::Fresh
    }

    /// The files that are read.
    pub fn files(&self) -> impl Iterator<Item = PathBuf> + '_ {
        self.files.iter().flat_map(|pair| [pair.cert.clone(), pair.key.clone()])
    }

    /// Until when each certificate in use holds.
    #[must_use]
    pub fn expiries(&self) -> Vec<Expiry> {
        self.loaded.load().all.iter().map(|one| one.expiry.clone()).collect()
    }

    /// What the certificate is for that a client gets which asks for this name, in lower case.
    fn names_for(&self, name: &str) -> Arc<Names> {
        Arc::clone(&self.loaded.load().find(Some(name)).names)
    }
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.loaded.load().by_name.keys()).finish()
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let loaded = self.loaded.load();
        let name = hello.server_name().map(str::to_ascii_lowercase);
        Some(Arc::clone(&loaded.find(name.as_deref()).key))
    }
}

/// A key that no cipher suite of TLS 1.2 goes with, because it is of no algorithm that those know. pingora offers both
/// versions in any case; with this key a handshake of 1.2 fails, and one of 1.3, which does not ask for it, succeeds.
#[derive(Debug)]
struct OnlyTls13(Arc<dyn SigningKey>);

impl SigningKey for OnlyTls13 {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        self.0.choose_scheme(offered)
    }

    fn public_key(&self) -> Option<SubjectPublicKeyInfoDer<'_>> {
        self.0.public_key()
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        SignatureAlgorithm::Anonymous
    }
}

fn read(files: &[conf::Certificate], oldest: conf::TlsVersion) -> Result<Loaded, String> {
    let provider = CryptoProvider::get_default().ok_or("no cryptography is installed")?;
    let (mut all, mut by_name) = (Vec::new(), HashMap::new());
    for pair in files {
        let bad = |path: &PathBuf, error: &dyn fmt::Display| format!("{}: {error}", path.display());
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(&pair.cert)
            .and_then(Iterator::collect)
            .map_err(|error| bad(&pair.cert, &error))?;
        let key = PrivateKeyDer::from_pem_file(&pair.key).map_err(|error| bad(&pair.key, &error))?;
        let leaf = chain.first().ok_or_else(|| bad(&pair.cert, &"it holds no certificate"))?;
        let (names, expiry) = describe(leaf).map_err(|error| bad(&pair.cert, &error))?;
        let mut key = CertifiedKey::from_der(chain, key, provider).map_err(|error| bad(&pair.key, &error))?;
        if oldest == conf::TlsVersion::V13 {
            key.key = Arc::new(OnlyTls13(key.key));
        }
        let certificate = Arc::new(Certificate { key: Arc::new(key), names: Arc::new(names), expiry });
        for name in certificate.names.dns() {
            by_name.entry(name).or_insert_with(|| Arc::clone(&certificate));
        }
        all.push(certificate);
    }
    let first = all.first().cloned().ok_or("at least one certificate is needed")?;
    Ok(Loaded { all, by_name, first })
}

/// What a certificate is for, and until when.
fn describe(der: &CertificateDer<'_>) -> Result<(Names, Expiry), String> {
    let (_, certificate) = X509Certificate::from_der(der).map_err(|error| error.to_string())?;
    let alternative = certificate.subject_alternative_name().map_err(|error| error.to_string())?;
    let alternative = alternative.map_or(&[][..], |extension| &extension.value.general_names);
    let first = alternative.iter().find_map(|name| match name {
        GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
        _ => None,
    });
    let name = first.unwrap_or_else(|| certificate.subject().to_string());
    Ok((Names::of(alternative), Expiry { name, at: certificate.validity().not_after.timestamp() }))
}

/// A listener as pingora takes it, at the address that it really has.
///
/// # Errors
/// If pingora refuses the TLS settings.
pub fn endpoint(
    listener: &conf::Listener,
    address: SocketAddr,
    certificates: Option<Arc<Certificates>>,
) -> pingora::Result<ListenerConfig> {
    let endpoint = ListenerConfig::tcp(address.to_string()).l4_buffer(L4BufferSettings::new(READ_BUFFER, WRITE_BUFFER));
    let Some(certificates) = certificates else { return Ok(endpoint) };
    let mut settings = if listener.tls.as_ref().is_some_and(|tls| tls.check_host) {
        TlsSettings::with_callbacks(Box::new(Note(Arc::clone(&certificates))))?
    } else {
        // The paths are of no account: the resolver has the certificates.
        TlsSettings::intermediate("", "")?
    };
    settings.set_cert_resolver(certificates);
    settings.set_alpn(match (listener.speaks(conf::Protocol::Http1), listener.speaks(conf::Protocol::H2)) {
        (true, true) => ALPN::H2H1,
        (false, _) => ALPN::H2,
        (true, false) => ALPN::H1,
    });
    Ok(endpoint.tls(settings))
}
