//! r-nacos, a Nacos-compatible server. Tests talk to it by the HTTP API of Nacos 1, as its console does.

use std::net::SocketAddr;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Mutex;

use serde_json::{Value, json};

use super::{Server, Site, encode, listens};
use crate::client::{Call, Conn, Reply};
use crate::gateway::free_address;
use crate::wait;

/// A running r-nacos.
pub struct Nacos {
    /// Its HTTP port, for tests.
    pub http: SocketAddr,
    /// Its gRPC port, for tests.
    pub grpc: SocketAddr,
    /// Its HTTP port, for gateways.
    seen: SocketAddr,
    /// What tests show, if passwords are asked for.
    token: Mutex<Option<String>>,
    asks: bool,
    server: Server,
}

/// An instance that a test registers.
#[derive(Clone, Debug)]
pub struct Host {
    /// Where it is.
    pub address: SocketAddr,
    /// Label `version`.
    pub version: &'static str,
    /// Weight: 1 is usual.
    pub weight: f64,
    /// Cluster.
    pub cluster: &'static str,
    /// Whether it is enabled.
    pub enabled: bool,
}

impl Host {
    /// An instance of a version.
    #[must_use]
    pub fn new(address: SocketAddr, version: &'static str) -> Self {
        Self { address, version, weight: 1.0, cluster: "DEFAULT", enabled: true }
    }
}

impl Deref for Nacos {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

impl Nacos {
    /// Starts one and waits until it answers.
    pub async fn start() -> Self {
        Self::launch(&Site::here(), &[]).await
    }

    /// The same, somewhere else.
    pub async fn start_at(site: &Site) -> Self {
        Self::launch(site, &[]).await
    }

    /// One that lets nobody in without a password: that of `admin` is `admin`. What it gives for it is good for so many
    /// seconds.
    pub async fn start_with_passwords(seconds: u32) -> Self {
        let seconds = seconds.to_string();
        let asks = [("RNACOS_ENABLE_OPEN_API_AUTH", "true"), ("RNACOS_API_LOGIN_TIMEOUT", &*seconds)];
        Self::launch(&Site::here(), &asks).await
    }

