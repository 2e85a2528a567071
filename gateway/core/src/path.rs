//! The one form of a path that is routed, and forwarded (RFC 3986 section 6.2.2).

use std::borrow::Cow;

/// Why a path has no normal form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// It has `..` segments that lead above the root.
    #[error("the path leads above the root")]
    AboveRoot,
    /// It has a form that parsers disagree on.
    #[error("the path has an escape that may be read in two ways")]
    Ambiguous,
}

/// What becomes of a byte that some servers take for the border of a segment, and others do not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Border {
    /// The request is refused.
    #[default]
    Reject,
    /// It is part of its segment, and escaped.
    Keep,
    /// It is a slash.
    Decode,
}

/// What becomes of such bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathPolicy {
    /// `%2F`.
    pub escaped_slash: Border,
    /// `\` and `%5C`.
    pub backslash: Border,
}

/// The normal form of a path: escapes of unreserved characters are decoded once and others written in upper case, dot
/// segments resolved, runs of slashes merged. What is routed is what is forwarded, so a path that an upstream could read
/// in another way is refused.
///
/// # Errors
/// If the path has no normal form.
pub fn normal<'a>(path: &'a str, policy: &PathPolicy) -> Result<Cow<'a, str>, PathError> {
    if is_normal(path) {
        return Ok(Cow::Borrowed(path));
    }
    let decoded = decode(path, policy)?;
    let mut normal = String::with_capacity(decoded.len());
    let mut segments = decoded.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let last = segments.peek().is_none();
        match segment {
            ".." => {
                let parent = normal.rfind('/').ok_or(PathError::AboveRoot)?;
                normal.truncate(parent);
                if last {
                    normal.push('/');
                }
            }
            "" | "." if last => normal.push('/'),
            "" | "." => {}
            segment => {
                normal.push('/');
                normal.push_str(segment);
            }
        }
    }
    if normal.is_empty() {
        normal.push('/');
    }
    Ok(Cow::Owned(normal))
}

/// Whether a path is its own normal form at first sight. Most are, and are not copied.
fn is_normal(path: &str) -> bool {
    let mut previous = 0;
    for &byte in path.as_bytes() {
        match byte {
            b'%' | b'\\' | 0 => return false,
            b'/' | b'.' if previous == b'/' => return false,
            _ => previous = byte,
        }
    }
    path.starts_with('/')
}

/// Decodes what is decoded, and writes the rest in one way.
fn decode(path: &str, policy: &PathPolicy) -> Result<String, PathError> {
    let mut out = String::with_capacity(path.len());
    let mut rest = path;
    while let Some(at) = rest.find(['%', '\\', '\0']) {
        out.push_str(&rest[..at]);
        if rest[at..].starts_with('\\') {
            border(&mut out, policy.backslash, "%5C")?;
            rest = &rest[at + 1..];
            continue;
        }
        let byte = escaped(&rest[at..]).ok_or(PathError::Ambiguous)?;
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte)),
            b'/' => border(&mut out, policy.escaped_slash, "%2F")?,
            b'\\' => border(&mut out, policy.backslash, "%5C")?,
            0 => return Err(PathError::Ambiguous),
            _ => {
                out.push('%');
                out.push_str(&rest[at + 1..at + 3].to_ascii_uppercase());
            }
        }
        rest = &rest[at + 3..];
    }
    out.push_str(rest);
    // Only now: what follows an escaped `%` may have been escaped itself.
    if out.match_indices("%25").any(|(at, escape)| hides(&out[at + escape.len()..])) {
        return Err(PathError::Ambiguous);
    }
    if out.starts_with('/') { Ok(out) } else { Err(PathError::Ambiguous) }
}

fn border(out: &mut String, what: Border, kept: &str) -> Result<(), PathError> {
    match what {
        Border::Reject => return Err(PathError::Ambiguous),
        Border::Keep => out.push_str(kept),
        Border::Decode => out.push('/'),
    }
    Ok(())
}

/// The byte that an escape at the beginning of a text stands for.
fn escaped(text: &str) -> Option<u8> {
    let digits = text.strip_prefix('%')?.get(..2)?;
    let fine = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    u8::from_str_radix(digits, 16).ok().filter(|_| fine)
}

/// Whether what follows an escaped `%` becomes a dot, a border, or a NUL for whoever decodes once more, or more often.
fn hides(mut text: &str) -> bool {
    while let Some(rest) = text.strip_prefix("25") {
        text = rest;
    }
    let Some(next) = text.as_bytes().first_chunk::<2>() else { return false };
    [b"2e", b"2f", b"5c", b"00"].iter().any(|digits| digits.eq_ignore_ascii_case(next))
}

#[cfg(test)]
mod tests {
    use percent_encoding::percent_decode_str;
    use proptest::prelude::*;

