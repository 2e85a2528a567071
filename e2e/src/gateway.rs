//! A gateway process: the real binary, in a directory of its own, on free ports; it dies with its handle.

use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{LazyLock, Mutex};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::client::{Call, Conn};
use crate::conf::Conf;
use crate::wait;

/// A running gateway.
pub struct Gateway {
    /// The documents it was started with.
    pub conf: Conf,
    binary: PathBuf,
    dir: TempDir,
    listeners: Vec<(String, SocketAddr)>,
    admin: SocketAddr,
    child: Mutex<Child>,
    ready_early: AtomicBool,
}

/// What a command of the CLI did.
#[derive(Debug)]
pub struct Cli {
    /// Exit code.
    pub code: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Cli {
    /// Standard output as JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("no JSON ({error}): {self:?}"))
    }

    /// Fails the test unless the exit code is `code`.
    #[must_use]
    pub fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{self:?}");
        self
    }
}

impl Gateway {
    /// Starts it and waits until it is ready.
    ///
    /// # Panics
    /// If it ends or is not ready in time; its output is in the message.
    pub async fn start(conf: Conf) -> Self {
        Self::start_in(directory(), conf).await
    }

    /// Like [`Gateway::start`] in a directory that holds more files already, such as certificates.
    pub async fn start_in(dir: TempDir, conf: Conf) -> Self {
        Self::start_built(binary(), dir, conf).await
    }

    /// Like [`Gateway::start`] with another binary, such as one with plug-ins of its own.
    pub async fn start_as(binary: PathBuf, conf: Conf) -> Self {
        Self::start_built(binary, directory(), conf).await
    }

    async fn start_built(binary: PathBuf, dir: TempDir, conf: Conf) -> Self {
        let mut dir = dir;
        for _ in 0..5 {
            let gateway = Self::launch(binary.clone(), dir, conf.clone());
            match gateway.ready().await {
                Ok(()) => return gateway,
                Err(output) if output.to_lowercase().contains("in use") => dir = gateway.into_dir(),
                Err(output) => panic!("the gateway did not start:\n{output}"),
            }
        }
        panic!("no free port in five attempts");
    }

    fn launch(binary: PathBuf, dir: TempDir, conf: Conf) -> Self {
        let mut bootstrap = conf.bootstrap.clone();
        let mut listeners = vec![];
        for listener in bootstrap["listeners"].as_array_mut().unwrap() {
            let address = free_address();
            listener["address"] = json!(address.to_string());
            listeners.push((listener["name"].as_str().unwrap().to_owned(), address));
        }
        let admin = free_address();
        bootstrap["admin"]["address"] = json!(admin.to_string());
        for (name, document) in [("serin", &bootstrap), ("routing", &conf.routing), ("traffic", &conf.traffic)] {
            write_atomically(&dir.path().join(format!("{name}.yaml")), &pretty(document));
        }
        let child = Mutex::new(spawn(&binary, dir.path(), &conf, &[]));
        Self { conf, binary, dir, listeners, admin, child, ready_early: AtomicBool::new(false) }
    }

    /// Kills the process and starts it again on the files as they are now.
    pub async fn restart(&self) {
        {
            let mut child = self.child.lock().unwrap();
            child.kill().unwrap();
            child.wait().unwrap();
            *child = spawn(&self.binary, self.dir.path(), &self.conf, &[]);
        }
        self.ready().await.unwrap_or_else(|output| panic!("the gateway did not start again:\n{output}"));
    }

