//! Promise: HTTP/1.1, HTTP/2 over TLS and h2c in; HTTP/1.1, h2 and h2c out; gRPC, WebSocket and SSE pass; bodies stream.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use serde_json::{Value, json};
use serin_e2e::client::{Call, Conn, Reply, generated};
use serin_e2e::origin::PIECE;
use serin_e2e::peers::{self, PyServer};
use serin_e2e::tls::Authority;
use serin_e2e::{Conf, Gateway, Origin, World, conf, gateway, wait};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const GIB: u64 = 1 << 30;
const GROWTH_KIB: u64 = 32 * 1024;

/// A gateway with a TLS listener `tls` that has a certificate for each of `names`, before the service of `conf`.
async fn tls_gateway(authority: &Authority, names: &[&str], mut conf: Conf) -> Gateway {
    let dir = gateway::directory();
    let certificates: Vec<Value> = names.iter().map(|name| certificate(authority, &dir, name)).collect();
    conf.listeners().push(json!({
        "name": "tls", "address": "127.0.0.1:0", "protocols": ["http1", "h2"],
        "tls": {"certificates": certificates},
    }));
    Gateway::start_in(dir, conf).await
}

fn certificate(authority: &Authority, dir: &TempDir, name: &str) -> Value {
    authority.issue(name).write(dir.path(), name);
    json!({"cert": format!("{name}.crt"), "key": format!("{name}.key")})
}

fn single(origin: &Origin) -> Conf {
    Conf::empty().with_service("pool", conf::pool(&[origin], json!([{"round_robin": {}}])))
}

#[tokio::test]
async fn http1_keeps_connections_on_both_sides() {
    let origin = Origin::start("a").await;
    let gateway = Gateway::start(single(&origin)).await;
    let mut conn = Conn::http1(gateway.http()).await;
    for (bodies, connections) in [(["four", "a longer body"], 1), (["", ""], 2)] {
        for body in bodies {
            let seen = Call::post("/pool", body).on(&mut conn).await.expect(200).json();
            assert_eq!((seen["http"].as_str(), seen["received"].as_u64()), (Some("HTTP/1.1"), Some(body.len() as u64)));
        }
        // Requests without a body go another way, which has connections of its own.
        assert_eq!(origin.connections(), connections, "the upstream connection is used again");
    }
}

#[tokio::test]
async fn h2c_comes_in_multiplexed() {
    let origin = Origin::start("a").await;
    let gateway = Gateway::start(single(&origin)).await;
    let mut conn = Conn::h2c(gateway.http()).await;
    let held = {
        let mut conn = conn.another_stream();
        tokio::spawn(async move { Call::get("/pool/hold").on(&mut conn).await })
    };
    wait::until("the held request", || async { (origin.hits() == 1).then_some(()) }).await;
    assert_eq!(Call::get("/pool").on(&mut conn).await.version, http::Version::HTTP_2, "it overtakes the held one");
    origin.release();
    assert_eq!(held.await.unwrap().origin(), "a");
}

#[tokio::test]
async fn tls_picks_the_certificate_by_name() {
    let (authority, origin) = (Authority::new(), Origin::start("a").await);
    let gateway = tls_gateway(&authority, &["one.test", "two.test", "*.wild.test"], single(&origin)).await;
    for name in ["one.test", "two.test", "any.wild.test"] {
        for (alpn, version) in [("h2", http::Version::HTTP_2), ("http/1.1", http::Version::HTTP_11)] {
            let mut conn = Conn::tls(gateway.listener("tls"), name, authority.client(&[alpn])).await.expect(name);
            let reply = Call::get("/pool").host(name).on(&mut conn).await;
            assert_eq!((reply.origin().as_str(), reply.version), ("a", version), "{name}");
            assert_eq!(reply.seen("x-forwarded-proto").as_deref(), Some("https"), "{name}");
        }
    }
    let unknown = Conn::tls(gateway.listener("tls"), "three.test", authority.client(&["h2"])).await;
    assert!(unknown.is_err(), "no certificate is for three.test");
}

