//! The cases of `cases.jsonl`, and what becomes of each.

use serde_json::Value;

/// What becomes of a case.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fate {
    /// It is refused with one of these statuses and its connection closed; nothing reaches the upstream.
    Refused(&'static [u16]),
    /// It breaks off in the middle: refused, and no whole request reaches the upstream.
    Broken(u16),
    /// It is served.
    Served(Served),
    /// It is no single request over HTTP/1; the test that it is part of.
    Elsewhere(&'static str),
}

/// What the upstream gets of a case that is served.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Served {
    /// The request line.
    pub(crate) line: &'static str,
    /// The body on the wire.
    pub(crate) body: &'static str,
    /// Fields that it has, as `name: value`.
    pub(crate) has: &'static [&'static str],
    /// Fields that it does not have.
    pub(crate) lacks: &'static [&'static str],
}

const fn served(line: &'static str, body: &'static str) -> Fate {
    Fate::Served(Served { line, body, has: &[], lacks: &[] })
}

const fn with(line: &'static str, has: &'static [&'static str], lacks: &'static [&'static str]) -> Fate {
    Fate::Served(Served { line, body: "", has, lacks })
}

const ROOT: &str = "GET / HTTP/1.1";
const BAD: Fate = Fate::Refused(&[400]);
const H2: Fate = Fate::Elsewhere("bad_h2.rs");
const FLOOD: Fate = Fate::Elsewhere("edge_floods.rs");
const SLOW: Fate = Fate::Elsewhere("edge_slow.rs");

/// What becomes of each case, by the part of its id before the first dash.
pub(crate) const FATES: &[(&str, Fate)] = &[
    ("F01", BAD),
    ("F02", BAD),
    ("F03", BAD),
    ("F04", BAD),
    ("F05", BAD),
    ("F06", BAD),
    ("F07", BAD),
    ("F08", Fate::Refused(&[501])),
    ("F09", BAD),
    ("F10", BAD),
    ("F11", BAD),
    ("F12", BAD),
    ("F13", BAD),
    ("F14", BAD),
    ("F15", BAD),
    ("F16", served(ROOT, "GET /evil HTTP/1.1\r\nHost: gw.te")),
    ("F17", served("POST / HTTP/1.1", "")),
    ("F18", served("POST / HTTP/1.1", "hello")),
    ("K01", Fate::Broken(400)),
    ("K02", Fate::Broken(400)),
    ("K03", Fate::Broken(400)),
    ("K04", Fate::Broken(400)),
    ("K05", Fate::Broken(400)),
    ("K06", Fate::Broken(400)),
    ("K07", Fate::Broken(400)),
    ("K08", Fate::Broken(400)),
    ("K09", Fate::Broken(400)),
    ("K10", Fate::Broken(400)),
    (
        "K11",
        Fate::Served(Served {
            line: "POST / HTTP/1.1",
            body: "0\r\n\r\n",
            has: &[],
            lacks: &["x-user-id", "authorization"],
        }),
    ),
    ("R01", BAD),
    ("R02", BAD),
    ("R03", BAD),
    ("R04", BAD),
    ("R05", BAD),
    ("R06", BAD),
    ("R07", BAD),
    ("R08", Fate::Refused(&[501])),
    ("R09", Fate::Refused(&[505])),
    ("R10", BAD),
    ("R11", BAD),
    ("R12", BAD),
    ("R13", BAD),
    ("R14", BAD),
    ("R15", Fate::Refused(&[431])),
    ("R16", Fate::Refused(&[431])),
    ("R17", Fate::Refused(&[414])),
    ("R18", Fate::Refused(&[431])),
    ("P01", BAD),
    ("P02", served("GET /admin HTTP/1.1", "")),
    ("P03", served("GET /pub/..;/admin HTTP/1.1", "")),
    ("P04", BAD),
    ("P05", served("GET /admin HTTP/1.1", "")),
    ("P06", BAD),
    ("P07", BAD),
    ("P08", served("GET /a%0D%0AX:1 HTTP/1.1", "")),
    ("P09", BAD),
    ("P10", BAD),
    ("T01", BAD),
    ("T02", with(ROOT, &["x-forwarded-for: 127.0.0.1"], &["x-real-ip", "x-traffic-tag"])),
    ("T03", BAD),
    ("T04", with(ROOT, &[], &["x-traffic-tag"])),
    ("T05", BAD),
    ("T06", BAD),
    ("T07", with(ROOT, &["x-forwarded-for: 127.0.0.1"], &[])),
    ("T08", with(ROOT, &[], &[])),
    ("T09", with(ROOT, &[], &[])),
    ("T10", with(ROOT, &["x-ua: \", \"user\":\"root"], &[])),
    ("U01", with(ROOT, &[], &["upgrade"])),
    ("U02", Fate::Refused(&[426])),
    ("U03", with("GET /ws HTTP/1.1", &[], &["upgrade"])),
    ("U04", with("POST /ws HTTP/1.1", &[], &["upgrade"])),
    ("U05", with(ROOT, &[], &["upgrade", "http2-settings"])),
    ("H01", FLOOD),
    ("H02", FLOOD),
    ("H03", FLOOD),
    ("H04", FLOOD),
    ("H05", FLOOD),
    ("H06", FLOOD),
    ("H07", FLOOD),
    ("H08", FLOOD),
    ("H09", FLOOD),
    ("H10", H2),
    ("H11", H2),
    ("H12", H2),
    ("H13", H2),
    ("H14", H2),
    ("H15", H2),
    ("H16", FLOOD),
    ("H17", FLOOD),
    ("S01", SLOW),
    ("S02", SLOW),
    ("S03", SLOW),
    ("S04", SLOW),
    ("S05", SLOW),
    ("S06", SLOW),
    ("S07", Fate::Elsewhere("messages.rs")),
    ("G01", Fate::Elsewhere("deadlines.rs")),
    ("G02", Fate::Elsewhere("protocols.rs")),
    ("I01", BAD),
    ("I02", BAD),
    ("I03", Fate::Elsewhere("messages.rs")),
];

/// Variants that the file only hints at, as what comes after `POST / HTTP/1.1` and the host; or a whole head.
const VARIANTS: &[(&str, &str, Fate)] = &[
    ("F04b", "Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello", BAD),
    ("F05b", "Content-Length: +5\r\n\r\nhello", BAD),
    ("F05c", "Content-Length: -0\r\n\r\n", BAD),
    ("F05d", "Content-Length: 0x5\r\n\r\nhello", BAD),
    ("F05e", "Content-Length: 1_0\r\n\r\nhellohello", BAD),
    ("F05f", "Content-Length: 1 0\r\n\r\nhellohello", BAD),
    ("F05g", "Content-Length:\r\n\r\n", BAD),
    ("F05h", "Content-Length: 00000000000000000005\r\n\r\nhello", BAD),
    ("F10b", "Transfer-Encoding: chunked,\r\n\r\n0\r\n\r\n", BAD),
    ("F10c", "Transfer-Encoding: chunked;p=1\r\n\r\n0\r\n\r\n", BAD),
    ("F10d", "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", BAD),
    ("F11b", "Transfer-Encoding: chunked\u{b}\r\n\r\n0\r\n\r\n", BAD),
    ("F11c", "Transfer-Encoding:\u{c}chunked\r\n\r\n0\r\n\r\n", BAD),
    ("F18b", "Expect: dessert\r\n\r\n", Fate::Refused(&[417])),
    ("K01b", "Transfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n0\r\n\r\n", served("POST / HTTP/1.1", CHUNKED)),
    ("R01b", "X: a\nY: b\r\n\r\n", BAD),
    ("R08b", "TRACE / HTTP/1.1\r\nHost: gw.test\r\n\r\n", Fate::Refused(&[405])),
    ("R08c", "CONNECT gw.test:80 HTTP/1.1\r\nHost: gw.test\r\n\r\n", Fate::Refused(&[405])),
    ("R10b", "Host: gw.test\r\n\r\n", BAD),
    ("R11b", "GET / HTTP/1.1\r\nHost: \r\n\r\n", BAD),
    ("R19", "GET https://other.test/ HTTP/1.1\r\nHost: other.test\r\n\r\n", Fate::Refused(&[421])),
    ("R20", "\r\n\r\nGET / HTTP/1.1\r\nHost: gw.test\r\n\r\n", BAD),
    ("R21", "\r\nGET /x HTTP/1.1\r\nHost: gw.test\r\n\r\n", served("GET /x HTTP/1.1", "")),
    (
        "R22",
        "GET /caf%C3%A9 HTTP/1.1\r\nHost: gw.test\r\nX-Name: caf\u{e9}\r\n\r\n",
        served("GET /caf%C3%A9 HTTP/1.1", ""),
    ),
];
const CHUNKED: &str = "5\r\nhello\r\n0\r\n\r\n";

/// A case: its id, the bytes that a client sends, and what becomes of them.
pub(crate) struct Case {
    /// The id.
    pub(crate) id: String,
    /// The bytes.
    pub(crate) bytes: Vec<u8>,
    /// What becomes of them.
    pub(crate) fate: Fate,
}

/// Every case that is bytes of HTTP/1.
pub(crate) fn cases() -> Vec<Case> {
    let lines = include_str!("cases.jsonl").lines();
    let known = lines.map(|line| serde_json::from_str::<Value>(line).unwrap()).map(|case| {
        let id = case["id"].as_str().unwrap().to_owned();
        let fate = fate(&id);
        Case { bytes: bytes(&expand(&id, case["raw"].as_str().unwrap())), id, fate }
    });
    let variants = VARIANTS.iter().map(|(id, text, fate)| {
        let whole = text.contains(" HTTP/1.1\r\n");
        let text = if whole { (*text).to_owned() } else { format!("POST / HTTP/1.1\r\nHost: gw.test\r\n{text}") };
        Case { id: (*id).to_owned(), bytes: bytes(&text), fate: *fate }
    });
    known.chain(variants).filter(|case| !matches!(case.fate, Fate::Elsewhere(_))).collect()
}

fn fate(id: &str) -> Fate {
    let key = id.split('-').next().unwrap();
    FATES.iter().find(|(known, _)| *known == key).unwrap_or_else(|| panic!("{id} is not in the table")).1
}

/// Text with its placeholders filled in.
fn expand(id: &str, raw: &str) -> String {
    let fields: String = (0..101).map(|n| format!("x-{n}: y\r\n")).collect();
    let raw = raw
        .replace("<100KiB>", &"a".repeat(100 << 10))
        .replace("<64KiB>", &"a".repeat(64 << 10))
        .replace("<9KiB>", &"a".repeat(9 << 10))
        .replace("<101 headers>", &fields);
    match id {
        "U04-ws-post" => "POST /ws HTTP/1.1\r\nHost: gw.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
            Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nContent-Length: 0\r\n\r\n"
            .to_owned(),
        _ if raw.contains("\r\n") || raw.contains('\n') => raw,
        // A host alone.
        _ => format!("GET / HTTP/1.1\r\n{}\r\n\r\n", raw.replace(" (raw UTF-8)", "")),
    }
}

/// The file has bytes as the characters of the same number; everything beyond is UTF-8.
fn bytes(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for character in text.chars() {
        match u8::try_from(u32::from(character)) {
            Ok(byte) => bytes.push(byte),
            Err(_) => bytes.extend_from_slice(character.to_string().as_bytes()),
        }
    }
    bytes
}
