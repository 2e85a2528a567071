//! Promise: whoever takes up more than a limit allows is told so with the right status, or closed, and counted; whoever
//! stays within is served.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "tests may panic in their helpers as well")]

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use serde_json::{Value, json};
use serin_e2e::client::{Call, Conn};
use serin_e2e::frames::{
    self, CONTINUATION, DATA, END_HEADERS, END_STREAM, Frames, HEADERS, PREFACE, RST_STREAM, SETTINGS,
};
use serin_e2e::tls::Authority;
use serin_e2e::{Gateway, World, gateway, wait, world};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

/// A gateway with limits, before one origin.
async fn limited(limits: Value) -> World {
    World::with(&["v1-a"], |conf| {
        conf.bootstrap["limits"] = limits;
        conf.weights(&[("v1", "100%"), ("v2", "0%")]);
    })
    .await
}

/// Sends bytes and reads all that comes until the connection closes.
async fn converse(address: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    to_end(&mut stream).await
}

async fn to_end(stream: &mut TcpStream) -> String {
    let mut answer = vec![];
    let read = tokio::time::timeout(wait::DEADLINE, stream.read_to_end(&mut answer)).await;
    let _ = read.expect("the connection to be closed");
    String::from_utf8_lossy(&answer).into_owned()
}

async fn refused(gateway: &Gateway, limit: &str) -> f64 {
    gateway.metrics().await.sum("serin_edge_refused_total", &[&format!("limit=\"{limit}\"")])
}

fn head(target: &str, fields: &str) -> Vec<u8> {
    format!("GET {target} HTTP/1.1\r\nhost: api.example.com\r\nconnection: close\r\n{fields}\r\n").into_bytes()
}

#[tokio::test]
async fn heads_have_a_size_a_number_of_fields_and_a_target() {
    let world = limited(json!({"header_bytes": "8KiB", "header_count": 20, "target_bytes": "1KiB"})).await;
    let many = |count: usize| "a: b\r\n".repeat(count);
    let path = |length: usize| format!("/{}", "p".repeat(length - 1));
    let cases = [
        (head("/", &many(18)), 200, None),
        (head("/", &many(19)), 431, Some("header_count")),
        (head("/", &many(300)), 431, Some("header_count")),
        (head(&path(1024), ""), 200, None),
        (head(&path(1025), ""), 414, Some("target_bytes")),
        (head(&path(100_000), ""), 414, Some("target_bytes")),
        (head("/", &format!("a: {}\r\n", "b".repeat(8_000))), 200, None),
        (head("/", &format!("a: {}\r\n", "b".repeat(8_192))), 431, Some("header_bytes")),
        (head("/", &format!("a: {}\r\n", "b".repeat(3_000_000))), 431, Some("header_bytes")),
    ];
    for (sent, status, limit) in cases {
        let before = if let Some(limit) = limit { refused(&world.gateway, limit).await } else { 0.0 };
        let answer = converse(world.http(), &sent).await;
        let shown = String::from_utf8_lossy(&sent[..sent.len().min(99)]).into_owned();
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{shown}: {answer}");
        if let Some(limit) = limit {
            assert!(answer.contains("application/problem+json"), "{answer}");
            assert_eq!(refused(&world.gateway, limit).await, before + 1.0, "{shown}");
        }
    }
    assert_eq!(world.origins[0].hits(), 3, "what is refused is not passed on");
}

