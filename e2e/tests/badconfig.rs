//! Promise: a bad document tells every error at once and where; at the start it refuses, at a reload the old one stays.

use std::path::Path;

use serde_json::{Value, json};
use serin_e2e::client::Call;
use serin_e2e::gateway::{self, write_atomically};
use serin_e2e::{World, conf, wait};
use tempfile::TempDir;

const SERIN: &str = "\
listeners:
  - { name: http, address: 127.0.0.1:0, protocols: [http1] }
admin: { address: 127.0.0.1:0 }
routing: { file: routing.yaml }
traffic: { file: traffic.yaml }
";

const ROUTING: &str = "\
services:
  users:
    instances:
      - { address: 127.0.0.1:9001, labels: { version: v1 } }
      - { address: 127.0.0.1:9003, labels: { version: v2 } }
    subsets: { v1: { version: v1 }, v2: { version: v2 } }
    stable: v1
    user_key: [ { header: x-user-id } ]
    balancer: [ { p2c: {} } ]
routes:
  - name: users
    match: { path: { prefix: /api/users } }
    service: users
";

const TRAFFIC: &str = "\
revision: 1
services:
  users:
    weights: { v1: 90%, v2: 10% }
";

/// A directory with the three documents, one of them changed.
fn documents(name: &str, from: &str, to: &str) -> TempDir {
    let dir = gateway::directory();
    for (file, text) in [("serin.yaml", SERIN), ("routing.yaml", ROUTING), ("traffic.yaml", TRAFFIC)] {
        let changed = if file == name { text.replacen(from, to, 1) } else { text.to_owned() };
        assert!(file != name || from == to || changed != text, "{from:?} is not in {file}");
        write_atomically(&dir.path().join(file), &changed);
    }
    dir
}

async fn check(dir: &Path) -> gateway::Cli {
    gateway::cli(&["check", &dir.join("serin.yaml").to_string_lossy()]).await
}

#[tokio::test]
async fn good_documents_pass() {
    let _ = check(documents("", "", "").path()).await.expect(0);
}

#[tokio::test]
async fn each_mistake_is_told_with_its_place_and_the_nearest_name() {
    // Document, text to replace, mistake, and what the output has to contain.
    let cases: [(&str, &str, &str, &[&str]); 17] = [
        ("routing.yaml", "stable: v1", "stabel: v1", &["routing.yaml:7:5", "services.users.stabel", "stable"]),
        ("routing.yaml", "stable: v1", "stable: v3", &["routing.yaml:7:", "services.users.stable", "v3", "v1"]),
        ("routing.yaml", "service: users", "service: user", &["routing.yaml:13:", "routes[0].service", "`users`"]),
        ("routing.yaml", "p2c", "p3c", &["routing.yaml:9:", "services.users.balancer", "p3c", "`p2c`"]),
        ("routing.yaml", "prefix:", "prefx:", &["routing.yaml:12:", "prefx", "`prefix`"]),
        ("routing.yaml", "127.0.0.1:9001", "localhost", &["routing.yaml:4:", "instances[0].address", "localhost"]),
        (
            "routing.yaml",
            "prefix: /api/users",
            "regex: \"(\"",
            &["routing.yaml:12:", "routes[0].match.path", "regular expression"],
        ),
        ("traffic.yaml", "v2: 10%", "v2: 11%", &["traffic.yaml:4:", "services.users.weights", "101", "100"]),
        ("traffic.yaml", "v2: 10%", "v9: 10%", &["traffic.yaml:4:", "v9", "`v"]),
        ("traffic.yaml", "  users:", "  usres:", &["traffic.yaml:3:", "usres", "`users`"]),
        ("traffic.yaml", "10%", "ten", &["traffic.yaml:4:", "ten", "percent"]),
        (
            "serin.yaml",
            "protocols: [http1]",
            "limits: { header_byte: 8KiB }",
            &["serin.yaml:2:", "listeners[0].limits.header_byte", "`header_bytes`"],
        ),
        (
            "serin.yaml",
            "admin:",
            "limits: { h2: { max_resets: 100 } }\nadmin:",
            &["serin.yaml:3:", "limits.h2.max_resets", "100/s"],
        ),
        ("serin.yaml", "admin:", "limits: { idle: 1 }\nadmin:", &["serin.yaml:3:", "limits.idle", "`1s`"]),
        (
            "routing.yaml",
            "    service: users",
            "    service: users\n    max_body: 10MB",
            &["routing.yaml:14:", "max_body", "10MiB"],
        ),
        ("serin.yaml", "listeners:", "listener:", &["serin.yaml:1:1", "listener", "`listeners`"]),
        ("serin.yaml", "[http1]", "[http3]", &["serin.yaml:2:", "listeners[0].protocols", "http3", "http1"]),
    ];
    for (file, from, to, wanted) in cases {
        let dir = documents(file, from, to);
        let refused = check(dir.path()).await;
        assert_ne!(refused.code, 0, "{to}: {refused:?}");
        let told = format!("{}{}", refused.stdout, refused.stderr);
        for part in wanted {
            assert!(told.contains(part), "`{to}` should tell `{part}`:\n{told}");
        }
        let start = gateway::cli(&["run", "--config", &dir.path().join("serin.yaml").to_string_lossy()]).await;
        assert_ne!(start.code, 0, "`{to}` must not start");
        assert!(format!("{}{}", start.stdout, start.stderr).contains(wanted[0]), "the start tells it too: {start:?}");
    }
}

