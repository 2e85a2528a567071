//! Changes to the traffic document: what operators flip, who they are, and how the document is written.

use std::fmt;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ramp::RampChange;
use crate::conf::{Abort, Name, Percent, Problems, Routing, ServiceTraffic, Switch, Traffic};

/// Who changes something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Actor {
    /// What they call themselves.
    pub by: String,
    /// Where the change came from: an address, or `file`.
    pub from: String,
    /// Name of the token that they showed, if one is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
}

impl Actor {
    /// Whoever edited the file.
    #[must_use]
    pub fn file() -> Self {
        Self { by: "file".to_owned(), from: "file".to_owned(), token: None }
    }
}

/// A kill switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SwitchKind {
    /// Reverts chains to plain round robin.
    Balancer,
    /// Sends all traffic to the stable subset.
    Canary,
    /// Limits only count. It has no exceptions for single services.
    Limits,
}

impl SwitchKind {
    /// Its name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Balancer => "balancer",
            Self::Canary => "canary",
            Self::Limits => "limits",
        }
    }
}

/// A change to the traffic document.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// The whole document; its revision is of no account.
    Replace(Traffic),
    /// One service: what is `None` stays.
    Service {
        /// Its name.
        name: String,
        /// New weights.
        weights: Option<IndexMap<Name, Percent>>,
        /// Whether its rollout is aborted.
        abort: Option<Abort>,
    },
    /// A kill switch.
    Switch {
        /// Which one.
        kind: SwitchKind,
        /// Of one service, or of all.
        service: Option<String>,
        /// On or off.
        on: bool,
    },
    /// Back to the document of an earlier revision.
    Rollback(u64),
    /// What happens to the ramp of a service.
    Ramp(RampChange),
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Replace(_) => f.write_str("replace"),
            Self::Service { name, weights, abort } => {
                write!(f, "service {name}")?;
                if weights.as_ref().is_some_and(IndexMap::is_empty) {
                    f.write_str(" all to stable")?;
                }
                for (subset, weight) in weights.iter().flatten() {
                    write!(f, " {subset}={weight}")?;
                }
                abort.map_or(Ok(()), |abort| write!(f, " abort={abort}"))
            }
            Self::Switch { kind, service, on } => {
                let state = if *on { "on" } else { "off" };
                write!(f, "switch {} {state}", kind.as_str())?;
                service.as_ref().map_or(Ok(()), |service| write!(f, " for {service}"))
            }
            Self::Rollback(revision) => write!(f, "rollback to {revision}"),
            Self::Ramp(change) => change.fmt(f),
        }
    }
}

/// Why a change was refused.
#[derive(Debug, thiserror::Error)]
pub enum FlipError {
    /// Somebody else was faster.
    #[error("revision {expected} was expected, but {current} is in force")]
    Stale {
        /// What the caller knew.
        expected: u64,
        /// What is in force.
        current: u64,
    },
    /// No such service.
    #[error("there is no service {name:?}; {}", list(.known))]
    UnknownService {
        /// The name that was given.
        name: String,
        /// The names there are.
        known: Vec<String>,
    },
    /// No such revision in the history.
    #[error("the history has no traffic revision {0}")]
    UnknownRevision(u64),
    /// A switch that is for all services, or for none.
    #[error("the {0} switch is for all services: leave `service` out")]
    OnlyForAll(&'static str),
    /// Ramp and service are in no state for it.
    #[error("{0}")]
    Ramp(String),
    /// The config center was changed by others again and again.
    #[error("others changed the document {0} times meanwhile: try again")]
    Contended(u32),
    /// The result is no sound document.
    #[error("{0}")]
    Invalid(Problems),
}

impl FlipError {
    /// One line per problem.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        match self {
            Self::Invalid(problems) => problems.0.iter().map(ToString::to_string).collect(),
            other => vec![other.to_string()],
        }
    }
}

fn list(names: &[String]) -> String {
    if names.is_empty() { "there are none".to_owned() } else { format!("known are {}", names.join(", ")) }
}

