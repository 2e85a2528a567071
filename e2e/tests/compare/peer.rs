//! The proxies, each in front of one upstream.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::json;
use serin_e2e::gateway::{self, free_address};
use serin_e2e::{Conf, Gateway, Raw, Recorder, wait};
use tempfile::TempDir;

/// Their names.
pub(crate) const ALL: [&str; 4] = ["Serin", "nginx", "HAProxy", "Envoy"];

/// A running proxy; it ends when it is dropped.
pub(crate) struct Peer {
    /// Where it listens.
    pub(crate) address: SocketAddr,
    /// What it calls itself.
    pub(crate) version: String,
    _process: Process,
}

enum Process {
    Serin(#[expect(dead_code, reason = "it ends when it is dropped")] Box<Gateway>),
    Other(Child, #[expect(dead_code, reason = "it goes when it is dropped")] TempDir),
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Self::Other(child, _) = self {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Peer {
    pub(crate) async fn start(name: &str, recorder: &Recorder) -> Self {
        let peer = match name {
            "Serin" => serin(recorder).await,
            "nginx" => other(name, "nginx", &["-v"], &["-c"], include_str!("nginx.conf"), recorder),
            "HAProxy" => other(name, "haproxy", &["-v"], &["-db", "-f"], include_str!("haproxy.cfg"), recorder),
            _ => {
                let (envoy, args) =
                    (envoy(), ["--log-level", "off", "--concurrency", "1", "--disable-hot-restart", "-c"]);
                other(name, &envoy, &["--version"], &args, include_str!("envoy.yaml"), recorder)
            }
        };
        wait::until(format!("{name} to serve"), || async {
            tokio::net::TcpStream::connect(peer.address).await.ok()?;
            let mut raw = Raw::connect(peer.address).await;
            raw.send(b"GET /ready HTTP/1.1\r\nHost: gw.test\r\n\r\n").await.ok()?;
            (raw.response(std::time::Duration::from_secs(2)).await.status() == 200).then_some(())
        })
        .await;
        peer
    }
}

async fn serin(recorder: &Recorder) -> Peer {
    let mut conf = Conf::empty().with_route("all", json!({"path": {"prefix": "/"}}), "all");
    conf.bootstrap["limits"] = json!({"head_timeout": "2s", "idle": "5s"});
    conf.routing["services"]["all"] = json!({
        "instances": [{"address": recorder.address.to_string()}],
        "timeouts": {"first_byte": "2s", "request": "2s"},
        "retry": {"attempts": 1},
    });
    let gateway = Gateway::start(conf).await;
    let version = format!("Serin {}", env!("CARGO_PKG_VERSION"));
    Peer { address: gateway.http(), version, _process: Process::Serin(Box::new(gateway)) }
}

fn other(name: &str, command: &str, version: &[&str], args: &[&str], conf: &str, recorder: &Recorder) -> Peer {
    let (dir, address) = (gateway::directory(), free_address());
    let file = dir.path().join("compare.yaml");
    let conf = conf
        .replace("@PORT@", &address.port().to_string())
        .replace("@UPSTREAM@", &recorder.address.port().to_string())
        .replace("@DIR@", &dir.path().display().to_string());
    std::fs::write(&file, conf).unwrap();
    let path = format!("{}:/usr/sbin", std::env::var("PATH").unwrap_or_default());
    let run = |args: &[&str]| {
        let mut run = Command::new(command);
        run.args(args).env("PATH", &path).stdin(Stdio::null());
        run
    };
    let said = run(version).output().unwrap_or_else(|error| panic!("{command}: {error}; make compare installs it"));
    let said = String::from_utf8_lossy(&[said.stdout, said.stderr].concat()).into_owned();
    let child = run(args).arg(&file).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    Peer { address, version: format!("{name} {}", number(&said)), _process: Process::Other(child, dir) }
}

/// The first thing in a text that looks like a version.
fn number(text: &str) -> &str {
    let words = text.split(|c: char| c.is_whitespace() || c == '/');
    words.map(|word| word.split('-').next().unwrap_or(word)).find(|word| is_version(word)).unwrap_or("?")
}

fn is_version(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_digit())
        && word.matches('.').count() == 2
        && word.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
}

/// Envoy as `e2e/bench/setup.sh` installs it.
fn envoy() -> String {
    let root: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    root.join(".tools/venv-bench/bin/envoy").display().to_string()
}
