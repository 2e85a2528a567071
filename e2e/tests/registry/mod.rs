//! What the tests of registries share: documents with a service of theirs, and who serves it.

#![allow(dead_code, reason = "not every test needs all of it")]

use std::collections::BTreeSet;

use serde_json::{Value, json};
use serin_e2e::client::{Call, Conn};
use serin_e2e::{Conf, Gateway, conf, wait};

/// Service `users` of a registry, in two versions, all traffic to v1.
pub(crate) fn from(registries: Value, registry: Value) -> Conf {
    let mut conf = Conf::empty().with_route("all", json!({"path": {"prefix": "/"}}), "users");
    conf.routing["services"]["users"] = conf::versioned(vec![]);
    let users = conf.service("users").as_object_mut().unwrap();
    users.remove("instances");
    users.insert("registry".to_owned(), registry);
    users.insert("fallback".to_owned(), json!({"to": "none"}));
    conf.bootstrap["registries"] = registries;
    conf.bootstrap["state_dir"] = json!("state");
    conf
}

/// Who serves at a gateway.
pub(crate) struct Served<'a>(pub(crate) &'a Gateway);

impl Served<'_> {
    /// Waits until these origins serve, and no others.
    pub(crate) async fn by(&self, names: &[&str]) {
        let wanted: BTreeSet<String> = names.iter().map(|name| (*name).to_owned()).collect();
        wait::until(format!("{names:?} to serve"), || async {
            let mut conn = Conn::http1(self.0.http()).await;
            let mut seen = BTreeSet::new();
            for _ in 0..2 * names.len() {
                let reply = Call::get("/").try_on(&mut conn).await.ok()?;
                if reply.status != 200 {
                    return None;
                }
                seen.insert(reply.origin());
            }
            (seen == wanted).then_some(())
        })
        .await;
    }

    /// Waits until nobody serves.
    pub(crate) async fn nobody(&self) {
        wait::until("nobody to serve", || async {
            (Call::get("/").to(self.0.http()).await.status == 503).then_some(())
        })
        .await;
    }

    /// Waits until so many lists are held back.
    pub(crate) async fn held(&self, lists: usize) {
        wait::until(format!("{lists} lists to be held back"), || async {
            let documents = self.0.admin_get("/readyz?verbose").await["documents"].clone();
            let of = |status: &Value| status["held"].as_array().map_or(0, Vec::len);
            let held: usize = documents["registries"].as_object().unwrap().values().map(of).sum();
            (held == lists).then_some(())
        })
        .await;
        let held = self.0.metrics().await.sum("serin_source_held_lists", &[]);
        assert!((held - lists as f64).abs() < 0.5, "{held} in the metrics, {lists} in the status");
    }

    /// Waits until a text is in a file of the state directory.
    pub(crate) async fn kept(&self, file: &str, text: &str) {
        let path = self.0.dir().join("state").join(file);
        wait::until(format!("{text} in {file}"), || async {
            std::fs::read_to_string(&path).ok().filter(|kept| kept.contains(text))
        })
        .await;
    }
}
