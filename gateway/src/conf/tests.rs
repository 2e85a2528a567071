//! Bad documents and what is said of them (`tests/bad.txt`), good ones, and texts that are no documents at all.

use std::path::PathBuf;
use std::sync::Arc;

use proptest::prelude::*;
use serde::Deserialize;
use serin_core::candidates::{Candidates, Slot};
use serin_core::chain::{Balancer, Narrow, Narrowing, Pick, PickCx, RoundRobin};
use serin_core::instance::Instance as CoreInstance;
use serin_core::plugin::{BuildError, Catalogue, Node as CoreNode, Plugin};

use super::*;

/// Leaves the candidates as they are.
struct Keep;

impl Narrow for Keep {
    fn narrow(&self, _: &mut PickCx<'_>, _: &mut Candidates<'_>) {}
}

impl Narrowing for Keep {
    fn prepare(&self, _: &[CoreInstance]) -> Arc<dyn Narrow> {
        Arc::new(Self)
    }
}

/// Takes the first candidate.
struct First;

impl Pick for First {
    fn pick(&self, _: &mut PickCx<'_>, candidates: &Candidates<'_>) -> Option<Slot> {
        candidates.nth(0)
    }
}

impl Balancer for First {
    fn prepare(&self, _: &[CoreInstance]) -> Arc<dyn Pick> {
        Arc::new(Self)
    }
}

/// Settings as a plug-in may have them.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Settings {
    table_size: u32,
    spill: String,
}

impl Default for Settings {
    fn default() -> Self {
        Self { table_size: 7, spill: String::new() }
    }
}

macro_rules! plugins {
    ($($plugin:ident $name:literal $made:ident $value:expr;)*) => {
        $(
            struct $plugin;

            impl Plugin for $plugin {
                const NAME: &'static str = $name;
                type Conf = Settings;
                type Made = dyn $made;

                fn build(conf: Settings, _: &CoreNode) -> Result<Arc<dyn $made>, BuildError> {
                    if conf.table_size % 2 == 0 {
                        return Err(BuildError(format!("table_size must be odd, got {}{}", conf.table_size, conf.spill)));
                    }
                    Ok(Arc::new($value))
                }
            }
        )*
    };
}

plugins! {
    P2c "p2c" Balancer First;
    RingHash "ring_hash" Balancer First;
    Maglev "maglev" Balancer First;
    PeakEwma "peak_ewma" Balancer First;
    LeastRequest "least_request" Balancer First;
    Rounds "round_robin" Balancer RoundRobin::default();
    ZoneAffinity "zone_affinity" Narrowing Keep;
    Cluster "cluster" Narrowing Keep;
}

/// A catalogue of plug-ins that do little, so that these tests need no others.
fn catalogue() -> Catalogue {
    Catalogue::default()
        .with_balancer::<P2c>()
        .with_balancer::<RingHash>()
        .with_balancer::<Maglev>()
        .with_balancer::<PeakEwma>()
        .with_balancer::<LeastRequest>()
        .with_balancer::<Rounds>()
        .with_narrow::<ZoneAffinity>()
        .with_narrow::<Cluster>()
}

/// The routing document that traffic documents of these tests are for.
const ROUTING: &str = "
services:
  users:
    instances:
      - { address: 127.0.0.1:9001, labels: { version: v1 } }
      - { address: 127.0.0.1:9002, labels: { version: v2 } }
    subsets: { v1: { version: v1 }, v2: { version: v2 } }
    stable: v1
  orders:
    instances: [ { address: 127.0.0.1:9003 } ]
routes: []
";

fn read(kind: Kind, text: &str) -> Result<Value, Problems> {
    let source = Source::inline("f", text);
    let known = || routing(&Source::inline("known", ROUTING), &catalogue(), &CoreNode::default()).unwrap();
    let value = match kind {
        Kind::Bootstrap => serde_json::to_value(bootstrap(&source)?),
        Kind::Routing => serde_json::to_value(routing(&source, &catalogue(), &CoreNode::default())?),
        Kind::Traffic => serde_json::to_value(traffic(&source, &known())?),
    };
    Ok(value.unwrap())
}

fn kind_named(name: &str) -> Kind {
    Kind::ALL.into_iter().find(|kind| kind.to_string() == name).unwrap()
}

