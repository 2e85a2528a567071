//! Promise: nobody gets at the control side without a credential, each role does no more than it may, everything is
//! written down, no secret is, and a full disk keeps nobody from pulling a kill switch. The last paragraph of faults.md.

#![expect(clippy::unwrap_used, reason = "helpers of a test")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::{Value, json};
use serin_e2e::admin::with_json;
use serin_e2e::client::{Call, Reply};
use serin_e2e::gateway::{self, binary, free_address, write_atomically};
use serin_e2e::tls::Authority;
use serin_e2e::{Gateway, Origin, World, conf, wait, world};

const READ: &str = "read-0123456789abcdef";
const OPERATE: &str = "operate-0123456789abcdef";
const CONFIGURE: &str = "configure-0123456789abcdef";

/// A gateway with a token for each role.
async fn guarded() -> World {
    let dir = gateway::directory();
    for (name, token) in [("read", READ), ("operate", OPERATE), ("configure", CONFIGURE)] {
        write_atomically(&dir.path().join(name), token);
    }
    let origins = world::origins(&["v1-a", "v2-a"]).await;
    let mut conf = world::users_conf(&origins);
    let token = |name: &str| json!({"name": name, "file": name, "role": name});
    conf.bootstrap["admin"]["tokens"] = json!([token("read"), token("operate")]);
    conf.bootstrap["admin"]["token_file"] = json!("configure");
    World { gateway: Gateway::start_in(dir, conf).await, origins }
}

fn shown(call: Call, token: &str) -> Call {
    call.header("authorization", format!("Bearer {token}"))
}

/// Every endpoint of the OpenAPI document: method, path with its parameters filled in, and the role it names; none for
/// those that are open.
async fn endpoints(world: &World) -> Vec<(String, String, Option<String>)> {
    let document = world.gateway.admin(shown(Call::get("/v1/openapi.json"), READ)).await.expect(200).json();
    let mut all = vec![];
    for (path, operations) in document["paths"].as_object().unwrap() {
        let path = path.replace("{switch}", "canary").replace("{service}", "users");
        for (method, operation) in operations.as_object().unwrap() {
            let role = operation["security"][0]["token"][0].as_str().map(str::to_owned);
            all.push((method.to_uppercase(), path.clone(), role));
        }
    }
    assert!(all.len() > 20, "{all:?}");
    all
}

fn call(method: &str, path: &str) -> Call {
    if method == "GET" { Call::get(path) } else { with_json(method, path, &json!({})) }
}

#[tokio::test]
async fn every_endpoint_asks_for_a_token_and_for_its_role() {
    let world = guarded().await;
    let mut open = vec![];
    for (method, path, role) in endpoints(&world).await {
        let Some(role) = role else {
            open.push(path.clone());
            continue;
        };
        let _ = world.gateway.admin(call(&method, &path)).await.expect(401);
        let wrong = shown(call(&method, &path), "wrong-0123456789abcdef");
        let _ = world.gateway.admin(wrong).await.expect(401);
        // A stream without an end is asked for by other tests.
        for (name, token) in [("read", READ), ("operate", OPERATE)].into_iter().filter(|_| path != "/v1/tail") {
            let may = role == "read" || role == name;
            let status = world.gateway.admin(shown(call(&method, &path), token)).await.status.as_u16();
            assert_eq!(status != 403, may, "{method} {path} needs {role}, {name} gets {status}");
            assert_ne!(status, 401, "{method} {path}");
        }
        if method != "GET" {
            let plain = shown(Call::new(&method, &path).header("content-type", "text/plain").body("{}"), CONFIGURE);
            let _ = world.gateway.admin(plain).await.expect(415);
            let untold = shown(Call::new(&method, &path).body("{}"), CONFIGURE);
            let _ = world.gateway.admin(untold).await.expect(415);
        }
        let foreign = shown(call(&method, &path).header("origin", "http://evil.example"), CONFIGURE);
        let _ = world.gateway.admin(foreign).await.expect(403);
        let rebound = shown(call(&method, &path), CONFIGURE).host("evil.example");
        let _ = rebound.to(world.gateway.admin_address()).await.expect(421);
    }
    open.sort();
    assert_eq!(open, ["/healthz", "/readyz"]);
}

