//! The three documents together: loading them for a start, and checking files for `serin check`.

use std::path::{Path, PathBuf};

use serin_core::plugin::Catalogue;

use super::check::Report;
use super::place::Place;
use super::problem::{At, Problems};
use super::registry::FromRegistry;
use super::routing::{LimitScope, RateLimit, Route, Routing, Service, TagRule, Trust};
use super::scalar::Name;
use super::tree::{self, Node};
use super::{Bootstrap, Kind, Source, Traffic, bootstrap, routing, schema, traffic, traffic_alone};

/// A complete set of documents, as far as they are files.
#[derive(Clone, Debug, PartialEq)]
pub struct Documents {
    /// The bootstrap document.
    pub bootstrap: Bootstrap,
    /// The routing document that it names, if that is a file.
    pub routing: Option<Routing>,
    /// The traffic document that it names, if that is a file.
    pub traffic: Option<Traffic>,
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
    let read = |place: &Place| place.file().map(Source::read);
    let routes = read(&bootstrap.routing).map(|read| read.and_then(|s| routing_of(&bootstrap, &s, catalogue)));
    let routing = routes.transpose().unwrap_or_else(|error| {
        problems.extend(error.0);
        None
    });
    let flips = read(&bootstrap.traffic).map(|read| {
        read.and_then(|source| match &routing {
            Some(routing) => traffic(&source, routing),
            None => traffic_alone(&source),
        })
    });
    let traffic = flips.transpose().unwrap_or_else(|error| {
        problems.extend(error.0);
        None
    });
    if problems.is_empty() { Ok(Documents { bootstrap, routing, traffic }) } else { Err(Problems(problems)) }
}

/// Reads the routing document of a gateway: like [`routing`], and what it needs of the bootstrap document is there.
///
/// # Errors
/// Everything that is wrong with it.
pub fn routing_of(bootstrap: &Bootstrap, source: &Source, catalogue: &Catalogue) -> Result<Routing, Problems> {
    let document = routing(source, catalogue, &bootstrap.node.to_core())?;
    missing_in_bootstrap(bootstrap, &document, source)?;
    Ok(document)
}

/// Without the key that tags are signed with there can be no rules for signed tags, without Redis no limits of a fleet, and
/// instances can only come from registries that there are. The text is parsed once more for the places, which sound documents need not wait for.
fn missing_in_bootstrap(bootstrap: &Bootstrap, routing: &Routing, source: &Source) -> Result<(), Problems> {
    let services = At::ROOT.key("services");
    let signed = |rule: &TagRule| rule.trust == Trust::Signed && bootstrap.tag_signing.is_none();
    let stray = |registry: &FromRegistry| !bootstrap.registries.contains_key(&registry.from);
    let shared = |limit: &RateLimit| limit.scope == LimitScope::Fleet && bootstrap.limits.redis.is_none();
    let wrong = |service: &Service| {
        let stray = service.registry.as_ref().is_some_and(stray);
        stray || service.tags.iter().any(signed) || service.rate_limits.iter().any(shared)
    };
    let wrong_route = |route: &Route| route.rate_limits.iter().any(shared);
    if !routing.services.values().any(|service| wrong(service)) && !routing.routes.iter().any(wrong_route) {
        return Ok(());
    }
    let root = tree::parse(source).map_err(Problems::of_document)?;
    let mut report = Report::new(&source.name, &root, Vec::new());
    let without_redis = |limits: &[RateLimit], at: &At<'_>, report: &mut Report<'_>| {
        let at = at.key("rate_limits");
        for (index, _) in limits.iter().enumerate().filter(|(_, limit)| shared(limit)) {
            let message =
                "`fleet` needs a server that all gateways share: set `limits.redis` in the bootstrap document";
            report.say(&at.index(index).key("scope"), message);
        }
    };
    for (name, service) in &routing.services {
        let service_at = services.key(name);
        let tags = service_at.key("tags");
        for (index, _) in service.tags.iter().enumerate().filter(|(_, rule)| signed(rule)) {
            let message = "`signed` needs a key: set `tag_signing.key_file` in the bootstrap document";
            report.say(&tags.index(index).key("trust"), message);
        }
        if let Some(registry) = service.registry.as_ref().filter(|registry| stray(registry)) {
            let known = bootstrap.registries.keys().map(Name::as_str);
            report.unknown(&service_at.key("registry").key("from"), "registry", &registry.from, known);
        }
        without_redis(&service.rate_limits, &service_at, &mut report);
    }
    let routes = At::ROOT.key("routes");
    for (index, route) in routing.routes.iter().enumerate() {
        without_redis(&route.rate_limits, &routes.index(index), &mut report);
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
            let places = [&documents.bootstrap.routing, &documents.bootstrap.traffic];
            files.extend(places.into_iter().filter_map(|place| place.file().map(Path::to_owned)));
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
        .any(|service| matches!(&service.node.kind, tree::Kind::Map(keys) if keys.contains_key("instances") || keys.contains_key("registry")))
}
