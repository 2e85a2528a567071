//! Promise: what is unusual but legal in HTTP works: WebSockets and nothing else switch protocols, half-closed clients get
//! their answers, interim responses pass, expectations are met.

use std::time::Duration;

use serde_json::{Value, json};
use serin_e2e::client::Call;
use serin_e2e::raw::Outcome;
use serin_e2e::rogue::{Arrival, Step};
use serin_e2e::{Conf, Gateway, Raw, Rogue, wait};

const PATIENCE: Duration = Duration::from_secs(5);
/// The example of RFC 6455 section 1.3, and the answer to it.
const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

async fn before(rogue: &Rogue) -> Gateway {
    let service = json!({"instances": [{"address": rogue.address.to_string()}], "retry": {"attempts": 1}});
    let mut conf = Conf::empty().with_route("all", json!({"path": {"prefix": "/"}}), "all");
    conf.routing["services"]["all"] = service;
    Gateway::start(conf).await
}

fn handshake(path: &str) -> String {
    format!(
        "GET {path} HTTP/1.1\r\nHost: gw.test\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {KEY}\r\n\r\n"
    )
}

fn switch(fields: &str) -> Step {
    Step::send(format!("HTTP/1.1 101 Switching Protocols\r\n{fields}\r\n"))
}

#[tokio::test]
async fn only_the_right_answer_opens_a_websocket() {
    let upgrade = "Upgrade: websocket\r\n";
    let connection = "Connection: Upgrade\r\n";
    let accept = format!("Sec-WebSocket-Accept: {ACCEPT}\r\n");
    let answers = [
        ("/right", [upgrade, connection, &accept].concat(), 101),
        ("/bare", String::new(), 502),
        ("/no-accept", [upgrade, connection].concat(), 502),
        ("/wrong-accept", [upgrade, connection, "Sec-WebSocket-Accept: AAAA\r\n"].concat(), 502),
        ("/no-connection", [upgrade, &accept].concat(), 502),
        ("/no-upgrade", [connection, &accept].concat(), 502),
        ("/other", ["Upgrade: h2c\r\n", connection, &accept].concat(), 502),
    ];
    let script = answers.clone();
    let rogue = Rogue::start(move |arrival: &Arrival| {
        let fields = script.iter().find(|(path, ..)| *path == arrival.path).map_or("", |(_, fields, _)| fields);
        vec![switch(fields), Step::send("hello"), Step::Stall]
    })
    .await;
    let gateway = before(&rogue).await;
    for (path, _, status) in &answers {
        let mut raw = Raw::connect(gateway.http()).await;
        raw.send(handshake(path).as_bytes()).await.unwrap();
        let outcome = raw.head(PATIENCE).await;
        assert_eq!(outcome.status(), *status, "{path}: {outcome:?}");
    }
    // Nor does one that nobody asked for.
    let mut raw = Raw::connect(gateway.http()).await;
    raw.send(b"GET /right HTTP/1.1\r\nHost: gw.test\r\n\r\n").await.unwrap();
    assert_eq!(raw.head(PATIENCE).await.status(), 502);
    let mut raw = Raw::connect(gateway.http()).await;
    raw.send(handshake("/right").replace("Connection: keep-alive, Upgrade\r\n", "").as_bytes()).await.unwrap();
    assert_eq!(raw.head(PATIENCE).await.status(), 502, "without `Connection: upgrade` nothing was asked for");
}

#[tokio::test]
async fn a_websocket_survives_reloads() {
    let rogue = Rogue::start(|arrival: &Arrival| match arrival.path.as_str() {
        "/ws" => {
            let fields = format!("Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {ACCEPT}\r\n");
            vec![switch(&fields), Step::Gate, Step::send("before"), Step::Gate, Step::send("after"), Step::Stall]
        }
        _ => Step::answer(),
    })
    .await;
    let gateway = before(&rogue).await;
    let mut raw = Raw::connect(gateway.http()).await;
    raw.send(handshake("/ws").as_bytes()).await.unwrap();
    assert_eq!(raw.head(PATIENCE).await.status(), 101);
    rogue.let_go();
    let read = raw.read().await;
    assert_eq!(read.as_deref(), Some(&b"before"[..]), "{:?}", gateway.access_log(1).await);
    let mut routing: Value = gateway.conf.routing.clone();
    for round in 0..3 {
        let respond = json!({"name": format!("r{round}"), "match": {"path": {"exact": format!("/r{round}")}},
            "respond": {"status": 204}});
        routing["routes"].as_array_mut().unwrap().insert(0, respond);
        gateway.write_routing(&routing);
        wait::until("the new route", || async {
            (Call::get(&format!("/r{round}")).to(gateway.http()).await.status == 204).then_some(())
        })
        .await;
    }
    rogue.let_go();
    let read = tokio::time::timeout(PATIENCE, raw.read()).await.expect("the tunnel to stand");
    assert_eq!(read.as_deref(), Some(&b"after"[..]));
}

