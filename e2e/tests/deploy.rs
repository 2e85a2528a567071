//! Promise: the unit for systemd and the manifest for Kubernetes in `conf` are sound, hold documents that pass, and give
//! a drain the time that it takes.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of a test")]

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;
use serin_e2e::gateway::{binary, cli, directory};
use serin_e2e::session::repository;
use yaml_rust2::{Yaml, YamlLoader};

fn read(path: &str) -> String {
    fs::read_to_string(repository().join(path)).unwrap()
}

#[test]
fn systemd_takes_the_unit() {
    let unit = read("conf/systemd/serin.service");
    let dir = directory();
    let file = dir.path().join("serin.service");
    fs::write(&file, unit.replace("/usr/local/bin/serin", binary().to_str().unwrap())).unwrap();
    let analyse = |args: &[&str]| Command::new("systemd-analyze").args(args).arg(&file).output();
    let Ok(verified) = analyse(&["verify", "--man=no"]) else {
        eprintln!("there is no systemd-analyze on this host");
        return;
    };
    let said = String::from_utf8_lossy(&verified.stderr);
    let ours: Vec<_> = said.lines().filter(|line| line.contains("serin.service")).collect();
    assert!(ours.is_empty(), "{ours:?}");
    // Exposure in tenths: 10 is wide open.
    let secure = analyse(&["security", "--offline=true", "--threshold=25"]).unwrap();
    assert!(secure.status.success(), "{}", String::from_utf8_lossy(&secure.stdout));
}

#[test]
fn the_unit_waits_for_a_drain() {
    let unit = read("conf/systemd/serin.service");
    let keys: BTreeMap<_, _> = unit.lines().filter_map(|line| line.split_once('=')).collect();
    assert!(keys["TimeoutStopSec"].parse::<u64>().unwrap() > 5 + 30, "longer than the steps by default");
    assert_eq!((keys["Type"], keys["NotifyAccess"], keys["KillSignal"]), ("notify", "main", "SIGTERM"));
    assert_eq!(keys["CapabilityBoundingSet"], "CAP_NET_BIND_SERVICE");
}

/// YAML as JSON.
fn json(yaml: &Yaml) -> Value {
    match yaml {
        Yaml::Array(items) => items.iter().map(json).collect(),
        Yaml::Hash(map) => map.iter().map(|(key, value)| (key.as_str().unwrap().to_owned(), json(value))).collect(),
        Yaml::Boolean(value) => (*value).into(),
        Yaml::Integer(value) => (*value).into(),
        Yaml::String(text) => text.as_str().into(),
        other => panic!("{other:?} is not in a manifest"),
    }
}

/// The documents of the manifest, by kind.
fn manifest() -> BTreeMap<String, Value> {
    let text = read("conf/kubernetes/gateway.yml");
    let documents = YamlLoader::load_from_str(&text).unwrap();
    documents.iter().map(json).map(|document| (document["kind"].as_str().unwrap().to_owned(), document)).collect()
}

#[tokio::test]
async fn documents_in_the_manifest_pass() {
    let manifest = manifest();
    let dir = directory();
    for (name, text) in manifest["ConfigMap"]["data"].as_object().unwrap() {
        let text = text.as_str().unwrap().replace("/var/lib/serin/traffic.yaml", "traffic.yaml");
        fs::write(dir.path().join(name), text).unwrap();
    }
    let file: PathBuf = dir.path().join("serin.yaml");
    let _ = cli(&["check", file.to_str().unwrap()]).await.expect(0);
}

#[test]
fn the_pod_may_do_nothing_that_it_does_not_need() {
    let manifest = manifest();
    let pod = &manifest["Deployment"]["spec"]["template"]["spec"];
    assert_eq!(pod["automountServiceAccountToken"], false);
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
    let containers = ["initContainers", "containers"].iter().flat_map(|key| pod[*key].as_array().unwrap());
    for container in containers {
        let context = &container["securityContext"];
        assert_eq!(context["allowPrivilegeEscalation"], false);
        assert_eq!(context["readOnlyRootFilesystem"], true);
        assert_eq!(context["capabilities"]["drop"], serde_json::json!(["ALL"]));
        let added = context["capabilities"]["add"].as_array().cloned().unwrap_or_default();
        assert!(added.iter().all(|capability| capability == "NET_BIND_SERVICE"), "{added:?}");
        let mounts = container["volumeMounts"].as_array().unwrap();
        let volumes = pod["volumes"].as_array().unwrap();
        assert!(mounts.iter().all(|mount| volumes.iter().any(|volume| volume["name"] == mount["name"])));
    }
    let gateway = &pod["containers"][0];
    for (probe, path) in [("startupProbe", "/readyz"), ("readinessProbe", "/readyz"), ("livenessProbe", "/healthz")] {
        assert_eq!(gateway[probe]["httpGet"]["path"], path);
        assert_eq!(gateway[probe]["httpGet"]["port"], "admin");
    }
    assert!(gateway["lifecycle"]["preStop"].is_object());
    // preStop, readiness and timeout.
    assert!(pod["terminationGracePeriodSeconds"].as_u64().unwrap() > 5 + 10 + 30);
    // Every key is one that Kubernetes has.
    let known = [
        "automountServiceAccountToken",
        "containers",
        "initContainers",
        "securityContext",
        "terminationGracePeriodSeconds",
        "topologySpreadConstraints",
        "volumes",
        "args",
        "command",
        "image",
        "lifecycle",
        "livenessProbe",
        "name",
        "ports",
        "readinessProbe",
        "resources",
        "startupProbe",
        "volumeMounts",
    ];
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    for key in keys(pod).into_iter().chain(keys(gateway)).chain(keys(&pod["initContainers"][0])) {
        assert!(known.contains(&key.as_str()), "{key}");
    }
}
