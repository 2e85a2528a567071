//! The bearer token that callers of the admin API show.

use std::path::Path;
use std::sync::Arc;

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// Fewest characters that a token has.
const SHORTEST: usize = 16;

/// A bearer token, kept as its hash.
#[derive(Clone)]
pub struct Token(Arc<[u8; 32]>);

impl Token {
    /// Reads a token from a file; white space around it is not part of it.
    ///
    /// # Errors
    /// A sentence about a file that cannot be read or holds no token of at least 16 visible characters.
    pub fn read(path: &Path) -> Result<Self, String> {
        Self::text(path).map(|text| Self::new(&text))
    }

    /// Reads the text of a token, as callers need it.
    ///
    /// # Errors
    /// As [`Token::read`].
    pub fn text(path: &Path) -> Result<String, String> {
        let text = std::fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        let token = text.trim();
        if token.len() < SHORTEST || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(format!("{} holds no token: at least {SHORTEST} visible ASCII characters", path.display()));
        }
        Ok(token.to_owned())
    }

    /// This token.
    #[must_use]
    pub fn new(token: &str) -> Self {
        Self(Arc::new(Sha256::digest(token).into()))
    }

    /// Whether an `Authorization` header shows the token. The time that takes says nothing about the token.
    #[must_use]
    pub fn is_shown_by(&self, authorization: &[u8]) -> bool {
        let Some((scheme, shown)) = authorization.split_at_checked(b"Bearer ".len()) else { return false };
        let shown: [u8; 32] = Sha256::digest(shown.trim_ascii()).into();
        scheme.eq_ignore_ascii_case(b"Bearer ") && bool::from(self.0[..].ct_eq(&shown[..]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_token_is_the_token() {
        let token = Token::new("0123456789abcdef");
        let cases = [
            ("Bearer 0123456789abcdef", true),
            ("bearer 0123456789abcdef ", true),
            ("Bearer 0123456789abcdeF", false),
            ("Bearer 0123456789abcde", false),
            ("Bearer ", false),
            ("Bearer", false),
            ("Basic 0123456789abcdef", false),
            ("0123456789abcdef", false),
            ("", false),
        ];
        for (shown, expected) in cases {
            assert_eq!(token.is_shown_by(shown.as_bytes()), expected, "{shown}");
        }
    }

    #[test]
    fn files_hold_one_token() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        for (text, sound) in [("0123456789abcdef\n", true), ("short", false), ("", false), ("0123456789abc def", false)]
        {
            std::fs::write(&file, text).unwrap();
            assert_eq!(Token::read(&file).is_ok(), sound, "{text:?}");
        }
        assert!(Token::read(&dir.path().join("none")).is_err());
    }
}
