//! W3C Baggage (<https://www.w3.org/TR/baggage/>): members that are sound are passed on, and no more than a limit.

use http::{HeaderMap, HeaderName, HeaderValue};

/// What a request brings along for later hops.
pub static BAGGAGE: HeaderName = HeaderName::from_static("baggage");
/// Most members that are passed on (section 3.3.2).
pub const MAX_MEMBERS: usize = 64;
/// Most bytes that are passed on (section 3.3.2).
const MAX_BYTES: usize = 8_192;

/// Takes out what is malformed or too much. What is sound stays as it was written.
#[cold]
pub fn clean(headers: &mut HeaderMap) {
    if !headers.contains_key(&BAGGAGE) {
        return;
    }
    let lines = headers.get_all(&BAGGAGE);
    if fits(lines.iter().flat_map(members)) {
        return;
    }
    let mut kept: Vec<u8> = Vec::new();
    for member in lines.iter().flat_map(members).filter(|member| is_member(member)).take(MAX_MEMBERS) {
        if kept.len() + member.len() + 1 > MAX_BYTES {
            break;
        }
        if !kept.is_empty() {
            kept.push(b',');
        }
        kept.extend_from_slice(member);
    }
    headers.remove(&BAGGAGE);
    // Made of parts of header values, so it is one.
    if let Some(value) = (!kept.is_empty()).then(|| HeaderValue::from_bytes(&kept).ok()).flatten() {
        headers.insert(&BAGGAGE, value);
    }
}

fn members(line: &HeaderValue) -> impl Iterator<Item = &[u8]> {
    line.as_bytes().split(|&byte| byte == b',').map(|member| member.trim_ascii())
}

fn fits<'a>(members: impl Iterator<Item = &'a [u8]>) -> bool {
    let (mut count, mut bytes) = (0, 0);
    members.into_iter().all(|member| {
        (count, bytes) = (count + 1, bytes + member.len() + 1);
        is_member(member) && count <= MAX_MEMBERS && bytes <= MAX_BYTES + 1
    })
}

/// `key=value`, with properties after `;` that are not looked at. The key is a token, the value is what may be in a cookie.
fn is_member(member: &[u8]) -> bool {
    let pair = member.split(|&byte| byte == b';').next().unwrap_or_default();
    let Some(at) = pair.iter().position(|&byte| byte == b'=') else { return false };
    let (key, value) = (pair[..at].trim_ascii(), pair[at + 1..].trim_ascii());
    let token = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    let octet = |byte: &u8| matches!(byte, 0x21 | 0x23..=0x2b | 0x2d..=0x3a | 0x3c..=0x5b | 0x5d..=0x7e);
    !key.is_empty()
        && key.iter().all(token)
        && value.iter().all(octet)
        && member.iter().all(|byte| (0x20..0x7f).contains(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cleaned(lines: &[&str]) -> Vec<String> {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(&BAGGAGE, HeaderValue::from_bytes(line.as_bytes()).unwrap());
        }
        clean(&mut headers);
        headers.get_all(&BAGGAGE).iter().map(|line| String::from_utf8_lossy(line.as_bytes()).into_owned()).collect()
    }

    #[test]
    fn what_is_sound_stays_as_it_was() {
        for lines in [&["a=1,b=2"][..], &["a = 1 ; p=q , b=%20"], &["a=1", "b=2"], &["a="]] {
            assert_eq!(cleaned(lines), lines);
        }
        assert!(cleaned(&[]).is_empty());
    }

    #[test]
    fn what_is_malformed_goes() {
        for (line, left) in [
            ("a=1,nothing,b=2", &["a=1,b=2"][..]),
            ("a=1,,b=2", &["a=1,b=2"]),
            ("=1", &[]),
            ("a b=1", &[]),
            ("a=\u{e4}", &[]),
            ("a=1\\,b=2", &["b=2"]),
            ("", &[]),
        ] {
            assert_eq!(cleaned(&[line]), left, "{line}");
        }
    }

    #[test]
    fn there_is_a_limit() {
        let many: Vec<String> = (0..70).map(|at| format!("k{at}=v")).collect();
        assert_eq!(cleaned(&[&many.join(",")]), [many[..64].join(",")]);
        let long = format!("a={},b={},c=1", "x".repeat(5_000), "y".repeat(5_000));
        assert_eq!(cleaned(&[&long]), [format!("a={}", "x".repeat(5_000))]);
    }
}