/// `=== kind: what it shows`, the document, `---`, and a line per problem.
#[test]
fn bad_documents_are_refused_with_everything_that_is_wrong() {
    let mut differences = String::new();
    let cases: Vec<_> = include_str!("tests/bad.txt").split("=== ").skip(1).collect();
    assert!(cases.len() >= 30, "{}", cases.len());
    for case in cases {
        let (title, rest) = case.split_once('\n').unwrap();
        let (text, expected) = rest.split_once("---\n").unwrap();
        let kind = kind_named(title.split_once(": ").unwrap().0);
        let found =
            read(kind, &text.replace("\\t", "\t")).err().map_or_else(|| "accepted".to_owned(), |e| e.to_string());
        let expected: Vec<_> = expected.lines().filter(|line| !line.is_empty()).collect();
        let found: Vec<_> = found.lines().map(|line| line.trim_start_matches("f:")).collect();
        if expected != found {
            differences += &format!("=== {title}\n{text}---\n{}\n\n", found.join("\n"));
        }
    }
    assert!(differences.is_empty(), "what was found in the cases that differ:\n{differences}");
}

/// A document with every key there is, so that each is read, written and read again.
const EVERYTHING: [(Kind, &str); 3] = [
    (Kind::Bootstrap, include_str!("tests/all_bootstrap.yaml")),
    (Kind::Routing, include_str!("tests/all_routing.yaml")),
    (
        Kind::Traffic,
        "{revision: 3, services: {users: {weights: {v1: 85.5%, v2: 14.5%}, abort: weights, ramp: {to: v2, \
         steps: [14.5%, 100%], every: 1m, guards: ['p99 <= 1.2 x stable'], min_requests: 50, state: held, step: 1, since: \
         '2026-11-30T08:15:00Z', reason: few}}, orders: {abort: true}}, \
         switches: {balancer: true, canary: {all: true, services: {users: false}}, limits: true}}",
    ),
];

#[test]
fn what_is_written_is_read_again_as_the_same() {
    for (kind, text) in EVERYTHING {
        let first = read(kind, text).unwrap_or_else(|problems| panic!("{kind}:\n{problems}"));
        let again = read(kind, &first.to_string()).unwrap_or_else(|problems| panic!("{kind}:\n{problems}"));
        assert_eq!(first, again, "{kind}");
    }
}

/// Every key of every schema is in the documents above: a key that is not would be one that nobody has tried.
#[test]
fn every_key_of_the_schema_is_tried() {
    fn keys(schema: &Value, found: &mut Vec<String>) {
        match schema {
            Value::Object(object) => {
                let properties = object.get("properties").and_then(Value::as_object);
                found.extend(properties.into_iter().flatten().map(|(key, _)| key.clone()));
                object.values().for_each(|value| keys(value, found));
            }
            Value::Array(list) => list.iter().for_each(|value| keys(value, found)),
            _ => {}
        }
    }
    for (kind, text) in EVERYTHING {
        let mut found = Vec::new();
        keys(&schema(kind), &mut found);
        assert!(found.len() > 4, "{kind}: {found:?}");
        let untried: Vec<_> = found.iter().filter(|key| !text.contains(&format!("{key}:"))).collect();
        assert!(untried.is_empty(), "{kind}: {untried:?}");
    }
}

#[test]
fn every_key_of_the_schema_is_described() {
    fn undescribed(name: &str, schema: &Value, found: &mut Vec<String>) {
        let Value::Object(object) = schema else { return };
        for (key, property) in object.get("properties").and_then(Value::as_object).into_iter().flatten() {
            if property.get("description").is_none() && object.get("description").is_none() {
                found.push(format!("{name}.{key}"));
            }
        }
        for (key, value) in object {
            match value {
                Value::Array(list) => list.iter().for_each(|value| undescribed(key, value, found)),
                value => undescribed(key, value, found),
            }
        }
    }
    for kind in Kind::ALL {
        let mut found = Vec::new();
        undescribed("", &schema(kind), &mut found);
        assert!(found.is_empty(), "{kind}: {found:?}");
    }
}