async fn flip(world: &World, method: &str, path: &str, body: Value, token: &str) -> Reply {
    world.gateway.admin(shown(with_json(method, path, &body), token).header("x-serin-operator", "anna")).await
}

/// The audit log, once it has a line of which all this is a part.
async fn audited(world: &World, wanted: &[&str]) -> Value {
    let file = world.gateway.dir().join(".serin/audit.jsonl");
    wait::until(format!("{wanted:?} in the audit log"), || async {
        let text = fs::read_to_string(&file).unwrap_or_default();
        let line = text.lines().find(|line| wanted.iter().all(|part| line.contains(part)))?;
        serde_json::from_str(line).ok()
    })
    .await
}

#[tokio::test]
async fn changes_and_refusals_are_written_down_and_secrets_are_not() {
    let world = guarded().await;
    let on = json!({"on": true, "reason": "v2 is broken"});
    let canary = "/v1/switches/canary";
    let _ = flip(&world, "PUT", canary, on.clone(), "wrong-0123456789abcdef").await.expect(401);
    let _ = flip(&world, "PUT", canary, on.clone(), READ).await.expect(403);
    let written = flip(&world, "PUT", canary, on.clone(), OPERATE).await.expect(200).json();
    let _ = flip(&world, "PUT", "/v1/traffic", json!({}), OPERATE).await.expect(403);
    let _ = flip(&world, "PUT", "/v1/traffic", json!({}), CONFIGURE).await.expect(428);
    let stale = shown(with_json("PUT", canary, &on), OPERATE).header("if-match", "\"1\"");
    let _ = world.gateway.admin(stale).await.expect(412);

    let entry = audited(&world, &["switch canary on", "applied"]).await;
    assert_eq!(
        (&entry["by"], &entry["token"], &entry["from"]),
        (&json!("anna"), &json!("operate"), &json!("127.0.0.1"))
    );
    assert_eq!((&entry["reason"], &entry["revision"]), (&json!("v2 is broken"), &written["revision"]));
    assert_eq!(
        (&entry["before"]["switches"]["canary"], &entry["after"]["switches"]["canary"]),
        (&json!(false), &json!(true))
    );
    let entry = audited(&world, &["PUT /v1/switches/canary", "401"]).await;
    assert_eq!((&entry["outcome"], entry.get("token")), (&json!("refused"), None));
    let entry = audited(&world, &["PUT /v1/switches/canary", "403"]).await;
    assert_eq!(entry["token"], json!("read"));
    let _ = audited(&world, &["PUT /v1/traffic", "403", "operate"]).await;
    let _ = audited(&world, &["PUT /v1/traffic", "428", "admin"]).await;
    let _ = audited(&world, &["switch canary on", "refused", "revision 1 was expected"]).await;

    // Nothing that was shown is anywhere.
    let mut texts = vec![world.gateway.output()];
    for path in ["/v1/config", "/metrics", "/v1/history", "/readyz?verbose"] {
        texts.push(world.gateway.admin(shown(Call::get(path), CONFIGURE)).await.expect(200).text());
    }
    for file in [".serin/audit.jsonl", ".serin/history.jsonl", "access.log", "traffic.yaml"] {
        texts.push(fs::read_to_string(world.gateway.dir().join(file)).unwrap_or_default());
    }
    for text in texts {
        assert!(!text.contains("0123456789abcdef"), "a token is in {text}");
    }
}

#[tokio::test]
async fn a_token_is_replaced_without_a_restart() {
    let world = guarded().await;
    let fresh = "fresh-0123456789abcdef";
    write_atomically(&world.gateway.dir().join("read"), fresh);
    let taken = || async {
        let reply = world.gateway.admin(shown(Call::get("/v1/traffic"), fresh)).await;
        (reply.status == 200).then_some(())
    };
    wait::until("the new token", taken).await;
    let _ = world.gateway.admin(shown(Call::get("/v1/traffic"), READ)).await.expect(401);
}

