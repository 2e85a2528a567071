//! Promise: nothing malformed gets through over HTTP/2 either. Raw streams: what the client is told, that nothing of it
//! reaches the upstream, and that the next request has its own answer.

use std::time::Duration;

use serde_json::json;
use serin_e2e::streams::{Answer, Streams};
use serin_e2e::{Conf, Gateway, Raw, Recorder};

const PATIENCE: Duration = Duration::from_secs(5);

type Fields<'a> = Vec<(&'a str, &'a str)>;

async fn edge() -> (Recorder, Gateway) {
    let recorder = Recorder::start().await;
    let mut conf = Conf::empty().with_route("all", json!({"path": {"prefix": "/"}}), "all");
    conf.routing["services"]["all"] = json!({"instances": [{"address": recorder.address.to_string()}]});
    (recorder, Gateway::start(conf).await)
}

/// A request for `path` with more fields.
fn get<'a>(path: &'a str, more: &[(&'a str, &'a str)]) -> Fields<'a> {
    let mut fields = vec![(":method", "GET"), (":scheme", "http"), (":authority", "gw.test"), (":path", path)];
    fields.extend(more);
    fields
}

/// The usual fields with one of them replaced.
fn but<'a>(name: &str, value: &'a str) -> Fields<'a> {
    let mut fields = get("/", &[]);
    fields.iter_mut().filter(|(known, _)| *known == name).for_each(|field| field.1 = value);
    fields
}

/// The usual fields without one of them.
fn without<'a>(name: &str, more: &[(&'a str, &'a str)]) -> Fields<'a> {
    get("/", more).into_iter().filter(|(known, _)| *known != name).collect()
}

#[tokio::test]
async fn nothing_malformed_gets_through() {
    let (recorder, gateway) = edge().await;
    let long = format!("/{}", "a".repeat(9 << 10));
    let names: Vec<String> = (0..101).map(|n| format!("x-{n}")).collect();
    let many: Fields<'_> = names.iter().map(|name| (name.as_str(), "y")).collect();
    let after = {
        let mut fields = vec![("x-first", "1")];
        fields.extend(get("/", &[]));
        fields
    };
    // What is sent, a body, and the status; 0 is a stream or connection that is broken off.
    let mut cases: Vec<(&str, Fields<'_>, Option<&[u8]>, u16)> = vec![
        ("H10 pseudo after regular", after, None, 0),
        ("H10 :path twice", get("/", &[(":path", "/b")]), None, 0),
        ("H10 upper case", get("/", &[("X-Upper", "1")]), None, 0),
        ("H11 space in :path", but(":path", "/a b"), None, 0),
        ("H11 CRLF in :path", but(":path", "/a\r\nx: y"), None, 0),
        ("H11 CRLF in a value", get("/", &[("x-a", "b\r\nc: d")]), None, 0),
        ("H11 NUL in a value", get("/", &[("x-a", "b\0")]), None, 0),
        ("H12 length 5, 3 bytes", get("/", &[("content-length", "5")]), Some(b"abc"), 0),
        ("H12 two lengths", get("/", &[("content-length", "3"), ("content-length", "4")]), Some(b"abc"), 0),
        ("H12 an odd length", get("/", &[("content-length", "03")]), Some(b"abc"), 400),
        ("H13 transfer-encoding", get("/", &[("transfer-encoding", "chunked")]), None, 0),
        ("H13 connection", get("/", &[("connection", "close")]), None, 0),
        ("H13 te: gzip", get("/", &[("te", "gzip")]), None, 0),
        ("H14 authority and host", get("/", &[("host", "other.test")]), None, 400),
        ("H14 absolute :path", but(":path", "http://evil.test/"), None, 0),
        ("H14 no authority", without(":authority", &[]), None, 400),
        ("a junk authority", but(":authority", "a/b"), None, 0),
        ("user info", but(":authority", "user@gw.test"), None, 400),
        ("TRACE", but(":method", "TRACE"), None, 405),
        ("a method in lower case", but(":method", "get"), None, 501),
        ("an expectation", get("/", &[("expect", "dessert")]), None, 417),
        ("an underscore", get("/", &[("x_user_id", "1")]), None, 400),
        ("a dot", get("/", &[("x.user.id", "1")]), None, 400),
        ("too many fields", get("/", &many), None, 431),
        ("a long target", get(&long, &[]), None, 414),
        ("an encoded slash", get("/pub/..%2fadmin", &[]), None, 400),
        ("a backslash", get("/pub\\..\\admin", &[]), None, 400),
    ];
    // What has a body may have its head passed on, and when that arrives nobody knows: it comes last.
    cases.sort_by_key(|(_, _, body, _)| body.is_some());
    let mut wrong = Vec::new();
    for (what, fields, body, status) in cases {
        let before = recorder.bytes();
        let mut streams = Streams::begin(Raw::connect(gateway.http()).await).await;
        let answer = streams.request(&fields, body, PATIENCE).await;
        let fine = match answer {
            Answer::Status(told) => told == status || (status == 0 && told == 400),
            Answer::Reset | Answer::GoAway | Answer::Closed => status == 0,
            Answer::Silent => false,
        };
        if !fine {
            wrong.push(format!("{what}: {answer:?} instead of {status}"));
        }
        let whole = recorder.requests();
        // A body that ends too early shows only when its head is on its way already.
        if !whole.is_empty() || (body.is_none() && recorder.bytes() > before) {
            wrong.push(format!("{what}: the upstream got {whole:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let mut streams = Streams::begin(Raw::connect(gateway.http()).await).await;
    assert_eq!(streams.request(&get("/fresh", &[]), None, PATIENCE).await, Answer::Status(200));
}

#[tokio::test]
async fn what_is_refused_leaves_the_other_streams_alone() {
    let (recorder, gateway) = edge().await;
    let mut streams = Streams::begin(Raw::connect(gateway.http()).await).await;
    for _ in 0..3 {
        let refused = streams.request(&get("/", &[("x_user_id", "1")]), None, PATIENCE).await;
        assert_eq!(refused, Answer::Status(400));
        assert_eq!(streams.request(&get("/marker", &[]), None, PATIENCE).await, Answer::Status(200));
    }
    assert!(recorder.requests().iter().all(|request| request.line() == "GET /marker HTTP/1.1"));
}

#[tokio::test]
async fn cookies_are_joined_and_the_form_that_was_routed_is_forwarded() {
    let (recorder, gateway) = edge().await;
    let mut streams = Streams::begin(Raw::connect(gateway.http()).await).await;
    let fields = get("//pub/%2e%2e/adm%69n?a=%2e", &[("cookie", "a=1"), ("cookie", "b=2")]);
    assert_eq!(streams.request(&fields, None, PATIENCE).await, Answer::Status(200));
    let seen = recorder.requests().remove(0);
    assert_eq!(seen.line(), "GET /admin?a=%2e HTTP/1.1");
    assert_eq!(seen.fields("cookie"), ["a=1; b=2"]);
    assert_eq!(seen.fields("host"), ["gw.test"]);
}

/// What the crates below do and the gateway cannot change. A version that changes it is noticed here.
#[tokio::test]
async fn known_gaps() {
    let (recorder, gateway) = edge().await;
    let mut streams = Streams::begin(Raw::connect(gateway.http()).await).await;
    // The http crate drops fragments before anybody sees them. What is routed is what is forwarded, all the same.
    assert_eq!(streams.request(&but(":path", "/a#x"), None, PATIENCE).await, Answer::Status(200));
    assert_eq!(recorder.requests().remove(0).line(), "GET /a HTTP/1.1");
}