#[test]
fn defaults_are_those_of_the_handbook() {
    let text = "{services: {a: {instances: [{address: '127.0.0.1:1'}]}}, routes: []}";
    let document = routing(&Source::inline("f", text), &catalogue(), &CoreNode::default()).unwrap();
    let service = &document.services["a"];
    assert_eq!((service.stable(), service.subsets.len()), ("all", 1));
    assert_eq!(service.balancer[0].name, "round_robin");
    assert_eq!((service.instances[0].weight, service.retry.attempts), (100, 2));
    assert_eq!(service.timeouts, Timeouts::default());
    assert_eq!(service.fallback.on.len(), 4);
    assert_eq!(AnonymousCookie::default().name.as_str(), "serin-id");
    let text = "{listeners: [{name: a, address: '127.0.0.1:1'}], routing: {file: r}, traffic: {file: d/t}}";
    let source = Source { base: "/etc/serin".into(), ..Source::inline("f", text) };
    let document = bootstrap(&source).unwrap();
    assert!(document.admin.address.ip().is_loopback());
    assert_eq!(document.routing.file(), Some(Path::new("/etc/serin/r")));
    assert_eq!(document.state_dir(), PathBuf::from("/etc/serin/d/.serin"));
    assert!(document.listeners[0].speaks(Protocol::Http1) && !document.listeners[0].speaks(Protocol::H2c));
}

#[test]
fn switches_hold_for_all_services_unless_one_has_its_own() {
    let text = "{switches: {balancer: true, canary: {all: true, services: {users: false}}}}";
    let source = Source::inline("f", text);
    let switches = traffic_alone(&source).unwrap().switches;
    let cases = [("balancer", "users", true), ("canary", "users", false), ("canary", "orders", true)];
    for (switch, service, on) in cases {
        let switch = if switch == "canary" { &switches.canary } else { &switches.balancer };
        assert_eq!(switch.is_on(service), on, "{service}");
    }
}

#[test]
fn documents_are_bounded() {
    let deep = |open: &str, close: &str| format!("a: {}{}", open.repeat(500), close.repeat(500));
    let cases = [
        (deep("[", "]"), "deeper nesting"),
        (deep("{a: ", "}"), "deeper nesting"),
        ((0..500).map(|depth| format!("{}a:\n", " ".repeat(depth))).collect(), "deeper nesting"),
        (format!("a: \"{}\"", "x".repeat(17 << 20)), "bytes: at most"),
        (format!("a: [{}]", "1,".repeat(1_100_000)), "more values"),
    ];
    for (text, expected) in cases {
        let problems = read(Kind::Routing, &text).unwrap_err();
        assert!(problems.to_string().contains(expected), "{}", shorten(&problems.to_string()));
    }
    let many: String = (0..5_000).map(|index| format!("k{index}: 1\n")).collect();
    let problems = read(Kind::Traffic, &many).unwrap_err();
    assert_eq!(problems.0.len(), 1_001);
    assert_eq!(problems.0[1_000].message, "and 4000 more problems");
}

fn shorten(text: &str) -> String {
    text.chars().take(300).collect()
}

#[test]
fn files_that_cannot_be_read_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("serin.yaml");
    std::fs::write(&path, b"node:\n  id: \xff\xfe\n").unwrap();
    let cases = [
        (path, "serin.yaml:2:7: is not UTF-8 text"),
        (dir.path().join("none.yaml"), "none.yaml:1:1: cannot be read: No such file"),
        (dir.path().to_owned(), "it is not a file"),
    ];
    for (path, expected) in cases {
        let problems = check(&path, &catalogue()).unwrap_err().to_string();
        assert!(problems.contains(expected), "{problems}");
    }
}

#[test]
fn the_kind_of_a_document_is_told_by_its_keys() {
    let cases = [
        ("{listeners: [], rooting: {}}", Some(Kind::Bootstrap)),
        ("{routing: {}, traffic: {}, services: {}}", Some(Kind::Bootstrap)),
        ("{services: {}, routes: []}", Some(Kind::Routing)),
        ("{services: {}, switchs: {}, revision: 1}", Some(Kind::Traffic)),
        ("{services: {a: {instances: []}}}", Some(Kind::Routing)),
        ("{services: {a: {weights: {}}}}", Some(Kind::Traffic)),
        ("{hello: world}", None),
        ("[1, 2]", None),
        ("a: [", None),
    ];
    for (text, expected) in cases {
        assert_eq!(Kind::of(&Source::inline("f", text)), expected, "{text}");
    }
}