    /// Kills the process for good.
    pub fn stop(&self) {
        let mut child = self.child.lock().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Sends it a signal such as `TERM`.
    ///
    /// # Panics
    /// If there is no such signal or process.
    pub fn signal(&self, name: &str) {
        signal(self.pid(), name);
    }

    /// Starts another process with `serin run --upgrade`, and answers the one that was there, which drains. From now on
    /// this handle is of the new one.
    #[must_use]
    pub fn upgrade(&self) -> Process {
        let successor = spawn(&self.binary, self.dir.path(), &self.conf, &["--upgrade"]);
        Process(std::mem::replace(&mut *self.child.lock().unwrap(), successor))
    }

    /// Waits until the process has ended by itself, and answers its exit code.
    pub async fn ended(&self) -> Option<i32> {
        let end = || async { self.child.lock().unwrap().try_wait().unwrap() };
        wait::until("the gateway to end", end).await.code()
    }

    async fn ready(&self) -> Result<(), String> {
        wait::until(format!("/readyz of the gateway in {}", self.dir().display()), || async {
            if self.child.lock().unwrap().try_wait().unwrap().is_some() {
                return Some(Err(self.output()));
            }
            is_ready(self.admin).await.then_some(Ok(()))
        })
        .await?;
        let accepts = |address: SocketAddr| async move { tokio::net::TcpStream::connect(address).await.ok().map(drop) };
        for (name, address) in &self.listeners {
            if accepts(*address).await.is_none() {
                self.ready_early.store(true, Relaxed);
                wait::until(format!("listener {name} to accept"), || accepts(*address)).await;
            }
        }
        Ok(())
    }

    /// Whether it said that it was ready before every listener accepted connections.
    #[must_use]
    pub fn was_ready_early(&self) -> bool {
        self.ready_early.load(Relaxed)
    }

    fn into_dir(mut self) -> TempDir {
        std::mem::replace(&mut self.dir, directory())
    }

    /// Address of the listener `http`.
    #[must_use]
    pub fn http(&self) -> SocketAddr {
        self.listener("http")
    }

    /// Address of a listener.
    #[must_use]
    pub fn listener(&self, name: &str) -> SocketAddr {
        self.listeners.iter().find(|(known, _)| known == name).unwrap().1
    }

    /// Address of the admin API.
    #[must_use]
    pub fn admin_address(&self) -> SocketAddr {
        self.admin
    }

    /// Its directory: `serin.yaml`, `routing.yaml`, `traffic.yaml`, `access.log` and `output.log`.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.lock().unwrap().id()
    }

    /// What it wrote to standard output and standard error so far.
    #[must_use]
    pub fn output(&self) -> String {
        fs::read_to_string(self.dir.path().join("output.log")).unwrap_or_default()
    }

    /// Resident memory in KiB.
    #[must_use]
    pub fn rss_kib(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// Open descriptors.
    #[must_use]
    pub fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.pid())).unwrap().count()
    }

    /// Replaces the routing document in one step.
    pub fn write_routing(&self, document: &Value) {
        write_atomically(&self.dir.path().join("routing.yaml"), &pretty(document));
    }

    /// Replaces the traffic document in one step.
    pub fn write_traffic(&self, document: &Value) {
        write_atomically(&self.dir.path().join("traffic.yaml"), &pretty(document));
    }

    /// The lines of the access log, once there are at least `count`.
    pub async fn access_log(&self, count: usize) -> Vec<Value> {
        wait::until(format!("{count} lines of access log"), || async {
            let text = fs::read_to_string(self.dir.path().join("access.log")).unwrap_or_default();
            let whole = text.rfind('\n').map_or("", |end| &text[..end]);
            let lines: Vec<_> = whole.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
            (lines.len() >= count).then_some(lines)
        })
        .await
    }

    /// Runs a command of the CLI against this gateway.
    pub async fn cli(&self, args: &[&str]) -> Cli {
        let (args, admin) = (args.iter().map(|arg| (*arg).to_owned()).collect::<Vec<_>>(), self.admin);
        let prepare = move |command: &mut Command| {
            command.args(args).env("SERIN_ADMIN", format!("http://{admin}"));
        };
        run(&self.binary, prepare).await
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- output of the gateway\n{}\n---", self.output());
        }
        let child = self.child.get_mut().unwrap();
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// A process that a gateway's handle left behind; it dies with its own.
pub struct Process(Child);

