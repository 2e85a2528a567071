//! Header values, and short texts on the stack. Numbers are written without the formatting machinery, which takes ten
//! times as long.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

use arrayvec::ArrayString;
use http::header::{HeaderValue, InvalidHeaderValue};

/// A text that has room for what is written here: an address with its zone and port takes 58 bytes.
pub type Text = ArrayString<64>;

/// A header value. Every request makes several, so their way is the same and short, rather than unrolled at each place.
///
/// # Errors
/// If something in it may not be in a header value.
#[inline(never)]
pub fn header_value(text: &[u8]) -> Result<HeaderValue, InvalidHeaderValue> {
    HeaderValue::from_bytes(text)
}

/// An address.
#[must_use]
pub fn ip(address: IpAddr) -> Text {
    match address {
        IpAddr::V4(v4) => numbers(v4.octets(), "."),
        IpAddr::V6(v6) => shown(format_args!("{v6}")),
    }
}

/// An address and its port.
#[must_use]
pub fn socket(address: SocketAddr) -> Text {
    let SocketAddr::V4(v4) = address else { return shown(format_args!("{address}")) };
    let mut text = numbers(v4.ip().octets(), ".");
    text.push(':');
    text.push_str(itoa::Buffer::new().format(v4.port()));
    text
}

/// Four octets, or two large numbers, with something of one byte between them.
#[must_use]
pub fn numbers<const N: usize>(numbers: [impl itoa::Integer; N], between: &str) -> Text {
    let mut text = Text::new();
    for (at, number) in numbers.into_iter().enumerate() {
        text.push_str(if at > 0 { between } else { "" });
        text.push_str(itoa::Buffer::new().format(number));
    }
    text
}

fn shown(what: std::fmt::Arguments<'_>) -> Text {
    let mut text = Text::new();
    // There is room.
    let _ = text.write_fmt(what);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_written_as_they_are_shown() {
        let v6 = "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff%4294967295]:65535";
        for text in ["1.20.255.0:80", "255.255.255.255:65535", "[::1]:1", v6] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!((&*socket(address), ip(address.ip()).to_string()), (text, address.ip().to_string()));
        }
    }

    #[test]
    fn the_largest_numbers_have_room() {
        assert_eq!(&*numbers([u64::MAX, u64::MAX], "."), "18446744073709551615.18446744073709551615");
    }
}