    async fn launch(site: &Site, more: &[(&'static str, &str)]) -> Self {
        let (http, grpc, console) = (free_address(), free_address(), free_address());
        let more: Vec<_> = more.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        let (own, asks) = (site.clone(), !more.is_empty());
        let binary = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../.tools/rnacos/bin/rnacos");
        let server = Server::start("rnacos", move |dir| {
            let mut command = own.command(&binary);
            command
                .env("RNACOS_HTTP_PORT", http.port().to_string())
                .env("RNACOS_GRPC_PORT", grpc.port().to_string())
                .env("RNACOS_HTTP_CONSOLE_PORT", console.port().to_string())
                .env("RNACOS_DATA_DIR", dir.join("data"))
                .env("RNACOS_HTTP_WORKERS", "1")
                // Usual are 10 MiB; tests write documents that are too large for gateways.
                .env("RNACOS_CONFIG_MAX_CONTENT", "67108864")
                .env("RNACOS_INIT_ADMIN_USERNAME", "admin")
                .env("RNACOS_INIT_ADMIN_PASSWORD", "admin")
                .env("RUST_LOG", "warn")
                .envs(more.iter().map(|(name, value)| (name, value)));
            command
        });
        let (http, seen) = (site.for_tests(http), site.for_gateways(http));
        let nacos = Self { http, grpc: site.for_tests(grpc), seen, token: Mutex::default(), asks, server };
        nacos.ready(true).await;
        nacos
    }

    /// Waits until what is written can be read. r-nacos sometimes breaks when it starts (one of its threads is faster than
    /// what it needs): then it is started again.
    async fn ready(&self, fresh: bool) {
        let start = std::time::Instant::now();
        let mut broke = self.server.output().matches("panicked").count();
        while start.elapsed() < 2 * wait::DEADLINE {
            if self.works().await.is_some() {
                return;
            }
            let breaks = self.server.output().matches("panicked").count();
            if breaks > broke {
                broke = breaks;
                self.server.kill();
                if fresh {
                    self.server.wipe();
                }
                self.server.launch();
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        panic!("r-nacos does not answer");
    }

    async fn works(&self) -> Option<()> {
        listens(self.http).await?;
        listens(self.grpc).await?;
        if self.asks {
            self.log_in().await?;
        }
        let stamp = format!("{:?}", std::time::Instant::now());
        self.try_put("ready", &stamp).await.then_some(())?;
        let call = Call::get("/nacos/v1/cs/configs?dataId=ready&group=DEFAULT_GROUP");
        self.call(call).await.ok().filter(|reply| reply.status == 200 && reply.text() == stamp).map(drop)
    }

    /// Has a token made for tests.
    pub async fn log_in(&self) -> Option<()> {
        *self.token.lock().unwrap() = None;
        let call = Call::post("/nacos/v1/auth/login", "username=admin&password=admin")
            .header("content-type", "application/x-www-form-urlencoded");
        let reply = self.call(call).await.ok().filter(|reply| reply.status == 200)?;
        *self.token.lock().unwrap() = Some(reply.json()["accessToken"].as_str()?.to_owned());
        Some(())
    }

    /// Starts it again, on what it has stored.
    pub async fn revive(&self) {
        let stored = self.server.dir.path().join("data").exists();
        self.server.launch();
        self.ready(!stored).await;
    }

    /// The server as the bootstrap document has it.
    #[must_use]
    pub fn conf(&self) -> Value {
        json!({"address": self.seen.to_string(), "grpc_port": self.grpc.port()})
    }

    async fn call(&self, call: Call) -> Result<Reply, String> {
        let mut call = call.host(&self.http.to_string());
        if let Some(token) = self.token.lock().unwrap().clone() {
            call = call.header("accessToken", token);
        }
        call.try_on(&mut Conn::http1(self.http).await).await.map_err(|error| error.to_string())
    }

    /// Writes a configuration of the default group; false if it is not taken.
    pub async fn try_put(&self, data_id: &str, text: &str) -> bool {
        let body = format!("dataId={}&group=DEFAULT_GROUP&content={}", encode(data_id), encode(text));
        let call = Call::post("/nacos/v1/cs/configs", body).header("content-type", "application/x-www-form-urlencoded");
        self.call(call).await.is_ok_and(|reply| reply.status == 200 && reply.text() == "true")
    }

    /// Writes a configuration of the default group.
    pub async fn put(&self, data_id: &str, text: &str) {
        assert!(self.try_put(data_id, text).await, "{data_id} could not be written");
    }

    /// Removes a configuration of the default group.
    pub async fn delete(&self, data_id: &str) {
        let call = Call::new("DELETE", &format!("/nacos/v1/cs/configs?dataId={}&group=DEFAULT_GROUP", encode(data_id)));
        let _ = self.call(call).await.unwrap().expect(200);
    }

    /// Reads a configuration of the default group.
    pub async fn get(&self, data_id: &str) -> Option<String> {
        let call = Call::get(&format!("/nacos/v1/cs/configs?dataId={}&group=DEFAULT_GROUP", encode(data_id)));
        let reply = self.call(call).await.unwrap();
        (reply.status == 200).then(|| reply.text())
    }

    /// Registers a persistent instance: nobody has to send heartbeats for it.
    pub async fn register(&self, service: &str, host: &Host) {
        self.instance("POST", service, host).await;
    }

    /// Changes an instance, as the console does.
    pub async fn edit(&self, service: &str, host: &Host) {
        self.instance("PUT", service, host).await;
    }

    /// Takes an instance out.
    pub async fn deregister(&self, service: &str, host: &Host) {
        self.instance("DELETE", service, host).await;
    }

    /// The instances of a service.
    pub async fn list(&self, service: &str) -> Vec<Value> {
        let call = Call::get(&format!("/nacos/v1/ns/instance/list?serviceName={service}"));
        let reply = self.call(call).await.unwrap().expect(200).json();
        reply["hosts"].as_array().cloned().unwrap_or_default()
    }

    async fn instance(&self, method: &str, service: &str, host: &Host) {
        let metadata = json!({"version": host.version}).to_string();
        let query = format!(
            "serviceName={service}&ip={}&port={}&weight={}&clusterName={}&enabled={}&healthy=true&ephemeral=false&metadata={}",
            host.address.ip(),
            host.address.port(),
            host.weight,
            host.cluster,
            host.enabled,
            encode(&metadata),
        );
        let call = Call::new(method, &format!("/nacos/v1/ns/instance?{query}"));
        let _ = self.call(call).await.unwrap().expect(200);
    }
}
