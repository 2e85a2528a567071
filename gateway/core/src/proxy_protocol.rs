//! The PROXY protocol, versions 1 and 2: what a load balancer writes before a client's bytes to say who the client is
//! (HAProxy's `proxy-protocol.txt`). Pure: bytes in, a header out.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

/// What version 2 begins with.
const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
/// What version 1 begins with.
const WORD: &[u8; 6] = b"PROXY ";
/// Longest line of version 1, CRLF included.
const MAX_LINE: usize = 107;
/// Longest header of version 2 after its first 16 bytes. The protocol has 64 KiB; no sender has this much to say.
const MAX_V2: usize = 2 << 10;
/// Most bytes that have to be read before [`parse`] says something final.
pub const MAX: usize = 16 + MAX_V2;

/// What is no header of the PROXY protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no sound header of the PROXY protocol")]
pub struct Malformed;

/// A header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The client; `None` if the sender speaks for itself (a health check), or does not know.
    pub source: Option<SocketAddr>,
    /// How many bytes the header has.
    pub length: usize,
}

/// Reads the header that `bytes` begin with; `None` if there is more of it to come.
///
/// # Errors
/// If they do not begin with one.
pub fn parse(bytes: &[u8]) -> Result<Option<Header>, Malformed> {
    if begins(bytes, SIGNATURE) {
        return v2(bytes);
    }
    if begins(bytes, WORD) { v1(bytes) } else { Err(Malformed) }
}

/// Whether one is the beginning of the other.
fn begins(bytes: &[u8], text: &[u8]) -> bool {
    bytes.iter().zip(text).all(|(byte, expected)| byte == expected)
}

fn v1(bytes: &[u8]) -> Result<Option<Header>, Malformed> {
    let seen = &bytes[..bytes.len().min(MAX_LINE)];
    let Some(end) = seen.windows(2).position(|pair| pair == b"\r\n") else {
        return if seen.len() == MAX_LINE { Err(Malformed) } else { Ok(None) };
    };
    let line = std::str::from_utf8(&seen[WORD.len()..end]).map_err(|_| Malformed)?;
    let words: Vec<&str> = line.split(' ').collect();
    let source = match *words.as_slice() {
        ["UNKNOWN", ..] => None,
        ["TCP4", source, destination, from, to] => Some(pair::<Ipv4Addr>(source, destination, from, to)?),
        ["TCP6", source, destination, from, to] => Some(pair::<Ipv6Addr>(source, destination, from, to)?),
        _ => return Err(Malformed),
    };
    Ok(Some(Header { source, length: end + 2 }))
}

/// The source of two addresses of one family.
fn pair<A: FromStr + Into<IpAddr>>(
    source: &str,
    destination: &str,
    from: &str,
    to: &str,
) -> Result<SocketAddr, Malformed> {
    let address = |text: &str| text.parse::<A>().map_err(|_| Malformed);
    let (source, _) = (address(source)?, address(destination)?);
    let (from, _) = (port(from)?, port(to)?);
    Ok(SocketAddr::new(source.into(), from))
}

/// A port without a sign or leading zeros.
fn port(text: &str) -> Result<u16, Malformed> {
    let canonical = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    if canonical { text.parse().map_err(|_| Malformed) } else { Err(Malformed) }
}