/// Documents of a gateway whose admin API is as given; the bootstrap document's path.
fn documents(dir: &Path, admin: Value) -> String {
    let mut conf = conf::Conf::empty();
    conf.bootstrap["admin"] = admin;
    conf.bootstrap["listeners"][0]["address"] = json!(free_address().to_string());
    for (name, document) in [("serin", &conf.bootstrap), ("routing", &conf.routing), ("traffic", &conf.traffic)] {
        write_atomically(&dir.join(format!("{name}.yaml")), &document.to_string());
    }
    dir.join("serin.yaml").to_str().unwrap().to_owned()
}

#[tokio::test]
async fn without_a_credential_it_does_not_start_where_others_reach_it() {
    let dir = gateway::directory();
    let token = |place: Value| {
        let mut token = json!({"name": "a", "role": "read"});
        place.as_object().unwrap().iter().for_each(|(key, value)| token[key] = value.clone());
        json!({"address": "127.0.0.1:0", "tokens": [token]})
    };
    write_atomically(&dir.path().join("short"), "short-secret");
    let cases = [
        (json!({"address": "0.0.0.0:0"}), "can be reached from other hosts"),
        (json!({"address": "[::]:0", "tls": {"cert": "a", "key": "b"}}), "can be reached from other hosts"),
        (token(json!({})), "the token is nowhere"),
        (token(json!({"file": "a", "env": "A"})), "expected one of the two"),
        (token(json!({"file": "none"})), "cannot read"),
        (token(json!({"file": "short"})), "holds no token"),
        (token(json!({"env": "SERIN_NO_SUCH_VARIABLE"})), "SERIN_NO_SUCH_VARIABLE is not set"),
        (token(json!({"file": "a", "role": "root"})), "expected one of `read`, `operate`, `configure`"),
    ];
    for (admin, expected) in cases {
        let file = documents(dir.path(), admin);
        let refused = gateway::cli(&["run", "--config", &file]).await.expect(1);
        assert!(refused.stderr.contains(expected), "{expected}: {refused:?}");
        assert!(!refused.stderr.contains("short-secret"), "{refused:?}");
    }
}

#[tokio::test]
async fn a_full_disk_does_not_keep_anybody_from_pulling_a_switch() {
    let dir = gateway::directory();
    let full = dir.path().join("full");
    // No file may grow by a byte, which is what a full disk comes to.
    let script = format!("#!/bin/bash\ntrap '' XFSZ\nulimit -f 0\nexec {} \"$@\"\n", binary().display());
    fs::write(&full, script).unwrap();
    fs::set_permissions(&full, fs::Permissions::from_mode(0o755)).unwrap();
    let origins = world::origins(&["v1-a", "v2-a"]).await;
    let mut conf = world::users_conf(&origins);
    conf.weights(&[("v1", "0%"), ("v2", "100%")]);
    let world = World { gateway: Gateway::start_as(full, conf).await, origins };
    assert_eq!(world.version_of("a").await, "v2");
    for (on, version) in [(true, "v1"), (false, "v2"), (true, "v1")] {
        let flipped = world.gateway.set_switch("canary", on, None).await.json();
        assert!(flipped["warning"].as_str().unwrap().contains("could not be written"), "{flipped}");
        assert_eq!(world.version_of("a").await, version);
    }
    assert!(world.gateway.metrics().await.sum("serin_audit_lost_total", &[]) >= 3.0);
    let history = world.gateway.admin_get("/v1/history").await;
    assert_eq!(history["entries"][0]["after"]["switches"]["canary"], json!(true), "and it is known");
}

