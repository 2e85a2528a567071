//! Edits of request and response headers.

use http::{HeaderMap, HeaderName, HeaderValue};

/// Fields that belong to one connection or frame the message. The gateway sets them itself.
const RESERVED: [&str; 11] = [
    "connection",
    "content-length",
    "host",
    "keep-alive",
    "proxy-authenticate",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "http2-settings",
];

/// Why an edit was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EditError {
    /// The name is no name of a header field.
    #[error("{0:?} is no name of a header field")]
    Name(String),
    /// The value cannot be one of a header field.
    #[error("the value of {0} has a character that a header field cannot have")]
    Value(String),
    /// The field is the gateway's own.
    #[error("{0} cannot be edited: the gateway sets it itself{hint}", hint = hint(.0))]
    Reserved(String),
}

fn hint(name: &str) -> &'static str {
    if name == "host" { "; use `rewrite: { host: ... }`" } else { "" }
}

/// What can have its header edited. Implemented for [`HeaderMap`]; a proxy implements it for its own messages.
pub trait EditHeaders {
    /// Removes every line of a field.
    fn remove(&mut self, name: &HeaderName);
    /// Makes this the only line of a field.
    fn set(&mut self, name: &HeaderName, value: &HeaderValue);
    /// Adds a line to a field.
    fn add(&mut self, name: &HeaderName, value: &HeaderValue);
}

impl EditHeaders for HeaderMap {
    fn remove(&mut self, name: &HeaderName) {
        self.remove(name);
    }

    fn set(&mut self, name: &HeaderName, value: &HeaderValue) {
        self.insert(name.clone(), value.clone());
    }

    fn add(&mut self, name: &HeaderName, value: &HeaderValue) {
        self.append(name.clone(), value.clone());
    }
}

/// Edits of a header: first what is removed, then what is set, then what is added.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderEdits {
    set: Vec<(HeaderName, HeaderValue)>,
    add: Vec<(HeaderName, HeaderValue)>,
    remove: Vec<HeaderName>,
}

impl HeaderEdits {
    /// Makes a line the only one of its field.
    ///
    /// # Errors
    /// If name or value are malformed, or the field is the gateway's own.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), EditError> {
        self.set.push(parse_line(name, value)?);
        Ok(())
    }

    /// Adds a line.
    ///
    /// # Errors
    /// If name or value are malformed, or the field is the gateway's own.
    pub fn add(&mut self, name: &str, value: &str) -> Result<(), EditError> {
        self.add.push(parse_line(name, value)?);
        Ok(())
    }

    /// Removes a field.
    ///
    /// # Errors
    /// If the name is malformed, or the field is the gateway's own.
    pub fn remove(&mut self, name: &str) -> Result<(), EditError> {
        self.remove.push(parse_name(name)?);
        Ok(())
    }

    /// Whether there is nothing to edit.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.set.is_empty() && self.add.is_empty() && self.remove.is_empty()
    }

    /// Edits a header.
    pub fn apply(&self, headers: &mut impl EditHeaders) {
        self.remove.iter().for_each(|name| headers.remove(name));
        self.set.iter().for_each(|(name, value)| headers.set(name, value));
        self.add.iter().for_each(|(name, value)| headers.add(name, value));
    }
}

fn parse_name(text: &str) -> Result<HeaderName, EditError> {
    let name: HeaderName = text.parse().map_err(|_| EditError::Name(text.to_owned()))?;
    match RESERVED.contains(&name.as_str()) {
        true => Err(EditError::Reserved(name.to_string())),
        false => Ok(name),
    }
}

fn parse_line(name: &str, value: &str) -> Result<(HeaderName, HeaderValue), EditError> {
    let name = parse_name(name)?;
    let value = value.parse().map_err(|_| EditError::Value(name.to_string()))?;
    Ok((name, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removes_then_sets_then_adds() {
        let mut headers = HeaderMap::new();
        for (name, value) in [("x-a", "1"), ("x-a", "2"), ("x-b", "1"), ("x-c", "1"), ("x-d", "1")] {
            headers.append(name, value.parse().unwrap());
        }
        let mut edits = HeaderEdits::default();
        assert!(edits.is_empty());
        edits.add("X-A", "4").unwrap();
        edits.set("x-a", "3").unwrap();
        edits.remove("x-b").unwrap();
        edits.add("x-c", "2").unwrap();
        edits.remove("x-d").unwrap();
        edits.add("x-d", "2").unwrap();
        edits.apply(&mut headers);
        let lines =
            |name: &str| headers.get_all(name).iter().map(|v| v.to_str().unwrap()).collect::<Vec<_>>().join(" ");
        assert_eq!(["x-a", "x-b", "x-c", "x-d"].map(lines), ["3 4", "", "1 2", "2"]);
    }

    #[test]
    fn bad_edits_are_refused_with_a_reason() {
        let cases = [
            ("x y", "1", "is no name"),
            ("", "1", "is no name"),
            ("x-a", "1\r\nx-b: 2", "the value of x-a"),
            ("Transfer-Encoding", "chunked", "sets it itself"),
            ("host", "a", "use `rewrite"),
        ];
        for (name, value, expected) in cases {
            let error = HeaderEdits::default().set(name, value).unwrap_err().to_string();
            assert!(error.contains(expected), "{name}: {error}");
        }
        assert!(HeaderEdits::default().remove("connection").is_err());
    }
}
