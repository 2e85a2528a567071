//! What is wrong with a document, where, and what was probably meant.

use std::fmt;

use schemars::JsonSchema;
use serde::Serialize;

/// No more problems than this are told of one document.
const MOST: usize = 1_000;

/// A place in a document: a chain of steps that lives on the stack, so that walking a sound document costs nothing.
#[derive(Clone, Copy)]
pub(crate) struct At<'a> {
    /// The place that this one is in; `None` for the whole document.
    pub(crate) parent: Option<&'a At<'a>>,
    /// How it is found there.
    pub(crate) step: Step<'a>,
}

/// How a place is found in its parent.
#[derive(Clone, Copy)]
pub(crate) enum Step<'a> {
    /// The value of a key.
    Key(&'a str),
    /// An item of a list, counted from 0.
    Index(usize),
}

impl At<'static> {
    /// The whole document.
    pub(crate) const ROOT: Self = Self { parent: None, step: Step::Key("") };
}

impl<'a> At<'a> {
    /// The value of a key.
    pub(crate) fn key<'b>(&'b self, key: &'b str) -> At<'b> {
        At { parent: Some(self), step: Step::Key(key) }
    }

    /// An item of a list.
    pub(crate) fn index(&self, index: usize) -> At<'_> {
        At { parent: Some(self), step: Step::Index(index) }
    }
}

impl fmt::Display for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(parent) = self.parent else { return Ok(()) };
        parent.fmt(f)?;
        match self.step {
            Step::Index(index) => write!(f, "[{index}]"),
            Step::Key(key) if !is_plain(key) => write!(f, "[{}]", quoted(key)),
            Step::Key(key) if parent.parent.is_none() => f.write_str(key),
            Step::Key(key) => write!(f, ".{key}"),
        }
    }
}

fn is_plain(key: &str) -> bool {
    !key.is_empty() && key.len() <= 100 && key.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c))
}

/// A text in double quotes, shortened and with control characters escaped.
pub(crate) fn quoted(text: &str) -> String {
    format!("\"{}\"", shown(text))
}

/// A text as it is shown to people: at most 80 characters, control characters escaped.
pub(crate) fn shown(text: &str) -> String {
    let mut out: String = text.chars().take(80).flat_map(escape).collect();
    if text.chars().nth(80).is_some() {
        out.push('…');
    }
    out
}

fn escape(c: char) -> impl Iterator<Item = char> {
    let escaped = c.is_control().then(|| c.escape_default());
    let plain = escaped.is_none().then_some(c);
    escaped.into_iter().flatten().chain(plain)
}

/// Several names, each in backticks.
pub(crate) fn listed<T: AsRef<str>>(names: impl IntoIterator<Item = T>) -> String {
    names.into_iter().map(|name| format!("`{}`", shown(name.as_ref()))).collect::<Vec<_>>().join(", ")
}

/// The known name that is nearest to what was written, if it is near enough to have been meant.
pub(crate) fn nearest<'a>(written: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    fn folded(text: &str) -> String {
        text.chars().filter(|c| !"-_ ".contains(*c)).flat_map(char::to_lowercase).take(64).collect()
    }
    let written = folded(written);
    let distance = |name: &str| strsim::damerau_levenshtein(&written, &folded(name));
    let (name, distance) = known.into_iter().map(|name| (name, distance(name))).min_by_key(|(_, d)| *d)?;
    (distance <= written.chars().count().max(3) / 3).then_some(name)
}

/// One thing that is wrong with a document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Problem {
    /// Name of the document, as it was given: usually a path.
    pub file: String,
    /// Line, counted from 1.
    pub line: usize,
    /// Column in characters, counted from 1.
    pub column: usize,
    /// Path of the key, such as `services.users.stable` or `routes[2].match`; empty for the whole document.
    pub path: String,
    /// What is wrong and what was expected.
    pub message: String,
    /// What was probably meant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suggestion: Option<String>,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}: ", self.file, self.line, self.column)?;
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)?;
        match &self.suggestion {
            Some(suggestion) => write!(f, "; did you mean `{suggestion}`?"),
            None => Ok(()),
        }
    }
}

/// Everything that is wrong with one or more documents, in the order of the documents and of their lines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Problems(pub Vec<Problem>);

impl Problems {
    /// A problem with a document as a whole.
    #[must_use]
    pub fn whole(file: &str, message: impl Into<String>) -> Self {
        Self(vec![Problem {
            file: file.to_owned(),
            line: 1,
            column: 1,
            path: String::new(),
            message: message.into(),
            suggestion: None,
        }])
    }

    /// Orders the problems of one document by their places and leaves out repetitions and what is over the bound.
    pub(crate) fn of_document(mut problems: Vec<Problem>) -> Self {
        problems.sort_by_key(|problem| (problem.line, problem.column));
        problems.dedup();
        let left_out = problems.len().saturating_sub(MOST);
        problems.truncate(MOST);
        if let (Some(last), 1..) = (problems.last(), left_out) {
            let message = format!("and {left_out} more problems");
            problems.push(Problem { path: String::new(), message, suggestion: None, ..last.clone() });
        }
        Self(problems)
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            problem.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_written_as_people_write_them() {
        let services = At::ROOT.key("services");
        let (users, odd) = (services.key("users"), services.key("a.b\n"));
        let tags = users.key("tags");
        let cases = [
            (At::ROOT, ""),
            (services, "services"),
            (tags.index(2), "services.users.tags[2]"),
            (odd, "services[\"a.b\\n\"]"),
        ];
        for (at, expected) in cases {
            assert_eq!(at.to_string(), expected);
        }
    }

    #[test]
    fn the_nearest_name_is_one_that_may_have_been_meant() {
        let known = ["prefix", "exact", "regex", "all_unhealthy", "v1"];
        let cases = [
            ("prefx", Some("prefix")),
            ("perfix", Some("prefix")),
            ("AllUnhealthy", Some("all_unhealthy")),
            ("all-unhealthy", Some("all_unhealthy")),
            ("v2", Some("v1")),
            ("banana", None),
            ("", None),
        ];
        for (written, expected) in cases {
            assert_eq!(nearest(written, known), expected, "{written}");
        }
    }
}
