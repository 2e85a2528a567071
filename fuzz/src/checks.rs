//! What has to hold for any input to a parser. The fuzz targets call these with what the fuzzer makes up, a test of the
//! gateway with the corpora in the repository.

use std::net::IpAddr;

use http::{HeaderMap, HeaderName, HeaderValue};
use ipnet::IpNet;
use serin::conf::{self, Source};
use serin::proxy::{deadline, head};
use serin::telemetry::traces::context::{self, Traceparent};
use serin::telemetry::traces::{b3, baggage};
use serin_core::load::LoadReport;
use serin_core::path::{self, PathPolicy};
use serin_core::proxy_protocol;
use serin_core::strict::{self, Chunks, Limits, Policy};

/// A path has one normal form, which is its own, and in which nothing is left that another parser could resolve.
pub(crate) fn path(data: &[u8]) {
    let Ok(path) = std::str::from_utf8(data) else { return };
    let policy = PathPolicy::default();
    let Ok(normal) = path::normal(path, &policy) else { return };
    assert!(normal.starts_with('/'), "{path:?} becomes {normal:?}");
    assert_eq!(path::normal(&normal, &policy).as_deref(), Ok(&*normal), "{path:?} becomes {normal:?}");
    let lower = normal.to_ascii_lowercase();
    for left in ["//", "\\", "\0", "%2e", "%2f", "%5c", "%00", "%252e", "%252f", "%255c"] {
        assert!(!lower.contains(left), "{path:?} becomes {normal:?}, which has {left:?}");
    }
    assert!(normal.split('/').all(|segment| segment != "." && segment != ".."), "{path:?} becomes {normal:?}");
}

/// No document makes the reader panic, and what is wrong has a place.
pub(crate) fn config(data: &[u8]) {
    let Some((kind, text)) = data.split_first() else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    let source = Source::inline("fuzz", text);
    let refused = match kind % 3 {
        0 => conf::bootstrap(&source).err(),
        1 => {
            let catalogue = serin::builtin();
            match conf::routing(&source, &catalogue, &serin_core::plugin::Node::default()) {
                Ok(routing) => conf::traffic(&Source::inline("fuzz", "revision: 1"), &routing).err(),
                Err(problems) => Some(problems),
            }
        }
        _ => conf::traffic(&source, &conf::Routing::default()).err(),
    };
    for problem in refused.iter().flat_map(|problems| &problems.0) {
        assert!(problem.line > 0 && problem.column > 0 && !problem.message.is_empty(), "{problem:?}");
    }
}

/// A peer that is not trusted cannot have another address than its own; one that is, can only have one that was said.
pub(crate) fn forwarded(data: &[u8]) {
    let mut headers = HeaderMap::new();
    for line in data.split(|byte| *byte == b'\n') {
        if let Ok(value) = HeaderValue::from_bytes(line) {
            headers.append("x-forwarded-for", value);
        }
    }
    let trusted: [IpNet; 2] = ["10.0.0.0/8", "fd00::/8"].map(|network| network.parse().expect("a network"));
    let peer = |text: &str| -> IpAddr { text.parse().expect("an address") };
    let outside = peer("192.0.2.1");
    assert_eq!(head::client_ip(outside, &headers, &trusted), outside);
    let inside = peer("10.0.0.1");
    let client = head::client_ip(inside, &headers, &trusted);
    if client != inside {
        let text = String::from_utf8_lossy(data);
        let said = text.split(['\n', ',']).any(|hop| {
            let hop = hop.trim();
            let bare = hop.strip_prefix('[').map_or(hop, |rest| rest.split(']').next().unwrap_or(rest));
            let without_port = hop.rsplit_once(':').map_or(hop, |(host, _)| host);
            [hop, bare, without_port]
                .iter()
                .any(|text| text.parse().is_ok_and(|ip: IpAddr| ip.to_canonical() == client))
        });
        assert!(said, "{client} was never said in {text:?}");
    }
}

/// What is read of a load report is finite, not negative, and makes a finite weight or none.
pub(crate) fn orca(data: &[u8]) {
    for report in [LoadReport::parse(data), LoadReport::base64(data)].into_iter().flatten() {
        for number in [report.cpu, report.memory, report.application, report.rps, report.eps, report.utilization()] {
            assert!(number.is_finite() && number >= 0.0, "{report:?}");
        }
        let weight = report.weight(1.0, 1.0);
        assert!(weight.is_none_or(|weight| weight.is_finite() && weight > 0.0), "{report:?}: {weight:?}");
    }
}

