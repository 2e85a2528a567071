//! The usual cast: origins of service `users` in versions v1 and v2, and a gateway that sends everything to it.

use std::net::SocketAddr;

use serde_json::json;

use crate::client::{Call, Conn, HOST, Reply};
use crate::conf::{self, Conf};
use crate::gateway::{self, Gateway};
use crate::origin::Origin;
use crate::tls::Authority;

/// Origins and the gateway before them.
pub struct World {
    /// The origins, in the order in which they were asked for.
    pub origins: Vec<Origin>,
    /// The gateway.
    pub gateway: Gateway,
}

impl World {
    /// Starts `v1-a`, `v1-b` and `v2-a` at 90 % / 10 % behind one route for every path.
    pub async fn start() -> Self {
        Self::with(&["v1-a", "v1-b", "v2-a"], |_| ()).await
    }

    /// Starts origins called `VERSION-LETTER`, and a gateway whose documents `change` has adapted.
    pub async fn with(names: &[&str], change: impl FnOnce(&mut Conf)) -> Self {
        let origins = origins(names).await;
        let mut conf = users_conf(&origins);
        change(&mut conf);
        Self { gateway: Gateway::start(conf).await, origins }
    }

    /// Starts `v1-a` and `v1-b`, which get everything, behind a TLS listener `tls` for [`HOST`] as well.
    pub async fn with_tls(authority: &Authority, change: impl FnOnce(&mut Conf)) -> Self {
        let dir = gateway::directory();
        authority.issue(HOST).write(dir.path(), "tls");
        let origins = origins(&["v1-a", "v1-b"]).await;
        let mut conf = users_conf(&origins);
        conf.weights(&[("v1", "100%"), ("v2", "0%")]);
        conf.listeners().push(json!({
            "name": "tls", "address": "127.0.0.1:0",
            "tls": {"certificates": [{"cert": "tls.crt", "key": "tls.key"}]},
        }));
        change(&mut conf);
        Self { gateway: Gateway::start_in(dir, conf).await, origins }
    }

    /// The origin called `name`.
    #[must_use]
    pub fn origin(&self, name: &str) -> &Origin {
        self.origins.iter().find(|origin| origin.name == name).unwrap()
    }

    /// Where the gateway takes users' traffic.
    #[must_use]
    pub fn http(&self) -> SocketAddr {
        self.gateway.http()
    }

    /// Sends `call` on a connection of its own.
    pub async fn send(&self, call: Call) -> Reply {
        call.to(self.http()).await
    }

    /// Name of the origin that answers `GET /` of `user`.
    pub async fn origin_of(&self, user: &str) -> String {
        self.send(Call::get("/").user(user)).await.origin()
    }

    /// Names of the origins that answer `GET /` of the users `u0`, `u1` and so on, on one connection.
    pub async fn burst(&self, users: usize) -> Vec<String> {
        let mut conn = Conn::http1(self.http()).await;
        let mut origins = vec![];
        for user in 0..users {
            origins.push(Call::get("/").user(format!("u{user}")).on(&mut conn).await.origin());
        }
        origins
    }

    /// The version that `GET /` of `user` goes to.
    pub async fn version_of(&self, user: &str) -> String {
        version(&self.origin_of(user).await)
    }
}

/// Starts origins with these names.
pub async fn origins(names: &[&str]) -> Vec<Origin> {
    let mut origins = vec![];
    for name in names {
        origins.push(Origin::start(name).await);
    }
    origins
}

/// Documents for `users` over `origins` (`VERSION-LETTER`), one route for every path, 90 % / 10 %.
#[must_use]
pub fn users_conf(origins: &[Origin]) -> Conf {
    let instances = origins.iter().map(|origin| conf::instance(origin.address, &version(&origin.name))).collect();
    let mut conf = Conf::empty().with_route("all", json!({"path": {"prefix": "/"}}), "users");
    conf.routing["services"]["users"] = conf::versioned(instances);
    conf.weights(&[("v1", "90%"), ("v2", "10%")]);
    conf
}

/// The version in an origin's name: `v1-a` is of version `v1`.
#[must_use]
pub fn version(origin: &str) -> String {
    origin.split('-').next().unwrap_or_default().to_owned()
}
