//! Measures the head of an HTTP/1 request while it is read: it is never parsed here, only its lines are counted.

use super::limits::{Limit, Limits};

/// Fields that pingora's parser has room for; it answers more with 400.
const PARSED_FIELDS: u16 = 255;
/// Bytes of a request line beside its target.
const LINE: usize = 64;

/// How much of a head there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Head {
    bytes: usize,
    /// Bytes of the line that is being read.
    line: usize,
    /// Lines that ended.
    lines: u16,
    /// Whether that line is at most a carriage return.
    blank: bool,
}

/// What a piece of input does to a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Read {
    /// There is more to come.
    Partly,
    /// It is complete.
    Whole,
    /// It is too large.
    Over(Limit),
}

impl Head {
    /// Whether anything of it came.
    pub(super) fn began(&self) -> bool {
        self.bytes > 0
    }

    /// Takes the next piece into account. What follows the head is of no account.
    pub(super) fn read(&mut self, mut piece: &[u8], limits: &Limits) -> Read {
        while let Some(end) = memchr::memchr(b'\n', piece) {
            let (line, rest) = piece.split_at(end + 1);
            self.bytes += line.len();
            let length = self.line + end;
            self.blank = length == 0 || length == 1 && (if end == 0 { self.blank } else { line[0] == b'\r' });
            if let Some(limit) = self.over(length, limits) {
                return Read::Over(limit);
            }
            // Blank lines before the request line are of no account (RFC 9112 section 2.2).
            if self.blank && self.lines > 0 {
                return Read::Whole;
            }
            self.lines += u16::from(!self.blank);
            (self.line, self.blank) = (0, false);
            piece = rest;
        }
        if let Some(&first) = piece.first().filter(|_| self.line == 0) {
            self.blank = first == b'\r';
        }
        self.bytes += piece.len();
        self.line += piece.len();
        self.over(self.line, limits).map_or(Read::Partly, Read::Over)
    }

    /// The limit that is broken, if the line is so long as yet.
    fn over(&self, line: usize, limits: &Limits) -> Option<Limit> {
        if self.lines == 0 && line > limits.target_bytes + LINE {
            return Some(Limit::TargetBytes);
        }
        if self.bytes > limits.header_bytes {
            return Some(if self.lines == 0 { Limit::TargetBytes } else { Limit::HeaderBytes });
        }
        // The request line is one of them.
        (self.lines > PARSED_FIELDS && line > 0 && !self.blank).then_some(Limit::HeaderCount)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::conf;

    fn limits() -> Limits {
        let conf = serde_json::from_str::<conf::Limits>(r#"{"header_bytes": "1KiB", "target_bytes": "100B"}"#);
        Limits::of(&conf.unwrap(), &conf::Limits::default())
    }

    fn whole(text: &str) -> Read {
        Head::default().read(text.as_bytes(), &limits())
    }

    #[test]
    fn a_head_ends_with_a_blank_line() {
        let long = "a".repeat(200);
        let many = "a: b\r\n".repeat(300);
        let cases = [
            ("", Read::Partly),
            ("GET / HTTP/1.1\r\n", Read::Partly),
            ("GET / HTTP/1.1\r\n\r", Read::Partly),
            ("GET / HTTP/1.1\r\n\r\n", Read::Whole),
            ("GET / HTTP/1.1\n\n", Read::Whole),
            ("\r\n\r\nGET / HTTP/1.1\r\na: b\r\n", Read::Partly),
            ("\r\n\r\nGET / HTTP/1.1\r\na: b\r\n\r\nrest", Read::Whole),
            (&format!("GET /{long}"), Read::Over(Limit::TargetBytes)),
            (&format!("GET /{long} HTTP/1.1\r\n\r\n"), Read::Over(Limit::TargetBytes)),
            (&format!("GET / HTTP/1.1\r\na: {}", long.repeat(6)), Read::Over(Limit::HeaderBytes)),
            (&"\r\n".repeat(600), Read::Over(Limit::TargetBytes)),
            (&format!("GET / HTTP/1.1\r\n\r\n{}", long.repeat(6)), Read::Whole),
        ];
        for (text, expected) in cases {
            assert_eq!(whole(text), expected, "{text}");
        }
        let mut wide = limits();
        wide.header_bytes = 1 << 20;
        assert_eq!(
            Head::default().read(format!("GET / HTTP/1.1\r\n{many}\r\n").as_bytes(), &wide),
            Read::Over(Limit::HeaderCount)
        );
        let most = "a: b\r\n".repeat(255);
        assert_eq!(Head::default().read(format!("GET / HTTP/1.1\r\n{most}\r\n").as_bytes(), &wide), Read::Whole);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn pieces_say_what_the_whole_says(text in "(\r\n)?[A-Z /.a-z1\r\n:]{0,400}(\r\n)?(\r\n)?", cut in 0..400_usize) {
            let limits = limits();
            let at = cut.min(text.len());
            let mut head = Head::default();
            let first = head.read(&text.as_bytes()[..at], &limits);
            let second = if first == Read::Partly { head.read(&text.as_bytes()[at..], &limits) } else { first };
            prop_assert_eq!(second, whole(&text));
        }
    }
}