#[tokio::test]
async fn all_mistakes_are_told_at_once() {
    let dir = documents("routing.yaml", "stable: v1", "stabel: v1");
    let path = dir.path().join("routing.yaml");
    let text = std::fs::read_to_string(&path).unwrap();
    write_atomically(
        &path,
        &text.replace("p2c", "p3c").replace("prefix:", "prefx:").replace("service: users", "service: user"),
    );
    let refused = check(dir.path()).await;
    let told = format!("{}{}", refused.stdout, refused.stderr);
    for line in ["routing.yaml:7:", "routing.yaml:9:", "routing.yaml:12:", "routing.yaml:13:"] {
        assert!(told.contains(line), "no {line} in:\n{told}");
    }
}

#[tokio::test]
async fn check_answers_json() {
    let dir = documents("routing.yaml", "stable: v1", "stabel: v1");
    let file = dir.path().join("serin.yaml").to_string_lossy().into_owned();
    let refused = gateway::cli(&["check", &file, "--json"]).await;
    assert_ne!(refused.code, 0);
    // Problems are errors: they may be told on either stream.
    let told: Value = serde_json::from_str(&format!("{}{}", refused.stdout, refused.stderr)).unwrap();
    let told = told.to_string();
    for part in ["routing.yaml", "\"line\":7", "\"column\":5", "services.users.stabel", "stable"] {
        assert!(told.contains(part), "no {part} in {told}");
    }
    let dir = documents("", "", "");
    let good = gateway::cli(&["check", &dir.path().join("serin.yaml").to_string_lossy(), "--json"]).await.expect(0);
    let _ = good.json();
}

#[tokio::test]
async fn what_is_no_yaml_or_not_there_is_told() {
    for text in ["services: [", "\t- x", "a: 1\na: 2\n", "- list\n", "\u{0}"] {
        let dir = documents("", "", "");
        write_atomically(&dir.path().join("routing.yaml"), text);
        let refused = check(dir.path()).await;
        assert_ne!(refused.code, 0, "{text:?}");
        let told = format!("{}{}", refused.stdout, refused.stderr);
        assert!(told.contains("routing.yaml"), "{text:?}: {told}");
        assert!(!told.contains("panicked"), "{text:?}: {told}");
    }
    let dir = documents("", "", "");
    std::fs::remove_file(dir.path().join("routing.yaml")).unwrap();
    let refused = check(dir.path()).await;
    assert_ne!(refused.code, 0);
    assert!(format!("{}{}", refused.stdout, refused.stderr).contains("routing.yaml"), "{refused:?}");
}

/// What a gateway shows of the last refusal of a document.
async fn refused(world: &World, document: &str) -> Option<String> {
    let shown = world.gateway.admin(Call::get("/readyz?verbose")).await.expect(200).json();
    assert_eq!(shown["ready"], json!(true));
    let refused = &shown["documents"][document]["refused"];
    (!refused.is_null()).then(|| refused.to_string())
}

