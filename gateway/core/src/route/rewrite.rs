//! What becomes of path and host: rewrites on the way to a service, redirects of the client.

use std::borrow::Cow;

use http::{HeaderValue, StatusCode};

use crate::matcher::{PathMatch, Pattern, Template};
use crate::request::RequestView;

/// Why a rewrite or a redirect was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RewriteError {
    /// The new path does not begin with `/`, or has characters that a path cannot have.
    #[error("{0:?} is no path: it begins with `/` and has no query, no spaces and only ASCII")]
    NoPath(String),
    /// A prefix can be rewritten only where one is matched.
    #[error("a prefix can be rewritten only if the route matches a `prefix`; use `path` to replace the whole path")]
    NoPrefix,
    /// The new path uses a parameter that the match does not have.
    #[error("the match has no parameter {name:?}; it has {known}")]
    NoParam {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// A brace is not closed or not opened.
    #[error("{0:?} has a brace without its counterpart")]
    Brace(String),
    /// The host cannot be one.
    #[error("{0:?} is no host")]
    Host(String),
    /// The scheme is not one of HTTP.
    #[error("the scheme {0:?} is neither `http` nor `https`")]
    Scheme(String),
    /// The status does not redirect.
    #[error("{0} is no status of a redirect; expected 301, 302, 303, 307 or 308")]
    Status(u16),
}

/// What changes before a request goes to a service.
#[derive(Clone, Debug, Default)]
pub struct Rewrite {
    /// What becomes of the path.
    pub path: PathRewrite,
    host: Option<HeaderValue>,
}

impl Rewrite {
    /// A rewrite of the path alone.
    #[must_use]
    pub fn path(path: PathRewrite) -> Self {
        Self { path, host: None }
    }

    /// Also rewrites the host (`example.com` or `example.com:8443`).
    ///
    /// # Errors
    /// If that is no host.
    pub fn with_host(mut self, host: &str) -> Result<Self, RewriteError> {
        self.host = Some(check_host(host)?.parse().map_err(|_| RewriteError::Host(host.to_owned()))?);
        Ok(self)
    }

    /// The host to send, if it is rewritten.
    #[must_use]
    pub fn host(&self) -> Option<&HeaderValue> {
        self.host.as_ref()
    }
}

/// What becomes of a path. Made for one [`PathMatch`], and applied to paths that it matched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PathRewrite {
    /// It stays.
    #[default]
    Keep,
    /// The first bytes are replaced, what follows them stays.
    Prefix {
        /// How many bytes are replaced.
        strip: usize,
        /// What they are replaced by, without a trailing slash.
        with: Box<str>,
    },
    /// It is put together anew.
    Path(Box<[Piece]>),
}

/// A piece of a new path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Fixed text.
    Text(Box<str>),
    /// The value of a parameter: its position in the template, or the number of its group in the pattern.
    Param(usize),
}

impl PathRewrite {
    /// Replaces the prefix that `on` matches.
    ///
    /// # Errors
    /// If `on` matches no prefix, or `with` is no path.
    pub fn prefix(on: &PathMatch, with: &str) -> Result<Self, RewriteError> {
        let matched: &str = match on {
            PathMatch::Prefix(prefix) => prefix,
            PathMatch::Any => "",
            _ => return Err(RewriteError::NoPrefix),
        };
        let with = check_path(with)?.trim_end_matches('/');
        Ok(match matched == with {
            true => Self::Keep,
            false => Self::Prefix { strip: matched.len(), with: with.into() },
        })
    }

