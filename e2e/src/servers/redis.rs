//! Redis, in memory only; over clear text and, if it is asked for, TLS.

use std::net::SocketAddr;
use std::ops::Deref;
use std::path::Path;
use std::process::Command;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{Server, listens};
use crate::gateway::free_address;
use crate::wait;

/// A running Redis.
pub struct Redis {
    /// Where clients connect.
    pub address: SocketAddr,
    /// Where they connect over TLS, if they can.
    pub tls: SocketAddr,
    password: Option<String>,
    server: Server,
}

impl Deref for Redis {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

impl Redis {
    /// Starts one and waits until it answers.
    pub async fn start() -> Self {
        Self::launch(None, &[]).await
    }

    /// Starts one that asks for a password.
    pub async fn with_password(password: &str) -> Self {
        Self::launch(Some(password), &["--requirepass", password]).await
    }

    /// Starts one that speaks TLS as well, with a certificate and its key.
    pub async fn with_tls(cert: &Path, key: &Path) -> Self {
        let (cert, key) = (cert.to_str().unwrap(), key.to_str().unwrap());
        let files = ["--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", cert];
        Self::launch(None, &[&files[..], &["--tls-auth-clients", "no", "--tls-port"]].concat()).await
    }

    /// Starts one with more arguments. If the last one is `--tls-port`, the port is added.
    async fn launch(password: Option<&str>, more: &[&str]) -> Self {
        let (address, tls) = (free_address(), free_address());
        let mut more: Vec<_> = more.iter().map(|word| (*word).to_owned()).collect();
        if more.last().is_some_and(|last| last == "--tls-port") {
            more.push(tls.port().to_string());
        }
        let server = Server::start("redis-server", move |_| {
            let mut command = Command::new("redis-server");
            command.args(["--bind", "127.0.0.1", "--port", &address.port().to_string()]);
            command.args(["--save", "", "--appendonly", "no", "--loglevel", "warning"]).args(&more);
            command
        });
        let redis = Self { address, tls, password: password.map(str::to_owned), server };
        redis.ready().await;
        redis
    }

    async fn ready(&self) {
        wait::until("redis to answer", || async {
            listens(self.address).await?;
            self.ask(&["PING"]).await.starts_with("+PONG").then_some(())
        })
        .await;
    }

    /// Its URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// Starts it again, with nothing in it.
    pub async fn revive(&self) {
        self.server.launch();
        self.ready().await;
    }

    /// What it answers a command, as it is on the wire; nothing if it does not answer.
    pub async fn ask(&self, words: &[&str]) -> String {
        let Ok(mut stream) = TcpStream::connect(self.address).await else { return String::new() };
        let mut sent = String::new();
        if let Some(password) = &self.password {
            sent += &command(&["AUTH", password]);
        }
        sent += &command(words);
        sent += &command(&["QUIT"]);
        let mut answer = Vec::new();
        let asked = async {
            stream.write_all(sent.as_bytes()).await?;
            stream.read_to_end(&mut answer).await
        };
        if asked.await.is_err() {
            return String::new();
        }
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let answer = answer.strip_suffix("+OK\r\n").unwrap_or(&answer);
        if self.password.is_some() { answer.trim_start_matches("+OK\r\n").to_owned() } else { answer.to_owned() }
    }
}

fn command(words: &[&str]) -> String {
    let word = |word: &&str| format!("${}\r\n{word}\r\n", word.len());
    format!("*{}\r\n{}", words.len(), words.iter().map(word).collect::<String>())
}
