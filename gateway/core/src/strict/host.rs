//! Hosts (RFC 9110 section 7.2), as strictly as routes need them.

use std::net::Ipv6Addr;

use super::Refusal;

/// That a text names a host that a route can be for: letters, digits, `-`, `.`, `_` and `~`, or an IPv6 address in
/// brackets without a zone, and perhaps a port. Names in other scripts come as A-labels (RFC 5890).
///
/// # Errors
/// If it does not.
pub fn check_host(authority: &[u8]) -> Result<(), Refusal> {
    let (host, port) = match authority {
        [b'[', rest @ ..] => {
            let end = rest.iter().position(|&byte| byte == b']').ok_or(Refusal::Host)?;
            let address = std::str::from_utf8(&rest[..end]).map_err(|_| Refusal::Host)?;
            address.parse::<Ipv6Addr>().map_err(|_| Refusal::Host)?;
            (&b"ipv6"[..], &rest[end + 1..])
        }
        _ => authority.split_at(authority.iter().position(|&byte| byte == b':').unwrap_or(authority.len())),
    };
    let fine = !host.is_empty() && host.iter().all(|&byte| is_name_byte(byte)) && is_port(port);
    if fine { Ok(()) } else { Err(Refusal::Host) }
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

/// Whether this is nothing, or a colon and a port.
fn is_port(text: &[u8]) -> bool {
    match text {
        [] => true,
        [b':', digits @ ..] if (1..=5).contains(&digits.len()) && digits.iter().all(u8::is_ascii_digit) => {
            digits.iter().fold(0_u32, |port, digit| port * 10 + u32::from(digit - b'0')) <= u32::from(u16::MAX)
        }
        _ => false,
    }
}
