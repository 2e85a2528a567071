//! gRPC's deadline: the header `grpc-timeout`, as PROTOCOL-HTTP2.md of gRPC has it.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};

static GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// The most digits that the protocol allows.
const DIGITS: usize = 8;

/// The time that a client gives a call; `None` if it gives none, or none that can be read.
#[must_use]
pub fn of(headers: &HeaderMap) -> Option<Duration> {
    let (&unit, digits) = headers.get(&GRPC_TIMEOUT)?.as_bytes().split_last()?;
    if digits.is_empty() || digits.len() > DIGITS || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    Some(match unit {
        b'H' => Duration::from_secs(number * 3_600),
        b'M' => Duration::from_secs(number * 60),
        b'S' => Duration::from_secs(number),
        b'm' => Duration::from_millis(number),
        b'u' => Duration::from_micros(number),
        b'n' => Duration::from_nanos(number),
        _ => return None,
    })
}

/// Tells the upstream what is left of the time.
pub fn set(headers: &mut HeaderMap, left: Duration) {
    if let Ok(value) = HeaderValue::from_str(&text(left)) {
        headers.insert(&GRPC_TIMEOUT, value);
    }
}

/// In the finest unit from milliseconds on that eight digits have room for; 1 ms at least.
fn text(left: Duration) -> String {
    const MOST: u128 = 10u128.pow(DIGITS as u32);
    let millis = left.as_millis().max(1);
    match (millis, left.as_secs()) {
        (millis, _) if millis < MOST => format!("{millis}m"),
        (_, secs) if u128::from(secs) < MOST => format!("{secs}S"),
        (_, secs) => format!("{}H", (secs / 3_600).min(MOST as u64 - 1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_read_as_the_protocol_has_them() {
        let cases = [
            ("1H", Some(Duration::from_secs(3_600))),
            ("2M", Some(Duration::from_secs(120))),
            ("3S", Some(Duration::from_secs(3))),
            ("250m", Some(Duration::from_millis(250))),
            ("7u", Some(Duration::from_micros(7))),
            ("99999999n", Some(Duration::from_nanos(99_999_999))),
            ("99999999H", Some(Duration::from_secs(99_999_999 * 3_600))),
            ("0m", Some(Duration::ZERO)),
            ("100000000m", None),
            ("", None),
            ("S", None),
            ("5", None),
            ("5s", None),
            ("-5S", None),
            ("1.5S", None),
            (" 5S", None),
        ];
        for (text, expected) in cases {
            let headers = HeaderMap::from_iter([(GRPC_TIMEOUT.clone(), HeaderValue::from_static(text))]);
            assert_eq!(of(&headers), expected, "{text:?}");
        }
        assert_eq!(of(&HeaderMap::new()), None);
    }

    #[test]
    fn what_is_left_is_written_as_it_is_read() {
        for (left, expected) in [
            (Duration::ZERO, "1m"),
            (Duration::from_micros(1_900), "1m"),
            (Duration::from_secs(30), "30000m"),
            (Duration::from_secs(100_000), "100000S"),
            (Duration::from_secs(u64::MAX), "99999999H"),
        ] {
            assert_eq!(text(left), expected);
        }
    }
}
