//! Certificates made on the spot, and rustls configurations that use them.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig, SupportedProtocolVersion};

/// A certificate authority of one test.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate for one name and 127.0.0.1, with its key.
pub struct Identity {
    /// The certificate as PEM.
    pub cert_pem: String,
    /// Its PKCS #8 key as PEM.
    pub key_pem: String,
    cert: CertificateDer<'static>,
    key: Vec<u8>,
}

impl Default for Authority {
    fn default() -> Self {
        Self::new()
    }
}

impl Authority {
    /// Makes a self-signed authority.
    #[must_use]
    pub fn new() -> Self {
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, "serin e2e authority");
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Issues a certificate for `name` (and 127.0.0.1).
    #[must_use]
    pub fn issue(&self, name: &str) -> Identity {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.subject_alt_names.push(rcgen::SanType::IpAddress(IpAddr::V4(Ipv4Addr::LOCALHOST)));
        self.sign(&params)
    }

    /// Issues a certificate for these URIs and for no name.
    #[must_use]
    pub fn issue_uris(&self, uris: &[&str]) -> Identity {
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.subject_alt_names.extend(uris.iter().map(|&uri| rcgen::SanType::URI(uri.try_into().unwrap())));
        self.sign(&params)
    }

    fn sign(&self, params: &CertificateParams) -> Identity {
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.0).unwrap();
        Identity {
            cert_pem: cert.pem(),
            key_pem: key.serialize_pem(),
            cert: cert.der().clone(),
            key: key.serialize_der(),
        }
    }

    /// The authority's certificate as PEM.
    #[must_use]
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// A client that trusts this authority and offers the protocols `alpn`.
    #[must_use]
    pub fn client(&self, alpn: &[&str]) -> Arc<ClientConfig> {
        self.client_of(alpn, rustls::ALL_VERSIONS)
    }

    /// The same, but nothing newer than TLS 1.2.
    #[must_use]
    pub fn client_tls12(&self, alpn: &[&str]) -> Arc<ClientConfig> {
        self.client_of(alpn, &[&rustls::version::TLS12])
    }

    fn client_of(&self, alpn: &[&str], versions: &[&'static SupportedProtocolVersion]) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).unwrap();
        let mut config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = protocols(alpn);
        Arc::new(config)
    }
}

impl Identity {
    /// A server with this certificate that offers the protocols `alpn`.
    #[must_use]
    pub fn server(&self, alpn: &[&str]) -> Arc<ServerConfig> {
        self.server_for(None, alpn)
    }

    /// The same, which lets in nobody without a certificate of `clients`.
    #[must_use]
    pub fn server_for(&self, clients: Option<&Authority>, alpn: &[&str]) -> Arc<ServerConfig> {
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.key.clone()));
        let builder = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions().unwrap();
        let verifier = clients.map(|authority| {
            let mut roots = RootCertStore::empty();
            roots.add(authority.0.der().clone()).unwrap();
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider()).build().unwrap()
        });
        let builder = match verifier {
            Some(verifier) => builder.with_client_cert_verifier(verifier),
            None => builder.with_no_client_auth(),
        };
        let mut config = builder.with_single_cert(vec![self.cert.clone()], key).unwrap();
        config.alpn_protocols = protocols(alpn);
        Arc::new(config)
    }

    /// The certificate as DER, as a client sees it.
    #[must_use]
    pub fn der(&self) -> &[u8] {
        &self.cert
    }

    /// Writes `STEM.crt` and `STEM.key` into `dir`, each replaced in one step, and answers their paths.
    pub fn write(&self, dir: &Path, stem: &str) -> (PathBuf, PathBuf) {
        let (cert, key) = (dir.join(format!("{stem}.crt")), dir.join(format!("{stem}.key")));
        crate::gateway::write_atomically(&key, &self.key_pem);
        crate::gateway::write_atomically(&cert, &self.cert_pem);
        (cert, key)
    }
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn protocols(alpn: &[&str]) -> Vec<Vec<u8>> {
    alpn.iter().map(|name| name.as_bytes().to_vec()).collect()
}
