//! The few bytes of `grpc.health.v1` (<https://github.com/grpc/grpc/blob/master/doc/health-checking.md>): one text
//! field there, one enumeration back.

use bytes::{BufMut, Bytes, BytesMut};

/// Path of the method.
pub(super) const CHECK: &str = "/grpc.health.v1.Health/Check";
/// Answers are a few bytes; more than this is none.
pub(super) const LONGEST: usize = 1 << 10;

/// `HealthCheckResponse.ServingStatus`.
const SERVING: u64 = 1;

/// A `HealthCheckRequest` for a service, with the prefix that gRPC puts before messages.
pub(super) fn request(service: &str) -> Bytes {
    let mut message = BytesMut::with_capacity(service.len() + 12);
    if !service.is_empty() {
        // Field 1, length-delimited.
        message.put_u8(0x0a);
        let mut length = service.len();
        while length >= 0x80 {
            message.put_u8((length & 0x7f) as u8 | 0x80);
            length >>= 7;
        }
        message.put_u8(length as u8);
        message.put_slice(service.as_bytes());
    }
    let mut framed = BytesMut::with_capacity(message.len() + 5);
    framed.put_u8(0);
    framed.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    framed.put(message);
    framed.freeze()
}

/// What a `HealthCheckResponse` with its prefix says: whether the service is SERVING. `None` for what is none.
pub(super) fn is_serving(framed: &[u8]) -> Option<bool> {
    let (prefix, mut message) = framed.split_at_checked(5)?;
    let length = u32::from_be_bytes(prefix[1..].try_into().ok()?) as usize;
    if prefix[0] != 0 || message.len() != length {
        return None;
    }
    let mut status = 0;
    while !message.is_empty() {
        let tag = varint(&mut message)?;
        match (tag >> 3, tag & 7) {
            (1, 0) => status = varint(&mut message)?,
            (_, 0) => drop(varint(&mut message)?),
            (_, 1) => message = message.get(8..)?,
            (_, 2) => {
                let length = usize::try_from(varint(&mut message)?).ok()?;
                message = message.get(length..)?;
            }
            (_, 5) => message = message.get(4..)?,
            _ => return None,
        }
    }
    Some(status == SERVING)
}

fn varint(message: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = message.split_first()?;
        *message = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_name_the_service() {
        assert_eq!(request(""), &[0, 0, 0, 0, 0][..]);
        assert_eq!(request("a.B"), &[0, 0, 0, 0, 5, 0x0a, 3, b'a', b'.', b'B'][..]);
        let long = request(&"x".repeat(300));
        assert_eq!(long[..8], [0, 0, 0, 1, 47, 0x0a, 0xac, 0x02]);
        assert_eq!(long.len(), 5 + 303);
    }

    #[test]
    fn answers_are_understood() {
        let framed = |message: &[u8]| [&[0, 0, 0, 0, message.len() as u8], message].concat();
        let cases: [(&[u8], Option<bool>); 9] = [
            (&[0x08, 1], Some(true)),
            (&[0x08, 2], Some(false)),
            (&[], Some(false)),
            // Fields that may be added one day: a text, two fixed ones.
            (&[0x12, 2, 8, 2, 0x08, 1, 0x19, 0, 0, 0, 0, 0, 0, 0, 0, 0x25, 0, 0, 0, 0], Some(true)),
            (&[0x08, 0x81, 0x00], Some(true)),
            (&[0x08], None),
            (&[0x12, 9, 1], None),
            (&[0x0b], None),
            (&[0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1], None),
        ];
        for (message, expected) in cases {
            assert_eq!(is_serving(&framed(message)), expected, "{message:?}");
        }
        for framed in [&[][..], &[0, 0, 0, 0], &[1, 0, 0, 0, 2, 8, 1], &[0, 0, 0, 0, 3, 8, 1]] {
            assert_eq!(is_serving(framed), None, "{framed:?}");
        }
    }
}
