//! etcd, of one member. Tests talk to it by its JSON API.

use std::net::SocketAddr;
use std::ops::Deref;
use std::process::Command;

use data_encoding::BASE64;
use serde_json::{Value, json};

use super::{Server, listens};
use crate::client::{Call, Conn};
use crate::gateway::free_address;
use crate::wait;

/// A running etcd.
pub struct Etcd {
    /// Where clients connect.
    pub address: SocketAddr,
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
        let (address, peer) = (free_address(), free_address());
        let server = Server::start("etcd", move |dir| {
            let mut command = Command::new("etcd");
            let (client, peer) = (format!("http://{address}"), format!("http://{peer}"));
            command.arg("--data-dir").arg(dir.join("data"));
            command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
            command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
            command.args(["--initial-cluster", &format!("default={peer}"), "--log-level", "warn"]);
            command
        });
        let etcd = Self { address, server };
        etcd.ready().await;
        etcd
    }

    async fn ready(&self) {
        wait::until("etcd to answer", || async {
            listens(self.address).await?;
            self.try_ask("range", &json!({"key": BASE64.encode(b"none")})).await.ok()
        })
        .await;
    }

    /// Its endpoint.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Starts it again, on what it has stored.
    pub async fn revive(&self) {
        self.server.launch();
        self.ready().await;
    }

    async fn try_ask(&self, what: &str, body: &Value) -> Result<Value, String> {
        let path = if what.contains('/') { format!("/v3/{what}") } else { format!("/v3/kv/{what}") };
        let call = Call::post(&path, body.to_string()).host(&self.address.to_string());
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
