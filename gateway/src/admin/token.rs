//! The bearer tokens that callers of the admin API show.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::conf::{Admin, Role};

/// Fewest characters that a token has.
const SHORTEST: usize = 16;
/// What the token of `token_file` is called.
const UNNAMED: &str = "admin";

/// A bearer token, kept as its hash.
#[derive(Clone)]
struct Token {
    hash: [u8; 32],
    holder: Holder,
}

/// Who shows a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Name of the token; none if no token is asked for.
    pub name: Option<Arc<str>>,
    /// What he may do.
    pub role: Role,
}

impl Holder {
    /// Whoever talks to a gateway that asks for no token: somebody on the same host, who may do everything.
    #[must_use]
    pub fn anybody() -> Self {
        Self { name: None, role: Role::Configure }
    }
}

/// All tokens of a gateway.
pub struct Tokens {
    conf: Admin,
    known: ArcSwap<Vec<Token>>,
    /// What was wrong at the last look, so that it is told once.
    wrong: Mutex<Option<String>>,
}

impl Tokens {
    /// Reads the tokens that a configuration names.
    ///
    /// # Errors
    /// A sentence about a file or a variable that holds no token. It never has what was found there in it.
    pub fn load(conf: &Admin) -> Result<Self, String> {
        Ok(Self { known: ArcSwap::from_pointee(read(conf)?), conf: conf.clone(), wrong: Mutex::default() })
    }

    /// Reads them again; the old ones stay if that fails.
    ///
    /// # Errors
    /// As [`Tokens::load`], but the same thing only once.
    pub fn reload(&self) -> Result<(), String> {
        let (fresh, problem) = match read(&self.conf) {
            Ok(fresh) => (Some(fresh), None),
            Err(problem) => (None, Some(problem)),
        };
        if let Some(fresh) = fresh {
            self.known.store(Arc::new(fresh));
        }
        let mut wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *wrong, problem.clone());
        problem.filter(|problem| before.as_ref() != Some(problem)).map_or(Ok(()), Err)
    }

    /// The files that are read.
    pub fn files(&self) -> impl Iterator<Item = PathBuf> + '_ {
        self.conf.token_file.iter().chain(self.conf.tokens.iter().filter_map(|token| token.file.as_ref())).cloned()
    }

    /// Who shows his token in an `Authorization` header; anybody if none is asked for. All tokens are compared, each in
    /// constant time, so that the time that takes says nothing about them.
    #[must_use]
    pub fn holder(&self, authorization: Option<&[u8]>) -> Option<Holder> {
        let known = self.known.load();
        if known.is_empty() {
            return Some(Holder::anybody());
        }
        let (scheme, shown) = authorization?.split_at_checked(b"Bearer ".len())?;
        let shown: [u8; 32] = Sha256::digest(shown.trim_ascii()).into();
        let mut found = None;
        for token in known.iter() {
            if bool::from(token.hash[..].ct_eq(&shown[..])) {
                found = Some(token);
            }
        }
        found.filter(|_| scheme.eq_ignore_ascii_case(b"Bearer ")).map(|token| token.holder.clone())
    }
}

fn read(conf: &Admin) -> Result<Vec<Token>, String> {
    let mut known = Vec::new();
    let mut add = |name: &str, role, text: &str| {
        known.push(Token { hash: Sha256::digest(text).into(), holder: Holder { name: Some(name.into()), role } });
    };
    if let Some(file) = &conf.token_file {
        add(UNNAMED, Role::Configure, &text(file)?);
    }
    for token in &conf.tokens {
        let found = match (&token.file, &token.env) {
            (Some(file), _) => text(file)?,
            (None, Some(variable)) => {
                let value = std::env::var(variable.as_str());
                let value = value.map_err(|_| format!("the environment variable {variable} is not set"))?;
                check(&value, &format!("the environment variable {variable}"))?
            }
            (None, None) => return Err(format!("the token {} is nowhere", token.name)),
        };
        add(&token.name, token.role, &found);
    }
    Ok(known)
}

