use proptest::prelude::*;

use super::*;

fn judge(head: &str) -> Result<Framing, Refusal> {
    check(head.as_bytes(), &Policy::default()).map(|head| head.framing)
}

/// A request with these lines besides its host.
fn post(lines: &str) -> Result<Framing, Refusal> {
    judge(&format!("POST / HTTP/1.1\r\nHost: gw.test\r\n{lines}\r\n"))
}

fn get(target: &str) -> Result<Framing, Refusal> {
    judge(&format!("GET {target} HTTP/1.1\r\nHost: gw.test\r\n\r\n"))
}

#[test]
fn framing() {
    let cases = [
        ("", Ok(Framing::None)),
        ("Content-Length: 0\r\n", Ok(Framing::Length(0))),
        ("content-length:\t5 \r\n", Ok(Framing::Length(5))),
        ("Transfer-Encoding: Chunked\r\n", Ok(Framing::Chunked)),
        ("Content-Length: 6\r\nTransfer-Encoding: chunked\r\n", Err(Refusal::LengthAndCoding)),
        ("Content-Length: 5\r\nContent-Length: 5\r\n", Err(Refusal::Length)),
        ("Content-Length: 5, 5\r\n", Err(Refusal::Length)),
        ("Content-Length: 005\r\n", Err(Refusal::Length)),
        ("Content-Length: +5\r\n", Err(Refusal::Length)),
        ("Content-Length: -0\r\n", Err(Refusal::Length)),
        ("Content-Length: 0x5\r\n", Err(Refusal::Length)),
        ("Content-Length: 1_0\r\n", Err(Refusal::Length)),
        ("Content-Length: 1 0\r\n", Err(Refusal::Length)),
        ("Content-Length: \r\n", Err(Refusal::Length)),
        ("Content-Length: 12345678901234567890\r\n", Err(Refusal::Length)),
        ("Transfer-Encoding: gzip, chunked\r\n", Err(Refusal::UnknownCoding)),
        ("Transfer-Encoding: identity\r\n", Err(Refusal::Coding)),
        ("Transfer-Encoding: chunked, chunked\r\n", Err(Refusal::Coding)),
        ("Transfer-Encoding: , chunked\r\n", Err(Refusal::Coding)),
        ("Transfer-Encoding: chunked,\r\n", Err(Refusal::Coding)),
        ("Transfer-Encoding: chunked;p=1\r\n", Err(Refusal::Coding)),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", Err(Refusal::Coding)),
        ("Transfer-Encoding:\x0bchunked\r\n", Err(Refusal::ControlByte)),
        ("Transfer-Encoding : chunked\r\n", Err(Refusal::Field)),
        ("Transfer-Encoding:\r\n chunked\r\n", Err(Refusal::Coding)),
        ("X: a\r\n b\r\n", Err(Refusal::Folded)),
        ("Transfer_Encoding: chunked\r\n", Err(Refusal::OddName)),
        ("X.User.Id: 1\r\n", Err(Refusal::OddName)),
        ("Expect: 100-Continue\r\n", Ok(Framing::None)),
        ("Expect: dessert\r\n", Err(Refusal::Expectation)),
        ("Expect: 100-continue\r\nExpect: dessert\r\n", Err(Refusal::Expectation)),
        ("X: a\rb\r\n", Err(Refusal::LineEnd)),
        ("X: a\nb: c\r\n", Err(Refusal::LineEnd)),
        ("X: a\0b\r\n", Err(Refusal::ControlByte)),
        ("X: a\x7fb\r\n", Err(Refusal::ControlByte)),
        ("X: caf\u{e9}\r\n", Ok(Framing::None)),
        ("X:\r\n", Ok(Framing::None)),
        (": x\r\n", Err(Refusal::Field)),
        ("X\r\n", Err(Refusal::Field)),
        ("X(: a\r\n", Err(Refusal::Field)),
        ("Host: gw.test\r\n", Err(Refusal::TwoHosts)),
    ];
    for (lines, expected) in cases {
        assert_eq!(post(lines), expected, "{lines:?}");
    }
    let http10 = "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert_eq!(judge(http10), Err(Refusal::Coding));
}

