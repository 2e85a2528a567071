//! Configuration: three documents, by how often they change. Text becomes a tree with places ([`tree`]), the tree is
//! compared with the JSON schema of the types ([`schema`]), the types are read by serde, and what they refer to is
//! checked ([`check`]). Everything that is wrong is reported at once, with file, line, column and path. What comes out
//! is typed: nobody parses it again.

mod admin;
mod bootstrap;
mod check;
mod drain;
mod limits;
mod load;
mod overload;
mod place;
mod problem;
mod ramp;
mod redis;
mod registry;
mod requests;
mod routing;
mod scalar;
mod schema;
mod shape;
mod telemetry;
#[cfg(test)]
mod tests;
mod traffic;
mod tree;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serin_core::plugin::{self, Catalogue};

pub use self::admin::{Admin, AdminTls, AdminToken, Role};
pub use self::bootstrap::*;
pub use self::drain::{Drain, Steps};
pub use self::limits::{H2Limits, Limits};
pub use self::load::{Checked, Documents, check, load, routing_of};
pub use self::overload::Overload;
pub use self::place::{ClientTls, EtcdDocument, EtcdServer, NacosDocument, NacosServer, Place};
pub use self::problem::{Problem, Problems};
pub use self::ramp::{Ramp, RampState};
pub use self::redis::{GatewayLimits, Redis, RedisPlace};
pub use self::registry::{Dns, EtcdRegistry, FromRegistry, Registration, Registry, ZooKeeper};
pub use self::requests::{Borders, Requests, Underscores};
pub use self::routing::*;
pub use self::scalar::{
    Address, BaseUrl, ByteRate, Cidr, CookieName, Endpoint, Guard, HeaderName, HostPort, LogTarget, Memory, Method,
    Moment, Name, OrNone, Percent, Rate, RedisUrl, Size, Span, SpiffeId,
};
pub use self::telemetry::*;
pub use self::traffic::{Abort, ServiceTraffic, Switch, Switches, Traffic};

use self::check::Report;
use self::problem::At;
use self::shape::Shapes;

/// The text of a document and what it is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Name, in problems: usually the path as it was given.
    pub name: String,
    /// Text of the document: YAML, of which JSON is a part.
    pub text: String,
    /// Directory that relative paths in the document start from.
    pub base: PathBuf,
}

impl Source {
    /// A text that comes from no file: relative paths in it start from the working directory.
    #[must_use]
    pub fn inline(name: impl Into<String>, text: impl Into<String>) -> Self {
        Self { name: name.into(), text: text.into(), base: PathBuf::new() }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// If it cannot be read, is larger than 16 MiB or is not UTF-8.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, Problems> {
        let path = path.as_ref();
        let name = path.display().to_string();
        let whole = |message: String| Problems::whole(&name, message);
        let meta = std::fs::metadata(path).map_err(|error| whole(format!("cannot be read: {error}")))?;
        if !meta.is_file() {
            return Err(whole("cannot be read: it is not a file".to_owned()));
        }
        if meta.len() > tree::MAX_BYTES as u64 {
            return Err(whole(format!("has {} bytes: at most {} are read", meta.len(), tree::MAX_BYTES)));
        }
        let bytes = std::fs::read(path).map_err(|error| whole(format!("cannot be read: {error}")))?;
        let text = String::from_utf8(bytes).map_err(|error| not_utf8(&name, &error))?;
        Ok(Self { name, text, base: path.parent().unwrap_or(Path::new("")).to_owned() })
    }
}

fn not_utf8(name: &str, error: &std::string::FromUtf8Error) -> Problems {
    let valid = String::from_utf8_lossy(&error.as_bytes()[..error.utf8_error().valid_up_to()]);
    let line = valid.rsplit('\n').next().unwrap_or_default();
    let mut problems = Problems::whole(name, "is not UTF-8 text: a byte here belongs to no character");
    for problem in &mut problems.0 {
        problem.line = valid.matches('\n').count() + 1;
        problem.column = line.chars().count() + 1;
    }
    problems
}

/// One of the three documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Listeners, admin, and where the other two are.
    Bootstrap,
    /// Services and routes.
    Routing,
    /// Weights, aborts and kill switches.
    Traffic,
}

impl Kind {
    /// All three.
    pub const ALL: [Self; 3] = [Self::Bootstrap, Self::Routing, Self::Traffic];

