//! The three documents of a gateway under test, as JSON values (JSON is YAML) that a test changes before the start.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::origin::Origin;

/// Bootstrap, routing and traffic.
#[derive(Clone, Debug)]
pub struct Conf {
    /// Node, listeners, admin and telemetry. Paths are relative to the gateway's directory; port 0 means a free port.
    pub bootstrap: Value,
    /// Services and routes.
    pub routing: Value,
    /// Weights, aborts and switches.
    pub traffic: Value,
    /// Variables of the gateway's environment.
    pub env: Vec<(String, String)>,
}

impl Conf {
    /// A clear-text listener `http`, admin without a token, no service and no route.
    #[must_use]
    pub fn empty() -> Self {
        Self {
            bootstrap: json!({
                "node": {"id": "gw-1", "zone": "az-1", "cluster": "test"},
                "listeners": [{"name": "http", "address": "127.0.0.1:0", "protocols": ["http1", "h2c"]}],
                "admin": {"address": "127.0.0.1:0"},
                "trusted_proxies": [],
                "routing": {"file": "routing.yaml"},
                "traffic": {"file": "traffic.yaml"},
                "telemetry": {"access_log": {"path": "access.log", "format": "json"}},
            }),
            routing: json!({"services": {}, "routes": []}),
            traffic: json!({
                "revision": 1,
                "services": {},
                "switches": {"balancer": false, "canary": false},
            }),
            env: vec![],
        }
    }

    /// Sets a variable of the gateway's environment.
    #[must_use]
    pub fn with_env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Adds a service without versions and a route `/NAME` to it.
    #[must_use]
    pub fn with_service(mut self, name: &str, service: Value) -> Self {
        self.routing["services"][name] = service;
        self.with_route(name, json!({"path": {"prefix": format!("/{name}")}}), name)
    }

    /// Adds a route.
    #[must_use]
    pub fn with_route(mut self, name: &str, matches: Value, service: &str) -> Self {
        let route = json!({"name": name, "match": matches, "service": service});
        self.routes().push(route);
        self
    }

    /// The routes.
    pub fn routes(&mut self) -> &mut Vec<Value> {
        self.routing["routes"].as_array_mut().unwrap()
    }

    /// The route called `name`.
    pub fn route(&mut self, name: &str) -> &mut Value {
        self.routes().iter_mut().find(|route| route["name"] == name).unwrap()
    }

    /// The service called `name`.
    pub fn service(&mut self, name: &str) -> &mut Value {
        let service = &mut self.routing["services"][name];
        assert!(service.is_object(), "no service {name}");
        service
    }

    /// The instances of the service called `name`.
    pub fn instances(&mut self, name: &str) -> &mut Vec<Value> {
        self.service(name)["instances"].as_array_mut().unwrap()
    }

    /// The listeners.
    pub fn listeners(&mut self) -> &mut Vec<Value> {
        self.bootstrap["listeners"].as_array_mut().unwrap()
    }

    /// Sets the weights of service `users` in the traffic document.
    pub fn weights(&mut self, weights: &[(&str, &str)]) -> &mut Self {
        self.traffic["services"]["users"]["weights"] = shares(weights);
        self
    }
}

/// Weights as the documents have them: `{"v1": "90%", ...}`.
#[must_use]
pub fn shares(weights: &[(&str, &str)]) -> Value {
    weights.iter().map(|(subset, share)| ((*subset).to_owned(), json!(share))).collect::<serde_json::Map<_, _>>().into()
}

/// One instance of a pool.
#[must_use]
pub fn instance(address: SocketAddr, version: &str) -> Value {
    json!({"address": address.to_string(), "labels": {"version": version}})
}

/// A service without versions over `origins`, with one pick.
#[must_use]
pub fn pool(origins: &[&Origin], balancer: Value) -> Value {
    let instances: Vec<_> = origins.iter().map(|origin| json!({"address": origin.address.to_string()})).collect();
    json!({"instances": instances, "balancer": balancer})
}

/// A service `users` with subsets v1 (stable) and v2 over `instances`, keyed by `x-user-id` or cookie `uid`.
#[must_use]
pub fn versioned(instances: Vec<Value>) -> Value {
    json!({
        "instances": instances,
        "subsets": {"v1": {"version": "v1"}, "v2": {"version": "v2"}},
        "stable": "v1",
        "user_key": [{"header": "x-user-id"}, {"cookie": "uid"}],
        "anonymous": "stable",
        "salt": "users-2026",
        "balancer": [{"round_robin": {}}],
    })
}
