//! Nacos 2 and 3, by the gRPC protocol of its clients. The official SDK is not used: it listens again only up to a minute
//! after a connection broke, cannot be stopped, and keeps its connection's state to itself, while a flip has to be on
//! every gateway within a second. The protocol is small: JSON in one kind of message, a call and a stream.

pub(crate) mod center;
mod connection;
mod login;
mod message;

use std::time::Duration;

use crate::conf::NacosServer;
use crate::sources::password;

pub(crate) use self::connection::{Connection, Push, Pushes};
pub(crate) use self::message::{Host, ServiceInfo, Verdict};

/// How long a request may take.
pub(crate) const DEADLINE: Duration = Duration::from_secs(2);

/// How to reach a server.
pub(crate) struct Server {
    pub(crate) conf: NacosServer,
    password: Option<String>,
}

impl Server {
    /// Reads the file that the configuration names.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(crate) fn new(conf: &NacosServer) -> Result<Self, String> {
        let password = conf.password_file.as_deref().map(password).transpose()?;
        Ok(Self { conf: conf.clone(), password })
    }

    /// The namespace, as services have it.
    pub(crate) fn namespace(&self) -> &str {
        if self.conf.namespace.is_empty() { "public" } else { &self.conf.namespace }
    }

    /// The namespace, as configurations have it.
    pub(crate) fn tenant(&self) -> &str {
        if self.conf.namespace == "public" { "" } else { &self.conf.namespace }
    }
}
