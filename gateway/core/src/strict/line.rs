//! The request line (RFC 9112 section 3).

use http::uri::Scheme;
use memchr::{memchr, memrchr};

use super::fields::is_token;
use super::host::check_host;
use super::{Limits, Refusal};

/// Longest method.
const MAX_METHOD: usize = 32;

/// A sound request line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// The method.
    pub method: &'a [u8],
    /// The target, as it was sent.
    pub target: &'a [u8],
    /// The authority of a target in absolute form.
    pub authority: Option<&'a [u8]>,
    /// Whether a target in absolute form is one of `https`.
    pub secure: bool,
    /// Whether the version is 1.0.
    pub http10: bool,
}

/// Reads a request line without its CRLF.
///
/// # Errors
/// If it is malformed, or asks for something that is not served.
pub fn parse_line<'a>(line: &'a [u8], limits: &Limits) -> Result<Line<'a>, Refusal> {
    let (Some(first), Some(last)) = (memchr(b' ', line), memrchr(b' ', line)) else {
        return Err(Refusal::RequestLine);
    };
    let (method, version) = (&line[..first], &line[last + 1..]);
    if method.len() > MAX_METHOD || !is_token(method) {
        return Err(Refusal::RequestLine);
    }
    let http10 = match version {
        b"HTTP/1.1" => false,
        b"HTTP/1.0" => true,
        [b'H', b'T', b'T', b'P', b'/', major, b'.', minor] if major.is_ascii_digit() && minor.is_ascii_digit() => {
            return Err(Refusal::Version);
        }
        _ => return Err(Refusal::RequestLine),
    };
    check_method(method)?;
    let target = line.get(first + 1..last).unwrap_or_default();
    if target.len() > limits.target {
        return Err(Refusal::TargetTooLong);
    }
    let (authority, secure) = check_target(method, target)?;
    Ok(Line { method, target, authority, secure, http10 })
}

/// That a method is one that may be passed on. Those of extensions (WebDAV and others) may.
///
/// # Errors
/// If it is not.
pub(super) fn check_method(method: &[u8]) -> Result<(), Refusal> {
    match method {
        b"CONNECT" | b"TRACE" | b"TRACK" => Err(Refusal::Method),
        // Methods are case-sensitive, and every registered one is in upper case.
        _ if method.iter().any(u8::is_ascii_lowercase) => Err(Refusal::UnknownMethod),
        _ => Ok(()),
    }
}

/// That a target has one of the forms that its method goes with (RFC 9112 section 3.2). Returns the authority of an
/// absolute one, and whether its scheme is `https`.
fn check_target<'a>(method: &[u8], target: &'a [u8]) -> Result<(Option<&'a [u8]>, bool), Refusal> {
    if !target.iter().fold(true, |fine, &byte| fine & fits(byte)) {
        return Err(Refusal::Target);
    }
    // Browsers escape it in paths, and not in queries.
    if memchr(b'`', target).is_some_and(|at| memchr(b'?', &target[..at]).is_none()) {
        return Err(Refusal::Target);
    }
    match target {
        [b'/', ..] => Ok((None, false)),
        b"*" if method == b"OPTIONS" => Ok((None, false)),
        _ => {
            let colon = memchr(b':', target).ok_or(Refusal::Target)?;
            let scheme = Scheme::try_from(&target[..colon]).map_err(|_| Refusal::Target)?;
            let secure = scheme == Scheme::HTTPS;
            let rest = target[colon..].strip_prefix(b"://").filter(|_| secure || scheme == Scheme::HTTP);
            let rest = rest.ok_or(Refusal::Target)?;
            let end = rest.iter().position(|byte| matches!(byte, b'/' | b'?')).unwrap_or(rest.len());
            check_host(&rest[..end])?;
            Ok((Some(&rest[..end]), secure))
        }
    }
}

/// Whether a target may have this byte: printable ASCII, but no fragment, and nothing that everybody escapes. (RFC 3986
/// has fewer still; browsers send these.)
#[inline]
fn fits(byte: u8) -> bool {
    (byte > b' ') & (byte < 0x7f) & (byte != b'#') & (byte != b'"') & (byte != b'<') & (byte != b'>')
}