/// Reads the text of a token from a file, as callers need it.
///
/// # Errors
/// A sentence about a file that cannot be read or holds no token of at least 16 visible characters.
pub fn text(path: &Path) -> Result<String, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    check(&text, &path.display().to_string())
}

fn check(text: &str, place: &str) -> Result<String, String> {
    let token = text.trim();
    if token.len() < SHORTEST || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(format!("{place} holds no token: at least {SHORTEST} visible ASCII characters"));
    }
    Ok(token.to_owned())
}

#[cfg(test)]
impl Tokens {
    /// No token is asked for, or one that may do everything.
    pub(crate) fn of(token: Option<&str>) -> Self {
        let known = token.map(|text| Token {
            hash: Sha256::digest(text).into(),
            holder: Holder { name: Some(UNNAMED.into()), role: Role::Configure },
        });
        Self {
            conf: Admin::default(),
            known: ArcSwap::from_pointee(known.into_iter().collect()),
            wrong: Mutex::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_token_is_the_token() {
        let tokens = Tokens::of(Some("0123456789abcdef"));
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
            assert_eq!(tokens.holder(Some(shown.as_bytes())).is_some(), expected, "{shown}");
        }
        assert_eq!(tokens.holder(None), None);
        assert_eq!(Tokens::of(None).holder(None), Some(Holder::anybody()));
    }

    #[test]
    fn each_token_has_its_name_and_role() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            std::fs::write(dir.path().join(name), text).unwrap();
            dir.path().join(name)
        };
        let mut conf = Admin { token_file: Some(file("all", "all-0123456789abcdef")), ..Admin::default() };
        for (name, role) in [("reader", Role::Read), ("oncall", Role::Operate)] {
            let file = Some(file(name, &format!("{name}-0123456789abcdef\n")));
            conf.tokens.push(crate::conf::AdminToken { name: name.parse().unwrap(), file, env: None, role });
        }
        let tokens = Tokens::load(&conf).unwrap();
        let role = |shown: &str| {
            let holder = tokens.holder(Some(format!("Bearer {shown}-0123456789abcdef").as_bytes()))?;
            Some((holder.name.unwrap().to_string(), holder.role))
        };
        assert_eq!(role("all"), Some(("admin".to_owned(), Role::Configure)));
        assert_eq!(role("reader"), Some(("reader".to_owned(), Role::Read)));
        assert_eq!(role("oncall"), Some(("oncall".to_owned(), Role::Operate)));
        assert_eq!(role("nobody"), None);
        assert!(Role::Read < Role::Operate && Role::Operate < Role::Configure);
        file("reader", "fresh-0123456789abcdef");
        tokens.reload().unwrap();
        assert_eq!((role("reader"), role("fresh")), (None, Some(("reader".to_owned(), Role::Read))));
        file("reader", "short");
        assert!(tokens.reload().is_err());
        assert!(tokens.reload().is_ok(), "that is told once");
        assert_eq!(role("fresh"), Some(("reader".to_owned(), Role::Read)), "the old ones stay");
        conf.tokens[0].file = None;
        conf.tokens[0].env = Some("SERIN_TEST_NO_SUCH_VARIABLE".parse().unwrap());
        assert!(Tokens::load(&conf).err().unwrap().contains("SERIN_TEST_NO_SUCH_VARIABLE is not set"));
    }

    #[test]
    fn files_hold_one_token() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        for (content, sound) in
            [("0123456789abcdef\n", true), ("short", false), ("", false), ("0123456789abc def", false)]
        {
            std::fs::write(&file, content).unwrap();
            let read = text(&file);
            assert_eq!(read.is_ok(), sound, "{content:?}");
            assert!(read.is_ok() || content.is_empty() || !read.unwrap_err().contains(content), "it is not told");
        }
        assert!(text(&dir.path().join("none")).is_err());
    }
}