#[tokio::test]
async fn the_same_holds_for_http2() {
    let world = limited(json!({"header_bytes": "8KiB", "header_count": 20, "target_bytes": "1KiB"})).await;
    let mut conn = Conn::h2c(world.http()).await;
    let _ = Call::get(&format!("/{}", "p".repeat(1_023))).on(&mut conn).await.expect(200);
    let _ = Call::get(&format!("/{}", "p".repeat(1_024))).on(&mut conn).await.expect(414);
    let with = |count: usize| (0..count).fold(Call::get("/"), |call, nth| call.header(&format!("x-{nth}"), "v"));
    let _ = with(20).on(&mut conn).await.expect(200);
    let _ = with(21).on(&mut conn).await.expect(431);
    // The codec refuses this one; a client that knows the limit does not send it.
    let mut frames = Frames::start(world.http(), &[]).await;
    let long = "b".repeat(8_192);
    let block = frames::request("GET", "/", &[("x-long", &long)]);
    frames.send(&frames::frame(HEADERS, END_HEADERS | END_STREAM, 1, &block)).await.unwrap();
    let answer = frames.find(|frame| frame.stream == 1).await.unwrap();
    // 431, as Huffman has it.
    assert_eq!((answer.kind, answer.payload.ends_with(&[0x69, 0x90, 0xff])), (HEADERS, true), "{answer:?}");
    let _ = Call::get("/").on(&mut conn).await.expect(200);
    assert_eq!(refused(&world.gateway, "target_bytes").await, 1.0);
    assert_eq!(refused(&world.gateway, "header_count").await, 1.0);
}