fn v2(bytes: &[u8]) -> Result<Option<Header>, Malformed> {
    let Some((first, rest)) = bytes.split_first_chunk::<16>() else { return Ok(None) };
    let [version, family, high, low] = [first[12], first[13], first[14], first[15]];
    let length = usize::from(u16::from_be_bytes([high, low]));
    if length > MAX_V2 {
        return Err(Malformed);
    }
    let Some(addresses) = rest.get(..length) else { return Ok(None) };
    let source = match (version, family) {
        // LOCAL: the sender's own connection, whatever it says of addresses.
        (0x20, _) => None,
        (0x21, 0x11) => {
            let (chunk, _) = addresses.split_first_chunk::<12>().ok_or(Malformed)?;
            let [a, b, c, d, .., high, low, _, _] = *chunk;
            Some(SocketAddr::new(Ipv4Addr::new(a, b, c, d).into(), u16::from_be_bytes([high, low])))
        }
        (0x21, 0x21) => {
            let (chunk, _) = addresses.split_first_chunk::<36>().ok_or(Malformed)?;
            let (source, ports) = chunk.split_first_chunk::<16>().ok_or(Malformed)?;
            let port = u16::from_be_bytes([ports[16], ports[17]]);
            Some(SocketAddr::new(Ipv6Addr::from(*source).into(), port))
        }
        // Unspecified, datagrams and Unix sockets: nothing that a client of ours has.
        (0x21, _) => None,
        _ => return Err(Malformed),
    };
    Ok(Some(Header { source, length: 16 + length }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A header of version 2.
    fn header(version: u8, family: u8, addresses: &[u8]) -> Vec<u8> {
        let length = u16::try_from(addresses.len()).unwrap().to_be_bytes();
        [&SIGNATURE[..], &[version, family], &length, addresses].concat()
    }

    #[test]
    fn version_1() {
        let at = |text: &str| Some(text.parse().unwrap());
        let cases = [
            ("PROXY TCP4 203.0.113.9 10.0.0.1 56324 443\r\nGET", Ok((at("203.0.113.9:56324"), 43))),
            ("PROXY TCP6 2001:db8::1 ::1 1 65535\r\n", Ok((at("[2001:db8::1]:1"), 36))),
            ("PROXY UNKNOWN\r\n", Ok((None, 15))),
            ("PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n", Ok((None, 35))),
            ("PROXY TCP4 203.0.113.9 10.0.0.1 56324\r\n", Err(Malformed)),
            ("PROXY TCP4 2001:db8::1 ::1 1 2\r\n", Err(Malformed)),
            ("PROXY TCP4 203.0.113.9 10.0.0.1 065 443\r\n", Err(Malformed)),
            ("PROXY TCP4 203.0.113.9 10.0.0.1 +65 443\r\n", Err(Malformed)),
            ("PROXY TCP4 203.0.113.9 10.0.0.1 65536 443\r\n", Err(Malformed)),
            ("PROXY  TCP4 203.0.113.9 10.0.0.1 1 2\r\n", Err(Malformed)),
            ("PROXY TCP4 203.0.113.9 10.0.0.1 1 2\nGET / HTTP/1.1\r\n", Err(Malformed)),
            ("proxy UNKNOWN\r\n", Err(Malformed)),
            ("GET / HTTP/1.1\r\n", Err(Malformed)),
            (&format!("PROXY UNKNOWN {}\r\n", "x".repeat(100)), Err(Malformed)),
        ];
        for (text, expected) in cases {
            let found = parse(text.as_bytes()).map(|header| header.map(|h| (h.source, h.length)));
            assert_eq!(found, expected.map(Some), "{text}");
        }
        assert_eq!(parse(b"PRO"), Ok(None));
    }

    #[test]
    fn version_2() {
        let v4 = [203, 0, 113, 9, 10, 0, 0, 1, 0xdc, 0x04, 1, 187];
        let mut v6 = [0; 36];
        v6[15] = 1;
        v6[33] = 80;
        let with_tlv = [&v4[..], &[4, 0, 1, 0]].concat();
        let at = |text: &str| Some(text.parse().unwrap());
        let cases = [
            (header(0x21, 0x11, &v4), Ok(at("203.0.113.9:56324"))),
            (header(0x21, 0x11, &with_tlv), Ok(at("203.0.113.9:56324"))),
            (header(0x21, 0x21, &v6), Ok(at("[::1]:80"))),
            (header(0x20, 0x00, &[]), Ok(None)),
            (header(0x21, 0x00, &[]), Ok(None)),
            (header(0x21, 0x11, &v4[..8]), Err(Malformed)),
            (header(0x11, 0x11, &v4), Err(Malformed)),
            (header(0x22, 0x11, &v4), Err(Malformed)),
            (header(0x21, 0x11, &[0; MAX_V2 + 1]), Err(Malformed)),
        ];
        for (bytes, expected) in cases {
            let found = parse(&bytes).map(|header| header.map(|h| (h.source, h.length)));
            assert_eq!(found, expected.map(|source| Some((source, bytes.len()))), "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80), signed in any::<bool>()) {
            let bytes = if signed { [&SIGNATURE[..], &bytes].concat() } else { bytes };
            let _ = parse(&bytes);
        }

        #[test]
        fn what_is_there_in_part_is_waited_for(cut in 0_usize..28, port in any::<u16>()) {
            let line = format!("PROXY TCP4 1.2.3.4 5.6.7.8 {port} 443\r\n");
            prop_assert_eq!(parse(&line.as_bytes()[..cut]), Ok(None));
            let header = header(0x21, 0x11, &[1, 2, 3, 4, 5, 6, 7, 8, 0, 1, 0, 2]);
            prop_assert_eq!(parse(&header[..cut]), Ok(None));
        }

        #[test]
        fn an_answer_comes_within_the_bound(tail in proptest::collection::vec(any::<u8>(), MAX..MAX + 8), v2 in any::<bool>()) {
            let bytes = if v2 { [&SIGNATURE[..], &tail].concat() } else { [&WORD[..], &tail].concat() };
            prop_assert!(!matches!(parse(&bytes), Ok(None)));
        }
    }
}
