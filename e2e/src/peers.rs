//! Clients and servers that are not ours: Python's grpcio, websockets and OpenTelemetry, installed by `e2e/setup.sh`.

use std::path::PathBuf;
use std::process::Stdio;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::wait;

/// A Python server; it ends when it is dropped.
pub struct PyServer {
    /// Its port on 127.0.0.1.
    pub port: u16,
    _child: Child,
}

impl PyServer {
    /// Starts `e2e/python/SCRIPT server`, which prints its port and then serves.
    pub async fn start(script: &str) -> Self {
        Self::start_with(script, &[]).await
    }

    /// Like [`PyServer::start`] with more arguments.
    pub async fn start_with(script: &str, args: &[&str]) -> Self {
        let mut child = python(script).arg("server").args(args).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = tokio::time::timeout(wait::DEADLINE, lines.next_line()).await.expect("the server's port").unwrap();
        let port = line.as_deref().and_then(|line| line.trim().parse().ok());
        Self { port: port.unwrap_or_else(|| panic!("{script} server said {line:?}")), _child: child }
    }
}

/// Runs `e2e/python/SCRIPT client ARGS` and answers the JSON it prints.
pub async fn client(script: &str, args: &[&str]) -> Value {
    let run = python(script).arg("client").args(args).stderr(Stdio::piped()).output();
    let output = tokio::time::timeout(wait::DEADLINE, run).await.expect("the client to end").unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{script} client {args:?}: {}\n{out}\n{err}", output.status);
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{script} client {args:?}: {error}: {out}"))
}

/// A file that `e2e/setup.sh` installed, by its path in the directory of Python's packages.
pub(crate) fn package_file(path: &str) -> PathBuf {
    let lib = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../.tools/venv/lib");
    let python = std::fs::read_dir(lib).unwrap().next().expect("a version of Python").unwrap();
    let file = python.path().join("site-packages").join(path);
    assert!(file.exists(), "{} is missing: run e2e/setup.sh", file.display());
    file
}

fn python(script: &str) -> Command {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let interpreter = here.join("../.tools/venv/bin/python");
    assert!(interpreter.exists(), "{} is missing: run e2e/setup.sh", interpreter.display());
    let mut command = Command::new(interpreter);
    command.arg(here.join("python").join(script)).stdin(Stdio::null()).kill_on_drop(true);
    command
}
