//! A real Prometheus (the Debian package, see `e2e/setup.sh`) that scrapes gateways and evaluates the rules in `conf/`.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::client::{Call, Conn};
use crate::gateway::{directory, free_address};
use crate::wait;

/// A running Prometheus; it ends with its handle.
pub struct Prometheus {
    address: SocketAddr,
    dir: TempDir,
    child: Child,
}

impl Prometheus {
    /// Starts one that scrapes `targets` as job `serin`, a few times a second.
    pub async fn start(targets: &[SocketAddr], rules: &Path) -> Self {
        let (address, dir) = (free_address(), directory());
        let targets: Vec<_> = targets.iter().map(ToString::to_string).collect();
        let config = json!({
            "global": {"scrape_interval": "250ms", "scrape_timeout": "250ms", "evaluation_interval": "250ms"},
            "rule_files": [rules],
            "scrape_configs": [{"job_name": "serin", "static_configs": [{"targets": targets}]}],
        });
        std::fs::write(dir.path().join("prometheus.yml"), config.to_string()).unwrap();
        let log = std::fs::File::create(dir.path().join("output.log")).unwrap();
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", dir.path().join("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", dir.path().join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("prometheus (e2e/setup.sh installs it)");
        let prometheus = Self { address, dir, child };
        wait::until("prometheus to be ready", || async {
            tokio::net::TcpStream::connect(address).await.ok()?;
            let reply = Call::get("/-/ready").host(&address.to_string()).try_on(&mut Conn::http1(address).await).await;
            reply.is_ok_and(|reply| reply.status == 200).then_some(())
        })
        .await;
        prometheus
    }

    /// Answers of `GET /api/v1/…`.
    ///
    /// # Errors
    /// What Prometheus says is wrong with it.
    pub async fn get(&self, path: &str, query: &[(&str, &str)]) -> Result<Value, String> {
        let query: Vec<_> = query.iter().map(|(name, value)| format!("{name}={}", encode(value))).collect();
        let call = Call::get(&format!("/api/v1/{path}?{}", query.join("&"))).host(&self.address.to_string());
        let answer = call.to(self.address).await.json();
        if answer["status"] == "success" { Ok(answer["data"].clone()) } else { Err(answer["error"].to_string()) }
    }

    /// The series that an expression gives now.
    ///
    /// # Errors
    /// What is wrong with the expression.
    pub async fn query(&self, expression: &str) -> Result<Vec<Value>, String> {
        let data = self.get("query", &[("query", expression)]).await?;
        Ok(data["result"].as_array().cloned().unwrap_or_default())
    }

    /// Names of all metrics that it knows.
    pub async fn names(&self) -> BTreeSet<String> {
        texts(&self.get("label/__name__/values", &[]).await.unwrap())
    }

    /// Names of the labels of a metric.
    pub async fn labels(&self, metric: &str) -> BTreeSet<String> {
        texts(&self.get("labels", &[("match[]", metric)]).await.unwrap())
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.dir.path().join("output.log")).unwrap_or_default();
            eprintln!("--- output of prometheus\n{log}\n---");
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn texts(list: &Value) -> BTreeSet<String> {
    list.as_array().into_iter().flatten().filter_map(|text| text.as_str().map(str::to_owned)).collect()
}

fn encode(text: &str) -> String {
    let byte = |byte: u8| {
        if byte.is_ascii_alphanumeric() { char::from(byte).to_string() } else { format!("%{byte:02X}") }
    };
    text.bytes().map(byte).collect()
}

/// What an expression names: metrics, and labels.
#[must_use]
pub fn names_in(expression: &str) -> (BTreeSet<String>, BTreeSet<String>) {
    const LISTS: [&str; 5] = ["by", "without", "on", "ignoring", "group_left"];
    let (mut metrics, mut labels) = (BTreeSet::new(), BTreeSet::new());
    let (mut rest, mut braces, mut list, mut last) = (expression, false, false, String::new());
    while let Some(c) = rest.chars().next() {
        if c.is_ascii_alphabetic() || c == '_' || c == ':' {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':').unwrap_or(rest.len());
            let word = rest[..end].to_owned();
            rest = &rest[end..];
            if braces || list {
                labels.insert(word);
            } else if word.starts_with("serin") || word.starts_with("process_") || word == "up" {
                metrics.insert(word);
            } else {
                last = word;
            }
            continue;
        }
        match c {
            '"' => rest = rest[1..].split_once('"').map_or("", |(_, after)| after),
            '[' => rest = rest.split_once(']').map_or("", |(_, after)| after),
            _ => {
                match c {
                    '{' => braces = true,
                    '}' => braces = false,
                    '(' => list = LISTS.contains(&&*last),
                    ')' => list = false,
                    _ => {}
                }
                if !c.is_whitespace() {
                    last.clear();
                }
                rest = &rest[c.len_utf8()..];
            }
        }
    }
    (metrics, labels)
}

/// Runs `promtool` and gives what it printed.
///
/// # Errors
/// The same, if it found something wrong.
pub fn promtool(args: &[&str], input: &str, dir: &Path) -> Result<String, String> {
    let mut child = Command::new("promtool")
        .args(args)
        .current_dir(dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool (e2e/setup.sh installs it)");
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(text) } else { Err(text) }
}

/// A panel of a dashboard, with the place that it takes.
#[derive(Debug)]
pub struct Panel {
    /// File and title.
    pub name: String,
    /// As it is in the file.
    pub json: Value,
}

/// The dashboards below `conf/grafana`.
#[must_use]
pub fn dashboards(conf: &Path) -> Vec<(PathBuf, Value)> {
    let mut files: Vec<_> =
        std::fs::read_dir(conf.join("grafana")).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let read = |path: PathBuf| {
        let json = serde_json::from_str(&std::fs::read_to_string(&path).unwrap());
        let json = json.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        (path, json)
    };
    files.into_iter().map(read).collect()
}

/// The panels of a dashboard.
#[must_use]
pub fn panels(path: &Path, dashboard: &Value) -> Vec<Panel> {
    let file = path.file_name().unwrap().to_string_lossy().into_owned();
    let panel = |json: &Value| Panel { name: format!("{file}: {}", json["title"]), json: json.clone() };
    dashboard["panels"].as_array().unwrap().iter().map(panel).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_expressions() {
        let (metrics, labels) = names_in(
            "sum by (service, le) (rate(serin_a_total{code=~\"5xx|serin_no\", b!=\"x\"}[5m])) / on (c) group_left () up",
        );
        assert_eq!(metrics.into_iter().collect::<Vec<_>>(), ["serin_a_total", "up"]);
        assert_eq!(labels.into_iter().collect::<Vec<_>>(), ["b", "c", "code", "le", "service"]);
    }
}
