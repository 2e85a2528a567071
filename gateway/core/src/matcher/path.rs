//! Matching of paths: exact, by prefix on segment borders, by template, by regular expression.

use std::cmp::Reverse;
use std::fmt;

use smallvec::SmallVec;

use super::{Pattern, PatternError};

/// Most segments that a path in the configuration may have. Bounds how deep the index of the routes is.
const MAX_SEGMENTS: usize = 128;

/// Why a path in the configuration was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// It does not begin with `/`.
    #[error("a path begins with `/`, and {0:?} does not")]
    NotAbsolute(String),
    /// It has a character that no request path has.
    #[error("{1:?} never occurs in the path of a request, so {0:?} would match nothing{hint}", hint = hint(*.1))]
    NeverMatches(String, char),
    /// It has more segments than 128.
    #[error("a path has at most {MAX_SEGMENTS} segments, this one has {0}")]
    TooDeep(usize),
    /// A parameter shares its segment with something else.
    #[error("a parameter takes a whole segment, as in /users/{{id}}/orders; {0:?} does not")]
    PartOfSegment(String),
    /// The name of a parameter is empty or has other characters than letters, digits and `_`.
    #[error("{0:?} is no name of a parameter: it takes letters, digits and `_`, and no digit first")]
    BadName(String),
    /// Two parameters have the same name.
    #[error("the parameter {0:?} occurs twice")]
    Twice(String),
    /// A `{name...}` is not the last segment.
    #[error("{{{0}...}} takes the rest of the path, so it can only be the last segment")]
    TailNotLast(String),
    /// A template without parameters.
    #[error("the template {0:?} has no parameter; use `exact`")]
    NoParameter(String),
    /// The regular expression was refused.
    #[error(transparent)]
    Pattern(#[from] PatternError),
}

fn hint(found: char) -> &'static str {
    match found {
        '?' => "; match the query with `query`",
        '{' | '}' => "; parameters need `template`",
        _ => "; write it percent-encoded",
    }
}

/// A condition on the normalised path of a request. Paths are compared byte by byte, in case too.
#[derive(Clone, Debug, Default)]
pub enum PathMatch {
    /// Any path, `*` included.
    #[default]
    Any,
    /// Exactly this path; `/a` and `/a/` are two.
    Exact(Box<str>),
    /// This path and everything below it; without a trailing slash, so that `/` is the empty text.
    Prefix(Box<str>),
    /// One that has the form of a template.
    Template(Template),
    /// One that matches from its beginning to its end.
    Regex(Pattern),
}

/// How a path was matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PathKind {
    /// Any path will do.
    Any,
    /// Exactly.
    Exact,
    /// By prefix.
    Prefix,
    /// By template.
    Template,
    /// By regular expression.
    Regex,
}

/// How specific a path match is; the most specific is the least. `Any` ranks with the prefix `/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PathRank {
    /// Exact path.
    Exact,
    /// Template: more literal characters first, then those without a `{rest...}`.
    Template(Reverse<usize>, bool),
    /// Regular expression.
    Regex,
    /// Prefix: the longer one first.
    Prefix(Reverse<usize>),
}

impl PathMatch {
    /// Exactly this path.
    ///
    /// # Errors
    /// If no request could have this path.
    pub fn exact(path: &str) -> Result<Self, PathError> {
        check(path)?;
        Ok(Self::Exact(path.into()))
    }

    /// A prefix on segment borders: `/api` matches `/api`, `/api/` and `/api/7`, and not `/apis`. A trailing slash
    /// makes no difference.
    ///
    /// # Errors
    /// If no request could have such a path.
    pub fn prefix(path: &str) -> Result<Self, PathError> {
        check(path)?;
        Ok(Self::Prefix(path.trim_end_matches('/').into()))
    }

    /// A template such as `/users/{id}/orders`. A parameter takes one whole segment and is never empty; `{rest...}` as
    /// the last one takes the rest of the path, which is not empty either.
    ///
    /// # Errors
    /// If the template is malformed, has no parameter, or no request could have such a path.
    pub fn template(text: &str) -> Result<Self, PathError> {
        Template::new(text).map(Self::Template)
    }

    /// A regular expression that has to match the whole path.
    ///
    /// # Errors
    /// If it is no regular expression or too large.
    pub fn regex(pattern: &str) -> Result<Self, PathError> {
        Ok(Self::Regex(Pattern::new(pattern)?))
    }

    /// Whether a path matches.
    #[must_use]
    pub fn matches(&self, path: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Exact(wanted) => **wanted == *path,
            Self::Prefix(prefix) => path.strip_prefix(&**prefix).is_some_and(ends_segment),
            Self::Template(template) => template.captures(path).is_some(),
            Self::Regex(pattern) => pattern.matches(path),
        }
    }

    /// How it matches.
    #[must_use]
    pub fn kind(&self) -> PathKind {
        match self {
            Self::Any => PathKind::Any,
            Self::Exact(_) => PathKind::Exact,
            Self::Prefix(_) => PathKind::Prefix,
            Self::Template(_) => PathKind::Template,
            Self::Regex(_) => PathKind::Regex,
        }
    }

    /// How specific it is.
    #[must_use]
    pub fn rank(&self) -> PathRank {
        match self {
            Self::Any => PathRank::Prefix(Reverse(0)),
            Self::Exact(_) => PathRank::Exact,
            Self::Prefix(prefix) => PathRank::Prefix(Reverse(prefix.len())),
            Self::Template(template) => PathRank::Template(Reverse(template.literal_chars()), template.has_tail()),
            Self::Regex(_) => PathRank::Regex,
        }
    }
}