#[tokio::test]
async fn a_websocket_may_be_declined() {
    let rogue = Rogue::start(|arrival: &Arrival| match arrival.path.as_str() {
        "/ws" => vec![Step::send("HTTP/1.1 403 Forbidden\r\ncontent-length: 2\r\n\r\nno")],
        _ => Step::answer(),
    })
    .await;
    let gateway = before(&rogue).await;
    for _ in 0..3 {
        let mut raw = Raw::connect(gateway.http()).await;
        // What is sent before the answer is no part of a tunnel.
        raw.send((handshake("/ws") + "GET /early HTTP/1.1\r\nHost: gw.test\r\n\r\n").as_bytes()).await.unwrap();
        let outcome = raw.response(PATIENCE).await;
        assert!(matches!(&outcome, Outcome::Response { status: 403, body, .. } if body == "no"), "{outcome:?}");
        let rest = raw.rest(PATIENCE).await.expect("the connection to end");
        assert!(rest.is_empty() || rest.starts_with(b"HTTP/1.1 200"), "{:?}", String::from_utf8_lossy(&rest));
        assert_eq!(Call::get("/fresh").to(gateway.http()).await.expect(200).text(), "ok");
    }
    assert!(rogue.arrivals().iter().all(|arrival| ["/ws", "/fresh", "/early"].contains(&arrival.path.as_str())));
}

#[tokio::test]
async fn a_half_closed_client_gets_its_answer() {
    let rogue = Rogue::start(|_| vec![Step::Take(u64::MAX), Step::Gate, Step::answer().remove(1)]).await;
    let gateway = before(&rogue).await;
    let requests: [&[u8]; 3] = [
        b"GET / HTTP/1.1\r\nHost: gw.test\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: gw.test\r\nContent-Length: 5\r\n\r\nhello",
        b"GET / HTTP/1.0\r\n\r\n",
    ];
    for (number, request) in requests.into_iter().enumerate() {
        let mut raw = Raw::connect(gateway.http()).await;
        raw.send(request).await.unwrap();
        raw.finish().await;
        wait::until("the request to arrive", || async { (rogue.hits() > number).then_some(()) }).await;
        rogue.let_go();
        let outcome = raw.response(PATIENCE).await;
        assert!(matches!(&outcome, Outcome::Response { status: 200, body, .. } if body == "ok"), "{outcome:?}");
        assert_eq!(raw.rest(PATIENCE).await.as_deref(), Some(&b""[..]), "then the gateway closes as well");
    }
}

#[tokio::test]
async fn requests_may_be_sent_ahead() {
    let rogue = Rogue::start(|arrival: &Arrival| {
        let path = &arrival.path;
        vec![Step::Gate, Step::send(format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{path}", path.len()))]
    })
    .await;
    let gateway = before(&rogue).await;
    let mut raw = Raw::connect(gateway.http()).await;
    raw.send(b"GET /1 HTTP/1.1\r\nHost: gw.test\r\n\r\n").await.unwrap();
    wait::until("the first request", || async { (rogue.hits() == 1).then_some(()) }).await;
    // One is on its way while the others come in, and the last of them is malformed.
    raw.send(b"GET /2 HTTP/1.1\r\nHost: gw.test\r\n\r\nGET /3 HTTP/1.1\nHost: gw.test\n\n").await.unwrap();
    rogue.let_go();
    rogue.let_go();
    for expected in ["/1", "/2"] {
        let outcome = raw.response(PATIENCE).await;
        assert!(matches!(&outcome, Outcome::Response { status: 200, body, .. } if body == expected), "{outcome:?}");
    }
    assert_eq!(raw.response(PATIENCE).await.status(), 400);
    assert_eq!(rogue.hits(), 2);
}

#[tokio::test]
async fn interim_responses_pass_once_and_not_to_http_1_0() {
    let hints = "HTTP/1.1 103 Early Hints\r\nlink: </a.css>\r\n\r\n";
    let rogue = Rogue::start(move |_| vec![Step::send(hints), Step::answer().remove(1)]).await;
    let gateway = before(&rogue).await;
    for request in
        ["GET / HTTP/1.1\r\nHost: gw.test\r\n\r\n", "POST / HTTP/1.1\r\nHost: gw.test\r\nContent-Length: 0\r\n\r\n"]
    {
        let mut raw = Raw::connect(gateway.http()).await;
        raw.send(request.as_bytes()).await.unwrap();
        let first = raw.head(PATIENCE).await;
        let Outcome::Response { status: 103, head, .. } = &first else { panic!("{first:?}") };
        assert!(head.contains("link: </a.css>"), "{head}");
        assert_eq!(raw.head(PATIENCE).await.status(), 200);
    }
    let mut raw = Raw::connect(gateway.http()).await;
    raw.send(b"GET / HTTP/1.0\r\nHost: gw.test\r\n\r\n").await.unwrap();
    assert_eq!(raw.head(PATIENCE).await.status(), 200, "HTTP/1.0 knows no interim responses");
}

#[tokio::test]
async fn expectations_are_passed_on_and_met() {
    let rogue = Rogue::start(|arrival: &Arrival| match arrival.path.as_str() {
        "/yes" => [vec![Step::send("HTTP/1.1 100 Continue\r\n\r\n")], Step::answer()].concat(),
        _ => vec![Step::send("HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n")],
    })
    .await;
    let gateway = before(&rogue).await;
    let head = |path: &str| {
        format!("POST {path} HTTP/1.1\r\nHost: gw.test\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n")
    };
    let mut raw = Raw::connect(gateway.http()).await;
    raw.send(head("/yes").as_bytes()).await.unwrap();
    assert_eq!(raw.head(PATIENCE).await.status(), 100);
    raw.send(b"hello").await.unwrap();
    assert_eq!(raw.head(PATIENCE).await.status(), 200);

    let mut raw = Raw::connect(gateway.http()).await;
    raw.send(head("/no").as_bytes()).await.unwrap();
    assert_eq!(raw.head(PATIENCE).await.status(), 403, "the body is not asked for");
}
