//! Promise: the admin API is guarded, answers problems as RFC 9457, and its OpenAPI document is what it serves.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use serin_e2e::admin::with_json;
use serin_e2e::client::Call;
use serin_e2e::gateway::{self, write_atomically};
use serin_e2e::{Gateway, World, world};

const TOKEN: &str = "a-token-for-the-tests";

/// Every route of the interface: method, path, a body that is good, and the path in an OpenAPI document.
fn routes() -> Vec<(&'static str, &'static str, Value, &'static str)> {
    let weights = json!({"weights": {"v1": "85.5%", "v2": "14.5%"}, "reason": "a test"});
    let switch = json!({"on": false, "service": null, "reason": "a test"});
    let explain = json!({"method": "GET", "url": "http://api.example.com/", "headers": {}});
    let preview = json!({"service": "users", "weights": {"v1": "85.5%", "v2": "14.5%"}});
    let traffic = json!({"revision": 1, "services": {"users": {"weights": {"v1": "90%", "v2": "10%"}}}});
    vec![
        ("GET", "/v1/config", Value::Null, "/v1/config"),
        ("GET", "/v1/services", Value::Null, "/v1/services"),
        ("GET", "/v1/services/users", Value::Null, "/v1/services/{}"),
        ("GET", "/v1/traffic", Value::Null, "/v1/traffic"),
        ("GET", "/v1/history", Value::Null, "/v1/history"),
        ("PUT", "/v1/traffic", traffic, "/v1/traffic"),
        ("PATCH", "/v1/traffic/services/users", weights, "/v1/traffic/services/{}"),
        ("PUT", "/v1/switches/balancer", switch.clone(), "/v1/switches/{}"),
        ("PUT", "/v1/switches/canary", switch, "/v1/switches/{}"),
        ("POST", "/v1/services/users/rearm", json!({"reason": "a test"}), "/v1/services/{}/rearm"),
        ("POST", "/v1/explain", explain, "/v1/explain"),
        ("POST", "/v1/preview", preview, "/v1/preview"),
        ("POST", "/v1/rollback", json!({"revision": 1, "reason": "a test"}), "/v1/rollback"),
    ]
}

/// Those whose answer depends on a ramp or never ends; tests of their own call them with a token.
const MORE: [(&str, &str); 8] = [
    ("GET", "/v1/live"),
    ("GET", "/v1/tail"),
    ("GET", "/v1/ramps"),
    ("GET", "/v1/ramps/{}"),
    ("POST", "/v1/ramps/{}"),
    ("POST", "/v1/ramps/{}/pause"),
    ("POST", "/v1/ramps/{}/resume"),
    ("POST", "/v1/ramps/{}/abort"),
];

fn call(method: &str, path: &str, body: &Value) -> Call {
    if body.is_null() { Call::new(method, path) } else { with_json(method, path, body) }
}

async fn guarded() -> World {
    let dir = gateway::directory();
    write_atomically(&dir.path().join("token"), &format!("{TOKEN}\n"));
    let origins = world::origins(&["v1-a", "v2-a"]).await;
    let mut conf = world::users_conf(&origins);
    conf.bootstrap["admin"]["token_file"] = json!("token");
    World { gateway: Gateway::start_in(dir, conf).await, origins }
}

#[tokio::test]
async fn every_route_asks_for_the_token() {
    let world = guarded().await;
    for (method, path) in MORE {
        let body = if method == "GET" { Value::Null } else { json!({}) };
        let _ = world.gateway.admin(call(method, &path.replace("{}", "users"), &body)).await.expect(401);
    }
    for (method, path, body, _) in routes() {
        let attempts =
            [None, Some("Bearer wrong"), Some("Bearer "), Some("Bearer a-token-for-the-test"), Some("Basic YTpi")];
        for authorization in attempts {
            let call = call(method, path, &body);
            let call = authorization.map_or(call.clone(), |value| call.header("authorization", value));
            let refused = world.gateway.admin(call).await.expect(401);
            assert!(refused.header("www-authenticate").starts_with("Bearer"), "{method} {path}");
            assert_eq!(refused.header("content-type"), "application/problem+json", "{method} {path}");
        }
        let authorization = format!("Bearer {TOKEN}");
        let call = call(method, path, &body).header("authorization", authorization);
        // PUT wants to be told which revision it replaces.
        let call = if path == "/v1/traffic" && method == "PUT" { call.header("if-match", "*") } else { call };
        let taken = world.gateway.admin(call).await;
        assert!(taken.status.is_success() || taken.status == 412, "{method} {path}: {} {}", taken.status, taken.text());
    }
    for path in ["/healthz", "/readyz"] {
        let _ = world.gateway.admin(Call::get(path)).await.expect(200);
    }
}

