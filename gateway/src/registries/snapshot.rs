//! What a registry told, on disk: a start finds the instances there if the registry cannot be reached.

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::Query;
use super::listed::{List, in_order};
use crate::conf::Instance;
use crate::control::change::write_atomically;

#[derive(Serialize)]
struct Written<'a> {
    query: &'a Query,
    instances: &'a [Instance],
}

#[derive(Deserialize)]
struct Read {
    query: Query,
    instances: Vec<Instance>,
}

/// What was written last; nothing if that cannot be read.
pub(super) fn read(path: &Path) -> Vec<(Query, List)> {
    let Ok(text) = std::fs::read_to_string(path) else { return Vec::new() };
    let good = |line: &str| serde_json::from_str::<Read>(line).ok();
    // A line that is none is passed over: some instances are better than none.
    text.lines().filter_map(good).map(|Read { query, instances }| (query, in_order(instances))).collect()
}

/// Writes everything anew.
///
/// # Errors
/// If the directory cannot be written to.
pub(super) fn write(path: &Path, lists: &[(Query, List)]) -> io::Result<()> {
    let mut text = String::new();
    for (query, instances) in lists {
        text.push_str(&serde_json::to_string(&Written { query, instances })?);
        text.push('\n');
    }
    path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
    write_atomically(path, &text)
}

#[cfg(test)]
mod tests {
    use super::super::listed::plain;
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("registries/main.jsonl");
        assert!(read(&path).is_empty());
        let conf = "{from: main, service: users, clusters: [HZ], port: 80, hold: 7s, max_shrink: 12.34%}";
        let conf: crate::conf::FromRegistry = crate::conf::value(&crate::conf::Source::inline("f", conf)).unwrap();
        let query = Query::new("a", &conf);
        let list = in_order(vec![plain("127.0.0.1:2".parse().unwrap()), plain("127.0.0.1:1".parse().unwrap())]);
        let written = vec![(Query { service: "none".to_owned(), ..query.clone() }, List::from([])), (query, list)];
        write(&path, &written).unwrap();
        assert_eq!(read(&path), written);
        std::fs::write(&path, "garbage\n{}\n").unwrap();
        assert!(read(&path).is_empty());
    }
}