    /// Replaces the whole path by one that may use the parameters of a template, or the named groups of a regular
    /// expression, as in `/v2/{id}`.
    ///
    /// # Errors
    /// If `text` is no path or uses a parameter that `on` does not have.
    pub fn path(on: &PathMatch, text: &str) -> Result<Self, RewriteError> {
        let mut pieces = Vec::new();
        let mut rest = check_path(text)?;
        while let Some((before, after)) = rest.split_once('{') {
            let (name, after) = after.split_once('}').ok_or_else(|| RewriteError::Brace(text.to_owned()))?;
            pieces.extend(literal(before, text)?);
            pieces.push(Piece::Param(param(on, name)?));
            rest = after;
        }
        pieces.extend(literal(rest, text)?);
        Ok(Self::Path(pieces.into()))
    }

    /// The new path for one that `on` matched. Allocates only where bytes have to be put together. A prefix is not
    /// put before the `*` of an OPTIONS request.
    #[must_use]
    pub fn apply<'a>(&'a self, on: &PathMatch, path: &'a str) -> Cow<'a, str> {
        match self {
            Self::Keep => Cow::Borrowed(path),
            Self::Prefix { strip, with } => match (&**with, path.get(*strip..).unwrap_or_default()) {
                (_, rest) if !rest.is_empty() && !rest.starts_with('/') => Cow::Borrowed(path),
                ("", "") => Cow::Borrowed("/"),
                ("", rest) => Cow::Borrowed(rest),
                (with, "") => Cow::Borrowed(with),
                (with, rest) => Cow::Owned([with, rest].concat()),
            },
            Self::Path(pieces) => match &**pieces {
                [Piece::Text(whole)] => Cow::Borrowed(whole),
                pieces => Cow::Owned(put_together(pieces, on, path)),
            },
        }
    }
}

fn literal(text: &str, whole: &str) -> Result<Option<Piece>, RewriteError> {
    match text.contains('}') {
        true => Err(RewriteError::Brace(whole.to_owned())),
        false => Ok((!text.is_empty()).then(|| Piece::Text(text.into()))),
    }
}

/// Where a match has the parameter of that name.
fn param(on: &PathMatch, name: &str) -> Result<usize, RewriteError> {
    let names: Vec<Option<&str>> = match on {
        PathMatch::Template(template) => template.params().map(Some).collect(),
        PathMatch::Regex(pattern) => pattern.regex().capture_names().collect(),
        _ => Vec::new(),
    };
    names.iter().position(|known| *known == Some(name)).ok_or_else(|| {
        let known: Vec<&str> = names.iter().copied().flatten().collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        RewriteError::NoParam { name: name.to_owned(), known }
    })
}

fn put_together(pieces: &[Piece], on: &PathMatch, path: &str) -> String {
    match on {
        PathMatch::Template(template) => from_template(pieces, template, path),
        PathMatch::Regex(pattern) => from_pattern(pieces, pattern, path),
        _ => join(pieces, |_| ""),
    }
}

fn from_template(pieces: &[Piece], template: &Template, path: &str) -> String {
    let captures = template.captures(path).unwrap_or_default();
    join(pieces, |index| captures.get(index).map_or("", |&(start, end)| &path[start..end]))
}

fn from_pattern(pieces: &[Piece], pattern: &Pattern, path: &str) -> String {
    let captures = pattern.regex().captures(path);
    let group = |index| captures.as_ref()?.get(index);
    join(pieces, |index| group(index).map_or("", |found| found.as_str()))
}

fn join<'a>(pieces: &'a [Piece], value: impl Fn(usize) -> &'a str) -> String {
    let text = |piece: &'a Piece| match piece {
        Piece::Text(text) => &**text,
        Piece::Param(index) => value(*index),
    };
    pieces.iter().map(text).collect()
}

/// The status of a redirect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RedirectStatus(StatusCode);

impl RedirectStatus {
    /// One of 301, 302, 303, 307 and 308.
    ///
    /// # Errors
    /// If it is another.
    pub fn new(code: u16) -> Result<Self, RewriteError> {
        match (code, StatusCode::from_u16(code)) {
            (301 | 302 | 303 | 307 | 308, Ok(status)) => Ok(Self(status)),
            _ => Err(RewriteError::Status(code)),
        }
    }

