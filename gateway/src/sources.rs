//! Config centers: where a fleet keeps its routing and traffic documents. A center only reads, writes and watches one
//! document; what is done with it is the control path's business ([`crate::control::fleet`]), and what is done when it
//! cannot be reached is [`follow`]'s.

#[cfg(feature = "etcd")]
pub(crate) mod etcd;
pub(crate) mod follow;
#[cfg(feature = "nacos")]
pub(crate) mod nacos;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::watch;

use crate::conf::Place;

/// What tells one state of a document in a center from another: etcd's `mod_revision`, the MD5 of Nacos.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Version {
    /// There is no document.
    Absent,
    /// There is one.
    At(String),
}

/// A document as a center has it.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Its text; none if there is no document.
    pub text: Option<Arc<str>>,
    /// Its version.
    pub version: Version,
}

/// What a watch tells: what was seen last, and how many looks there were. Looks that find nothing new are told as well,
/// as signs of life.
#[derive(Clone, Debug, Default)]
pub struct Told {
    /// What was seen; none before the first look.
    pub seen: Option<Seen>,
    /// Looks so far.
    pub looks: u64,
}

/// Why a source gives no more answers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Lost(pub String);

impl Lost {
    /// For whatever reason.
    pub(crate) fn because(reason: impl fmt::Display) -> Self {
        Self(reason.to_string())
    }
}

/// Why a document was not written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// The center holds another version than the one that was expected.
    #[error("somebody else was faster")]
    Stale,
    /// The center cannot be reached, or refuses.
    #[error(transparent)]
    Lost(#[from] Lost),
}

/// One document in a config center.
#[async_trait]
pub trait Center: Send + Sync {
    /// What it is, for people: kind, server and key.
    fn describe(&self) -> String;

    /// Whether a write is sure to be refused if somebody else was faster.
    fn compares(&self) -> bool;

    /// Reads the document.
    async fn read(&self) -> Result<Seen, Lost>;

    /// Tells what the document is, again whenever it changes, and now and then without a reason. Returns when it cannot
    /// go on: it does not try again by itself.
    async fn watch(&self, tell: &watch::Sender<Told>) -> Lost;

    /// Writes the document if it still is of the expected version.
    async fn publish(&self, text: &str, expected: &Version) -> Result<Version, PublishError>;
}

/// Notes a look at a document.
pub(crate) fn tell(told: &watch::Sender<Told>, seen: Seen) {
    told.send_modify(|told| *told = Told { seen: Some(seen), looks: told.looks + 1 });
}

/// The center that a place is in; none if it is a file.
///
/// # Errors
/// If a file of keys or passwords cannot be used, or the binary was built without this kind of center.
pub(crate) fn open(place: &Place) -> Result<Option<Arc<dyn Center>>, String> {
    match place {
        Place::File(_) => Ok(None),
        #[cfg(feature = "etcd")]
        Place::Etcd(conf) => Ok(Some(Arc::new(etcd::center::EtcdCenter::new(conf)?))),
        #[cfg(not(feature = "etcd"))]
        Place::Etcd(_) => Err(left_out("etcd")),
        #[cfg(feature = "nacos")]
        Place::Nacos(conf) => Ok(Some(Arc::new(nacos::center::NacosCenter::new(conf)?))),
        #[cfg(not(feature = "nacos"))]
        Place::Nacos(_) => Err(left_out("nacos")),
    }
}

/// What to say of a feature that the binary was built without.
#[cfg(not(all(feature = "dns", feature = "etcd", feature = "nacos", feature = "redis", feature = "zookeeper")))]
pub(crate) fn left_out(feature: &str) -> String {
    format!("this binary was built without the feature `{feature}`")
}

/// Reads a file of a password.
pub(crate) fn password(path: &Path) -> Result<String, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    Ok(text.trim_end().to_owned())
}
