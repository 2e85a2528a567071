//! etcd, by its v3 API over gRPC.

pub(crate) mod center;

use std::time::Duration;

use etcd_client::{Certificate, Client, ConnectOptions, Identity, TlsOptions};

use super::{Lost, password};
use crate::conf::EtcdServer;

/// Largest answer: some 100,000 instances; and a document may have 16 MiB, and what is larger is to be refused as a document.
pub(crate) const LARGEST: usize = 64 << 20;
/// How long a request may take.
pub(crate) const DEADLINE: Duration = Duration::from_secs(2);
/// How often the connection is asked whether it is still there, and how long an answer may take.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// How to reach a cluster.
pub(crate) struct Cluster {
    endpoints: Vec<String>,
    options: ConnectOptions,
}

impl Cluster {
    /// Reads the files that the configuration names.
    ///
    /// # Errors
    /// If one of them cannot be read.
    pub(crate) fn new(conf: &EtcdServer) -> Result<Self, String> {
        let mut options = ConnectOptions::new()
            .with_connect_timeout(DEADLINE)
            .with_keep_alive(KEEP_ALIVE, DEADLINE)
            .with_keep_alive_while_idle(true)
            .with_auto_token_refresh(true);
        if let (Some(user), Some(file)) = (&conf.username, &conf.password_file) {
            options = options.with_user(user, password(file)?);
        }
        let read = |path: &std::path::PathBuf| {
            std::fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
        };
        if conf.endpoints.iter().any(|endpoint| endpoint.tls) {
            let mut tls = TlsOptions::new();
            let conf = conf.tls.clone().unwrap_or_default();
            tls = match &conf.ca {
                Some(ca) => tls.ca_certificate(Certificate::from_pem(read(ca)?)),
                None => tls.with_native_roots(),
            };
            if let (Some(cert), Some(key)) = (&conf.cert, &conf.key) {
                tls = tls.identity(Identity::from_pem(read(cert)?, read(key)?));
            }
            if let Some(name) = &conf.sni {
                tls = tls.domain_name(name);
            }
            options = options.with_tls(tls);
        }
        Ok(Self { endpoints: conf.endpoints.iter().map(ToString::to_string).collect(), options })
    }

    /// Connects. Connections are made when they are needed, so that this only fails for what no try would heal.
    pub(crate) async fn connect(&self) -> Result<Client, Lost> {
        in_time(Client::connect(&self.endpoints, Some(self.options.clone()))).await
    }

    /// The endpoints, for people.
    pub(crate) fn name(&self) -> String {
        self.endpoints.join(",")
    }
}

/// What an answer is, if it comes in time.
pub(crate) async fn in_time<T>(answer: impl Future<Output = Result<T, etcd_client::Error>>) -> Result<T, Lost> {
    match tokio::time::timeout(DEADLINE, answer).await {
        Ok(answer) => answer.map_err(Lost::because),
        Err(_) => Err(Lost(format!("no answer within {DEADLINE:?}"))),
    }
}
