//! Real servers that a fleet leans on - etcd, Nacos (r-nacos), ZooKeeper, Redis - which tests start, kill, hang, wipe and
//! start again. `e2e/setup.sh` installs them.

mod dns;
mod etcd;
mod nacos;
mod redis;
mod site;
mod zookeeper;

use std::fs::File;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;

use tempfile::TempDir;

use crate::gateway::directory;

pub use self::dns::{Dns, Mood, Record};
pub use self::etcd::Etcd;
pub use self::nacos::{Host, Nacos};
pub use self::redis::Redis;
pub use self::site::Site;
pub use self::zookeeper::ZooKeeper;

/// A server process with a directory of its own; it ends with its handle.
pub struct Server {
    /// What it is.
    name: &'static str,
    dir: TempDir,
    command: Box<dyn Fn(&Path) -> Command + Send + Sync>,
    child: Mutex<Option<Child>>,
}

impl Server {
    /// Starts it; whether it answers is for the caller to find out.
    fn start(name: &'static str, command: impl Fn(&Path) -> Command + Send + Sync + 'static) -> Self {
        let server = Self { name, dir: directory(), command: Box::new(command), child: Mutex::default() };
        server.launch();
        server
    }

    fn launch(&self) {
        let log = File::options().create(true).append(true).open(self.dir.path().join("output.log")).unwrap();
        let child = (self.command)(self.dir.path())
            .current_dir(self.dir.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error} (e2e/setup.sh installs it)", self.name));
        *self.child.lock().unwrap() = Some(child);
    }

    /// What it wrote so far.
    fn output(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("output.log")).unwrap_or_default()
    }

    /// Kills it.
    pub fn kill(&self) {
        if let Some(mut child) = self.child.lock().unwrap().take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Hangs it.
    pub fn hang(&self) {
        self.signal("-STOP");
    }

    /// Lets it go on.
    pub fn resume(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, name: &str) {
        let pid = self.child.lock().unwrap().as_ref().map(Child::id).expect("it runs").to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    }

    /// Removes what it has stored; it must not run.
    pub fn wipe(&self) {
        assert!(self.child.lock().unwrap().is_none(), "a running server is not wiped");
        for entry in self.dir.path().read_dir().unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                std::fs::remove_dir_all(path).unwrap();
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.output();
            let lines: Vec<_> = log.lines().rev().take(40).collect();
            eprintln!(
                "--- last output of {}\n{}\n---",
                self.name,
                lines.into_iter().rev().collect::<Vec<_>>().join("\n")
            );
        }
        self.kill();
    }
}

/// Whether something listens there.
async fn listens(address: SocketAddr) -> Option<()> {
    tokio::net::TcpStream::connect(address).await.ok().map(drop)
}

/// A text as part of a URL or a form.
fn encode(text: &str) -> String {
    let byte = |byte: u8| {
        if byte.is_ascii_alphanumeric() { char::from(byte).to_string() } else { format!("%{byte:02X}") }
    };
    text.bytes().map(byte).collect()
}