impl Process {
    /// Process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Waits until it has ended by itself, and answers its exit code.
    ///
    /// # Panics
    /// If it does not end.
    pub async fn ended(&mut self) -> Option<i32> {
        let child = Mutex::new(&mut self.0);
        wait::until("the process to end", || async { child.lock().unwrap().try_wait().unwrap() }).await.code()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Sends a signal such as `TERM` to a process.
///
/// # Panics
/// If there is no such signal or process.
pub fn signal(pid: u32, name: &str) {
    let sent = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status().unwrap();
    assert!(sent.success(), "kill -{name} {pid}");
}

/// Whether the admin API at `admin` says that its gateway is ready.
pub async fn is_ready(admin: SocketAddr) -> bool {
    if tokio::net::TcpStream::connect(admin).await.is_err() {
        return false;
    }
    let call = Call::get("/readyz").host(&admin.to_string());
    call.try_on(&mut Conn::http1(admin).await).await.is_ok_and(|reply| reply.status == 200)
}

fn spawn(binary: &Path, dir: &Path, conf: &Conf, more: &[&str]) -> Child {
    let output = File::options().create(true).append(true).open(dir.join("output.log")).unwrap();
    Command::new(binary)
        .args(["run", "--config"])
        .arg(dir.join("serin.yaml"))
        .args(more)
        .current_dir(dir)
        .envs(conf.env.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(output.try_clone().unwrap())
        .stderr(output)
        .spawn()
        .unwrap_or_else(|error| panic!("{}: {error} (cargo build -p serin)", binary.display()))
}

/// Runs the binary with `args` and no gateway in mind.
pub async fn cli(args: &[&str]) -> Cli {
    let args: Vec<_> = args.iter().map(|arg| (*arg).to_owned()).collect();
    let prepare = move |command: &mut Command| {
        command.args(args);
    };
    run(&binary(), prepare).await
}

async fn run(binary: &Path, prepare: impl FnOnce(&mut Command)) -> Cli {
    let mut command = Command::new(binary);
    prepare(command.stdin(Stdio::null()));
    let task = tokio::task::spawn_blocking(move || command.output().unwrap());
    let output: Output = tokio::time::timeout(wait::DEADLINE, task).await.expect("the command to end").unwrap();
    Cli {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// The binary under test: `SERIN_BIN`, or the one that cargo built beside this test.
#[must_use]
pub fn binary() -> PathBuf {
    std::env::var_os("SERIN_BIN").map_or_else(
        || {
            let test = std::env::current_exe().unwrap();
            test.ancestors().nth(2).unwrap().join("serin")
        },
        PathBuf::from,
    )
}

/// A new directory that goes away with its handle.
#[must_use]
pub fn directory() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// An address on which nothing listens now, and that nobody else in this process is given. Its port is below those that
/// the kernel gives to clients, one of which may otherwise take it before the gateway does.
///
/// # Panics
/// If no port is free.
#[must_use]
pub fn free_address() -> SocketAddr {
    const PORTS: std::ops::Range<u16> = 10_000..32_000;
    static NEXT: LazyLock<AtomicU32> = LazyLock::new(|| AtomicU32::new(std::process::id().wrapping_mul(997)));
    let next = || PORTS.start + (NEXT.fetch_add(1, Relaxed) % PORTS.len() as u32) as u16;
    let ports = std::iter::repeat_with(next).take(PORTS.len());
    ports.map(|port| SocketAddr::from(([127, 0, 0, 1], port))).find(|a| TcpListener::bind(a).is_ok()).unwrap()
}

/// Replaces a file in one step, so that a watcher never sees half of it.
pub fn write_atomically(path: &Path, text: &str) {
    let scratch = path.with_extension("new");
    fs::write(&scratch, text).unwrap();
    fs::rename(&scratch, path).unwrap();
}

fn pretty(document: &Value) -> String {
    serde_json::to_string_pretty(document).unwrap()
}
