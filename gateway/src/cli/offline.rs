//! Commands that need no gateway: `serin check`, `serin schema`, `serin tag`.

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Map, json};
use serin_core::plugin::Catalogue;
use serin_core::tag::SigningKey;

use super::{Failure, Out};
use crate::conf::{self, Kind};

/// Check a bootstrap document with what it names, or a routing or traffic document alone.
#[derive(Debug, Args)]
pub(super) struct Check {
    /// The file; what it is, is told from its keys.
    file: PathBuf,
}

impl Check {
    pub(super) fn run(&self, catalogue: &Catalogue, out: Out) -> Result<(), Failure> {
        let checked = conf::check(&self.file, catalogue)?;
        let kind = checked.kind.to_string();
        out.write(&json!({ "sound": true, "kind": kind, "files": checked.files }), || {
            let files: Vec<_> = checked.files.iter().map(|file| file.display().to_string()).collect();
            format!("{kind} document, sound: {}", files.join(", "))
        })
    }
}

/// Print the JSON schema of a document, for editors.
#[derive(Debug, Args)]
pub(super) struct PrintSchema {
    /// Which document; without one, all three by name.
    #[arg(value_enum)]
    document: Option<Document>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Document {
    Bootstrap,
    Routing,
    Traffic,
}

impl PrintSchema {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let schema = match self.document {
            Some(Document::Bootstrap) => conf::schema(Kind::Bootstrap),
            Some(Document::Routing) => conf::schema(Kind::Routing),
            Some(Document::Traffic) => conf::schema(Kind::Traffic),
            None => Kind::ALL.iter().map(|kind| (kind.to_string(), conf::schema(*kind))).collect::<Map<_, _>>().into(),
        };
        // A schema is JSON for people, too.
        Out { json: true }.write(&schema, String::new)
    }
}

/// Override tags.
#[derive(Debug, Subcommand)]
pub(super) enum Tag {
    /// Sign the value of a tag, for rules with `trust: signed`.
    Sign {
        /// The value that the rule looks for.
        value: String,
        /// How long it holds, such as 30m or 1h.
        #[arg(long, value_parser = humantime::parse_duration)]
        ttl: Duration,
        /// File of the key, as `tag_signing.key_file` in the bootstrap document.
        #[arg(long)]
        key_file: PathBuf,
    },
}

impl Tag {
    pub(super) fn run(&self, out: Out) -> Result<(), Failure> {
        let Self::Sign { value, ttl, key_file } = self;
        if value.is_empty() || !value.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(Failure::usage("a tag's value is visible ASCII, as it is sent in a header"));
        }
        let file = key_file.display();
        let bytes = std::fs::read(key_file).map_err(|error| Failure::failed(format!("cannot read {file}: {error}")))?;
        let key = SigningKey::new(bytes.trim_ascii_end());
        let key = key.ok_or_else(|| Failure::failed(format!("{file} is too short for a signing key")))?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let expires = now.saturating_add(ttl.as_secs());
        let signed = key.sign(value, expires);
        out.write(&json!({ "tag": signed, "expires": expires }), || signed.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_signed_with_the_key_of_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let key_file = dir.path().join("key");
        let sign = |value: &str| {
            let tag = Tag::Sign { value: value.to_owned(), ttl: Duration::from_secs(60), key_file: key_file.clone() };
            tag.run(Out { json: true }).map_err(|failure| failure.code)
        };
        assert_eq!(sign("canary"), Err(super::super::exit::FAILED), "no key");
        std::fs::write(&key_file, "0123456789abcdef0123456789abcdef\n").unwrap();
        assert_eq!(sign("canary"), Ok(()));
        assert_eq!(sign("two words"), Err(super::super::exit::USAGE));
    }
}