#[test]
fn a_bootstrap_document_brings_the_others_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    let main = dir.path().join("serin.yaml");
    let listeners = "listeners: [ { name: a, address: 127.0.0.1:80 } ]";
    write("serin.yaml", &format!("{listeners}\nrouting: {{ file: r.yaml }}\ntraffic: {{ file: t.yaml }}"));
    let tags = "tags: [ { name: a, when: { header: { a: b } }, subset: v2, trust: signed } ]";
    write("r.yaml", &ROUTING.replace("stable: v1", &format!("stable: v1\n    {tags}")));
    write("t.yaml", "services: { users: { weights: { v1: 99% } } }");
    let problems = check(&main, &catalogue()).unwrap_err().to_string();
    assert!(problems.contains("r.yaml:9:71: services.users.tags[0].trust: `signed` needs a key"), "{problems}");
    assert!(problems.contains("t.yaml:1:22: services.users.weights: the weights add up to 99%"), "{problems}");

    write("r.yaml", ROUTING);
    write("t.yaml", "services: { users: { weights: { v1: 99%, v2: 1% } } }");
    let checked = check(&main, &catalogue()).unwrap();
    assert_eq!((checked.kind, checked.files.len()), (Kind::Bootstrap, 3));
    assert_eq!(load(&main, &catalogue()).unwrap().traffic.unwrap().services["users"].weights["v2"].hundredths(), 100);
}

/// Every document in `conf/` is part of a complete set that loads with the plug-ins there are.
#[test]
fn every_worked_example_loads() {
    fn files(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => files(&path, found),
                false if path.extension().is_some_and(|extension| extension == "yaml") => found.push(path),
                false => {}
            }
        }
    }
    let mut found = Vec::new();
    files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../conf"), &mut found);
    let catalogue = serin_plugins::builtin();
    let mut loaded = Vec::new();
    for path in found.iter().filter(|path| path.ends_with("serin.yaml")) {
        let checked = check(path, &catalogue).unwrap_or_else(|problems| panic!("{problems}"));
        let documents = load(path, &catalogue).unwrap();
        loaded.extend(checked.files);
        let routing = documents.routing.unwrap_or_else(|| {
            // What lies in a config center has its text beside it.
            let beside = path.with_file_name("routing.yaml");
            let source = Source::read(&beside).unwrap();
            loaded.push(beside);
            routing_of(&documents.bootstrap, &source, &catalogue).unwrap_or_else(|problems| panic!("{problems}"))
        });
        assert!(!routing.routes.is_empty(), "{}", path.display());
    }
    let left: Vec<_> = found.iter().filter(|path| !loaded.contains(path)).collect();
    assert!(left.is_empty() && loaded.len() == found.len(), "not part of a set: {left:?}; loaded: {loaded:?}");
}

/// Texts that are nearly documents: pieces of YAML and of our keys in any order.
fn nearly() -> impl Strategy<Value = String> {
    let pieces = [
        "services",
        "users",
        "routes",
        "match",
        "path",
        "prefix",
        "instances",
        "address",
        "weights",
        "listeners",
        "127.0.0.1:1",
        "90%",
        "1s",
        "v1",
        ":",
        ": ",
        "- ",
        "\n",
        "\n  ",
        "\n    ",
        "{",
        "}",
        "[",
        "]",
        ",",
        "\"",
        "'",
        "#",
        "&a",
        "*a",
        "!!x",
        "|",
        ">",
        "?",
        "%",
        "---\n",
        "...\n",
        "<<",
        "~",
        ".nan",
        "0x",
        "\t",
        "\u{feff}",
        "é",
        "\0",
    ];
    prop::collection::vec(prop::sample::select(pieces.to_vec()), 0..60).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_text_makes_the_gateway_panic(text in prop_oneof![".{0,200}", nearly()]) {
        for kind in Kind::ALL {
            if let Err(problems) = read(kind, &text) {
                prop_assert!(!problems.0.is_empty());
                prop_assert!(problems.0.iter().all(|problem| problem.line > 0 && problem.column > 0));
            }
        }
    }

    #[test]
    fn no_damage_to_a_good_document_makes_the_gateway_panic(at in 0..4_000_usize, len in 0..40_usize, new in ".{0,8}") {
        for (kind, text) in EVERYTHING {
            let mut chars: Vec<char> = text.chars().collect();
            let start = at % chars.len();
            let end = (start + len).min(chars.len());
            chars.splice(start..end, new.chars());
            let _ = read(kind, &chars.into_iter().collect::<String>());
        }
    }
}
