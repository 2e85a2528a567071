//! Where a server runs: here, or on an island that can be cut off.

use std::ffi::OsStr;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::Command;

use crate::island::Island;

/// Where a server runs, and how it is reached there.
#[derive(Clone)]
pub struct Site {
    namespace: Option<String>,
    for_tests: IpAddr,
    for_gateways: IpAddr,
}

impl Site {
    /// On this machine, as everything else.
    #[must_use]
    pub fn here() -> Self {
        let here = Ipv4Addr::LOCALHOST.into();
        Self { namespace: None, for_tests: here, for_gateways: here }
    }

    /// On an island.
    #[must_use]
    pub fn on(island: &Island) -> Self {
        Self {
            namespace: Some(island.name().to_owned()),
            for_tests: island.for_tests(),
            for_gateways: island.for_gateways(),
        }
    }

    /// A command that runs there.
    pub(super) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let Some(namespace) = &self.namespace else { return Command::new(program) };
        // It becomes the program, so that signals reach it.
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace]).arg(program);
        command
    }

    /// What a server listens on there that is to have the port of `address`.
    pub(super) fn listen(&self, address: SocketAddr) -> SocketAddr {
        let all = Ipv4Addr::UNSPECIFIED.into();
        SocketAddr::new(if self.namespace.is_some() { all } else { self.for_tests }, address.port())
    }

    /// How a test reaches it.
    pub(super) fn for_tests(&self, address: SocketAddr) -> SocketAddr {
        SocketAddr::new(self.for_tests, address.port())
    }

    /// How gateways reach it.
    pub(super) fn for_gateways(&self, address: SocketAddr) -> SocketAddr {
        SocketAddr::new(self.for_gateways, address.port())
    }
}
