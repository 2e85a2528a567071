use std::collections::BTreeSet;
use std::path::Path;

use axum::body::{Body, to_bytes};
use axum::extract::ConnectInfo;
use http::{HeaderMap, Request, StatusCode};
use serde_json::{Value, json};
use tempfile::TempDir;
use tower::ServiceExt;

use super::*;
use crate::conf::{self, Source};
use crate::telemetry::metrics::Metrics;

const BOOTSTRAP: &str = "
listeners: [ { name: main, address: '127.0.0.1:8080' } ]
admin: { address: 'ADDRESS', token_file: token }
trusted_proxies: [ 10.0.0.0/8 ]
routing: { file: routing.yaml }
traffic: { file: traffic.yaml }
";

const ROUTING: &str = "
services:
  users:
    instances:
      - { address: '127.0.0.1:9001', labels: { version: v1 }, zone: az-1 }
      - { address: '127.0.0.1:9002', labels: { version: v1 }, zone: az-2 }
      - { address: '127.0.0.1:9003', labels: { version: v2 } }
    subsets: { v1: { version: v1 }, v2: { version: v2 }, v3: { version: v3 } }
    stable: v1
    user_key: [ { header: x-user-id } ]
    anonymous: stable
    salt: test
    tags:
      - { name: canary, when: { header: { x-traffic-tag: canary } }, subset: v2, trust: any }
      - { name: inside, when: { header: { x-inside: '1' } }, subset: v2, trust: trusted_proxies }
      - { name: next, when: { header: { x-traffic-tag: next } }, subset: v3, trust: any }
    balancer: [ round_robin ]
routes:
  - name: users
    match: { hosts: [ api.example.com ], path: { prefix: /api/users } }
    service: users
    rewrite: { prefix: /users }
    request_headers: { set: { authorization: Basic c2VjcmV0, x-plain: shown } }
  - name: post-only
    match: { hosts: [ api.example.com ], path: { exact: /api/users/new }, methods: [ POST ] }
    service: users
  - name: old
    match: { path: { prefix: /old } }
    redirect: { path: /api/users }
";

const TRAFFIC: &str = "services: { users: { weights: { v1: 90%, v2: 10% } } }";

const TOKEN: &str = "0123456789abcdef";

/// A gateway's control path on files of its own, which are gone with the directory.
pub(crate) fn control(address: &str) -> (TempDir, Arc<Control>) {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    write("serin.yaml", &BOOTSTRAP.replace("ADDRESS", address));
    write("routing.yaml", ROUTING);
    write("traffic.yaml", TRAFFIC);
    write("token", TOKEN);
    let bootstrap = conf::bootstrap(&Source::read(dir.path().join("serin.yaml")).unwrap()).unwrap();
    let metrics = Arc::new(Metrics::new().unwrap());
    let control = Control::start(bootstrap, crate::builtin(), metrics).unwrap_or_else(|problems| panic!("{problems}"));
    (dir, Arc::new(control))
}

type Headers<'a> = &'a [(&'a str, &'a str)];

struct Api {
    dir: TempDir,
    control: Arc<Control>,
    draining: Arc<AtomicBool>,
    router: Router,
}

impl Api {
    fn new(address: &str, token: Option<&str>) -> Self {
        let (dir, control) = control(address);
        let draining = Arc::new(AtomicBool::new(false));
        let state = State::new(Arc::clone(&control), Arc::new(Tokens::of(token)), Arc::clone(&draining));
        Self { router: router(state), dir, control, draining }
    }

    fn open() -> Self {
        Self::new("127.0.0.1:9901", None)
    }

