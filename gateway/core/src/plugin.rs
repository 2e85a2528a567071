//! How the parts of a chain get their names: plug-ins and the catalogue that knows them.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::de::DeserializeOwned;

use crate::chain::{Balancer, Narrowing};

/// Why a plug-in refused its configuration. The text says what was expected.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct BuildError(pub String);

/// Where the gateway runs: what a plug-in may know besides its own configuration.
#[derive(Clone, Debug, Default)]
pub struct Node {
    /// Identity of this gateway.
    pub id: Arc<str>,
    /// Its zone.
    pub zone: Option<Arc<str>>,
    /// Its cluster.
    pub cluster: Option<Arc<str>>,
}

/// A part of a chain that can be named in a configuration. `Made` is `dyn Balancer` or `dyn Narrowing`.
pub trait Plugin: 'static {
    /// Name in the configuration, in snake case.
    const NAME: &'static str;
    /// Configuration; refuse unknown keys with `#[serde(deny_unknown_fields)]`.
    type Conf: DeserializeOwned;
    /// What it builds.
    type Made: ?Sized;

    /// Builds the configured part.
    ///
    /// # Errors
    /// If the configuration is well-formed but makes no sense.
    fn build(conf: Self::Conf, node: &Node) -> Result<Arc<Self::Made>, BuildError>;
}

type Build<M> = fn(serde_json::Value, &Node) -> Result<Arc<M>, BuildError>;

/// The parts of one kind by name.
pub struct Table<M: ?Sized>(BTreeMap<&'static str, Build<M>>);

impl<M: ?Sized> Default for Table<M> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<M: ?Sized + 'static> Table<M> {
    /// Adds a plug-in; one of the same name is replaced.
    #[must_use]
    pub fn with<P: Plugin<Made = M>>(mut self) -> Self {
        self.0.insert(P::NAME, |conf, node| {
            let conf = if conf.is_null() { serde_json::json!({}) } else { conf };
            let conf = serde_json::from_value(conf).map_err(|error| BuildError(error.to_string()))?;
            P::build(conf, node)
        });
        self
    }

    /// The names in order.
    pub fn names(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.0.keys().copied()
    }

    /// Whether a name is known.
    #[must_use]
    pub fn knows(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Builds the part of that name; `None` for a name that is not known. No configuration (null) is an empty one.
    pub fn build(&self, name: &str, conf: serde_json::Value, node: &Node) -> Option<Result<Arc<M>, BuildError>> {
        self.0.get(name).map(|build| build(conf, node))
    }
}

/// Everything a chain can be made of. Open to other crates:
/// `serin::run(serin::builtin().with_balancer::<Theirs>())`.
#[derive(Default)]
pub struct Catalogue {
    /// Picks.
    pub balancers: Table<dyn Balancer>,
    /// Narrows.
    pub narrows: Table<dyn Narrowing>,
}

impl Catalogue {
    /// Adds a pick.
    #[must_use]
    pub fn with_balancer<P: Plugin<Made = dyn Balancer>>(mut self) -> Self {
        self.balancers = self.balancers.with::<P>();
        self
    }

    /// Adds a narrow.
    #[must_use]
    pub fn with_narrow<P: Plugin<Made = dyn Narrowing>>(mut self) -> Self {
        self.narrows = self.narrows.with::<P>();
        self
    }
}