#[test]
fn request_lines() {
    let cases = [
        ("GET / HTTP/1.1", Ok(Framing::None)),
        ("OPTIONS * HTTP/1.1", Ok(Framing::None)),
        ("PROPFIND /dav HTTP/1.1", Ok(Framing::None)),
        ("GET http://gw.test/x HTTP/1.1", Ok(Framing::None)),
        ("GET https://gw.test HTTP/1.1", Ok(Framing::None)),
        ("GET http://evil/ HTTP/1.1", Err(Refusal::TwoHosts)),
        ("GET http://user@gw.test/ HTTP/1.1", Err(Refusal::Host)),
        ("GET ftp://gw.test/ HTTP/1.1", Err(Refusal::Target)),
        ("GET * HTTP/1.1", Err(Refusal::Target)),
        ("GET x HTTP/1.1", Err(Refusal::Target)),
        ("GET  / HTTP/1.1", Err(Refusal::Target)),
        ("GET /a b HTTP/1.1", Err(Refusal::Target)),
        ("GET /a\0b HTTP/1.1", Err(Refusal::Target)),
        ("GET /\u{e9} HTTP/1.1", Err(Refusal::Target)),
        ("GET /a#x HTTP/1.1", Err(Refusal::Target)),
        ("GET /a\"b HTTP/1.1", Err(Refusal::Target)),
        ("GET /?a=<b> HTTP/1.1", Err(Refusal::Target)),
        ("GET /a`b HTTP/1.1", Err(Refusal::Target)),
        ("GET /{a}|b^c[d]?e=`{f}`|^[g]'\\ HTTP/1.1", Ok(Framing::None)),
        ("GET HTTP/1.1", Err(Refusal::Target)),
        ("GET /", Err(Refusal::RequestLine)),
        ("GET", Err(Refusal::RequestLine)),
        ("", Err(Refusal::RequestLine)),
        (" GET / HTTP/1.1", Err(Refusal::RequestLine)),
        ("G(T / HTTP/1.1", Err(Refusal::RequestLine)),
        ("GET / http/1.1", Err(Refusal::RequestLine)),
        ("GET / HTTP/1.1 ", Err(Refusal::RequestLine)),
        ("GET / HTTP/1", Err(Refusal::RequestLine)),
        ("GET / HTTP/9.9", Err(Refusal::Version)),
        ("PRI * HTTP/2.0", Err(Refusal::Version)),
        ("get / HTTP/1.1", Err(Refusal::UnknownMethod)),
        ("TRACE / HTTP/1.1", Err(Refusal::Method)),
        ("CONNECT gw.test:443 HTTP/1.1", Err(Refusal::Method)),
    ];
    for (line, expected) in cases {
        assert_eq!(judge(&format!("{line}\r\nHost: gw.test\r\n\r\n")), expected, "{line:?}");
    }
}

#[test]
fn hosts() {
    let good = ["a", "A.b-c_d:80", "10.0.0.1:65535", "[::1]", "[2001:db8::1]:443", "xn--e1afmkfd.test"];
    let bad = [
        "",
        "a/b, c:99999",
        "a:",
        "a:99999",
        "a:b",
        "a:1:2",
        "a@b",
        "a b",
        "[::1",
        "[fe80::1%25eth0]",
        "::1",
        "[::1]x",
        "ex\u{430}mple.test",
        ":80",
        "a%2eb",
    ];
    for host in good {
        assert_eq!(check_host(host.as_bytes()), Ok(()), "{host}");
    }
    for host in bad {
        assert_eq!(check_host(host.as_bytes()), Err(Refusal::Host), "{host}");
    }
    assert_eq!(judge("GET / HTTP/1.1\r\n\r\n"), Err(Refusal::Host));
    assert_eq!(judge("GET / HTTP/1.0\r\n\r\n"), Ok(Framing::None));
}

#[test]
fn sizes() {
    let limits = Limits::default();
    assert_eq!(get(&format!("/{}", "a".repeat(limits.target - 1))), Ok(Framing::None));
    assert_eq!(get(&format!("/{}", "a".repeat(limits.target))), Err(Refusal::TargetTooLong));
    assert_eq!(post(&"a: b\r\n".repeat(limits.fields - 1)), Ok(Framing::None));
    assert_eq!(post(&"a: b\r\n".repeat(limits.fields)), Err(Refusal::TooManyFields));
    assert_eq!(post(&format!("a: {}\r\n", "b".repeat(limits.head))), Err(Refusal::HeadTooLarge));
}

/// What comes of a head that arrives in pieces of `step` bytes.
fn arrive(head: &str, step: usize) -> Result<Option<usize>, Refusal> {
    let limits = Limits::default();
    let (mut seen, mut upto) = (0, 0);
    while upto < head.len() {
        upto = (upto + step).min(head.len());
        if let Some(end) = end(&head.as_bytes()[..upto], seen, &limits)? {
            return Ok(Some(end));
        }
        seen = upto;
    }
    Ok(None)
}