    /// The status.
    #[must_use]
    pub fn code(self) -> StatusCode {
        self.0
    }
}

/// Where a client's request came in, as far as [`RequestView`] does not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin<'a> {
    /// `http` or `https`.
    pub scheme: &'a str,
    /// The port in the request's authority, if there was one.
    pub port: Option<u16>,
}

/// Sends a client elsewhere. What is not set stays as it was in the request.
#[derive(Clone, Debug)]
pub struct Redirect {
    status: RedirectStatus,
    scheme: Option<&'static str>,
    host: Option<Box<str>>,
    port: Option<u16>,
    path: PathRewrite,
    keep_query: bool,
}

impl Redirect {
    /// A redirect that changes nothing but the path; it keeps the query.
    #[must_use]
    pub fn new(status: RedirectStatus, path: PathRewrite) -> Self {
        Self { status, scheme: None, host: None, port: None, path, keep_query: true }
    }

    /// Also changes the scheme.
    ///
    /// # Errors
    /// If it is neither `http` nor `https`.
    pub fn with_scheme(mut self, scheme: &str) -> Result<Self, RewriteError> {
        let known = ["http", "https"].into_iter().find(|known| *known == scheme);
        self.scheme = Some(known.ok_or_else(|| RewriteError::Scheme(scheme.to_owned()))?);
        Ok(self)
    }

    /// Also changes the host, given without a port.
    ///
    /// # Errors
    /// If that is no host.
    pub fn with_host(mut self, host: &str) -> Result<Self, RewriteError> {
        let port = host.rsplit(']').next().unwrap_or_default().contains(':');
        if port {
            return Err(RewriteError::Host(host.to_owned()));
        }
        self.host = Some(check_host(host)?.into());
        Ok(self)
    }

    /// Also changes the port.
    #[must_use]
    pub fn with_port(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }

    /// Drops the query.
    #[must_use]
    pub fn without_query(mut self) -> Self {
        self.keep_query = false;
        self
    }

    /// The status to answer with.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.status.code()
    }

    /// The value of `Location` for a request whose path `on` matched. A new scheme or host has its own port, so the
    /// request's is kept only with both of them, and never if it is the scheme's default.
    #[must_use]
    pub fn location(&self, on: &PathMatch, request: &RequestView<'_>, origin: Origin<'_>) -> String {
        let path = self.path.apply(on, request.path);
        let query = request.query.filter(|_| self.keep_query).map_or(String::new(), |query| format!("?{query}"));
        let host = self.host.as_deref().unwrap_or(request.host);
        if host.is_empty() {
            // Without a host a second slash would make the path name one.
            return format!("/{}{query}", path.trim_start_matches('/'));
        }
        let scheme = self.scheme.unwrap_or(origin.scheme);
        let moved = self.host.is_some() || scheme != origin.scheme;
        let port = self.port.or(if moved { None } else { origin.port });
        let default = if scheme == "https" { 443 } else { 80 };
        let port = port.filter(|port| *port != default).map_or(String::new(), |port| format!(":{port}"));
        format!("{scheme}://{host}{port}{path}{query}")
    }
}

fn check_path(text: &str) -> Result<&str, RewriteError> {
    let fits = |byte: u8| byte.is_ascii_graphic() && !b"?#\\\"<>`".contains(&byte);
    match text.starts_with('/') && text.bytes().all(fits) {
        true => Ok(text),
        false => Err(RewriteError::NoPath(text.to_owned())),
    }
}

fn check_host(text: &str) -> Result<&str, RewriteError> {
    let authority: Option<http::uri::Authority> = text.parse().ok();
    match authority.is_some_and(|authority| !authority.host().is_empty() && !text.contains('@')) {
        true => Ok(text),
        false => Err(RewriteError::Host(text.to_owned())),
    }
}

#[cfg(test)]
mod tests;
