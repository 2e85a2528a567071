//! Promise: every worked example in `conf/` is sound.

use std::path::{Path, PathBuf};

use serin_e2e::gateway;

/// The bootstrap documents below `dir`: those that say which listeners there are.
fn bootstraps(dir: &Path) -> Vec<PathBuf> {
    let mut found = vec![];
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(bootstraps(&path));
        } else if path.extension().is_some_and(|extension| extension == "yaml") {
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            found.extend(text.lines().any(|line| line.starts_with("listeners:")).then_some(path));
        }
    }
    found
}

#[tokio::test]
async fn every_example_passes_the_check() {
    let conf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../conf");
    let examples = bootstraps(&conf);
    assert!(examples.iter().any(|path| path.ends_with("conf/serin.yaml")), "{examples:?}");
    for example in &examples {
        let checked = gateway::cli(&["check", &example.to_string_lossy()]).await;
        assert_eq!(checked.code, 0, "{}: {checked:?}", example.display());
    }
}

/// Documents that are to be put into a config center lie beside the bootstrap document, and are checked as if they were files.
#[tokio::test]
async fn what_goes_into_a_center_passes_the_check_as_well() {
    let conf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../conf/examples");
    let mut checked = 0;
    for example in bootstraps(&conf) {
        let (dir, text) = (gateway::directory(), std::fs::read_to_string(&example).unwrap_or_default());
        let in_center =
            |line: &&str| ["routing: { etcd", "routing: { nacos"].iter().any(|place| line.starts_with(place));
        if !text.lines().any(|line| in_center(&line)) {
            continue;
        }
        let rest = text.lines().filter(|line| !line.starts_with("routing:") && !line.starts_with("traffic:"));
        let bootstrap = rest.chain(["routing: { file: routing.yaml }", "traffic: { file: traffic.yaml }"]);
        let bootstrap = bootstrap.collect::<Vec<_>>().join("\n");
        let routing = std::fs::read_to_string(example.with_file_name("routing.yaml")).unwrap_or_default();
        let files = [("serin.yaml", &*bootstrap), ("routing.yaml", &*routing), ("traffic.yaml", "revision: 1")];
        for (name, text) in files {
            gateway::write_atomically(&dir.path().join(name), text);
        }
        let result = gateway::cli(&["check", &dir.path().join("serin.yaml").to_string_lossy()]).await;
        assert_eq!(result.code, 0, "{}: {result:?}", example.display());
        checked += 1;
    }
    assert!(checked >= 2, "etcd and Nacos");
}

#[tokio::test]
async fn the_examples_show_what_is_promised() {
    let mut text = String::new();
    let mut dirs = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("../conf")];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            if entry.path().is_dir() {
                dirs.push(entry.path());
            }
            text += &std::fs::read_to_string(entry.path()).unwrap_or_default();
        }
    }
    let centers = ["etcd: {", "nacos: {", "zookeeper: {", "dns: {", "register:"];
    for part in ["x-traffic-tag", "user_key", "zone_affinity", "h2c", "certificates"].into_iter().chain(centers) {
        assert!(text.contains(part), "no example has {part}");
    }
}
