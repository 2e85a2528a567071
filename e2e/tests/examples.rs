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
    for part in ["x-traffic-tag", "user_key", "zone_affinity", "h2c", "certificates"] {
        assert!(text.contains(part), "no example has {part}");
    }
}
