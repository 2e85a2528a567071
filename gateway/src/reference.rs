//! The reference pages of the book, made from the code: every page in `docs/src/reference` is what these functions
//! write, so none can say something else than the code does. After a change: `SERIN_RENEW=1 cargo test -p serin --lib
//! reference`.

mod api;
mod schema;

use std::fmt::Write as _;
use std::path::Path;

use crate::conf::Kind;
use crate::telemetry::metrics::Metrics;

const MADE: &str =
    "<!-- Made from the code by `SERIN_RENEW=1 cargo test -p serin --lib reference`; not edited by hand. -->\n";

fn pages() -> Vec<(&'static str, String)> {
    vec![
        ("cli", crate::cli::reference()),
        ("bootstrap", schema::page("Bootstrap document", "Read once, at the start.", Kind::Bootstrap)),
        (
            "routing",
            schema::page(
                "Routing document",
                "Services and routes. Watched; a change is in force at once.",
                Kind::Routing,
            ),
        ),
        (
            "traffic",
            schema::page("Traffic document", "What operators flip. Watched, and written by flips.", Kind::Traffic),
        ),
        ("admin-api", api::page(&crate::admin::openapi())),
        ("metrics", metrics()),
    ]
}

/// The table of all families, in the order of their names.
fn metrics() -> String {
    let metrics = Metrics::new().unwrap();
    let mut families = metrics.describe();
    families.sort();
    let mut page = "# Metrics\n\n`GET /metrics` of the admin API. Labels take their values from the documents or from \
                    closed lists, never from\nwhat clients send. Series of instances, services, subsets and routes \
                    that leave the configuration are dropped.\n\n| metric | type | labels | meaning |\n|---|---|---|---|\n"
        .to_owned();
    for family in families {
        let labels: Vec<_> = family.labels.iter().map(|label| format!("`{label}`")).collect();
        let _ = writeln!(page, "| `{}` | {} | {} | {} |", family.name, family.kind, labels.join(" "), family.help);
    }
    page
}

/// A text that may stand in a table's cell.
fn cell(text: &str) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|");
    // Within code spans, which are every second part, Markdown takes everything as it is.
    let parts = text.split('`').enumerate();
    parts
        .map(|(at, part)| if at % 2 == 0 { part.replace('<', "&lt;") } else { part.to_owned() })
        .collect::<Vec<_>>()
        .join("`")
}

#[test]
fn the_reference_is_what_the_code_says() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/src/reference");
    let mut stale = Vec::new();
    for (name, page) in pages() {
        let (file, text) = (dir.join(format!("{name}.md")), format!("{MADE}{page}"));
        if std::env::var_os("SERIN_RENEW").is_some() {
            std::fs::create_dir_all(&dir).unwrap();
            std::fs::write(&file, &text).unwrap();
        }
        if std::fs::read_to_string(&file).ok() != Some(text) {
            stale.push(file);
        }
    }
    assert!(stale.is_empty(), "not up to date: {stale:?}; SERIN_RENEW=1 cargo test -p serin --lib reference");
}

/// Every name in `names.rs` is a family, and every family's name is there, so that there is one home for names.
#[test]
fn names_and_families_are_the_same() {
    let text = include_str!("telemetry/names.rs");
    let names = text.lines().filter_map(|line| line.split_once("\"serin_")?.1.split_once('"').map(|(name, _)| name));
    let mut named: Vec<_> = names.map(|name| format!("serin_{name}")).collect();
    named.sort();
    let metrics = Metrics::new().unwrap();
    let families = metrics.describe().into_iter().map(|family| family.name);
    let mut registered: Vec<_> = families.filter(|name| name.starts_with("serin_")).collect();
    registered.sort();
    assert_eq!(named, registered);
}
