//! ZooKeeper, of one server.

use std::net::SocketAddr;
use std::ops::Deref;

use super::{Server, Site, listens};
use crate::gateway::free_address;
use crate::wait;

/// A running ZooKeeper. Tests talk to it by a client of their own.
pub struct ZooKeeper {
    /// Where tests connect.
    pub address: SocketAddr,
    /// Where gateways connect.
    pub seen: SocketAddr,
    server: Server,
}

impl Deref for ZooKeeper {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

impl ZooKeeper {
    /// Starts one and waits until it listens.
    pub async fn start() -> Self {
        Self::start_at(&Site::here()).await
    }

    /// The same, somewhere else.
    pub async fn start_at(site: &Site) -> Self {
        let client = free_address();
        let (address, seen, site) = (site.for_tests(client), site.for_gateways(client), site.clone());
        let server = Server::start("zookeeper", move |dir| {
            let listen = site.listen(client);
            let conf = format!(
                "dataDir={}\nclientPort={}\nclientPortAddress={}\ntickTime=500\nadmin.enableServer=false\n",
                dir.join("data").display(),
                listen.port(),
                listen.ip(),
            );
            std::fs::write(dir.join("zoo.cfg"), conf).unwrap();
            let mut command = site.command("java");
            command.args(["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]);
            command.args(["-cp", "/usr/share/java/zookeeper.jar"]);
            command.arg("org.apache.zookeeper.server.ZooKeeperServerMain").arg(dir.join("zoo.cfg"));
            command
        });
        let zookeeper = Self { address, seen, server };
        zookeeper.ready().await;
        zookeeper
    }

    async fn ready(&self) {
        wait::until("zookeeper to listen", || listens(self.address)).await;
    }

    /// Starts it again, on what it has stored.
    pub async fn revive(&self) {
        self.server.launch();
        self.ready().await;
    }
}