#[tokio::test]
async fn problems_are_rfc_9457() {
    let world = World::start().await;
    let cases = [
        (call("GET", "/v1/nothing", &Value::Null), 404),
        (call("GET", "/v1/services/nobody", &Value::Null), 404),
        (call("DELETE", "/v1/traffic", &Value::Null), 405),
        (call("PATCH", "/v1/traffic/services/nobody", &json!({"abort": true})), 404),
        (call("PUT", "/v1/switches/nothing", &json!({"on": true})), 404),
        (call("POST", "/v1/explain", &json!({"method": "GET"})), 400),
        (Call::post("/v1/explain", "{").header("content-type", "application/json"), 400),
        (call("POST", "/v1/preview", &json!({"service": "users", "weights": {"v1": "1%"}})), 422),
        (call("PUT", "/v1/switches/canary", &json!({"on": "perhaps"})), 400),
    ];
    for (call, status) in cases {
        let reply = world.gateway.admin(call.clone()).await;
        // A body that is understood but makes no sense is 422; frameworks differ on where the line is.
        let is_bad_body = [400, 422].contains(&status) && [400, 422].contains(&reply.status.as_u16());
        assert!(reply.status == status || is_bad_body, "{call:?}: {} {}", reply.status, reply.text());
        assert_eq!(reply.header("content-type"), "application/problem+json", "{call:?}");
        let problem = reply.json();
        assert_eq!(problem["status"], json!(reply.status.as_u16()), "{problem}");
        assert!(!problem["title"].as_str().unwrap_or_default().is_empty(), "{problem}");
    }
}

#[tokio::test]
async fn services_and_config_show_what_is_in_force() {
    let world = World::start().await;
    let services = world.gateway.admin_get("/v1/services").await.to_string();
    assert!(services.contains("users"), "{services}");
    let users = world.gateway.admin_get("/v1/services/users").await.to_string();
    for part in
        [world.origins[0].address.to_string().as_str(), world.origins[2].address.to_string().as_str(), "v1", "v2"]
    {
        assert!(users.contains(part), "no {part} in {users}");
    }
    let config = world.gateway.admin_get("/v1/config").await.to_string();
    for part in ["users", "\"all\"", "round_robin"] {
        assert!(config.contains(part), "no {part} in {config}");
    }
    assert!(!guarded().await.gateway.output().contains(TOKEN), "the token is never written out");
}

/// The document, wherever of the usual places it is.
async fn openapi(world: &World) -> Value {
    for path in ["/openapi.json", "/v1/openapi.json", "/v1/openapi"] {
        let reply = world.gateway.admin(Call::get(path)).await;
        if reply.status == 200 {
            return reply.json();
        }
    }
    Value::Null
}

#[tokio::test]
async fn the_openapi_document_is_what_is_served() {
    let world = World::start().await;
    let document = openapi(&world).await;
    assert!(document["openapi"].as_str().unwrap_or_default().starts_with("3.1"), "{document}");
    let mut documented = BTreeSet::new();
    for (path, operations) in document["paths"].as_object().unwrap() {
        // A parameter has any name.
        let parts: Vec<_> = path.split('/').map(|part| if part.starts_with('{') { "{}" } else { part }).collect();
        for method in operations.as_object().unwrap().keys() {
            if ["get", "put", "post", "patch", "delete"].contains(&method.as_str()) {
                documented.insert((method.to_uppercase(), parts.join("/")));
            }
        }
    }
    let routes = routes();
    let served = routes.iter().map(|(method, _, _, path)| (*method, *path)).chain(MORE);
    let served: BTreeSet<_> = served.map(|(method, path)| (method.to_owned(), path.to_owned())).collect();
    let v1 = |(method, path): &(String, String)| {
        (path.starts_with("/v1") && !path.contains("openapi")).then(|| format!("{method} {path}"))
    };
    let documented_v1: BTreeSet<_> = documented.iter().filter_map(v1).collect();
    assert_eq!(documented_v1, served.iter().filter_map(v1).collect::<BTreeSet<_>>());
    for path in ["/healthz", "/readyz", "/metrics"] {
        assert!(documented.contains(&("GET".to_owned(), path.to_owned())), "{path} is documented");
    }
    let plain = |(method, path): &&(String, String)| !MORE.contains(&(method.as_str(), path.as_str()));
    for (method, path) in documented.iter().filter(plain) {
        let path = path.replacen("switches/{}", "switches/canary", 1).replacen("{}", "users", 1);
        let reply = world.gateway.admin(Call::new(method, &path).header("content-type", "application/json")).await;
        assert!(
            ![404, 405].contains(&reply.status.as_u16()),
            "{method} {path} is documented, not served: {}",
            reply.status
        );
    }
}

#[tokio::test]
async fn health_and_readiness_answer() {
    let world = World::start().await;
    let _ = world.gateway.admin(Call::get("/healthz")).await.expect(200);
    let _ = world.gateway.admin(Call::get("/readyz")).await.expect(200);
    let shown = world.gateway.admin_get("/readyz?verbose").await;
    assert_eq!(shown["ready"], json!(true));
    assert_eq!(shown["documents"]["traffic"]["revision"], json!(1), "{shown}");
    assert!(!shown["documents"]["routing"]["revision"].is_null(), "{shown}");
}

#[tokio::test]
async fn ready_means_that_traffic_is_taken() {
    for start in 0..5 {
        let world = World::with(&["v1-a"], |_| ()).await;
        assert!(!world.gateway.was_ready_early(), "start {start}: ready, and the listener refused");
    }
}
