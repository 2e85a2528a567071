//! TLS towards the admin API.

use std::path::Path;
use std::sync::Arc;

use ureq::tls::{Certificate, ClientCert, PemItem, PrivateKey, RootCerts, TlsConfig, TlsProvider, parse_pem};

use super::Common;

/// TLS as the command line asks for it.
pub(super) fn config(common: &Common) -> Result<TlsConfig, String> {
    let roots = match &common.ca {
        Some(file) => certificates(file)?,
        None => system()?,
    };
    let client = match (&common.cert, &common.key) {
        (Some(cert), Some(key)) => Some(ClientCert::new_with_certs(&certificates(cert)?, private_key(key)?)),
        _ => None,
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = TlsConfig::builder().provider(TlsProvider::Rustls).root_certs(RootCerts::new_with_certs(&roots));
    Ok(config.client_cert(client).unversioned_rustls_crypto_provider(provider).build())
}

/// What the system trusts.
fn system() -> Result<Vec<Certificate<'static>>, String> {
    let found = rustls_native_certs::load_native_certs();
    if found.certs.is_empty() {
        return Err("the system has no authorities that could be read: give --ca".to_owned());
    }
    Ok(found.certs.iter().map(|der| Certificate::from_der(der).to_owned()).collect())
}

fn certificates(file: &Path) -> Result<Vec<Certificate<'static>>, String> {
    let mut found = Vec::new();
    for item in parse_pem(&read(file)?) {
        if let PemItem::Certificate(certificate) = item.map_err(|error| format!("{}: {error}", file.display()))? {
            found.push(certificate);
        }
    }
    if found.is_empty() { Err(format!("{} holds no certificate", file.display())) } else { Ok(found) }
}

fn private_key(file: &Path) -> Result<PrivateKey<'static>, String> {
    PrivateKey::from_pem(&read(file)?).map_err(|error| format!("{}: {error}", file.display()))
}

fn read(file: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(file).map_err(|error| format!("cannot read {}: {error}", file.display()))
}