#[tokio::test]
async fn the_admin_api_speaks_tls_and_asks_for_certificates() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let dir = gateway::directory();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    authority.issue("gateway.test").write(dir.path(), "server");
    authority.issue("anna").write(dir.path(), "client");
    stranger.issue("mallory").write(dir.path(), "stranger");
    write_atomically(Path::new(&at("ca.pem")), &authority.pem());
    write_atomically(Path::new(&at("token")), OPERATE);
    let address = free_address();
    let file = documents(
        dir.path(),
        json!({
            "address": address.to_string(), "token_file": "token",
            "tls": {"cert": "server.crt", "key": "server.key", "client_ca": "ca.pem"},
        }),
    );
    let mut running = tokio::process::Command::new(binary())
        .args(["run", "--config", &file])
        .stderr(std::process::Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let (url, ca, token) = (format!("https://{address}"), at("ca.pem"), at("token"));
    let ask = |command: &'static str, more: Vec<String>| {
        let mut args = vec![command.to_owned(), "--admin".to_owned(), url.clone()];
        args.extend(more);
        async move { gateway::cli(&args.iter().map(String::as_str).collect::<Vec<_>>()).await }
    };
    let shown = |stem: &str| -> Vec<String> {
        ["--ca", &ca, "--cert", &at(&format!("{stem}.crt")), "--key", &at(&format!("{stem}.key"))]
            .map(str::to_owned)
            .to_vec()
    };
    wait::until("the gateway", || async { (ask("health", shown("client")).await.code == 0).then_some(()) }).await;
    let with_token = [shown("client"), vec!["--token-file".to_owned(), token.clone()]].concat();
    let _ = ask("history", with_token).await.expect(0);
    let _ = ask("history", shown("client")).await.expect(5);
    let _ = ask("health", vec!["--ca".to_owned(), ca.clone()]).await.expect(3);
    let _ = ask("health", shown("stranger")).await.expect(3);
    let _ = ask("health", shown("client")[2..].to_vec()).await.expect(3);
    let clear = gateway::cli(&["health", "--admin", &format!("http://{address}")]).await;
    assert_eq!(clear.code, 3, "{clear:?}");
    let _ = ask("health", shown("client")[..4].to_vec()).await.expect(2);
    running.kill().await.unwrap();
}

#[tokio::test]
async fn upstreams_may_ask_for_a_certificate() {
    let authority = Authority::new();
    let dir = gateway::directory();
    authority.issue("gateway.test").write(dir.path(), "client");
    write_atomically(&dir.path().join("ca.pem"), &authority.pem());
    let origin = Origin::start_mtls("tls", &authority.issue("origin.test"), &authority, &["http/1.1", "h2"]).await;
    let service = |protocol: &str, client: bool| {
        let mut service = conf::pool(&[&origin], json!([{"round_robin": {}}]));
        service["protocol"] = json!(protocol);
        service["tls"] = json!({"sni": "origin.test", "ca": "ca.pem"});
        if client {
            service["tls"]["client_cert"] = json!("client.crt");
            service["tls"]["client_key"] = json!("client.key");
        }
        service
    };
    let conf = conf::Conf::empty()
        .with_service("with", service("http1", true))
        .with_service("with-h2", service("h2", true))
        .with_service("without", service("http1", false));
    let gateway = Gateway::start_in(dir, conf).await;
    for path in ["/with", "/with-h2"] {
        let _ = Call::get(path).to(gateway.http()).await.expect(200);
    }
    let _ = Call::get("/without").to(gateway.http()).await.expect(502);
    let mut wrong = gateway.conf.routing.clone();
    wrong["services"]["with"]["tls"]["san"] = json!(["spiffe://example.org/users"]);
    wrong["services"]["with"]["tls"].as_object_mut().unwrap().remove("ca");
    wrong["services"]["with-h2"]["tls"]["client_key"] = Value::Null;
    wrong["services"]["with-h2"]["tls"].as_object_mut().unwrap().remove("client_key");
    gateway.write_routing(&wrong);
    let refused = || async {
        let shown = gateway.admin_get("/readyz?verbose").await["documents"]["routing"]["refused"].to_string();
        (shown.contains("the authorities of their trust domain") && shown.contains("`client_key` is missing"))
            .then_some(())
    };
    wait::until("the document to be refused", refused).await;
}
