//! The admin API as the tests call it.

use serde_json::{Value, json};

use crate::client::{Call, Reply};
use crate::gateway::Gateway;

impl Gateway {
    /// Sends `call` to the admin API, which is asked by its own address.
    pub async fn admin(&self, call: Call) -> Reply {
        call.host(&self.admin_address().to_string()).to(self.admin_address()).await
    }

    /// `GET path`, which must answer 200 with JSON.
    pub async fn admin_get(&self, path: &str) -> Value {
        self.admin(Call::get(path)).await.expect(200).json()
    }

    /// Sends a JSON body.
    pub async fn admin_send(&self, method: &str, path: &str, body: &Value) -> Reply {
        self.admin(with_json(method, path, body)).await
    }

    /// Sets the weights of `users` through the admin API.
    pub async fn set_weights(&self, weights: &[(&str, &str)]) -> Reply {
        let body = json!({"weights": crate::conf::shares(weights), "reason": "a test"});
        self.admin_send("PATCH", "/v1/traffic/services/users", &body).await.expect(200)
    }

    /// Turns a kill switch through the admin API.
    pub async fn set_switch(&self, name: &str, on: bool, service: Option<&str>) -> Reply {
        let body = json!({"on": on, "service": service, "reason": "a test"});
        self.admin_send("PUT", &format!("/v1/switches/{name}"), &body).await.expect(200)
    }

    /// Explains a request without sending it.
    pub async fn explain(&self, method: &str, url: &str, headers: &[(&str, &str)]) -> Value {
        let headers: serde_json::Map<_, _> =
            headers.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
        let body = json!({"method": method, "url": url, "headers": headers});
        self.admin_send("POST", "/v1/explain", &body).await.expect(200).json()
    }

    /// The metrics page.
    pub async fn metrics(&self) -> Metrics {
        Metrics(self.admin(Call::get("/metrics")).await.expect(200).text())
    }

    /// Revision of the traffic document in force.
    pub async fn traffic_revision(&self) -> u64 {
        self.admin_get("/v1/traffic").await["revision"].as_u64().unwrap()
    }
}

/// A call with a JSON body.
#[must_use]
pub fn with_json(method: &str, path: &str, body: &Value) -> Call {
    Call::new(method, path).header("content-type", "application/json").body(body.to_string())
}

/// A page of Prometheus metrics.
#[derive(Debug)]
pub struct Metrics(pub String);

impl Metrics {
    /// The samples of a family (name without labels), with their label text.
    pub fn samples(&self, family: &str) -> impl Iterator<Item = (&str, f64)> {
        let lines = self.0.lines().filter(|line| !line.starts_with('#'));
        lines.filter_map(move |line| {
            let rest = line.strip_prefix(family)?;
            let (labels, value) = rest.rsplit_once(' ')?;
            (labels.is_empty() || labels.starts_with('{')).then(|| (labels, value.parse().unwrap()))
        })
    }

    /// Sum over the samples of a family that carry all `labels` (`name="value"`).
    #[must_use]
    pub fn sum(&self, family: &str, labels: &[&str]) -> f64 {
        let matching = self.samples(family).filter(|(text, _)| labels.iter().all(|label| text.contains(label)));
        matching.map(|(_, value)| value).sum()
    }
}
