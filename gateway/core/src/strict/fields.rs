//! Header fields: their form, and those that say where a message ends and whom it is for.

use super::host::check_host;
use super::line::{Line, check_method};
use super::{OddNames, Policy, Refusal};

const TOKEN: u8 = 1;
const ODD: u8 = 2;
const CLASSES: [u8; 256] = classes();

/// What each byte may be part of: names (RFC 9110 section 5.6.2), and those of them that are odd.
const fn classes() -> [u8; 256] {
    let mut classes = [0; 256];
    let mut byte = 0;
    while byte < 128 {
        let letter = (byte as u8).is_ascii_alphanumeric();
        if letter || matches!(byte as u8, b'!' | b'#'..=b'\'' | b'*' | b'+' | b'-' | b'^' | b'`' | b'|' | b'~') {
            classes[byte] = TOKEN;
        }
        byte += 1;
    }
    classes[b'_' as usize] = TOKEN | ODD;
    classes[b'.' as usize] = TOKEN | ODD;
    classes
}

pub(super) fn is_token_byte(byte: u8) -> bool {
    CLASSES[usize::from(byte)] != 0
}

pub(super) fn is_token(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(|&byte| is_token_byte(byte))
}

/// Whether a field name has `_` or `.`.
#[must_use]
pub fn is_odd_name(name: &[u8]) -> bool {
    name.iter().any(|&byte| CLASSES[usize::from(byte)] & ODD != 0)
}

/// How a body is delimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// There is none.
    None,
    /// It has so many bytes.
    Length(u64),
    /// It comes in chunks.
    Chunked,
}

/// What the fields of a head say, taken in one by one.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a> {
    policy: &'a Policy,
    count: usize,
    host: Option<&'a [u8]>,
    length: Option<u64>,
    chunked: bool,
    expects: Option<bool>,
}

impl<'a> Fields<'a> {
    /// No field yet.
    #[must_use]
    pub fn new(policy: &'a Policy) -> Self {
        Self { policy, count: 0, host: None, length: None, chunked: false, expects: None }
    }

    /// Takes in a line of HTTP/1, without its CRLF, that has no control bytes.
    ///
    /// # Errors
    /// If it is no field, or one that the request is refused for.
    #[inline]
    pub fn add_line(&mut self, line: &'a [u8]) -> Result<(), Refusal> {
        let mut end = 0;
        let mut seen = 0;
        while let Some(&byte) = line.get(end) {
            let class = CLASSES[usize::from(byte)];
            if class == 0 {
                break;
            }
            seen |= class;
            end += 1;
        }
        match line.get(end) {
            Some(b':') if end > 0 => self.take(&line[..end], &line[end + 1..], seen & ODD != 0),
            Some(b' ' | b'\t') if end == 0 => Err(Refusal::Folded),
            _ => Err(Refusal::Field),
        }
    }

    /// Takes in a field of HTTP/2, whose form was checked.
    ///
    /// # Errors
    /// If it is one that the request is refused for.
    pub fn add(&mut self, name: &'a [u8], value: &'a [u8]) -> Result<(), Refusal> {
        self.take(name, value, is_odd_name(name))
    }

    #[inline]
    fn take(&mut self, name: &[u8], value: &'a [u8], odd: bool) -> Result<(), Refusal> {
        self.count += 1;
        if self.count > self.policy.limits.fields {
            return Err(Refusal::TooManyFields);
        }
        if odd {
            return if self.policy.odd_names == OddNames::Reject { Err(Refusal::OddName) } else { Ok(()) };
        }
        // Few names are as long as one that matters here.
        match name.len() {
            4 if name.eq_ignore_ascii_case(b"host") => self.take_host(value.trim_ascii()),
            6 if name.eq_ignore_ascii_case(b"expect") => {
                let known = value.trim_ascii().eq_ignore_ascii_case(b"100-continue");
                self.expects = Some(known && self.expects.unwrap_or(true));
                Ok(())
            }
            14 if name.eq_ignore_ascii_case(b"content-length") => self.take_length(value.trim_ascii()),
            17 if name.eq_ignore_ascii_case(b"transfer-encoding") => self.take_coding(value.trim_ascii()),
            _ => Ok(()),
        }
    }

    fn take_host(&mut self, host: &'a [u8]) -> Result<(), Refusal> {
        if self.host.replace(host).is_some() {
            return Err(Refusal::TwoHosts);
        }
        check_host(host)
    }

    fn take_length(&mut self, text: &[u8]) -> Result<(), Refusal> {
        // Eighteen digits are an exabyte, and no implementation overflows on them.
        let canonical = matches!(text, [b'0'] | [b'1'..=b'9', ..]) && text.len() <= 18;
        if self.length.is_some() || !canonical || !text.iter().all(u8::is_ascii_digit) {
            return Err(Refusal::Length);
        }
        self.length = Some(text.iter().fold(0, |length, digit| length * 10 + u64::from(digit - b'0')));
        Ok(())
    }

    fn take_coding(&mut self, text: &[u8]) -> Result<(), Refusal> {
        if self.chunked {
            return Err(Refusal::Coding);
        }
        if !text.eq_ignore_ascii_case(b"chunked") {
            return Err(odd_coding(text));
        }
        self.chunked = true;
        Ok(())
    }

    /// What the fields say together with the request line.
    ///
    /// # Errors
    /// If they contradict each other or miss something.
    pub fn finish(&self, line: &Line<'_>) -> Result<Framing, Refusal> {
        match (self.host, line.authority) {
            // RFC 9112 section 3.2.2 has the authority win. Whoever sends two means to be read in two ways.
            (Some(host), Some(authority)) if host != authority => return Err(Refusal::TwoHosts),
            (None, None) if !line.http10 => return Err(Refusal::Host),
            _ => {}
        }
        if self.chunked && (line.http10 || self.length.is_some()) {
            return Err(if line.http10 { Refusal::Coding } else { Refusal::LengthAndCoding });
        }
        if self.expects == Some(false) && !line.http10 {
            return Err(Refusal::Expectation);
        }
        Ok(match (self.chunked, self.length) {
            (true, _) => Framing::Chunked,
            (_, Some(length)) => Framing::Length(length),
            _ => Framing::None,
        })
    }

    /// The same for HTTP/2, whose authority has a place of its own.
    ///
    /// # Errors
    /// If something is wrong with them.
    pub fn finish_h2(&self, method: &[u8], authority: Option<&[u8]>) -> Result<(), Refusal> {
        check_method(method)?;
        match (authority, self.host) {
            (Some(authority), Some(host)) if authority != host => return Err(Refusal::TwoHosts),
            (Some(authority), None) => check_host(authority)?,
            (None, None) => return Err(Refusal::Host),
            // The host was checked.
            _ => {}
        }
        if self.chunked {
            Err(Refusal::Coding)
        } else if self.expects == Some(false) {
            Err(Refusal::Expectation)
        } else {
            Ok(())
        }
    }
}

/// What is wrong with codings other than `chunked` alone: a sound list that ends with it is not implemented, everything
/// else leaves the end of the body open.
fn odd_coding(text: &[u8]) -> Refusal {
    let mut codings = text.split(|&byte| byte == b',').map(<[u8]>::trim_ascii).rev();
    let last = codings.next().is_some_and(|coding| coding.eq_ignore_ascii_case(b"chunked"));
    let others = codings.all(|coding| is_token(coding) && !coding.eq_ignore_ascii_case(b"chunked"));
    if last && others { Refusal::UnknownCoding } else { Refusal::Coding }
}