    async fn send(
        &self,
        line: &str,
        headers: &[(&str, &str)],
        body: impl Into<Body>,
    ) -> (StatusCode, HeaderMap, Value) {
        let (method, target) = line.split_once(' ').unwrap();
        let mut request = Request::builder().method(method).uri(target);
        if !headers.iter().any(|(name, _)| *name == "host") {
            request = request.header("host", "127.0.0.1:9901");
        }
        for (name, value) in headers.iter().filter(|(_, value)| !value.is_empty()) {
            request = request.header(*name, *value);
        }
        let peer: SocketAddr = ([127, 0, 0, 1], 50_000).into();
        let request = request.extension(ConnectInfo(peer)).body(body.into()).unwrap();
        let answer = self.router.clone().oneshot(request).await.unwrap();
        let (head, body) = answer.into_parts();
        // A stream without an end.
        let endless = head.headers.get("content-type").is_some_and(|kind| kind == "application/x-ndjson");
        let body = if endless { Body::empty() } else { body };
        let bytes = to_bytes(body, usize::MAX).await.unwrap();
        let value = serde_json::from_slice(&bytes).unwrap_or_else(|_| String::from_utf8_lossy(&bytes).into());
        (head.status, head.headers, value)
    }

    /// Sends JSON.
    async fn json(&self, line: &str, body: Value) -> (StatusCode, HeaderMap, Value) {
        self.send(line, &[("content-type", "application/json")], body.to_string()).await
    }

    async fn get(&self, target: &str) -> Value {
        let (status, _, value) = self.send(&format!("GET {target}"), &[], "").await;
        assert_eq!(status, 200, "{target}: {value}");
        value
    }
}

#[tokio::test]
async fn who_may_talk() {
    let (loopback, everywhere) = ("127.0.0.1:9901", "0.0.0.0:9901");
    let shown = format!("Bearer {TOKEN}");
    let (ok, wrong): (Headers, Headers) =
        (&[("authorization", &*shown)], &[("authorization", "Bearer 0123456789abcdeF")]);
    let cases: [(&str, Option<&str>, &str, Headers, u16); 26] = [
        (loopback, None, "/v1/traffic", &[], 200),
        (loopback, None, "/v1/traffic", &[("host", "localhost:9901")], 200),
        (loopback, None, "/v1/traffic", &[("host", "LOCALHOST")], 200),
        (loopback, None, "/v1/traffic", &[("host", "[::1]:7")], 200),
        (loopback, None, "/v1/traffic", &[("host", "127.8.8.8")], 200),
        (loopback, None, "/v1/traffic", &[("host", "evil.example")], 421),
        (loopback, None, "/v1/traffic", &[("host", "127.0.0.1.evil.example:9901")], 421),
        (loopback, None, "/v1/traffic", &[("host", "127.0.0.1:9901@evil.example")], 421),
        (loopback, None, "/healthz", &[("host", "evil.example")], 421),
        (loopback, None, "/nothing", &[("host", "evil.example")], 421),
        (loopback, None, "/v1/traffic", &[("host", "")], 200),
        (loopback, None, "/v1/traffic", &[("origin", "http://127.0.0.1:9901")], 200),
        (loopback, None, "/v1/traffic", &[("origin", "http://127.0.0.1:8000")], 403),
        (loopback, None, "/v1/traffic", &[("origin", "http://evil.example")], 403),
        (loopback, None, "/v1/traffic", &[("origin", "null")], 403),
        (loopback, None, "/v1/traffic", &[("sec-fetch-site", "cross-site")], 403),
        (loopback, None, "/v1/traffic", &[("sec-fetch-site", "none")], 200),
        (loopback, Some(TOKEN), "/v1/traffic", &[], 401),
        (loopback, Some(TOKEN), "/v1/traffic", wrong, 401),
        (loopback, Some(TOKEN), "/v1/traffic", ok, 200),
        (loopback, Some(TOKEN), "/metrics", &[], 401),
        (loopback, Some(TOKEN), "/nothing", &[], 401),
        (loopback, Some(TOKEN), "/readyz", &[], 200),
        (loopback, Some(TOKEN), "/readyz?verbose", &[], 401),
        (everywhere, Some(TOKEN), "/v1/traffic", &[("host", "gateway.example:9901")], 401),
        (everywhere, Some(TOKEN), "/healthz", &[("host", "gateway.example:9901")], 200),
    ];
    for (address, token, target, headers, expected) in cases {
        let (status, _, value) = Api::new(address, token).send(&format!("GET {target}"), headers, "").await;
        assert_eq!(status, expected, "{address} {token:?} {target} {headers:?}: {value}");
    }
}

