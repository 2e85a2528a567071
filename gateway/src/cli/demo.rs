//! `serin demo`: a gateway and three upstreams in one process, to try things on.

use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpListener as StdListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use clap::Args;
use serin_core::plugin::Catalogue;
use tokio::net::TcpListener;

use super::{Failure, exit, upstream};
use crate::conf::{self, Source};
use crate::server;

/// How long the gateway may take to start.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often it is looked whether it has.
const POLL: Duration = Duration::from_millis(20);
/// Versions of the upstreams.
const VERSIONS: [&str; 3] = ["v1", "v1", "v2"];

/// Run a gateway with three demo upstreams (v1, v1, v2 at 90% to 10%) in this process. Ctrl-C ends all of it.
#[derive(Debug, Args)]
pub(super) struct Demo {
    /// Where clients connect.
    #[arg(long, default_value = "127.0.0.1:8080")]
    address: SocketAddr,
    /// Where the admin API is.
    #[arg(long, default_value = "127.0.0.1:9901")]
    admin_address: SocketAddr,
}

impl Demo {
    pub(super) fn run(&self, catalogue: Catalogue) -> Result<(), Failure> {
        let _log = crate::telemetry::log::to_stderr("warn");
        let failed = |error: std::io::Error| Failure::failed(error.to_string());
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().map_err(failed)?;
        let upstreams = runtime.block_on(start_upstreams()).map_err(failed)?;
        let dir = tempfile::Builder::new().prefix("serin-demo-").tempdir().map_err(failed)?;
        write_documents(dir.path(), self, &upstreams).map_err(failed)?;
        let bootstrap = conf::bootstrap(&Source::read(dir.path().join("serin.yaml"))?)?;
        let (address, admin) = (self.address, self.admin_address);
        // Else the gateway that has the address already would be taken for this one.
        for taken in [address, admin] {
            drop(
                StdListener::bind(taken)
                    .map_err(|error| Failure::failed(format!("cannot listen on {taken}: {error}")))?,
            );
        }
        std::thread::spawn(move || {
            if is_up(address) && is_up(admin) {
                // If standard output is closed, there is nobody to tell.
                let _ = writeln!(std::io::stdout().lock(), "{}", lines_to_try(address, admin));
            }
        });
        let done = server::run(bootstrap, catalogue, server::Start::Fresh);
        runtime.shutdown_background();
        done.map_err(|error| Failure::new(exit::FAILED, error.to_string()))
    }
}

async fn start_upstreams() -> std::io::Result<Vec<SocketAddr>> {
    let mut addresses = Vec::new();
    for version in VERSIONS {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let app = upstream::app(version, address);
        tokio::spawn(async move { axum::serve(listener, app).await });
        addresses.push(address);
    }
    Ok(addresses)
}

fn write_documents(dir: &Path, demo: &Demo, upstreams: &[SocketAddr]) -> std::io::Result<()> {
    let Demo { address, admin_address } = demo;
    let instances: String = upstreams
        .iter()
        .zip(VERSIONS)
        .map(|(address, version)| format!("      - {{ address: {address}, labels: {{ version: {version} }} }}\n"))
        .collect();
    let bootstrap = format!(
        "listeners: [ {{ name: demo, address: \"{address}\" }} ]\n\
         admin: {{ address: \"{admin_address}\" }}\n\
         routing: {{ file: routing.yaml }}\n\
         traffic: {{ file: traffic.yaml }}\n"
    );
    std::fs::write(dir.join("serin.yaml"), bootstrap)?;
    std::fs::write(dir.join("routing.yaml"), ROUTING.replace("INSTANCES\n", &instances))?;
    std::fs::write(dir.join("traffic.yaml"), TRAFFIC)
}

const ROUTING: &str = "\
services:
  users:
    instances:
INSTANCES
    subsets: { v1: { version: v1 }, v2: { version: v2 } }
    stable: v1
    user_key: [ { header: x-user-id } ]
    salt: demo
    tags:
      - { name: canary, when: { header: { x-traffic-tag: canary } }, subset: v2, trust: any }
    balancer: [ { p2c: {} } ]
    propagate: { header: x-serin-subset }
routes:
  - name: users
    match: { path: { prefix: /api/users } }
    service: users
    rewrite: { prefix: /users }
";

const TRAFFIC: &str = "\
revision: 1
services:
  users: { weights: { v1: 90%, v2: 10% } }
";

fn is_up(address: SocketAddr) -> bool {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if TcpStream::connect(address).is_ok() {
            return true;
        }
        std::thread::sleep(POLL);
    }
    false
}

fn lines_to_try(address: SocketAddr, admin: SocketAddr) -> String {
    format!(
        "\
Serin is ready: users' traffic at http://{address}, console and admin API at http://{admin}.

# a user, who stays on his version
curl -s -H 'x-user-id: 7' http://{address}/api/users/7

# the override tag: to v2, whoever it is
curl -s -H 'x-traffic-tag: canary' http://{address}/api/users/7

# a flip: half of the users to v2, at once
curl -s -X PATCH -H 'content-type: application/json' -d '{{\"weights\": {{\"v1\": \"50%\", \"v2\": \"50%\"}}, \
\"reason\": \"trying it out\"}}' http://{admin}/v1/traffic/services/users

# why a request goes where it goes
curl -s -X POST -H 'content-type: application/json' -d '{{\"url\": \"/api/users/7\", \"headers\": \
{{\"x-user-id\": \"7\"}}}}' http://{admin}/v1/explain

Ctrl-C ends all of it."
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documents_are_sound() {
        let dir = tempfile::tempdir().unwrap();
        let local = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let demo = Demo { address: local(8080), admin_address: local(9901) };
        write_documents(dir.path(), &demo, &[local(9001), local(9002), local(9003)]).unwrap();
        let documents = conf::load(dir.path().join("serin.yaml"), &crate::builtin()).unwrap();
        assert_eq!(documents.routing.unwrap().services["users"].instances.len(), 3);
        assert_eq!(documents.traffic.unwrap().services["users"].weights["v2"].to_string(), "10%");
    }

    #[test]
    fn four_lines_to_try() {
        let text = lines_to_try(([127, 0, 0, 1], 8080).into(), ([127, 0, 0, 1], 9901).into());
        assert_eq!(text.lines().filter(|line| line.starts_with("curl ")).count(), 4, "{text}");
    }
}
