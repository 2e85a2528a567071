//! Promise: every command and every configuration in the book works as it is written, and no link leads nowhere.

#![expect(clippy::unwrap_used, reason = "tests may panic in their helpers as well")]

use std::path::{Path, PathBuf};

use serin_e2e::book::Page;
use serin_e2e::session::{self, repository};

/// Pages that are followed at a time.
const AT_ONCE: usize = 4;

fn markdown(dir: &Path) -> Vec<PathBuf> {
    let mut found = vec![];
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(markdown(&path));
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn book() -> PathBuf {
    repository().join("docs/src")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_page_does_what_it_says() {
    let only = std::env::var("SERIN_PAGE").unwrap_or_default();
    let pages = markdown(&book()).into_iter().chain([repository().join("README.md")]);
    let mut pages = pages.filter(|path| path.to_string_lossy().contains(&only));
    let mut following = tokio::task::JoinSet::new();
    let mut problems = vec![];
    let follow = |path: PathBuf| async move { session::follow(&Page::read(&path)).await };
    pages.by_ref().take(AT_ONCE).for_each(|path| drop(following.spawn(follow(path))));
    while let Some(done) = following.join_next().await {
        problems.extend(done.unwrap().err());
        pages.by_ref().take(1).for_each(|path| drop(following.spawn(follow(path))));
    }
    assert!(problems.is_empty(), "\n{}", problems.join("\n\n"));
}

#[test]
fn no_link_leads_nowhere() {
    let root = repository();
    let mut broken = vec![];
    let outside = ["README.md", "ARCHITECTURE.md", "CHANGELOG.md"].map(|name| root.join(name));
    for path in markdown(&book()).into_iter().chain(outside) {
        let page = Page::read(&path);
        for link in page.links().iter().filter(|link| !link.contains("://")) {
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { path.clone() } else { path.with_file_name("").join(file) };
            let fine =
                target.exists() && (anchor.is_empty() || Page::read(&target).anchors().iter().any(|a| a == anchor));
            if !fine {
                broken.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn every_page_is_in_the_summary() {
    let summary = Page::read(&book().join("SUMMARY.md"));
    let listed: Vec<_> = summary.links().iter().map(|link| book().join(link)).collect();
    for page in markdown(&book()).iter().filter(|page| !page.ends_with("SUMMARY.md")) {
        assert!(listed.contains(page), "{} is not in SUMMARY.md", page.display());
    }
    assert_eq!(listed.iter().filter(|page| !page.exists()).count(), 0);
}

/// A page is read by somebody who has a task: it begins with what it is for, and is short.
#[test]
fn pages_are_short() {
    for path in markdown(&book()) {
        let lines = std::fs::read_to_string(&path).unwrap().lines().count();
        let reference = path.components().any(|part| part.as_os_str() == "reference");
        assert!(reference || lines <= 200, "{} has {lines} lines", path.display());
    }
}