#[tokio::test]
async fn a_request_for_another_host_belongs_on_another_connection() {
    let (authority, origin) = (Authority::new(), Origin::start("a").await);
    let dir = gateway::directory();
    let certificates: Vec<_> =
        ["one.test", "two.test", "*.wild.test"].iter().map(|name| certificate(&authority, &dir, name)).collect();
    let mut conf = single(&origin);
    for (name, check) in [("tls", true), ("loose", false)] {
        conf.listeners().push(json!({
            "name": name, "address": "127.0.0.1:0", "protocols": ["http1", "h2"],
            "tls": {"certificates": certificates, "check_host": check},
        }));
    }
    let gateway = Gateway::start_in(dir, conf).await;
    for alpn in ["h2", "http/1.1"] {
        let config = authority.client(&[alpn]);
        let connect = |listener, sni| Conn::tls(gateway.listener(listener), sni, Arc::clone(&config));
        for (sni, host, status) in [
            ("one.test", "one.test", 200),
            ("one.test", "ONE.test:8443", 200),
            ("one.test", "two.test", 421),
            ("one.test", "nobody.test", 421),
            ("two.test", "one.test", 421),
            ("a.wild.test", "b.wild.test", 200),
            ("a.wild.test", "a.b.wild.test", 421),
            ("one.test", "127.0.0.1", 200),
            ("one.test", "127.0.0.2", 421),
            // No SNI, as a name is what it is for.
            ("127.0.0.1", "127.0.0.1", 200),
            ("127.0.0.1", "two.test", 200),
            ("127.0.0.1", "nobody.test", 200),
        ] {
            let mut conn = connect("tls", sni).await.unwrap();
            let reply = Call::get("/pool").host(host).on(&mut conn).await;
            assert_eq!(reply.status, status, "{host} at {sni} over {alpn}");
            let mut conn = connect("loose", sni).await.unwrap();
            let _ = Call::get("/pool").host(host).on(&mut conn).await.expect(200);
        }
        // In HTTP/2 the connection goes on for the hosts that it is for.
        let mut conn = connect("tls", "one.test").await.unwrap();
        let _ = Call::get("/pool").host("one.test").on(&mut conn).await.expect(200);
        let reply = Call::post("/pool", "body").host("two.test").on(&mut conn).await.expect(421);
        assert_eq!(reply.json()["detail"], "The request is for a host that this connection is not for.");
        if alpn == "h2" {
            let _ = Call::get("/pool").host("one.test").on(&mut conn).await.expect(200);
        }
    }
    let refused = gateway.metrics().await.sum("serin_refused_requests_total", &["reason=\"other_host\""]);
    assert_eq!(refused, 12.0);
    for listener in ["tls", "loose"] {
        let labels = [&*format!("listener=\"{listener}\""), "name=\"two.test\""];
        assert!(gateway.metrics().await.sum("serin_certificate_expiry_timestamp_seconds", &labels) > 1e9);
    }
}

#[tokio::test]
async fn certificates_are_reloaded_when_their_files_change() {
    let (authority, origin) = (Authority::new(), Origin::start("a").await);
    let gateway = tls_gateway(&authority, &["one.test"], single(&origin)).await;
    let connect = || Conn::tls(gateway.listener("tls"), "one.test", authority.client(&["h2"]));
    let mut old = connect().await.unwrap();
    let renewed = authority.issue("one.test");
    renewed.write(gateway.dir(), "one.test");
    wait::until("the new certificate", || async {
        (connect().await.unwrap().peer_cert.as_deref() == Some(renewed.der())).then_some(())
    })
    .await;
    let call = Call::get("/pool").host("one.test");
    assert_eq!(call.on(&mut old).await.origin(), "a", "established connections stay");

    std::fs::write(gateway.dir().join("one.test.crt"), "no certificate").unwrap();
    let good = authority.issue("one.test");
    // The watcher has certainly seen the bad file once it serves the good one that follows.
    let conn = connect().await.expect("the last good certificate stays");
    assert_eq!(conn.peer_cert.as_deref(), Some(renewed.der()));
    good.write(gateway.dir(), "one.test");
    wait::until("the good certificate", || async {
        (connect().await.unwrap().peer_cert.as_deref() == Some(good.der())).then_some(())
    })
    .await;
}

#[tokio::test]
async fn min_version_is_obeyed() {
    let (authority, origin) = (Authority::new(), Origin::start("a").await);
    let dir = gateway::directory();
    let mut conf = single(&origin);
    conf.listeners().push(json!({
        "name": "tls", "address": "127.0.0.1:0", "protocols": ["http1"],
        "tls": {"certificates": [certificate(&authority, &dir, "one.test")], "min_version": "1.3"},
    }));
    let gateway = Gateway::start_in(dir, conf).await;
    let connect = |client| Conn::tls(gateway.listener("tls"), "one.test", client);
    assert!(connect(authority.client(&["http/1.1"])).await.is_ok());
    assert!(connect(authority.client_tls12(&["http/1.1"])).await.is_err());
}