    fn compiled(self) -> Result<&'static Shapes, String> {
        static COMPILED: LazyLock<[Result<Shapes, String>; 3]> =
            LazyLock::new(|| Kind::ALL.map(|kind| Shapes::compile(&schema(kind))));
        COMPILED[self as usize].as_ref().map_err(Clone::clone)
    }

    /// Which of the three a document is, by its top-level keys. `None` if it is none of them, or no mapping.
    #[must_use]
    pub fn of(source: &Source) -> Option<Self> {
        load::kind_of(&tree::parse(source).ok()?)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bootstrap => "bootstrap",
            Self::Routing => "routing",
            Self::Traffic => "traffic",
        })
    }
}

/// The JSON schema (draft 2020-12) of a document, for editors and for `serin schema`. Keys that begin with `x-` are
/// notes for the messages of this crate.
#[must_use]
pub fn schema(kind: Kind) -> Value {
    match kind {
        Kind::Bootstrap => schema::generate::<Bootstrap>(),
        Kind::Routing => schema::generate::<Routing>(),
        Kind::Traffic => schema::generate::<Traffic>(),
    }
}

/// Reads a bootstrap document. Its paths become relative to the working directory. Whether the files that it names are
/// there is found out when the gateway starts.
///
/// # Errors
/// Everything that is wrong with it.
pub fn bootstrap(source: &Source) -> Result<Bootstrap, Problems> {
    let mut document: Bootstrap = document(source, Kind::Bootstrap, check::bootstrap)?;
    document.resolve(&source.base);
    Ok(document)
}

/// Reads a routing document. Every service of the result has subsets and a stable one. `node` is what plug-ins get to
/// know of this gateway.
///
/// # Errors
/// Everything that is wrong with it, what the plug-ins of the chains say included.
pub fn routing(source: &Source, catalogue: &Catalogue, node: &plugin::Node) -> Result<Routing, Problems> {
    let checks = |routing: &Routing, report: &mut Report<'_>| check::routing(routing, catalogue, node, report);
    let mut document: Routing = document(source, Kind::Routing, checks)?;
    document.resolve(&source.base);
    document.settle();
    Ok(document)
}

/// Reads a traffic document for a routing document.
///
/// # Errors
/// Everything that is wrong with it.
pub fn traffic(source: &Source, routing: &Routing) -> Result<Traffic, Problems> {
    document(source, Kind::Traffic, |traffic, report| check::traffic(traffic, Some(routing), report))
}

/// Reads a traffic document of which the routing document is not known: services and subsets may have any name.
fn traffic_alone(source: &Source) -> Result<Traffic, Problems> {
    document(source, Kind::Traffic, |traffic, report| check::traffic(traffic, None, report))
}

/// Reads a value of any type that has a schema, such as what a caller of the admin API sends: everything that is wrong
/// is told as it is for documents.
///
/// # Errors
/// Everything that is wrong with it.
pub(crate) fn value<T: JsonSchema + DeserializeOwned>(source: &Source) -> Result<T, Problems> {
    let shapes = Shapes::compile(&schema::generate::<T>());
    read(source, shapes.as_ref(), |_, _| ())
}

fn document<T: JsonSchema + DeserializeOwned>(
    source: &Source,
    kind: Kind,
    checks: impl FnOnce(&T, &mut Report<'_>),
) -> Result<T, Problems> {
    let shapes = kind.compiled();
    read(source, shapes.as_ref().copied(), checks)
}

fn read<T: DeserializeOwned>(
    source: &Source,
    shapes: Result<&Shapes, &String>,
    checks: impl FnOnce(&T, &mut Report<'_>),
) -> Result<T, Problems> {
    let root = tree::parse(source).map_err(Problems::of_document)?;
    let shapes = shapes.map_err(|error| Problems::whole(&source.name, format!("schema: {error}")))?;
    let walked = schema::walk(&source.name, shapes, &root);
    let mut report = Report::new(&source.name, &root, walked.problems);
    // Taken apart as it is read: freeing it at once would take milliseconds.
    let document = walked.value.and_then(|value| match T::deserialize(value) {
        Ok(document) => Some(document),
        Err(error) => {
            // Read once more, now keeping track of where: that takes time which sound documents need not spend.
            let again = schema::walk(&source.name, shapes, &root).value;
            match again.and_then(|value| serde_path_to_error::deserialize::<_, T>(value).err()) {
                Some(error) => report.refused(error.path().iter(), &At::ROOT, &error.inner().to_string()),
                None => report.say(&At::ROOT, error.to_string()),
            }
            None
        }
    });
    if let Some(document) = &document {
        checks(document, &mut report);
    }
    let problems = report.problems;
    root.discard();
    match document {
        Some(document) if problems.is_empty() => Ok(document),
        _ => Err(Problems::of_document(problems)),
    }
}
