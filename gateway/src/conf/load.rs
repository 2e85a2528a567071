//! The three documents together: loading them for a start, and checking files for `serin check`.

use std::path::{Path, PathBuf};

use serin_core::plugin::Catalogue;

use super::check::Report;
use super::problem::{At, Problems};
use super::routing::{Routing, Service, Trust};
use super::tree::{self, Node};
use super::{Bootstrap, Kind, Source, Traffic, bootstrap, routing, schema, traffic, traffic_alone};

/// A complete set of documents.
#[derive(Clone, Debug, PartialEq)]
pub struct Documents {
    /// The bootstrap document.
    pub bootstrap: Bootstrap,
    /// The routing document that it names.
    pub routing: Routing,
    /// The traffic document that it names.
    pub traffic: Traffic,
}

/// Loads a bootstrap document and the routing and traffic documents that it names.
///
/// # Errors
/// Everything that is wrong with any of the three.
pub fn load(path: impl AsRef<Path>, catalogue: &Catalogue) -> Result<Documents, Problems> {
    let source = Source::read(path)?;
    load_from(&source, catalogue)
}

fn load_from(source: &Source, catalogue: &Catalogue) -> Result<Documents, Problems> {
    let bootstrap = bootstrap(source)?;
    let mut problems = Vec::new();
    let routes = Source::read(&bootstrap.routing.file).and_then(|source| routing_of(&bootstrap, &source, catalogue));
    let routes = routes.map_err(|error| problems.extend(error.0)).ok();
    let flips = Source::read(&bootstrap.traffic.file).and_then(|source| match &routes {
        Some(routes) => traffic(&source, routes),
        None => traffic_alone(&source),
    });
    let flips = flips.map_err(|error| problems.extend(error.0)).ok();
    match (routes, flips) {
        (Some(routing), Some(traffic)) => Ok(Documents { bootstrap, routing, traffic }),
        _ => Err(Problems(problems)),
    }
}

/// Reads the routing document of a gateway: like [`routing`], and what it needs of the bootstrap document is there.
///
/// # Errors
/// Everything that is wrong with it.
pub fn routing_of(bootstrap: &Bootstrap, source: &Source, catalogue: &Catalogue) -> Result<Routing, Problems> {
    let document = routing(source, catalogue, &bootstrap.node.to_core())?;
    if bootstrap.tag_signing.is_none() {
        unsigned(&document, source)?;
    }
    Ok(document)
}

/// Without the key that tags are signed with there can be no rules for signed tags. The text is parsed once more for
/// their places, which sound documents need not wait for.
fn unsigned(routing: &Routing, source: &Source) -> Result<(), Problems> {
    let services = At::ROOT.key("services");
    let signed = |service: &Service| service.tags.iter().any(|rule| rule.trust == Trust::Signed);
    if !routing.services.values().any(signed) {
        return Ok(());
    }
    let root = tree::parse(source).map_err(Problems::of_document)?;
    let mut report = Report::new(&source.name, &root, Vec::new());
    for (name, service) in &routing.services {
        let service_at = services.key(name);
        let tags = service_at.key("tags");
        for (index, _) in service.tags.iter().enumerate().filter(|(_, rule)| rule.trust == Trust::Signed) {
            let message = "`signed` needs a key: set `tag_signing.key_file` in the bootstrap document";
            report.say(&tags.index(index).key("trust"), message);
        }
    }
    Err(Problems::of_document(report.problems))
}

/// What `serin check` found to be sound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// What the file is.
    pub kind: Kind,
    /// All files that were read.
    pub files: Vec<PathBuf>,
}

/// Checks a file of any of the three kinds, which is told from its keys. With a bootstrap document, the routing and
/// traffic documents that it names are checked too. A traffic document on its own is checked without knowing which
/// services and subsets there are.
///
/// # Errors
/// Everything that is wrong.
pub fn check(path: impl AsRef<Path>, catalogue: &Catalogue) -> Result<Checked, Problems> {
    let path = path.as_ref();
    let source = Source::read(path)?;
    let root = tree::parse(&source).map_err(Problems::of_document)?;
    let mut files = vec![path.to_owned()];
    let kind = kind_of(&root).ok_or_else(|| {
        let message = "is none of Serin's documents: a bootstrap document has `listeners`, a routing document \
                       `services` and `routes`, a traffic document `services` and `switches`";
        Problems::whole(&source.name, message)
    })?;
    match kind {
        Kind::Bootstrap => {
            let documents = load_from(&source, catalogue)?;
            files.extend([documents.bootstrap.routing.file, documents.bootstrap.traffic.file]);
        }
        Kind::Routing => drop(routing(&source, catalogue, &serin_core::plugin::Node::default())?),
        Kind::Traffic => drop(traffic_alone(&source)?),
    }
    Ok(Checked { kind, files })
}

/// The kind that knows most of the top-level keys. Documents that have nothing but `services` are told by what is in
/// these.
pub(super) fn kind_of(root: &Node) -> Option<Kind> {
    let tree::Kind::Map(map) = &root.kind else { return None };
    let known = |kind: Kind| {
        let schema = schema(kind);
        map.keys().filter(|key| schema["properties"].get(key.as_str()).is_some()).count()
    };
    let [bootstrap, routing, traffic] = Kind::ALL.map(known);
    match bootstrap.max(routing).max(traffic) {
        0 => None,
        most if most == bootstrap && bootstrap > routing.max(traffic) => Some(Kind::Bootstrap),
        _ if routing > traffic => Some(Kind::Routing),
        _ if traffic > routing => Some(Kind::Traffic),
        _ => Some(if has_instances(map) { Kind::Routing } else { Kind::Traffic }),
    }
}

fn has_instances(map: &tree::Entries) -> bool {
    let tree::Kind::Map(services) = &map["services"].node.kind else { return false };
    services
        .values()
        .any(|service| matches!(&service.node.kind, tree::Kind::Map(keys) if keys.contains_key("instances")))
}