/// The files of the console hold no data of the gateway: a constant list, the same for everybody.
#[tokio::test]
async fn the_console_is_open_and_what_it_asks_for_is_not() {
    let page: Headers =
        &[("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document")];
    let embedded: Headers =
        &[("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "no-cors"), ("sec-fetch-dest", "script")];
    let cases: [(&str, Headers, u16, &str); 21] = [
        ("GET /", &[], 307, ""),
        ("GET /console", &[], 307, ""),
        ("GET /console/", &[], 200, "text/html; charset=utf-8"),
        ("HEAD /console/", &[], 200, "text/html; charset=utf-8"),
        ("GET /console/app.js", &[], 200, "text/javascript; charset=utf-8"),
        ("GET /console/style.css", &[], 200, "text/css; charset=utf-8"),
        ("GET /console/favicon.svg", &[], 200, "image/svg+xml"),
        ("GET /console/app.js?v=1", &[], 200, "text/javascript; charset=utf-8"),
        ("POST /console/", &[], 405, "application/problem+json"),
        ("GET /console/none.js", &[], 401, "application/problem+json"),
        ("GET /console/%2e%2e/v1/traffic", &[], 401, "application/problem+json"),
        ("GET /v1/traffic", &[], 401, "application/problem+json"),
        ("GET /readyz?verbose", &[], 401, "application/problem+json"),
        ("GET /readyz?verbose=True", &[], 401, "application/problem+json"),
        ("GET /readyz?verbose=false", &[], 200, "application/json"),
        ("GET /readyz?verbose=0", &[], 200, "application/json"),
        ("GET /readyz?verbose=null", &[], 200, "application/json"),
        ("GET /console/", &[("host", "evil.example")], 421, "application/problem+json"),
        ("GET /console/", page, 200, "text/html; charset=utf-8"),
        ("GET /console/app.js", embedded, 403, "application/problem+json"),
        ("GET /v1/traffic", page, 403, "application/problem+json"),
    ];
    let api = Api::new("127.0.0.1:9901", Some(TOKEN));
    for (line, headers, expected, kind) in cases {
        let (status, head, value) = api.send(line, headers, "").await;
        assert_eq!(status, expected, "{line} {headers:?}: {value}");
        assert_eq!(head.get("content-type").map_or("", |kind| kind.to_str().unwrap()), kind, "{line}");
        assert_eq!(head["x-content-type-options"], "nosniff", "{line}");
        if status == 307 {
            assert_eq!(head["location"], "/console/");
        }
    }
    let (status, ..) = Api::open().send("GET /console/none.js", &[], "").await;
    assert_eq!(status, 404);
}

#[tokio::test]
async fn the_console_runs_only_its_own_files() {
    let api = Api::open();
    let (_, head, _) = api.send("GET /console/", &[], "").await;
    let policy = head["content-security-policy"].to_str().unwrap();
    for rule in [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    ] {
        assert!(policy.split("; ").any(|said| said == rule), "{rule}: {policy}");
    }
    assert!(!policy.contains("unsafe"), "{policy}");
    assert_eq!(head["cache-control"], "no-cache");
    assert_eq!(head["referrer-policy"], "no-referrer");
    let tag = head["etag"].to_str().unwrap().to_owned();
    for (known, expected) in [(tag.clone(), 304), (format!("\"x\", W/{tag}"), 304), ("\"x\"".to_owned(), 200)] {
        let (status, head, body) = api.send("GET /console/", &[("if-none-match", &known)], "").await;
        assert_eq!(status, expected, "{known}");
        assert_eq!(head["etag"], tag);
        assert_eq!(body == "", expected == 304);
    }
    let (_, head, _) = api.send("GET /v1/traffic", &[], "").await;
    assert_eq!(head["cache-control"], "no-store", "data is not kept");
}

#[tokio::test]
async fn flips() {
    let json: &[_] = &[("content-type", "application/json")];
    let tagged = |tag| [("content-type", "application/json"), ("if-match", tag)];
    let half = r#"{"weights": {"v1": "50%", "v2": "50%"}, "reason": "why"}"#;
    let (patch, balancer) = ("PATCH /v1/traffic/services/users", "PUT /v1/switches/balancer");
    let cases: [(&str, Headers, &str, u16, u64); 22] = [
        (patch, json, half, 200, 2),
        (patch, json, r#"{"abort": true, "reason": null}"#, 200, 3),
        (patch, json, r#"{"abort": "weights"}"#, 200, 4),
        (patch, json, r#"{"abort": false}"#, 200, 5),
        (patch, json, r#"{"reason": "nothing"}"#, 422, 5),
        (patch, json, r#"{"weights": {"v1": "50%", "v2": "40%"}}"#, 422, 5),
        (patch, &tagged("\"5\""), half, 200, 6),
        (patch, &tagged("\"5\""), half, 412, 6),
        (patch, &[("content-type", "text/plain")], half, 415, 6),
        (patch, &[], half, 415, 6),
        (patch, json, "{", 400, 6),
        ("PATCH /v1/traffic/services/nobody", json, half, 404, 6),
        (balancer, json, r#"{"on": true, "service": null, "reason": "why"}"#, 200, 7),
        (balancer, json, r#"{"on": false, "service": "users"}"#, 200, 8),
        (balancer, json, r#"{"on": true, "service": "nobody"}"#, 404, 8),
        ("PUT /v1/switches/limits", json, r#"{"on": true, "service": "users"}"#, 422, 8),
        ("PUT /v1/switches/everything", json, r#"{"on": true}"#, 404, 8),
        ("PUT /v1/traffic", json, r#"{"services": {}}"#, 428, 8),
        ("PUT /v1/traffic", &tagged("\"7\""), r#"{"services": {}}"#, 412, 8),
        ("PUT /v1/traffic", &tagged("\"8\""), r#"{"services": {}, "reason": "empty"}"#, 200, 9),
        ("POST /v1/rollback", json, r#"{"revision": 2}"#, 200, 10),
        ("POST /v1/rollback", json, r#"{"revision": 999}"#, 404, 10),
    ];
    let api = Api::open();
    for (line, headers, body, expected, revision) in cases {
        let (status, head, value) = api.send(line, headers, body.to_owned()).await;
        assert_eq!(status, expected, "{line} {body}: {value}");
        let (_, current, traffic) = api.send("GET /v1/traffic", &[], "").await;
        assert_eq!(traffic["revision"], revision, "{line} {body}");
        assert_eq!(current["etag"], format!("\"{revision}\""));
        if status.is_success() {
            assert_eq!(head["etag"], current["etag"]);
            assert_eq!(value["traffic"], traffic, "{line} {body}");
        } else {
            assert_eq!(head["content-type"], "application/problem+json");
            assert_eq!(value["status"], expected);
        }
    }
    let text = std::fs::read_to_string(api.dir.path().join("traffic.yaml")).unwrap();
    assert!(text.contains("50%"), "the file follows: {text}");
}

#[tokio::test]
async fn what_is_wrong_is_told_with_its_place() {
    let cases = [
        ("PATCH /v1/traffic/services/users", json!({"weigths": {"v1": "100%"}}), "weigths", Some("weights")),
        ("PATCH /v1/traffic/services/users", json!({"weights": {"v1": 100}}), "weights.v1", Some("100%")),
        ("PATCH /v1/traffic/services/users", json!({"abort": "weight"}), "abort", Some("weights")),
        (
            "PATCH /v1/traffic/services/users",
            json!({"weights": {"v9": "100%"}}),
            "services.users.weights.v9",
            Some("v1"),
        ),
        ("PUT /v1/switches/canary", json!({"reason": "why"}), "", None),
        ("PUT /v1/switches/canary", json!({"on": "yes"}), "on", Some("true")),
        ("POST /v1/rollback", json!({"revision": "x"}), "revision", None),
        ("POST /v1/explain", json!({"url": "/", "client": "x"}), "client", None),
        ("POST /v1/explain", json!({"url": "/", "client_ip": "x"}), "client_ip", None),
        ("POST /v1/preview", json!({"service": "users", "weights": {"v1": "99%"}}), "services.users.weights", None),
        ("POST /v1/rollback", json!([]), "", None),
        ("PATCH /v1/traffic/services/users", json!({"abort": true, "reason": "x".repeat(2000)}), "reason", None),
    ];
    let api = Api::open();
    for (line, body, path, suggestion) in cases {
        let (status, _, value) = api.json(line, body.clone()).await;
        assert_eq!(status, 422, "{line} {body}: {value}");
        let first = &value["problems"][0];
        assert_eq!(first["path"], path, "{line} {body}: {value}");
        if let Some(suggestion) = suggestion {
            assert_eq!(first["suggestion"], suggestion, "{line} {body}: {value}");
        }
    }
    assert_eq!(api.control.current().traffic_revision, 1, "nothing was changed");
}

#[tokio::test]
async fn bodies_are_bounded() {
    let api = Api::open();
    let long = json!({ "revision": 1, "reason": "x".repeat(1 << 20) });
    let (status, ..) = api.json("POST /v1/rollback", long.clone()).await;
    assert_eq!(status, 413);
    let announced = [("content-type", "application/json"), ("content-length", "9000000")];
    let (status, ..) = api.send("POST /v1/rollback", &announced, "{}").await;
    assert_eq!(status, 413, "not even read");
}

#[tokio::test]
async fn the_history_says_who_and_why() {
    let api = Api::open();
    let by = |name| [("content-type", "application/json"), (OPERATOR, name)];
    let patch = "PATCH /v1/traffic/services/users";
    api.send(patch, &by("Ada\tL"), r#"{"abort": true, "reason": "it\nburns"}"#).await;
    api.send(patch, &by(""), r#"{"weights": {"v1": "1%"}}"#).await;
    let entries = api.get("/v1/history?document=traffic&limit=2").await["entries"].clone();
    let facts = |at: usize| ["by", "from", "outcome", "reason", "revision"].map(|key| entries[at][key].clone());
    assert_eq!(facts(1), [json!("AdaL"), json!("127.0.0.1"), json!("applied"), json!("it burns"), json!(2)]);
    assert_eq!(facts(0), [json!("unknown"), json!("127.0.0.1"), json!("refused"), json!(""), Value::Null]);
    assert_eq!(entries.as_array().map(Vec::len), Some(2));
    let (status, ..) = api.send("GET /v1/history?limit=0", &[], "").await;
    assert_eq!(status, 400);
}

#[tokio::test]
async fn secrets_are_left_out() {
    let api = Api::open();
    let config = api.get("/v1/config").await;
    assert!(config["bootstrap"]["admin"]["token_file"].is_string());
    let text = config.to_string();
    assert!(text.contains("shown") && !text.contains("c2VjcmV0") && !text.contains(TOKEN), "{text}");
}

#[tokio::test]
async fn readiness() {
    let api = Api::open();
    assert_eq!(api.get("/readyz").await, json!({ "ready": true }));
    std::fs::write(api.dir.path().join("routing.yaml"), "routes: [ { nmae: x } ]").unwrap();
    api.control.reload();
    let verbose = api.get("/readyz?verbose").await;
    assert_eq!(verbose["ready"], true, "the last good one serves");
    let problems = &verbose["documents"]["routing"]["refused"]["problems"];
    let problems = problems.as_array().unwrap();
    assert!(problems.iter().any(|problem| problem["suggestion"] == "name"), "{verbose}");
    api.draining.store(true, Relaxed);
    let (status, _, value) = api.send("GET /readyz", &[], "").await;
    assert_eq!((status.as_u16(), value), (503, json!({ "ready": false })));
}

#[tokio::test]
async fn a_file_that_cannot_be_read_is_refused_once() {
    let api = Api::open();
    let refusals = || api.control.history().iter().filter(|entry| entry.document == "routing").count();
    let (before, file) = (refusals(), api.dir.path().join("routing.yaml"));
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    for _ in 0..5 {
        api.control.reload();
    }
    assert_eq!(refusals(), before + 1);
    assert!(api.get("/readyz?verbose").await["documents"]["routing"]["refused"].is_object());
    std::fs::write(&file, text).unwrap();
    api.control.reload();
    assert!(api.get("/readyz?verbose").await["documents"]["routing"]["refused"].is_null());
}

/// Requests that succeed, one for every operation.
fn samples() -> Vec<(&'static str, Value)> {
    vec![
        ("GET /healthz", Value::Null),
        ("GET /readyz?verbose", Value::Null),
        ("GET /metrics", Value::Null),
        ("GET /v1/config", Value::Null),
        ("GET /v1/services", Value::Null),
        ("GET /v1/services/users", Value::Null),
        ("POST /v1/services/users/rearm", json!({ "reason": "…" })),
        ("GET /v1/traffic", Value::Null),
        ("PUT /v1/traffic", json!({ "services": { "users": { "weights": { "v1": "80%", "v2": "20%" } } } })),
        ("PATCH /v1/traffic/services/users", json!({ "weights": { "v1": "85.5%", "v2": "14.5%" }, "reason": "…" })),
        ("PUT /v1/switches/balancer", json!({ "on": true, "service": null, "reason": "…" })),
        ("GET /v1/history", Value::Null),
        ("POST /v1/rollback", json!({ "revision": 2 })),
        ("POST /v1/explain", json!({ "url": "http://api.example.com/api/users/7", "headers": { "x-user-id": "7" } })),
        ("POST /v1/preview", json!({ "service": "users", "weights": { "v1": "100%" } })),
        ("GET /v1/openapi.json", Value::Null),
        ("GET /v1/live?seconds=5&series=true", Value::Null),
        ("POST /v1/ramps/users", ramp_body()),
        ("POST /v1/ramps/users/pause", json!({ "reason": "lunch" })),
        ("POST /v1/ramps/users/resume", json!({})),
        ("GET /v1/ramps/users", Value::Null),
        ("GET /v1/ramps", Value::Null),
        ("POST /v1/ramps/users/abort", json!({ "reason": "enough" })),
        ("GET /v1/tail?service=users&subset=v1&user=anna", Value::Null),
    ]
}

fn ramp_body() -> Value {
    json!({
        "to": "v2",
        "steps": ["1%", "10%", "100%"],
        "every": "1m",
        "guards": ["success_rate >= 99%", "p99 <= 1.2 x stable"],
        "min_requests": 50,
        "reason": "the first",
    })
}

fn schema_of(document: &Value, schema: &Value) -> jsonschema::Validator {
    let mut root = json!({ "components": document["components"] });
    let fields = schema.as_object().unwrap().clone();
    root.as_object_mut().unwrap().extend(fields);
    jsonschema::draft202012::new(&root).unwrap()
}

#[tokio::test]
async fn the_description_is_true() {
    let api = Api::open();
    let document = api.get("/v1/openapi.json").await;
    for (line, body) in samples() {
        let (method, target) = line.split_once(' ').unwrap();
        let path = target.split('?').next().unwrap();
        let path =
            path.replace("services/users", "services/{service}").replace("switches/balancer", "switches/{switch}");
        let path = path.replace("ramps/users", "ramps/{service}");
        let operation = &document["paths"][&path][method.to_ascii_lowercase()];
        let headers = [("content-type", "application/json"), ("if-match", "*")];
        let text = if body.is_null() { String::new() } else { body.to_string() };
        let (status, head, value) = api.send(line, &headers, text).await;
        assert_eq!(status, 200, "{line}: {value}");
        if !body.is_null() {
            let takes = schema_of(&document, &operation["requestBody"]["content"]["application/json"]["schema"]);
            assert!(
                takes.is_valid(&body),
                "{line}: {:?}",
                takes.iter_errors(&body).map(|e| e.to_string()).collect::<Vec<_>>()
            );
        }
        let media = head["content-type"].to_str().unwrap().split(';').next().unwrap().to_owned();
        let answer = &operation["responses"]["200"];
        let returns = schema_of(&document, &answer["content"][&media]["schema"]);
        let errors: Vec<_> = returns.iter_errors(&value).map(|error| error.to_string()).collect();
        assert!(errors.is_empty(), "{line}: {errors:?} in {value}");
        assert_eq!(head.contains_key("etag"), answer["headers"]["ETag"].is_object(), "{line}");
    }
}

#[tokio::test]
async fn the_description_is_whole() {
    let documented: BTreeSet<String> = openapi()["paths"]
        .as_object()
        .unwrap()
        .iter()
        .flat_map(|(path, operations)| {
            operations.as_object().unwrap().keys().map(move |method| format!("{} {path}", method.to_ascii_uppercase()))
        })
        .collect();
    let api = Api::open();
    // What shows a ramp needs one.
    let (status, ..) = api.json("POST /v1/ramps/users", ramp_body()).await;
    assert_eq!(status, 200);
    let mut served = BTreeSet::new();
    let paths: BTreeSet<&str> = documented.iter().map(|line| line.split_once(' ').unwrap().1).collect();
    for path in paths {
        let target = path.replace("{service}", "users").replace("{switch}", "canary");
        for method in ["GET", "PUT", "POST", "PATCH", "DELETE"] {
            let (status, head, _) = api.send(&format!("{method} {target}"), &[], "").await;
            if status != StatusCode::METHOD_NOT_ALLOWED {
                assert_ne!(status, StatusCode::NOT_FOUND, "{method} {target}");
                served.insert(format!("{method} {path}"));
            } else {
                assert_eq!(head["content-type"], "application/problem+json");
                assert!(head.contains_key("allow"), "{method} {target}");
            }
        }
    }
    assert_eq!(served, documented);
    let sampled: BTreeSet<String> = samples()
        .into_iter()
        .map(|(line, _)| line.replace("/services/users", "/services/{service}").replace("/balancer", "/{switch}"))
        .map(|line| line.replace("/ramps/users", "/ramps/{service}"))
        .map(|line| line.split('?').next().unwrap().to_owned())
        .collect();
    assert_eq!(sampled, documented);
}

/// The description in the repository is the one that is served. To renew it: `SERIN_RENEW=1 cargo test openapi`.
#[test]
fn openapi_in_the_repository() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/admin/openapi.json");
    let text = format!("{}\n", serde_json::to_string_pretty(&openapi()).unwrap());
    if std::env::var_os("SERIN_RENEW").is_some() {
        std::fs::write(&file, &text).unwrap();
    }
    assert!(std::fs::read_to_string(&file).unwrap() == text, "{} is not up to date", file.display());
}

#[tokio::test]
async fn services_show_what_is_in_force() {
    let api = Api::open();
    api.json("PATCH /v1/traffic/services/users", json!({ "abort": true })).await;
    let view = api.get("/v1/services/users").await;
    let subset = |at: usize| {
        let subset = &view["subsets"][at];
        [
            subset["name"].clone(),
            subset["weight"].clone(),
            subset["configured_weight"].clone(),
            subset["unusable"].clone(),
        ]
    };
    assert_eq!(subset(0), [json!("v1"), json!("100%"), json!("90%"), Value::Null]);
    assert_eq!(subset(1), [json!("v2"), json!("0%"), json!("10%"), Value::Null]);
    assert_eq!(subset(2), [json!("v3"), json!("0%"), json!("0%"), json!("absent")]);
    let switches = json!({ "balancer": false, "canary": false, "limits": false, "abort": true, "tripped": null });
    assert_eq!(view["switches"], switches);
    let instance = &view["instances"][2];
    assert_eq!(instance["subsets"], json!(["v2"]));
    assert_eq!((&instance["health"], &instance["weight"]), (&json!("healthy"), &json!(100)));
    let (status, ..) = api.send("GET /v1/services/nobody", &[], "").await;
    assert_eq!(status, 404);
}