impl fmt::Display for PathMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("is any"),
            Self::Exact(path) => write!(f, "is {path}"),
            Self::Prefix(prefix) if prefix.is_empty() => f.write_str("is / or below it"),
            Self::Prefix(prefix) => write!(f, "is {prefix} or below it"),
            Self::Template(template) => write!(f, "has the form {}", template.as_str()),
            Self::Regex(pattern) => write!(f, "matches {}", pattern.as_str()),
        }
    }
}

/// Whether what follows a prefix begins on a segment border.
fn ends_segment(rest: &str) -> bool {
    rest.is_empty() || rest.starts_with('/')
}

/// Refuses a path that no request could have.
fn check(path: &str) -> Result<(), PathError> {
    if !path.starts_with('/') {
        return Err(PathError::NotAbsolute(path.to_owned()));
    }
    let never = |c: char| !c.is_ascii_graphic() || matches!(c, '?' | '#' | '{' | '}' | '\\' | '"' | '<' | '>' | '`');
    if let Some(found) = path.chars().find(|&c| never(c)) {
        return Err(PathError::NeverMatches(path.to_owned(), found));
    }
    match path.split('/').count() - 1 {
        segments if segments > MAX_SEGMENTS => Err(PathError::TooDeep(segments)),
        _ => Ok(()),
    }
}

/// Where the value of a parameter begins and ends in the path, in bytes.
pub type Capture = (usize, usize);

/// The values of a template's parameters in order.
pub type Captures = SmallVec<[Capture; 8]>;

/// A path with parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    source: Box<str>,
    segments: Box<[Segment]>,
}

/// One segment of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Segment {
    Literal(Box<str>),
    Param(Box<str>),
    Tail(Box<str>),
}

impl Segment {
    fn parse(text: &str) -> Result<Self, PathError> {
        let Some(inner) = text.strip_prefix('{').and_then(|text| text.strip_suffix('}')) else {
            return match text.contains(['{', '}']) {
                true => Err(PathError::PartOfSegment(text.to_owned())),
                false => Ok(Self::Literal(text.into())),
            };
        };
        if inner.contains(['{', '}']) {
            return Err(PathError::PartOfSegment(text.to_owned()));
        }
        let name = inner.strip_suffix("...").unwrap_or(inner);
        let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) || !name.chars().all(word) {
            return Err(PathError::BadName(name.to_owned()));
        }
        Ok(if name.len() < inner.len() { Self::Tail(name.into()) } else { Self::Param(name.into()) })
    }

    fn name(&self) -> Option<&str> {
        match self {
            Self::Literal(_) => None,
            Self::Param(name) | Self::Tail(name) => Some(name),
        }
    }
}

impl Template {
    fn new(text: &str) -> Result<Self, PathError> {
        check(&text.replace(['{', '}'], ""))?;
        let segments = text.split('/').skip(1).map(Segment::parse).collect::<Result<Box<[_]>, _>>()?;
        for (position, segment) in segments.iter().enumerate() {
            if let Segment::Tail(name) = segment
                && position + 1 < segments.len()
            {
                return Err(PathError::TailNotLast(name.to_string()));
            }
            let earlier = segments[..position].iter().filter_map(Segment::name);
            if let Some(twice) = segment.name().filter(|name| earlier.clone().any(|known| known == *name)) {
                return Err(PathError::Twice(twice.to_owned()));
            }
        }
        if segments.iter().all(|segment| segment.name().is_none()) {
            return Err(PathError::NoParameter(text.to_owned()));
        }
        Ok(Self { source: text.into(), segments })
    }

    /// The template as it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.source
    }

    /// The names of the parameters in order.
    pub fn params(&self) -> impl Iterator<Item = &str> {
        self.segments.iter().filter_map(Segment::name)
    }

    /// Where the parameters' values are in a path; `None` if the path has not this form.
    #[must_use]
    pub fn captures(&self, path: &str) -> Option<Captures> {
        let mut found = Captures::new();
        let mut at = 0;
        for segment in &self.segments {
            let rest = path[at..].strip_prefix('/')?;
            let start = at + 1;
            let end = match segment {
                Segment::Tail(_) => path.len(),
                _ => start + rest.find('/').unwrap_or(rest.len()),
            };
            match segment {
                Segment::Literal(wanted) if **wanted != path[start..end] => return None,
                Segment::Literal(_) => {}
                _ if start == end => return None,
                _ => found.push((start, end)),
            }
            at = end;
        }
        (at == path.len()).then_some(found)
    }

    pub(crate) fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Number of characters that are not those of a parameter, slashes included.
    fn literal_chars(&self) -> usize {
        let literal = |segment: &Segment| match segment {
            Segment::Literal(text) => text.len() + 1,
            _ => 1,
        };
        self.segments.iter().map(literal).sum()
    }

    fn has_tail(&self) -> bool {
        matches!(self.segments.last(), Some(Segment::Tail(_)))
    }
}

#[cfg(test)]
mod tests;