#[tokio::test]
async fn upstreams_speak_h2c_and_h2_over_tls() {
    let authority = Authority::new();
    let plain = Origin::start("plain").await;
    let tls = Origin::start_tls("tls", &authority.issue("origin.test"), &["h2"]).await;
    let tls1 = Origin::start_tls("tls1", &authority.issue("origin.test"), &["http/1.1"]).await;
    let dir = gateway::directory();
    let ca = dir.path().join("ca.crt");
    std::fs::write(&ca, authority.pem()).unwrap();

    let service = |origin: &Origin, protocol: &str, sni: Option<&str>| {
        let mut service = conf::pool(&[origin], json!([{"round_robin": {}}]));
        service["protocol"] = json!(protocol);
        if let Some(sni) = sni {
            service["tls"] = json!({"sni": sni, "ca": ca, "verify": true});
        }
        service
    };
    let conf = Conf::empty()
        .with_service("plain", service(&plain, "h2c", None))
        .with_service("tls", service(&tls, "h2", Some("origin.test")))
        .with_service("tls1", service(&tls1, "http1", Some("origin.test")))
        .with_service("wrong", service(&tls, "h2", Some("other.test")));
    let gateway = Gateway::start_in(dir, conf).await;
    let cases = [
        ("/plain", "HTTP/2.0", Value::Null),
        ("/tls", "HTTP/2.0", json!("origin.test")),
        ("/tls1", "HTTP/1.1", json!("origin.test")),
    ];
    for (path, version, sni) in cases {
        for mut conn in [Conn::http1(gateway.http()).await, Conn::h2c(gateway.http()).await] {
            let seen = Call::post(path, "body").on(&mut conn).await.expect(200).json();
            assert_eq!((seen["http"].as_str(), &seen["sni"]), (Some(version), &sni), "{path}");
            assert_eq!(seen["received"], 4, "{path}");
        }
    }
    let mut conn = Conn::http1(gateway.http()).await;
    let refused = Call::get("/wrong").on(&mut conn).await.status.as_u16();
    assert!(refused == 502 || refused == 503, "a certificate for another name is not taken: {refused}");
}

async fn grpc_gateway(server: &PyServer) -> Gateway {
    let service = json!({
        "instances": [{"address": format!("127.0.0.1:{}", server.port)}],
        "protocol": "h2c",
        "balancer": [{"round_robin": {}}],
    });
    let mut conf = Conf::empty().with_route("grpc", json!({"path": {"prefix": "/serin.test.Peer"}}), "grpc");
    conf.routing["services"]["grpc"] = service;
    Gateway::start(conf).await
}

#[tokio::test]
async fn grpc_calls_of_every_kind_pass_with_their_trailers() {
    let server = PyServer::start("grpc_peer.py").await;
    let gateway = grpc_gateway(&server).await;
    let address = gateway.http().to_string();
    let items = |from: &str, count| (0..count).map(|n| format!("{from} {n}")).collect::<Vec<_>>();
    let cases = [
        ("unary", json!({"reply": "hello world", "code": "OK", "trailing": {"x-trailing": "after unary"}})),
        ("stream", json!({"items": items("item", 5), "code": "OK", "trailing": {}})),
        (
            "bidi",
            json!({"items": items("echo", 3), "rest": [], "code": "OK", "trailing": {"x-trailing": "after bidi"}}),
        ),
        (
            "error",
            json!({
                "code": "FAILED_PRECONDITION", "details": "not today: 100 %",
                "trailing": {"x-trailing": "after error"},
            }),
        ),
    ];
    for (kind, expected) in cases {
        assert_eq!(peers::client("grpc_peer.py", &[&address, kind]).await, expected, "{kind}");
    }
}

#[tokio::test]
async fn grpc_metadata_reaches_the_server() {
    let server = PyServer::start("grpc_peer.py").await;
    let gateway = grpc_gateway(&server).await;
    let answer = peers::client("grpc_peer.py", &[&gateway.http().to_string(), "metadata"]).await;
    let seen: Value = serde_json::from_str(answer["reply"].as_str().unwrap()).unwrap();
    assert_eq!((seen["x-user-id"].as_str(), seen["x-sent"].as_str()), (Some("7"), Some("by grpcio")), "{seen}");
}

#[tokio::test]
async fn websockets_pass_messages_both_ways() {
    let world = World::start().await;
    let url = format!("ws://{}/chat/ws", world.http());
    let answer = peers::client("ws_peer.py", &[&url]).await;
    assert_eq!(answer, json!({"text": "text", "big_is_same": true, "pong": true, "close_code": 1000}));
}

#[tokio::test]
async fn nothing_of_the_gateway_gets_into_an_upgraded_connection() {
    let mut world = World::with(&["v1-a"], |conf| {
        conf.weights(&[("v1", "100%"), ("v2", "0%")]);
        conf.service("users")["timeouts"] = json!({"idle": "300ms"});
    })
    .await;
    for breaks in [false, true] {
        let mut client = TcpStream::connect(world.http()).await.unwrap();
        let ask = "GET /chat/ws HTTP/1.1\r\nhost: api.example.com\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
                   sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
        client.write_all(ask.as_bytes()).await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(client.read_u8().await.unwrap());
        }
        assert!(head.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&head));
        if breaks {
            world.origins[0].stop().await;
        }
        // It idles out, or its upstream is gone: it ends, and there is nothing before the end.
        let mut rest = Vec::new();
        let ended = tokio::time::timeout(wait::DEADLINE, client.read_to_end(&mut rest)).await.expect("an end");
        assert!(rest.is_empty(), "{ended:?}: {}", String::from_utf8_lossy(&rest));
    }
}