#[test]
fn heads_end_at_their_empty_line_however_they_arrive() {
    let long = format!("GET / HTTP/1.1\r\nx: {}", "y".repeat(70_000));
    let cases = [
        ("GET / HTTP/1.1\r\nHost: a\r\n\r\nbody", Ok(Some(27))),
        ("GET / HTTP/1.1\r\nHost: a\r\n", Ok(None)),
        ("GET / HTTP/1.1\nHost: a\n\n", Err(Refusal::LineEnd)),
        ("\x16\x03\x01\x02", Err(Refusal::RequestLine)),
        (&"A".repeat(9_000), Err(Refusal::TargetTooLong)),
        (&long, Err(Refusal::HeadTooLarge)),
    ];
    for (head, expected) in cases {
        for step in [1, 2, 7, head.len()] {
            assert_eq!(arrive(head, step), expected, "{step} at a time: {:.40?}", head);
        }
    }
}

#[test]
fn chunks() {
    let long = format!("5;{}\r\nhello\r\n0\r\n\r\n", "a".repeat(5_000));
    let trailers = format!("0\r\n{}\r\n", "X-Trailer: value\r\n".repeat(2_000));
    let cases = [
        ("0\r\n\r\n", Ok(true)),
        ("5\r\nhello\r\n0\r\n\r\n", Ok(true)),
        ("00A;x=\"y\"\r\n0123456789\r\n0\r\nX-Sum: 1\r\n\r\nGET / HTTP", Ok(true)),
        ("5\r\nhel", Ok(false)),
        ("5;\nhello\r\nhello\r\n0\r\n\r\n", Err(Refusal::Chunk)),
        ("5;\0e\r\nhello\r\n0\r\n\r\n", Err(Refusal::Chunk)),
        ("FFFFFFFFFFFFFFFF0\r\nhello\r\n0\r\n\r\n", Err(Refusal::Chunk)),
        ("0x5\r\nhello\r\n0\r\n\r\n", Err(Refusal::Chunk)),
        ("+5\r\nhello\r\n0\r\n\r\n", Err(Refusal::Chunk)),
        ("5 \r\nhello\r\n0\r\n\r\n", Err(Refusal::Chunk)),
        ("\r\nhello\r\n0\r\n\r\n", Err(Refusal::Chunk)),
        ("5_0\r\nhello\r\n0\r\n\r\n", Err(Refusal::Chunk)),
        ("5\r\nhello!!\r\n0\r\n\r\n", Err(Refusal::Chunk)),
        ("5\nhello\r\n0\r\n\r\n", Err(Refusal::Chunk)),
        ("5\r\nhello\n0\r\n\r\n", Err(Refusal::Chunk)),
        ("0\r\n\n", Err(Refusal::Chunk)),
        ("0\r\n X: folded\r\n\r\n", Err(Refusal::Chunk)),
        (&long, Err(Refusal::Chunk)),
        (&trailers, Err(Refusal::Chunk)),
    ];
    for (body, expected) in cases {
        for step in [1, 3, body.len()] {
            let mut chunks = Chunks::default();
            let fed = body.as_bytes().chunks(step).try_for_each(|piece| chunks.feed(piece).map(drop));
            assert_eq!(fed.map(|()| chunks.is_done()), expected, "{step} at a time: {body:.40?}");
        }
    }
}

#[test]
fn names_of_refusals_are_distinct() {
    let mut names: Vec<_> = Refusal::ALL.iter().map(|refusal| refusal.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), Refusal::ALL.len());
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = check(&bytes, &Policy::default());
        let _ = end(&bytes, 0, &Limits::default());
        let _ = Chunks::default().feed(&bytes);
    }

    #[test]
    fn what_passes_has_no_byte_that_could_end_a_line(
        bytes in "(GET|POST) /[ -~\\r\\n\\x00]{0,8} HTTP/1\\.[01]\r\n(Host: a\r\n)?([ -~\\r\\n\\x00\\x0b]{1,9}: ?[ -~\\r\\n\\x00]{0,9}\r\n){0,3}\r\n"
    ) {
        if check(bytes.as_bytes(), &Policy::default()).is_ok() {
            prop_assert!(bytes.ends_with("\r\n\r\n"));
            prop_assert_eq!(bytes.matches("\r\n\r\n").count(), 1);
            prop_assert_eq!(bytes.matches('\r').count(), bytes.matches("\r\n").count());
            prop_assert_eq!(bytes.matches('\n').count(), bytes.matches("\r\n").count());
        }
    }

    #[test]
    fn how_a_body_is_cut_does_not_matter(body in "([0-9aF]{0,2}(;x)?\r?\n?[a-z]{0,3}\r?\n?){0,4}0\r\n\r\n", cut in 1_usize..9) {
        let mut whole = Chunks::default();
        let mut pieces = Chunks::default();
        let fed = body.as_bytes().chunks(cut).try_fold(0, |sum, piece| Ok(sum + pieces.feed(piece)?));
        prop_assert_eq!(whole.feed(body.as_bytes()), fed);
    }
}
