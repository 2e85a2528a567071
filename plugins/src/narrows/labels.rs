//! `labels`: the instances with certain labels, such as `labels: { version: v2, disk: ssd }`.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use serin_core::chain::{Narrow, Narrowing};
use serin_core::instance::Instance;
use serin_core::plugin::{BuildError, Node, Plugin};

use crate::narrows::{Fallback, Wanted};

/// Keeps the candidates that have all the labels.
#[derive(Debug)]
pub struct Labels {
    wanted: Box<[(Box<str>, Box<str>)]>,
    fallback: Fallback,
}

/// Configuration.
#[derive(Clone, Debug, Deserialize)]
pub struct Conf {
    /// What is left if no candidate has the labels [keep]. A label of this name cannot be asked for.
    #[serde(default)]
    pub fallback: Fallback,
    /// Values of the labels by name, at least one.
    #[serde(flatten)]
    pub labels: BTreeMap<Box<str>, Box<str>>,
}

impl Plugin for Labels {
    const NAME: &'static str = "labels";
    type Conf = Conf;
    type Made = dyn Narrowing;

    fn build(conf: Conf, _node: &Node) -> Result<Arc<dyn Narrowing>, BuildError> {
        if conf.labels.is_empty() {
            return Err(BuildError("expected at least one label, such as `version: v2`".into()));
        }
        Ok(Arc::new(Self { wanted: conf.labels.into_iter().collect(), fallback: conf.fallback }))
    }
}

impl Narrowing for Labels {
    fn prepare(&self, pool: &[Instance]) -> Arc<dyn Narrow> {
        Wanted::prepare(pool, self.fallback, |instance| instance.has_labels(&self.wanted))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use serin_core::candidates::Slot;

    use super::*;
    use crate::testing::{left, pool};

    fn labelled() -> Vec<Instance> {
        let mut pool = pool(&[1, 1, 1, 0]);
        for (instance, (version, disk)) in pool.iter_mut().zip([("1", "ssd"), ("2", "ssd"), ("2", "hdd"), ("3", "ssd")])
        {
            instance.labels = [("disk".into(), disk.into()), ("version".into(), version.into())].into();
        }
        pool
    }

    #[test]
    fn all_the_labels_count() {
        let cases: [(Value, &[Slot]); 7] = [
            (json!({ "version": "2" }), &[1, 2]),
            (json!({ "version": "2", "disk": "ssd" }), &[1]),
            (json!({ "version": "9" }), &[0, 1, 2]),
            (json!({ "version": "9", "fallback": "keep" }), &[0, 1, 2]),
            (json!({ "version": "9", "fallback": "empty" }), &[]),
            (json!({ "version": "3", "fallback": "empty" }), &[]),
            (json!({ "colour": "red" }), &[0, 1, 2]),
        ];
        for (conf, wanted) in cases {
            assert_eq!(left("labels", conf.clone(), &Node::default(), &labelled()).unwrap(), wanted, "{conf}");
        }
    }

    #[test]
    fn refusals_say_what_was_expected() {
        let cases = [
            (json!({}), "expected at least one label"),
            (json!(null), "expected at least one label"),
            (json!({ "fallback": "empty" }), "expected at least one label"),
            (json!({ "version": 2 }), "expected a string"),
            (json!({ "version": "2", "fallback": "all" }), "unknown variant `all`, expected `keep` or `empty`"),
        ];
        for (conf, wanted) in cases {
            let error = left("labels", conf, &Node::default(), &labelled()).unwrap_err();
            assert!(error.contains(wanted), "{error}");
        }
    }
}