#[tokio::test]
async fn server_sent_events_arrive_one_by_one() {
    let world = World::with(&["v1-a"], |conf| {
        conf.weights(&[("v1", "100%"), ("v2", "0%")]);
    })
    .await;
    for mut conn in [Conn::http1(world.http()).await, Conn::h2c(world.http()).await] {
        let response = Call::get("/sse").open_on(&mut conn).await.unwrap();
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        let mut body = response.into_body();
        for number in 0..3 {
            // The next event is sent only when this one is here, so anything that buffers would hang.
            world.origins[0].emit(&format!("event {number}"));
            let frame = tokio::time::timeout(wait::DEADLINE, body.frame()).await.expect("an event").unwrap().unwrap();
            assert_eq!(frame.into_data().unwrap(), format!("data: event {number}\n\n"));
        }
    }
}

#[tokio::test]
async fn trailers_pass() {
    let origin = Origin::start("a").await;
    let mut conf = single(&origin);
    conf.service("pool")["protocol"] = json!("h2c");
    let gateway = Gateway::start(conf).await;
    let reply = Call::get("/pool/trailers").header("te", "trailers").on(&mut Conn::h2c(gateway.http()).await).await;
    assert_eq!(reply.trailers.expect("trailers")["x-trailer"], "end");
}

/// Each piece is sent when the one before has come back, so whatever buffers would hang. All at once is another matter:
/// pingora reads no response while it writes a piece of the request, see ARCHITECTURE.md.
#[tokio::test]
async fn an_echo_streams_in_both_directions_at_once() {
    const PIECES: u8 = 200;
    let origin = Origin::start("a").await;
    let gateway = Gateway::start(single(&origin)).await;
    for mut conn in [Conn::http1(gateway.http()).await, Conn::h2c(gateway.http()).await] {
        let (send, pieces) = tokio::sync::mpsc::unbounded_channel();
        let piece = |number: u8| Bytes::from(vec![number; PIECE]);
        let frames = stream::unfold(pieces, |mut pieces| async {
            let piece = pieces.recv().await?;
            Some((Ok(Frame::data(piece)), pieces))
        });
        send.send(piece(0)).unwrap();
        let body = StreamBody::new(frames).boxed_unsync();
        let mut echo = Call::new("POST", "/pool/echo").stream_on(&mut conn, body).await.unwrap().into_body();
        for number in 0..PIECES {
            let mut left = PIECE;
            while left > 0 {
                let frame =
                    tokio::time::timeout(wait::DEADLINE, echo.frame()).await.expect("an echo").unwrap().unwrap();
                let data = frame.into_data().unwrap();
                assert!(data.iter().all(|byte| *byte == number), "the pieces are in order");
                left -= data.len();
            }
            if number + 1 < PIECES {
                send.send(piece(number + 1)).unwrap();
            }
        }
        drop(send);
        assert!(echo.frame().await.is_none_or(|end| end.unwrap().data_ref().is_none_or(Bytes::is_empty)));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gibibyte_each_way_takes_at_most_32_mib() {
    let origin = Origin::start("a").await;
    let mut conf = single(&origin);
    conf.service("pool")["timeouts"] = json!({"request": "none"});
    let gateway = Gateway::start(conf).await;
    let mut conn = Conn::http1(gateway.http()).await;
    let _ = Call::get("/pool/bytes/1000000").on(&mut conn).await.expect(200);
    let before = gateway.rss_kib();
    let mut peak = before;

    let mut body = Call::get(&format!("/pool/bytes/{GIB}")).open_on(&mut conn).await.unwrap().into_body();
    let mut received = 0_u64;
    while let Some(frame) = body.frame().await {
        let data = frame.unwrap().into_data().unwrap();
        let pieces = |at: u64| at / (8 << 20);
        if pieces(received) != pieces(received + data.len() as u64) {
            peak = peak.max(gateway.rss_kib());
        }
        received += data.len() as u64;
    }
    assert_eq!(received, GIB);

    let upload = Call::new("POST", "/pool/sink").stream_on(&mut conn, generated(GIB));
    let mut upload = Box::pin(upload);
    let mut ticks = tokio::time::interval(Duration::from_millis(10));
    let response = loop {
        tokio::select! {
            response = &mut upload => break response.unwrap(),
            _ = ticks.tick() => peak = peak.max(gateway.rss_kib()),
        }
    };
    assert_eq!(Reply::read(response).await.unwrap().json()["received"], GIB);
    assert!(peak - before <= GROWTH_KIB, "grew by {} KiB", peak - before);
}