/// A deadline is read or not; what is left of one is written so that it is read again, and never as more.
pub(crate) fn deadline(data: &[u8]) {
    let Ok(value) = HeaderValue::from_bytes(data) else { return };
    let mut headers = HeaderMap::new();
    headers.insert("grpc-timeout", value);
    let Some(given) = deadline::of(&headers) else { return };
    deadline::set(&mut headers, given);
    let again = deadline::of(&headers).expect("what was written is read");
    assert!(again <= given.max(std::time::Duration::from_millis(1)), "{given:?} becomes {again:?}");
}

/// Headers of traces, as lines: a parent that is read is read again from what is written of it, in every format; what is
/// left of baggage is sound, and stays as it is.
pub(crate) fn traceparent(data: &[u8]) {
    let mut headers = HeaderMap::new();
    for line in data.split(|byte| *byte == b'\n') {
        let mut parts = line.splitn(2, |byte| *byte == b':');
        let (Some(name), Some(value)) = (parts.next(), parts.next()) else { continue };
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value)) {
            headers.append(name, value);
        }
    }
    let b3 = [b3::extract(&headers), b3::extract_multi(&headers)].into_iter().flatten();
    let b3 = b3.filter_map(|said| if let b3::Extracted::Parent(parent) = said { Some(parent) } else { None });
    for parent in context::extract(&headers).into_iter().chain(b3) {
        let (trace, span, sampled) = (parent.trace_id, parent.span_id, parent.sampled.unwrap_or(false));
        let flags = (u8::from(sampled) * context::SAMPLED) | (u8::from(parent.random) * context::RANDOM);
        let ours = Traceparent::new(trace, span, flags);
        let again = context::parse(ours.to_value().as_bytes()).expect("what was written is read");
        assert_eq!((again.trace_id, again.span_id, again.sampled), (trace, span, Some(sampled)), "{parent:?}");
        let mut written = HeaderMap::new();
        b3::inject(&mut written, &ours, sampled, parent.debug);
        b3::inject_multi(&mut written, &ours, sampled, parent.debug);
        for again in [b3::extract(&written), b3::extract_multi(&written)] {
            let same = |again: context::Parent| (again.trace_id, again.span_id) == (trace, span);
            assert!(matches!(again, Some(b3::Extracted::Parent(again)) if same(again)), "{parent:?}: {again:?}");
        }
    }
    if context::is_sound_state(&headers) {
        let states = headers.get_all(&context::TRACESTATE);
        assert!(states.iter().all(|state| state.as_bytes().iter().all(|byte| matches!(byte, b'\t' | b' '..=b'~'))));
    }
    baggage::clean(&mut headers);
    let cleaned = headers.clone();
    baggage::clean(&mut headers);
    assert_eq!(headers, cleaned, "what is sound stays");
}

/// A head that passes ends where it was found to end, and has no byte in it by which it could be cut elsewhere; however it
/// is cut, the same is found. What follows it as a chunked body is the same whole and in pieces.
pub(crate) fn strict(data: &[u8]) {
    let (policy, limits) = (Policy::default(), Limits::default());
    let whole = strict::end(data, 0, &limits);
    let half = data.len() / 2;
    if let Ok(None) = strict::end(&data[..half], 0, &limits) {
        assert_eq!(strict::end(data, half, &limits), whole, "what was seen before is of no account");
    }
    let Ok(Some(end)) = whole else { return };
    let (head, body) = data.split_at(end);
    assert!(head.ends_with(b"\r\n\r\n"));
    if strict::check(head, &policy).is_ok() {
        let lines: Vec<_> = head.split(|byte| *byte == b'\n').collect();
        let (last, lines) = lines.split_last().expect("one at least");
        assert!(last.is_empty() && lines.iter().all(|line| line.ends_with(b"\r")), "{head:?}");
        assert!(lines.iter().all(|line| !line[..line.len() - 1].contains(&b'\r')), "{head:?}");
        assert_eq!(lines.iter().filter(|line| line.len() == 1).count(), 1, "{head:?}");
        assert!(!head.contains(&0), "{head:?}");
    }
    let (mut at_once, mut by_bytes) = (Chunks::default(), Chunks::default());
    let fed = at_once.feed(body);
    let pieces = body.chunks(1).try_fold(0, |sum, piece| Ok(sum + by_bytes.feed(piece)?));
    assert_eq!(fed, pieces);
    assert_eq!(at_once.is_done(), by_bytes.is_done());
}

/// A header of the PROXY protocol is no longer than what is there, and more bytes after it change nothing.
pub(crate) fn proxy_protocol(data: &[u8]) {
    let found = proxy_protocol::parse(data);
    if let Ok(Some(header)) = found {
        assert!(header.length <= data.len() && header.length <= proxy_protocol::MAX);
        assert_eq!(proxy_protocol::parse(&data[..header.length]), found);
        assert_eq!(proxy_protocol::parse(&data[..header.length - 1]), Ok(None));
    }
    assert!(found != Ok(None) || data.len() <= proxy_protocol::MAX, "an answer is due");
}
