//! Regular expressions that match a whole text, as Envoy's `safe_regex` does.

use regex::{Regex, RegexBuilder};
use regex_syntax::hir::literal::Extractor;

/// Upper bound of the compiled size of one pattern, in bytes.
const SIZE_LIMIT: usize = 1 << 20;

/// Why a text is no usable pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// It does not parse; the text says where and why.
    #[error("not a regular expression: {0}")]
    Syntax(String),
    /// It parses and would take more than 1 MiB when compiled.
    #[error("the regular expression is too large: it would take more than 1 MiB when compiled")]
    TooLarge,
}

/// A compiled regular expression (syntax of the `regex` crate) that has to match a text from its beginning to its end.
#[derive(Clone, Debug)]
pub struct Pattern {
    regex: Regex,
    source: Box<str>,
    literal: Box<str>,
}

impl Pattern {
    /// Compiles a pattern.
    ///
    /// # Errors
    /// If it does not parse or is too large.
    pub fn new(source: &str) -> Result<Self, PatternError> {
        // Parsed on its own first: wrapped at once, `a)|(b` would parse and slip out of the anchors.
        let hir = regex_syntax::parse(source).map_err(|error| PatternError::Syntax(error.to_string()))?;
        let prefixes = Extractor::new().extract(&hir);
        let literal = prefixes.longest_common_prefix().and_then(|bytes| std::str::from_utf8(bytes).ok());
        // The line break ends a comment that the pattern may end with; without `(?x)` there must be none.
        let anchored = [format!("^(?:{source})$"), format!("^(?:{source}\n)$")];
        let whole = anchored.iter().find(|text| regex_syntax::parse(text).is_ok()).unwrap_or(&anchored[0]);
        let regex = RegexBuilder::new(whole).size_limit(SIZE_LIMIT).build().map_err(|error| match error {
            regex::Error::CompiledTooBig(_) => PatternError::TooLarge,
            error => PatternError::Syntax(error.to_string()),
        })?;
        Ok(Self { regex, source: source.into(), literal: literal.unwrap_or_default().into() })
    }

    /// Whether the whole text matches.
    #[must_use]
    pub fn matches(&self, text: &str) -> bool {
        text.starts_with(&*self.literal) && self.regex.is_match(text)
    }

    /// The pattern as it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.source
    }

    /// Text that everything that matches begins with; may be empty.
    pub(crate) fn literal_prefix(&self) -> &str {
        &self.literal
    }

    pub(crate) fn regex(&self) -> &Regex {
        &self.regex
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_patterns_are_refused_with_a_reason() {
        for (source, expected) in [("a(", "unclosed group"), ("a)|(b", "unopened group"), ("[z-a]", "invalid")] {
            let error = Pattern::new(source).unwrap_err().to_string();
            assert!(error.contains(expected), "{source}: {error}");
        }
        assert_eq!(Pattern::new(r"\w{1000}").unwrap_err(), PatternError::TooLarge);
    }

    #[test]
    fn a_comment_at_the_end_does_not_undo_the_anchors() {
        let pattern = Pattern::new("(?x) a b # and so on").unwrap();
        assert!(pattern.matches("ab") && !pattern.matches("abc") && !pattern.matches("ab\n"));
    }

    #[test]
    fn literal_prefixes() {
        let cases = [
            ("/api/v[0-9]+/x", "/api/v"),
            ("/a/b", "/a/b"),
            ("/a/b|/a/c", "/a/"),
            ("(?i)/a/b", "/"),
            (".*", ""),
            ("(/a)?/b", "/"),
            ("a*", ""),
        ];
        for (source, expected) in cases {
            assert_eq!(Pattern::new(source).unwrap().literal_prefix(), expected, "{source}");
        }
    }
}