    use super::*;

    const STRICT: PathPolicy = PathPolicy { escaped_slash: Border::Reject, backslash: Border::Reject };

    #[test]
    fn paths() {
        let cases = [
            ("/", Ok("/")),
            ("/a/b", Ok("/a/b")),
            ("/a/b/", Ok("/a/b/")),
            ("//a///b//", Ok("/a/b/")),
            ("/a/./b/.", Ok("/a/b/")),
            ("/a/../b", Ok("/b")),
            ("/a/..", Ok("/")),
            ("/a/b/..", Ok("/a/")),
            ("/pub/%2e%2E/admin", Ok("/admin")),
            ("/%61%2Db", Ok("/a-b")),
            ("/a%c3%a9", Ok("/a%C3%A9")),
            ("/..a/.b", Ok("/..a/.b")),
            ("/pub/..;/admin", Ok("/pub/..;/admin")),
            ("/a%20b", Ok("/a%20b")),
            ("/a%0d%0aX:1", Ok("/a%0D%0AX:1")),
            ("/100%25", Ok("/100%25")),
            ("/100%2520off", Ok("/100%2520off")),
            ("/../../etc", Err(PathError::AboveRoot)),
            ("/pub/..%2fadmin", Err(PathError::Ambiguous)),
            ("/%252e%252e/admin", Err(PathError::Ambiguous)),
            ("/%25252E%25252e/admin", Err(PathError::Ambiguous)),
            ("/%25%32e/admin", Err(PathError::Ambiguous)),
            ("/a%2500b", Err(PathError::Ambiguous)),
            ("/a\\..\\b", Err(PathError::Ambiguous)),
            ("/a%5cb", Err(PathError::Ambiguous)),
            ("/a%00.html", Err(PathError::Ambiguous)),
            ("/a%", Err(PathError::Ambiguous)),
            ("/a%+1", Err(PathError::Ambiguous)),
            ("/a%zz", Err(PathError::Ambiguous)),
            ("a", Err(PathError::Ambiguous)),
            ("", Err(PathError::Ambiguous)),
        ];
        for (path, expected) in cases {
            assert_eq!(normal(path, &STRICT).as_deref(), expected.as_deref(), "{path}");
        }
    }

    #[test]
    fn borders() {
        let cases = [
            (Border::Keep, "/pub/..%2fadmin", Ok("/pub/..%2Fadmin")),
            (Border::Keep, "/a%2F../b", Ok("/a%2F../b")),
            (Border::Keep, "/a\\b%5cc", Ok("/a%5Cb%5Cc")),
            (Border::Decode, "/pub/..%2fadmin", Ok("/admin")),
            (Border::Decode, "/a\\b%5c..%2fc", Ok("/a/c")),
            (Border::Decode, "/..%2f", Err(PathError::AboveRoot)),
            (Border::Decode, "/%252f", Err(PathError::Ambiguous)),
        ];
        for (border, path, expected) in cases {
            let policy = PathPolicy { escaped_slash: border, backslash: border };
            assert_eq!(normal(path, &policy).as_deref(), expected.as_deref(), "{path}");
        }
    }

    fn any_border() -> impl Strategy<Value = Border> {
        prop_oneof![Just(Border::Reject), Just(Border::Keep), Just(Border::Decode)]
    }

    const PATHS: &str = "/([a-b.%/\\\\]|%2e|%2F|%5c|%25|%00|25|2e|\\.\\.|//|%c3|%32|%65){0,12}";

    proptest! {
        #[test]
        fn a_normal_form_is_its_own_normal_form(path in PATHS, slash in any_border(), backslash in any_border()) {
            let policy = PathPolicy { escaped_slash: slash, backslash };
            if let Ok(form) = normal(&path, &policy) {
                prop_assert!(form.starts_with('/'));
                prop_assert!(!form.contains("//"));
                prop_assert!(!form.split('/').any(|segment| segment == ".." || segment == "."));
                let again = normal(&form, &policy).map(Cow::into_owned);
                prop_assert_eq!(again, Ok(form.into_owned()));
            }
        }

        /// However often an upstream decodes a path that passed the strict policy, it finds the same segments.
        #[test]
        fn nobody_who_decodes_finds_another_place(path in PATHS) {
            if let Ok(form) = normal(&path, &STRICT) {
                let count = form.split('/').count();
                let mut seen = form.into_owned();
                for _ in 0..4 {
                    seen = percent_decode_str(&seen).decode_utf8_lossy().into_owned();
                    prop_assert_eq!(seen.split(['/', '\\']).count(), count, "{}", seen);
                    prop_assert!(!seen.split('/').any(|segment| segment == ".." || segment == "."), "{}", seen);
                    prop_assert!(!seen.contains('\0'), "{}", seen);
                }
            }
        }
    }
}