#[tokio::test]
async fn a_bad_reload_keeps_the_old_snapshot_and_is_shown() {
    let bad_routing = |world: &World| {
        let mut routing = world.gateway.conf.routing.clone();
        routing["services"]["users"]["stabel"] = json!("v1");
        routing["routes"][0]["service"] = json!("nobody");
        world.gateway.write_routing(&routing);
    };
    let bad_traffic = |world: &World| {
        let mut traffic = world.gateway.conf.traffic.clone();
        traffic["revision"] = json!(2);
        traffic["services"]["users"]["weights"] = conf::shares(&[("v1", "0%"), ("v2", "99%")]);
        world.gateway.write_traffic(&traffic);
    };
    for (document, part) in [("routing", "stabel"), ("traffic", "weights")] {
        let world = World::with(&["v1-a", "v2-a"], |conf| {
            conf.weights(&[("v1", "100%"), ("v2", "0%")]);
        })
        .await;
        assert_eq!(refused(&world, document).await, None);
        if document == "routing" {
            bad_routing(&world)
        } else {
            bad_traffic(&world)
        }
        let told = wait::until(format!("{document} to be refused"), || refused(&world, document)).await;
        assert!(told.contains(part), "{told}");
        assert_eq!(world.burst(10).await, vec!["v1-a"; 10], "the old snapshot stays");
        assert!(world.gateway.metrics().await.sum("serin_config_refused_total", &[]) >= 1.0);

        let history = world.gateway.cli(&["history", "--json"]).await.expect(0).json();
        let entries = history["entries"].as_array().unwrap();
        let entry = entries.iter().find(|entry| entry["outcome"] == "refused").unwrap_or_else(|| panic!("{history}"));
        assert!(entry["problems"].to_string().contains(part), "{entry}");

        world.gateway.write_routing(&world.gateway.conf.routing);
        world.gateway.write_traffic(&json!({
            "revision": 3,
            "services": {"users": {"weights": {"v1": "0%", "v2": "100%"}}},
        }));
        wait::until("the next good document", || async {
            (world.version_of("u1").await == "v2" && refused(&world, document).await.is_none()).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn a_document_that_goes_missing_changes_nothing() {
    let world = World::start().await;
    for file in ["routing.yaml", "traffic.yaml"] {
        let path = world.gateway.dir().join(file);
        std::fs::rename(&path, path.with_extension("gone")).unwrap();
        assert_eq!(world.burst(5).await.len(), 5);
        std::fs::rename(path.with_extension("gone"), &path).unwrap();
    }
    world.gateway.set_weights(&[("v1", "0%"), ("v2", "100%")]).await;
    assert_eq!(world.version_of("u1").await, "v2");
}

#[tokio::test]
async fn a_bad_flip_is_refused_and_changes_nothing() {
    let world = World::start().await;
    let before = world.gateway.admin_get("/v1/traffic").await;
    let cases: [(Value, &str); 6] = [
        (json!({"weights": {"v1": "90%", "v2": "11%"}}), "101"),
        (json!({"weights": {"v1": "90%", "v9": "10%"}}), "v9"),
        (json!({"weights": {"v1": "90.001%", "v2": "9.999%"}}), "90.001%"),
        (json!({"weights": {"v1": "-1%", "v2": "101%"}}), "-1%"),
        (json!({"wieghts": {"v1": "90%", "v2": "10%"}}), "weights"),
        (json!({"weights": 7}), "weights"),
    ];
    for (body, part) in cases {
        let reply = world.gateway.admin_send("PATCH", "/v1/traffic/services/users", &body).await;
        assert!(reply.status.is_client_error(), "{body}: {}", reply.status);
        assert_eq!(reply.header("content-type"), "application/problem+json", "{body}");
        assert!(reply.text().contains(part), "{body} should tell {part}: {}", reply.text());
        assert_eq!(world.gateway.admin_get("/v1/traffic").await, before, "{body}");
    }
    let refused = world.gateway.cli(&["canary", "set", "users", "v1=90%", "v2=11%"]).await;
    assert_ne!(refused.code, 0);
    assert!(refused.stderr.contains("101"), "{refused:?}");
}