impl Change {
    /// The document after the change. `revision` finds the document of an earlier one.
    ///
    /// # Errors
    /// If it names a service or a revision that is not there.
    pub fn apply(
        &self,
        current: &Traffic,
        routing: &Routing,
        revision: impl Fn(u64) -> Option<Traffic>,
    ) -> Result<Traffic, FlipError> {
        let mut traffic = current.clone();
        match self {
            Self::Replace(document) => traffic = document.clone(),
            Self::Rollback(number) => traffic = revision(*number).ok_or(FlipError::UnknownRevision(*number))?,
            Self::Ramp(change) => {
                let name = service_name(routing, &change.service)?;
                if let Some(service) = routing.services.get(&name) {
                    change.apply(&mut traffic, name, service)?;
                }
            }
            Self::Service { name, weights, abort } => {
                let name = service_name(routing, name)?;
                let service: &mut ServiceTraffic = traffic.services.entry(name).or_default();
                if let Some(weights) = weights {
                    service.weights = weights.clone();
                }
                service.abort = abort.unwrap_or(service.abort);
            }
            Self::Switch { kind: kind @ SwitchKind::Limits, service, on } => match service {
                None => traffic.switches.limits = *on,
                Some(_) => return Err(FlipError::OnlyForAll(kind.as_str())),
            },
            Self::Switch { kind, service, on } => {
                let switch = match kind {
                    SwitchKind::Balancer => &mut traffic.switches.balancer,
                    _ => &mut traffic.switches.canary,
                };
                match service {
                    // A flip for all is for all: no exception from before escapes it.
                    None => *switch = Switch { all: *on, services: IndexMap::new() },
                    Some(name) => {
                        switch.services.insert(service_name(routing, name)?, *on);
                    }
                }
                let all = switch.all;
                switch.services.retain(|_, on| *on != all);
            }
        }
        Ok(traffic)
    }
}

fn service_name(routing: &Routing, name: &str) -> Result<Name, FlipError> {
    let found = routing.services.keys().find(|known| known.as_str() == name);
    let known = || routing.services.keys().map(ToString::to_string).collect();
    found.cloned().ok_or_else(|| FlipError::UnknownService { name: name.to_owned(), known: known() })
}

/// Whether two documents say the same, whatever their revisions.
#[must_use]
pub fn same(a: &Traffic, b: &Traffic) -> bool {
    a.services == b.services && a.switches == b.switches
}

/// The document as YAML. What is inside a service or a switch is written in flow style, which is JSON.
#[must_use]
pub fn to_yaml(traffic: &Traffic) -> String {
    let mut text =
        String::from("# Traffic document of Serin. The gateway rewrites this file when operators flip something.\n");
    text.push_str(&format!("revision: {}\nservices:", traffic.revision));
    if traffic.services.is_empty() {
        text.push_str(" {}");
    }
    text.push('\n');
    for (name, service) in &traffic.services {
        text.push_str(&format!("  {}: {}\n", flow(name), flow(service)));
    }
    let switches = &traffic.switches;
    text.push_str(&format!(
        "switches:\n  balancer: {}\n  canary: {}\n  limits: {}\n",
        flow(&switches.balancer),
        flow(&switches.canary),
        switches.limits
    ));
    text
}

fn flow(value: &impl Serialize) -> String {
    // Types of the traffic document are maps with text keys, which always are JSON.
    serde_json::to_string(value).unwrap_or_default().replace("\":", "\": ").replace(",\"", ", \"")
}

/// Prefix and suffix of files that are being written.
const UNFINISHED: (&str, &str) = (".serin-", ".tmp");
/// After this time nobody is writing such a file any more.
const ABANDONED: Duration = Duration::from_secs(600);

/// Removes what writers left in a directory that were killed while they wrote.
fn sweep(directory: &Path) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let ours = name.to_str().is_some_and(|name| name.starts_with(UNFINISHED.0) && name.ends_with(UNFINISHED.1));
        let age = || entry.metadata().ok()?.modified().ok()?.elapsed().ok();
        if ours && age().is_some_and(|age| age > ABANDONED) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Replaces a file so that readers see the old or the new one, never a part, and a power cut loses neither. If it is a
/// link, what it points to is replaced.
///
/// # Errors
/// If the directory cannot be written to.
pub fn write_atomically(path: &Path, text: &str) -> io::Result<()> {
    let path = &path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    sweep(directory);
    let mut file = tempfile::Builder::new().prefix(UNFINISHED.0).suffix(UNFINISHED.1).tempfile_in(directory)?;
    if let Ok(existing) = std::fs::metadata(path) {
        file.as_file().set_permissions(existing.permissions())?;
    }
    file.write_all(text.as_bytes())?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    std::fs::File::open(directory)?.sync_all()
}