#[tokio::test]
async fn a_head_has_its_time_from_the_first_byte_on() {
    let world = limited(json!({"head_timeout": "300ms", "idle": "3s"})).await;
    let mut quiet = TcpStream::connect(world.http()).await.unwrap();
    for sent in ["G", "P", "GET / HTTP/1.1\r\nhost: a", "GET / HTTP/1.1\r\nhost: a\r\n"] {
        let start = Instant::now();
        let answer = converse(world.http(), sent.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 408 "), "{sent}: {answer}");
        assert!(start.elapsed() >= Duration::from_millis(300));
    }
    // A byte now and then does not help.
    let mut slow = TcpStream::connect(world.http()).await.unwrap();
    slow.set_nodelay(true).unwrap();
    let sent = tokio::spawn(async move {
        for byte in head("/", &"a: b\r\n".repeat(90)) {
            if slow.write_all(&[byte]).await.is_err() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        to_end(&mut slow).await
    });
    assert!(sent.await.unwrap().starts_with("HTTP/1.1 408 "));
    assert_eq!(refused(&world.gateway, "head_timeout").await, 5.0);
    // Who says nothing has the time of an idle connection.
    quiet.write_all(&head("/", "")).await.unwrap();
    assert!(to_end(&mut quiet).await.starts_with("HTTP/1.1 200 "));
}

#[tokio::test]
async fn http2_has_the_same_time_for_its_preface_and_for_a_head() {
    let world = limited(json!({"head_timeout": "300ms"})).await;
    let mut half = Frames::connect(world.http()).await;
    half.send(&PREFACE[..10]).await.unwrap();
    assert!(half.find(|frame| frame.kind == DATA).await.is_none(), "it is closed");
    let mut whole = Frames::connect(world.http()).await;
    whole.send(PREFACE).await.unwrap();
    assert!(whole.find(|frame| frame.kind == DATA).await.is_none(), "it is closed");
    let mut open = Frames::start(world.http(), &[]).await;
    let block = frames::request("GET", "/", &[]);
    open.send(&frames::frame(HEADERS, END_STREAM, 1, &block)).await.unwrap();
    for _ in 0..3 {
        open.send(&frames::frame(CONTINUATION, 0, 1, &frames::block(&[("a", "b")]))).await.unwrap();
    }
    assert!(open.find(|frame| frame.kind == DATA).await.is_none(), "it is closed");
    assert_eq!(refused(&world.gateway, "head_timeout").await, 3.0);
    let mut conn = Conn::h2c(world.http()).await;
    let _ = Call::get("/delay/700").on(&mut conn).await.expect(200);
    let _ = Call::get("/").on(&mut conn).await.expect(200);
}

#[tokio::test]
async fn idle_connections_are_closed() {
    let (dir, authority) = (gateway::directory(), Authority::new());
    let identity = authority.issue("api.example.com");
    identity.write(dir.path(), "edge");
    let origins = world::origins(&["v1-a"]).await;
    let mut conf = world::users_conf(&origins);
    conf.weights(&[("v1", "100%"), ("v2", "0%")]);
    conf.bootstrap["limits"] = json!({"idle": "1s"});
    conf.listeners().push(json!({
        "name": "tls", "address": "127.0.0.1:0", "protocols": ["http1", "h2"],
        "tls": {"certificates": [{"cert": "edge.crt", "key": "edge.key"}]},
        "limits": {"head_timeout": "300ms"},
    }));
    let gateway = Gateway::start_in(dir, conf).await;
    let open = || async { gateway.metrics().await.sum("serin_client_connections", &[]) };
    let tls = |alpn: &[&str]| authority.client(alpn);
    let mut conns = vec![
        Conn::http1(gateway.http()).await,
        Conn::h2c(gateway.http()).await,
        Conn::tls(gateway.listener("tls"), "api.example.com", tls(&["http/1.1"])).await.unwrap(),
        Conn::tls(gateway.listener("tls"), "api.example.com", tls(&["h2"])).await.unwrap(),
    ];
    for conn in &mut conns {
        let _ = Call::get("/").on(conn).await.expect(200);
    }
    let _silent = TcpStream::connect(gateway.http()).await.unwrap();
    wait::until("five connections", || async { (open().await == 5.0).then_some(()) }).await;
    wait::until("idle ones to be closed", || async { (open().await == 0.0).then_some(()) }).await;
}

/// A body of `pieces` pieces of 10 bytes, one in a second.
fn trickle(pieces: usize) -> serin_e2e::client::Body {
    let pieces = stream::unfold(0, move |sent| async move {
        if sent == pieces {
            return None;
        }
        tokio::time::sleep(Duration::from_millis(if sent == 0 { 1 } else { 1_000 })).await;
        Some((Ok(Frame::data(Bytes::from_static(&[b'x'; 10]))), sent + 1))
    });
    StreamBody::new(pieces).boxed_unsync()
}

#[tokio::test]
async fn a_body_has_a_pace_and_a_stream_has_none() {
    let world = limited(json!({"min_body_rate": "100B/s"})).await;
    let send = |conn: Conn, pieces: usize, kind: Option<&'static str>| async move {
        let mut conn = conn;
        let start = Instant::now();
        let call = Call::post("/sink", "");
        let call = if let Some(kind) = kind { call.header("accept", kind) } else { call };
        let reply = call.stream_on(&mut conn, trickle(pieces)).await;
        (reply.map_or(0, |reply| reply.status().as_u16()), start.elapsed())
    };
    let http = world.http();
    let (slow, slow2, stalled, short, streamed) = tokio::join!(
        send(Conn::http1(http).await, 60, None),
        send(Conn::h2c(http).await, 60, None),
        async {
            let mut stream = TcpStream::connect(http).await.unwrap();
            let sent = b"POST /sink HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\n0123456789";
            stream.write_all(sent).await.unwrap();
            to_end(&mut stream).await
        },
        send(Conn::http1(http).await, 4, None),
        send(Conn::http1(http).await, 8, Some("text/event-stream")),
    );
    assert_eq!((slow.0, slow2.0), (408, 408), "{slow:?} {slow2:?}");
    assert!(slow.1 >= Duration::from_secs(5) && slow.1 < Duration::from_secs(20), "{slow:?}");
    assert!(stalled.starts_with("HTTP/1.1 408 "), "{stalled}");
    assert_eq!((short.0, streamed.0), (200, 200), "{short:?} {streamed:?}");
    assert_eq!(refused(&world.gateway, "min_body_rate").await, 3.0);
    let failures = world.gateway.metrics().await.sum("serin_upstream_failures_total", &[]);
    assert_eq!(failures, 0.0, "no instance is blamed");
}

#[tokio::test]
async fn who_does_not_take_what_is_sent_is_closed() {
    let world = limited(json!({"min_send_rate": "1KiB/s"})).await;
    let mut stream = TcpStream::connect(world.http()).await.unwrap();
    stream.write_all(&head("/bytes/300000000", "")).await.unwrap();
    let start = Instant::now();
    while refused(&world.gateway, "min_send_rate").await < 1.0 {
        assert!(start.elapsed() < Duration::from_secs(40), "it should have been closed by now");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(start.elapsed() >= Duration::from_secs(10), "{:?}", start.elapsed());
    let answer = to_end(&mut stream).await;
    assert!(answer.len() < 300_000_000, "it broke off");
}

#[tokio::test]
async fn connections_are_counted_in_all_and_by_address() {
    let world = limited(json!({"connections": 5, "connections_per_ip": 3})).await;
    let address = world.http();
    let from = move |last: u8| async move {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((Ipv4Addr::new(127, 0, 0, last), 0).into()).unwrap();
        socket.connect(address).await.unwrap()
    };
    let serves = |mut stream: TcpStream| async move {
        let _ = stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
        let mut first = [0; 12];
        stream.read_exact(&mut first).await.is_ok().then_some(stream)
    };
    let gateway = &world.gateway;
    // The harness looked whether the listener accepts.
    wait::until("nobody", || async {
        (gateway.metrics().await.sum("serin_client_connections", &[]) == 0.0).then_some(())
    })
    .await;
    let mut held = vec![];
    for _ in 0..3 {
        held.push(serves(from(1).await).await.expect("within the limit"));
    }
    assert!(serves(from(1).await).await.is_none(), "a fourth of one address");
    for _ in 0..2 {
        held.push(serves(from(2).await).await.expect("another address"));
    }
    assert!(serves(from(3).await).await.is_none(), "a sixth of all");
    assert_eq!(refused(gateway, "connections_per_ip").await, 1.0);
    assert_eq!(refused(gateway, "connections").await, 1.0);
    drop(held);
    wait::until("room", || async { serves(from(1).await).await }).await;
}

#[tokio::test]
async fn a_connection_has_so_many_requests() {
    let world = limited(json!({"requests_per_connection": 3})).await;
    let mut conn = Conn::http1(world.http()).await;
    for nth in 1..=3 {
        let reply = Call::get("/").on(&mut conn).await.expect(200);
        assert_eq!(reply.header("connection") == "close", nth == 3, "{nth}: {reply:?}");
    }
    assert!(Call::get("/").try_on(&mut conn).await.is_err());
    let mut frames = Frames::start(world.http(), &[]).await;
    for stream in [1, 3, 5] {
        frames.send(&frames::get(stream, "/")).await.unwrap();
    }
    let mut answers = 0;
    while let Some(frame) = frames.next().await {
        answers += u32::from(frame.kind == HEADERS);
        if frame.kind == frames::PING {
            frames.send(&frames::frame(frames::PING, END_STREAM, 0, &frame.payload)).await.unwrap();
        }
        assert_ne!(frame.kind, RST_STREAM, "{frame:?}");
        if frame.kind == frames::GOAWAY {
            assert_eq!(frame.code(), Some(0), "{frame:?}");
        }
    }
    assert_eq!(answers, 3, "all were answered before the end");
}

#[tokio::test]
async fn http2_clients_are_told_their_limits() {
    let world = limited(json!({
        "h2": {"max_streams": 7, "window": "128KiB", "connection_window": "2MiB", "max_header_list": "32KiB"},
    }))
    .await;
    let mut frames = Frames::start(world.http(), &[]).await;
    let settings = frames.find(|frame| frame.kind == SETTINGS && frame.flags == 0).await.unwrap().settings();
    for (id, value) in [(3, 7), (4, 128 << 10), (6, 32 << 10)] {
        assert!(settings.contains(&(id, value)), "{settings:?}");
    }
    let more = frames.find(|frame| frame.kind == frames::WINDOW_UPDATE && frame.stream == 0).await.unwrap();
    assert_eq!(u32::from_be_bytes(more.payload.try_into().unwrap()), (2 << 20) - 65_535);
    // One stream too many is refused, and the others go on.
    for nth in 0..8 {
        frames.send(&frames::get(1 + 2 * nth, "/hold")).await.unwrap();
    }
    let refusal = frames.find(|frame| frame.kind == RST_STREAM).await.unwrap();
    assert_eq!((refusal.stream, refusal.code()), (15, Some(7)));
}

#[tokio::test]
async fn a_route_says_how_long_a_body_may_be() {
    let world = World::with(&["v1-a"], |conf| {
        conf.weights(&[("v1", "100%"), ("v2", "0%")]);
        conf.route("all")["max_body"] = json!("10KiB");
    })
    .await;
    let body = |bytes: usize| vec![b'x'; bytes];
    for conn in [&mut Conn::http1(world.http()).await, &mut Conn::h2c(world.http()).await] {
        let _ = Call::post("/sink", body(10 << 10)).on(conn).await.expect(200);
        let reply = Call::post("/sink", body((10 << 10) + 1)).on(conn).await.expect(413);
        assert_eq!(reply.header("content-type"), "application/problem+json");
    }
    assert_eq!(world.origins[0].hits(), 2, "what is said to be too long is not passed on");
    // What does not say how long it is, is found out.
    for conn in [&mut Conn::http1(world.http()).await, &mut Conn::h2c(world.http()).await] {
        let reply = Call::post("/sink", "").stream_on(conn, serin_e2e::client::generated(10 << 10)).await.unwrap();
        assert_eq!(reply.status(), 200);
    }
    for conn in [&mut Conn::http1(world.http()).await, &mut Conn::h2c(world.http()).await] {
        let reply = Call::post("/sink", "").stream_on(conn, serin_e2e::client::generated(200_000)).await.unwrap();
        assert_eq!(reply.status(), 413);
    }
    assert_eq!(refused(&world.gateway, "max_body").await, 4.0);
    assert_eq!(world.gateway.metrics().await.sum("serin_upstream_failures_total", &[]), 0.0, "nobody is blamed");
    let log = world.gateway.access_log(8).await;
    assert_eq!(log.iter().filter(|line| line["error"] == "body_too_long" && line["status"] == 413).count(), 4);
}

#[tokio::test]
async fn a_listener_may_differ() {
    let world = World::with(&["v1-a"], |conf| {
        conf.weights(&[("v1", "100%"), ("v2", "0%")]);
        conf.bootstrap["limits"] = json!({"header_count": 10});
        let mut inside = conf.listeners()[0].clone();
        inside["name"] = json!("inside");
        inside["limits"] = json!({"header_count": 200, "connections": 1});
        conf.listeners().push(inside);
    })
    .await;
    let fields = "a: b\r\n".repeat(50);
    assert!(converse(world.http(), &head("/", &fields)).await.starts_with("HTTP/1.1 431 "));
    let inside = world.gateway.listener("inside");
    let served = || async { converse(inside, &head("/", &fields)).await.starts_with("HTTP/1.1 200 ").then_some(()) };
    wait::until("the harness to be gone", served).await;
    let _one = TcpStream::connect(inside).await.unwrap();
    let refused_there = || async { (refused(&world.gateway, "connections").await >= 1.0).then_some(()) };
    wait::until("the one connection to be counted", || async {
        drop(TcpStream::connect(inside).await.unwrap());
        refused_there().await
    })
    .await;
    assert!(converse(world.http(), &head("/", "")).await.starts_with("HTTP/1.1 200 "), "others have none of that");
}
