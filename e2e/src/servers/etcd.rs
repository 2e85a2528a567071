//! etcd, of one member. Tests talk to it by its JSON API, in plain text and without a password, whatever gateways do.

use std::net::SocketAddr;
use std::ops::Deref;
use std::path::Path;
use std::sync::Mutex;

use data_encoding::BASE64;
use serde_json::{Value, json};

use super::{Server, Site, listens};
use crate::client::{Call, Conn};
use crate::gateway::free_address;
use crate::wait;

/// A running etcd.
pub struct Etcd {
    /// Where tests connect.
    pub address: SocketAddr,
    /// Where gateways connect.
    endpoint: String,
    /// What tests show, once passwords are asked for.
    token: Mutex<Option<String>>,
    server: Server,
}

impl Deref for Etcd {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

impl Etcd {
    /// Starts one and waits until it answers.
    pub async fn start() -> Self {
        Self::start_at(&Site::here()).await
    }

    /// The same, somewhere else.
    pub async fn start_at(site: &Site) -> Self {
        let client = free_address();
        let (address, seen) = (site.for_tests(client), site.for_gateways(client));
        let clients = format!("http://{}", site.listen(client));
        Self::launch(site, address, format!("http://{seen}"), clients, vec![]).await
    }

    /// One that gateways reach over TLS only, with a certificate of their own. In `dir` are `etcd.crt`, `etcd.key`, and
    /// `ca.crt`, which issued everybody's.
    pub async fn start_with_tls(dir: &Path) -> Self {
        let (address, secure) = (free_address(), free_address());
        let endpoint = format!("https://{secure}");
        let file = |option: &str, name: &str| vec![option.to_owned(), dir.join(name).display().to_string()];
        let files =
            [file("--cert-file", "etcd.crt"), file("--key-file", "etcd.key"), file("--trusted-ca-file", "ca.crt")];
        let mut more = files.concat();
        more.push("--client-cert-auth".to_owned());
        let clients = format!("http://{address},{endpoint}");
        Self::launch(&Site::here(), address, endpoint, clients, more).await
    }

    async fn launch(site: &Site, address: SocketAddr, endpoint: String, clients: String, more: Vec<String>) -> Self {
        let (site, peer) = (site.clone(), free_address());
        let server = Server::start("etcd", move |dir| {
            let mut command = site.command("etcd");
            let peer = format!("http://{peer}");
            command.arg("--data-dir").arg(dir.join("data"));
            command.args(["--listen-client-urls", &clients, "--advertise-client-urls", &format!("http://{address}")]);
            command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
            command.args(["--initial-cluster", &format!("default={peer}"), "--log-level", "warn"]);
            // Usual is 1.5 MiB; tests write documents that are too large for gateways.
            command.args(["--max-request-bytes", "67108864"]);
            command.args(&more);
            command
        });
        let etcd = Self { address, endpoint, token: Mutex::default(), server };
        etcd.ready().await;
        etcd
    }

    async fn ready(&self) {
        wait::until("etcd to answer", || async {
            listens(self.address).await?;
            match self.try_ask("range", &json!({"key": BASE64.encode(b"none")})).await {
                // It answers whom it knows.
                Err(problem) => problem.contains("auth").then(|| json!({})),
                Ok(answer) => Some(answer),
            }
        })
        .await;
    }

    /// Its endpoint, for gateways.
    #[must_use]
    pub fn endpoint(&self) -> String {
        self.endpoint.clone()
    }

    /// Lets nobody in any more who has no password: `user` may do everything, and so may tests.
    pub async fn ask_for_passwords(&self, user: &str, password: &str) {
        for (name, password) in [("root", "root"), (user, password)] {
            self.ask("auth/user/add", json!({"name": name, "password": password})).await;
        }
        self.ask("auth/role/add", json!({"name": "root"})).await;
        for name in ["root", user] {
            self.ask("auth/user/grant", json!({"user": name, "role": "root"})).await;
        }
        self.ask("auth/enable", json!({})).await;
        self.log_in().await;
    }

    /// Has a token made for tests, which a restart forgets.
    pub async fn log_in(&self) {
        *self.token.lock().unwrap() = None;
        let answer = self.ask("auth/authenticate", json!({"name": "root", "password": "root"})).await;
        *self.token.lock().unwrap() = Some(answer["token"].as_str().unwrap().to_owned());
    }

    /// Starts it again, on what it has stored.
    pub async fn revive(&self) {
        self.server.launch();
        self.ready().await;
    }

    async fn try_ask(&self, what: &str, body: &Value) -> Result<Value, String> {
        let path = if what.contains('/') { format!("/v3/{what}") } else { format!("/v3/kv/{what}") };
        let mut call = Call::post(&path, body.to_string()).host(&self.address.to_string());
        if let Some(token) = self.token.lock().unwrap().clone() {
            call = call.header("authorization", token);
        }
        let reply = call.try_on(&mut Conn::http1(self.address).await).await.map_err(|error| error.to_string())?;
        if reply.status == 200 { Ok(reply.json()) } else { Err(reply.text()) }
    }

    async fn ask(&self, what: &str, body: Value) -> Value {
        self.try_ask(what, &body).await.unwrap_or_else(|error| panic!("etcd {what} {body}: {error}"))
    }

    /// Writes a key.
    pub async fn put(&self, key: &str, value: impl AsRef<[u8]>) {
        let (key, value) = (BASE64.encode(key.as_bytes()), BASE64.encode(value.as_ref()));
        self.ask("put", json!({"key": key, "value": value})).await;
    }

    /// Writes many keys.
    pub async fn put_all(&self, entries: &[(String, String)]) {
        for some in entries.chunks(100) {
            let put = |(key, value): &(String, String)| json!({"requestPut": {"key": BASE64.encode(key.as_bytes()), "value": BASE64.encode(value.as_bytes())}});
            self.ask("txn", json!({"success": some.iter().map(put).collect::<Vec<_>>()})).await;
        }
    }

    /// Writes a key that goes away after some seconds.
    pub async fn put_for(&self, seconds: u64, key: &str, value: &str) {
        let lease = self.ask("lease/grant", json!({"TTL": seconds})).await["ID"].clone();
        let (key, value) = (BASE64.encode(key.as_bytes()), BASE64.encode(value.as_bytes()));
        self.ask("put", json!({"key": key, "value": value, "lease": lease})).await;
    }

    /// Removes a key.
    pub async fn delete(&self, key: &str) {
        self.ask("deleterange", json!({"key": BASE64.encode(key.as_bytes())})).await;
    }

    /// Removes every key with a prefix.
    pub async fn delete_below(&self, prefix: &str) {
        let mut end = prefix.as_bytes().to_vec();
        *end.last_mut().unwrap() += 1;
        let (key, end) = (BASE64.encode(prefix.as_bytes()), BASE64.encode(&end));
        self.ask("deleterange", json!({"key": key, "range_end": end})).await;
    }

    /// Reads a key.
    pub async fn get(&self, key: &str) -> Option<String> {
        let answer = self.ask("range", json!({"key": BASE64.encode(key.as_bytes())})).await;
        let value = answer["kvs"][0]["value"].as_str()?;
        Some(String::from_utf8(BASE64.decode(value.as_bytes()).unwrap()).unwrap())
    }
}
