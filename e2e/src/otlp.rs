//! Receivers of OTLP: one on the messages of `opentelemetry-proto`, and Rotel, a collector that forwards to it.

use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::client::Call;
use crate::conf::Conf;
use crate::gateway::{directory, free_address};
use crate::peers::{PyServer, package_file};
use crate::wait;

/// A running receiver (`e2e/python/otlp_peer.py`).
pub struct Receiver {
    http: SocketAddr,
    grpc: u16,
    _server: PyServer,
}

impl Receiver {
    /// Starts one.
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// Starts one whose gRPC is TLS, with this certificate and key.
    pub async fn start_tls((cert, key): &(PathBuf, PathBuf)) -> Self {
        Self::start_with(&[&cert.to_string_lossy(), &key.to_string_lossy()]).await
    }

    async fn start_with(args: &[&str]) -> Self {
        let server = PyServer::start_with("otlp_peer.py", args).await;
        let http = SocketAddr::from(([127, 0, 0, 1], server.port));
        let grpc = Call::get("/grpc").to(http).await.expect(200).json().as_u64().unwrap();
        Self { http, grpc: grpc.try_into().unwrap(), _server: server }
    }

    /// Where it takes protobuf over HTTP.
    #[must_use]
    pub fn http_url(&self) -> String {
        format!("http://{}", self.http)
    }

    /// Where it takes gRPC.
    #[must_use]
    pub fn grpc_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.grpc)
    }

    /// `otlp` for a protocol, as a bootstrap document has it.
    #[must_use]
    pub fn otlp(&self, protocol: &str) -> Value {
        let endpoint = if protocol == "grpc" { self.grpc_url() } else { self.http_url() };
        json!({"endpoint": endpoint, "protocol": protocol})
    }

    /// Has a gateway send all of its spans here, soon.
    #[must_use]
    pub fn traces(&self, mut conf: Conf, protocol: &str) -> Conf {
        conf.bootstrap["telemetry"]["traces"] = json!({"otlp": self.otlp(protocol), "sample": "100%"});
        conf.with_env("OTEL_BSP_SCHEDULE_DELAY", "20")
    }

    /// What it does from now on; see the script.
    pub async fn mode(&self, mode: Value) {
        let _ = Call::new("PUT", "/mode").body(mode.to_string()).to(self.http).await.expect(200);
    }

    /// The spans so far.
    pub async fn now(&self) -> Vec<Value> {
        self.get("/spans").await
    }

    /// The header fields of the messages so far.
    pub async fn calls(&self) -> Vec<Value> {
        self.get("/calls").await
    }

    /// The latest metrics.
    pub async fn metrics(&self) -> Vec<Value> {
        self.get("/metrics").await
    }

    /// The spans, once there are `count` of them.
    pub async fn spans(&self, count: usize) -> Vec<Value> {
        wait::until(format!("{count} spans"), || async {
            let spans = self.now().await;
            (spans.len() >= count).then_some(spans)
        })
        .await
    }

    async fn get(&self, path: &str) -> Vec<Value> {
        Call::get(path).to(self.http).await.expect(200).json().as_array().unwrap().clone()
    }
}

/// The one span of a kind.
///
/// # Panics
/// If there is another number of them.
#[must_use]
pub fn only<'a>(spans: &'a [Value], kind: &str) -> &'a Value {
    let found: Vec<_> = spans.iter().filter(|span| span["kind"] == kind).collect();
    assert_eq!(found.len(), 1, "{kind}: {spans:#?}");
    found[0]
}

/// A running Rotel, a collector that forwards what it gets; it ends with its handle.
pub struct Rotel {
    grpc: SocketAddr,
    http: SocketAddr,
    child: Child,
    _dir: TempDir,
}

impl Rotel {
    /// Starts one that forwards to `receiver`.
    pub async fn start(receiver: &Receiver) -> Self {
        let (grpc, http, dir) = (free_address(), free_address(), directory());
        let child = Command::new(package_file("rotel/rotel-agent"))
            .arg("start")
            .args(["--exporter", "otlp", "--otlp-exporter-protocol", "grpc", "--batch-timeout", "50ms"])
            .args(["--otlp-exporter-endpoint", &receiver.grpc_url()])
            .args(["--otlp-grpc-endpoint", &grpc.to_string(), "--otlp-http-endpoint", &http.to_string()])
            .arg("--pid-file")
            .arg(dir.path().join("pid"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("rotel (e2e/setup.sh installs it)");
        let rotel = Self { grpc, http, child, _dir: dir };
        let accepts = |address: &SocketAddr| TcpStream::connect(address).is_ok();
        wait::until("rotel to accept", || async { [grpc, http].iter().all(accepts).then_some(()) }).await;
        rotel
    }

    /// `otlp` for a protocol, as a bootstrap document has it.
    #[must_use]
    pub fn otlp(&self, protocol: &str) -> Value {
        let address = if protocol == "grpc" { self.grpc } else { self.http };
        json!({"endpoint": format!("http://{address}"), "protocol": protocol})
    }
}

impl Drop for Rotel {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
