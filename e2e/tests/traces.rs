//! Promise: what is sampled is told over OTLP, with the decision; trace headers go through as their formats say, whoever
//! sent them; and a receiver that is down, hung or slow costs spans and nothing else.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests may panic in their helpers as well")]

use std::collections::BTreeSet;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use serin_e2e::client::{Call, Conn};
use serin_e2e::origin::{Behaviour, refusing_address};
use serin_e2e::otlp::{Receiver, Rotel, only};
use serin_e2e::peers::{self, PyServer};
use serin_e2e::tls::Authority;
use serin_e2e::world::{origins, users_conf};
use serin_e2e::{Conf, Gateway, Origin, conf, gateway, wait};
use sha2::Sha256;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const SPAN: &str = "b7ad6b7169203331";

fn parent(flags: &str) -> String {
    format!("00-{TRACE}-{SPAN}-{flags}")
}

/// One attempt per request, and no word about the subset in `tracestate` and `baggage`.
fn single(origin: &Origin) -> Conf {
    let mut pool = conf::pool(&[origin], json!([{"round_robin": {}}]));
    pool["retry"] = json!({"attempts": 1});
    pool["propagate"] = json!({"tracestate": false, "baggage": false});
    Conf::empty().with_service("pool", pool)
}

/// A gateway before one origin, with `traces` as they are given.
async fn traced(traces: Value, trusted: bool) -> (Gateway, Origin, Receiver) {
    let (receiver, origin) = (Receiver::start().await, Origin::start("a").await);
    let mut conf = traced_conf(&receiver, single(&origin), &traces);
    if trusted {
        conf.bootstrap["trusted_proxies"] = json!(["127.0.0.1/32"]);
    }
    (Gateway::start(conf).await, origin, receiver)
}

fn traced_conf(receiver: &Receiver, conf: Conf, traces: &Value) -> Conf {
    let mut conf = receiver.traces(conf, "grpc");
    for (key, value) in traces.as_object().unwrap() {
        conf.bootstrap["telemetry"]["traces"][key] = value.clone();
    }
    conf
}

fn text<'a>(span: &'a Value, attribute: &str) -> &'a str {
    span["attributes"][attribute].as_str().unwrap_or_else(|| panic!("no {attribute} in {span:#}"))
}

/// Everything that the span of an attempt is expected to say, here and in the one of the request.
#[tokio::test]
async fn a_request_is_told_with_its_decision_over_both_protocols() {
    for protocol in ["grpc", "http"] {
        let receiver = Receiver::start().await;
        let origins = origins(&["v1-a", "v2-a"]).await;
        let mut conf = receiver.traces(users_conf(&origins), protocol);
        conf.route("all")["match"] = json!({"path": {"template": "/users/{id}"}});
        conf.route("all")["rewrite"] = json!({"path": "/u/{id}"});
        conf.service("users")["tags"] =
            json!([{"name": "beta", "when": {"header": {"x-beta": {"exact": "1"}}}, "subset": "v2", "trust": "any"}]);
        conf.service("users")["circuit_breaker"] = json!({});
        conf.bootstrap["telemetry"]["traces"]["otlp"]["headers"] = json!({"x-team": "edge"});
        conf.bootstrap["telemetry"]["traces"]["otlp"]["compression"] = json!("gzip");
        let conf = conf
            .with_env("OTEL_SERVICE_NAME", "edge")
            .with_env("OTEL_RESOURCE_ATTRIBUTES", "stage=test,team=a%20b")
            .with_env("OTEL_EXPORTER_OTLP_HEADERS", "api-key=secret");
        let gateway = Gateway::start(conf).await;
        let call = Call::get("/users/7?id=secret&x=1").host("shop.example").header("x-beta", "1");
        let reply = call.header("user-agent", "test/1").user("u1").to(gateway.http()).await.expect(200);
        assert_eq!(reply.origin(), "v2-a");
        let spans = receiver.spans(2).await;
        let (server, client) = (only(&spans, "server"), only(&spans, "client"));
        assert_eq!((server["how"].as_str(), server["scope"].as_str()), (Some(protocol), Some("serin")));
        let resource = &server["resource"];
        assert_eq!(
            (&resource["service.name"], &resource["stage"], &resource["team"]),
            (&json!("edge"), &json!("test"), &json!("a b"))
        );
        assert_eq!(resource["service.instance.id"], "gw-1");
        let call = &receiver.calls().await[0];
        assert_eq!((&call["x-team"], &call["api-key"]), (&json!("edge"), &json!("secret")));

        assert_eq!((&server["name"], &server["parent"]), (&json!("GET /users/{id}"), &json!("")));
        assert_eq!(
            (&client["name"], &client["parent"], &client["trace"]),
            (&json!("GET"), &server["span"], &server["trace"])
        );
        let number = |span: &Value, key: &str| span[key].as_u64().unwrap();
        assert!(number(server, "start") <= number(client, "start") && number(client, "end") <= number(server, "end"));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
        assert!(now - number(server, "start") < 10_000_000_000, "on the wall clock");
        assert_eq!((&server["status"], &client["status"]), (&json!("unset"), &json!("unset")));
        assert_eq!(server["flags"], 0x103, "sampled, of a random identity, at the root");

        let instance = origins[1].address.to_string();
        let mut expected = json!({
            "http.request.method": "GET", "url.scheme": "http", "url.path": "/users/7", "http.route": "/users/{id}",
            "url.query": "id=REDACTED&x=REDACTED", "server.address": "shop.example", "client.address": "127.0.0.1",
            "network.peer.address": "127.0.0.1", "network.protocol.version": "1.1", "user_agent.original": "test/1",
            "http.response.status_code": 200, "server.port": gateway.http().port(), "http.request.body.size": 0,
            "serin.route": "all", "serin.service": "users", "serin.subset": "v2", "serin.assigned_subset": "v2",
            "serin.why": "tag", "serin.tag": "beta", "serin.revision": "1.1", "serin.attempts": 1,
        });
        for (key, value) in expected.as_object().unwrap() {
            assert_eq!(&server["attributes"][key], value, "{key} in {server:#}");
        }
        assert_eq!(text(server, "serin.bucket").len(), 16);
        let id = reply.header("x-request-id");
        assert_eq!(
            (text(server, "serin.request_id"), server["trace"].as_str()),
            (id, Some(id)),
            "one leads to the other"
        );
        expected = json!({
            "http.request.method": "GET", "url.full": format!("http://{instance}/u/7?id=REDACTED&x=REDACTED"),
            "server.address": "127.0.0.1", "server.port": origins[1].address.port(), "http.response.status_code": 200,
            "network.protocol.version": "1.1", "serin.attempt": 1, "serin.instance": instance, "serin.subset": "v2",
            "serin.balancer": "round_robin", "serin.breaker": "closed", "serin.service": "users",
        });
        for (key, value) in expected.as_object().unwrap() {
            assert_eq!(&client["attributes"][key], value, "{key} in {client:#}");
        }
        assert!(!spans.iter().any(|span| span.to_string().contains("secret")), "{spans:#?}");
        let seen = reply.seen("traceparent").unwrap();
        let sent = format!("00-{}-{}-03", client["trace"].as_str().unwrap(), client["span"].as_str().unwrap());
        assert_eq!(seen, sent, "the upstream's parent is the attempt");
        let log = gateway.access_log(1).await;
        assert_eq!(log[0]["trace_id"], server["trace"]);
    }
}

#[tokio::test]
async fn every_attempt_has_a_span_of_its_own() {
    let (receiver, origin) = (Receiver::start().await, Origin::start("a").await);
    let mut pool = conf::pool(&[&origin], json!([{"exclude_tried": {}}, {"first": {}}]));
    // Instances are ordered by address; this port is below those that the kernel chooses.
    pool["instances"].as_array_mut().unwrap().push(json!({"address": refusing_address().to_string()}));
    pool["retry"] = json!({"attempts": 2});
    let gateway = Gateway::start(receiver.traces(Conf::empty().with_service("pool", pool), "grpc")).await;
    // With a body it goes pingora's way, without one it does not.
    for (sent, call) in [Call::get("/pool"), Call::post("/pool", "body")].into_iter().enumerate() {
        let _ = call.to(gateway.http()).await.expect(200);
        let spans = receiver.spans(3 * (sent + 1)).await.split_off(3 * sent);
        let server = only(&spans, "server");
        let (first, second) = match &spans.iter().filter(|span| span["kind"] == "client").collect::<Vec<_>>()[..] {
            [a, b] if a["attributes"]["serin.attempt"] == 1 => (*a, *b),
            other => panic!("{other:#?}"),
        };
        assert_eq!((text(first, "error.type"), &first["status"]), ("connect_failure", &json!("error")), "{first:#}");
        assert_eq!(second["attributes"]["http.request.resend_count"], 1);
        assert_eq!(
            (&second["status"], text(second, "serin.instance")),
            (&json!("unset"), &*origin.address.to_string())
        );
        assert_eq!((&server["status"], &server["attributes"]["serin.attempts"]), (&json!("unset"), &json!(2)));
        assert!([first, second].iter().all(|span| span["parent"] == server["span"]));
    }
}

#[tokio::test]
async fn a_hedge_has_a_span_and_so_has_the_one_that_lost() {
    let receiver = Receiver::start().await;
    let origins = origins(&["a", "b"]).await;
    let slow = origins.iter().min_by_key(|origin| origin.address).unwrap();
    slow.set(Behaviour::Hold);
    let mut pool = conf::pool(&origins.iter().collect::<Vec<_>>(), json!([{"exclude_tried": {}}, {"first": {}}]));
    pool["retry"] = json!({"attempts": 2, "hedge_after": "50ms"});
    let gateway = Gateway::start(receiver.traces(Conf::empty().with_service("pool", pool), "grpc")).await;
    let _ = Call::get("/pool").to(gateway.http()).await.expect(200);
    let spans = receiver.spans(3).await;
    let lost = spans.iter().find(|span| span["attributes"]["serin.instance"] == slow.address.to_string()).unwrap();
    assert_eq!((text(lost, "error.type"), &lost["status"]), ("abandoned", &json!("error")));
    let won = spans.iter().find(|span| span["attributes"]["serin.attempt"] == 2).unwrap();
    assert_eq!((&won["status"], &won["attributes"]["http.response.status_code"]), (&json!("unset"), &json!(200)));
}

#[tokio::test]
async fn calls_have_the_conventions_of_rpc() {
    let (receiver, origin) = (Receiver::start().await, Origin::start("a").await);
    let mut pool = conf::pool(&[&origin], json!([{"round_robin": {}}]));
    pool["protocol"] = json!("h2c");
    let conf = Conf::empty().with_route("all", json!({}), "pool");
    let mut conf = receiver.traces(conf, "grpc");
    conf.routing["services"]["pool"] = pool;
    let gateway = Gateway::start(conf).await;
    let mut conn = Conn::h2c(gateway.http()).await;
    let call = |path| Call::post(path, "").header("content-type", "application/grpc").header("te", "trailers");
    for (sent, (path, code, server_status)) in [
        ("/shop.Cart/grpc/0", "OK", "unset"),
        ("/shop.Cart/grpc/14", "UNAVAILABLE", "error"),
        ("/shop.Cart/grpc-head/5", "NOT_FOUND", "unset"),
    ]
    .into_iter()
    .enumerate()
    {
        let _ = call(path).on(&mut conn).await.expect(200);
        let spans = receiver.spans(2 * (sent + 1)).await.split_off(2 * sent);
        for kind in ["server", "client"] {
            let span = only(&spans, kind);
            assert_eq!((text(span, "rpc.system.name"), text(span, "rpc.method")), ("grpc", &path[1..]));
            assert_eq!(text(span, "rpc.response.status_code"), code);
            let status = if kind == "client" && code != "OK" { "error" } else { server_status };
            assert_eq!(span["status"], status, "{path} {kind}");
        }
        assert_eq!(text(only(&spans, "server"), "network.protocol.version"), "2");
    }
}

/// Headers that are no context: the request goes on in a trace of its own.
#[tokio::test]
async fn malformed_headers_start_a_new_trace() {
    let formats = json!({"propagate": ["tracecontext", "baggage", "b3", "b3multi"], "trust_parent": "any"});
    let (gateway, _origin, receiver) = traced(formats, false).await;
    let good = parent("01");
    let cases: Vec<Vec<(&str, String)>> = vec![
        vec![("traceparent", String::new())],
        vec![("traceparent", "00".to_owned())],
        vec![("traceparent", good.to_uppercase())],
        vec![("traceparent", good.replace("00-", "ff-"))],
        vec![("traceparent", good.replace(TRACE, &"0".repeat(32)))],
        vec![("traceparent", good.replace(SPAN, &"0".repeat(16)))],
        vec![("traceparent", good.clone() + "-x")],
        vec![("traceparent", "\u{e4}".repeat(30))],
        vec![("traceparent", "x".repeat(5_000))],
        vec![("traceparent", good.clone()), ("traceparent", good.clone())],
        vec![("b3", "nonsense".to_owned())],
        vec![("b3", format!("{TRACE}-{SPAN}-2"))],
        vec![("x-b3-traceid", TRACE.to_owned())],
        vec![("x-b3-traceid", TRACE.to_owned()), ("x-b3-spanid", "x".to_owned())],
        vec![("tracestate", "a=1".to_owned())],
        vec![("baggage", ",;==,\u{e4}".to_owned())],
    ];
    for (sent, headers) in cases.into_iter().enumerate() {
        let call = headers.iter().fold(Call::get("/pool"), |call, (name, value)| call.header(name, value));
        let reply = call.header("tracestate", "a=1").to(gateway.http()).await.expect(200);
        let spans = receiver.spans(2 * (sent + 1)).await.split_off(2 * sent);
        let server = only(&spans, "server");
        assert_eq!((&server["parent"], &server["state"]), (&json!(""), &json!("")), "{headers:?}");
        assert_ne!(server["trace"], TRACE, "{headers:?}");
        let id = server["trace"].as_str().unwrap();
        let upstream = only(&spans, "client")["span"].as_str().unwrap();
        assert_eq!(reply.seen("traceparent").unwrap(), format!("00-{id}-{upstream}-03"), "{headers:?}");
        assert_eq!(reply.seen("b3").unwrap(), format!("{id}-{upstream}-1"), "{headers:?}");
        assert_eq!(reply.seen("x-b3-traceid").as_deref(), Some(id), "{headers:?}");
        assert_eq!((reply.seen("tracestate"), reply.seen("baggage")), (None, None), "{headers:?}");
    }
}

#[tokio::test]
async fn every_format_comes_in_and_goes_out() {
    let formats = json!({"propagate": ["tracecontext", "baggage", "b3", "b3multi"], "trust_parent": "any"});
    let (gateway, _origin, receiver) = traced(formats, false).await;
    let cases: [&[(&str, &str)]; 4] = [
        &[("traceparent", &parent("01")), ("tracestate", "rojo=1"), ("baggage", "k=v")],
        &[("b3", &format!("{TRACE}-{SPAN}-1"))],
        &[("x-b3-traceid", TRACE), ("x-b3-spanid", SPAN), ("x-b3-sampled", "1"), ("x-b3-parentspanid", SPAN)],
        &[("traceparent", "bad"), ("b3", &format!("{TRACE}-{SPAN}-d"))],
    ];
    for (sent, headers) in cases.into_iter().enumerate() {
        let call = headers.iter().fold(Call::get("/pool"), |call, (name, value)| call.header(name, value));
        let reply = call.to(gateway.http()).await.expect(200);
        let spans = receiver.spans(2 * (sent + 1)).await.split_off(2 * sent);
        let (server, client) = (only(&spans, "server"), only(&spans, "client"));
        assert_eq!((&server["trace"], &server["parent"]), (&json!(TRACE), &json!(SPAN)), "{headers:?}");
        assert_eq!(server["flags"].as_u64().unwrap() & 0x301, 0x301, "sampled, from elsewhere: {headers:?}");
        let upstream = client["span"].as_str().unwrap();
        let sampled = if sent == 3 { "d" } else { "1" };
        assert_eq!(reply.seen("traceparent").unwrap(), format!("00-{TRACE}-{upstream}-01"), "{headers:?}");
        assert_eq!(reply.seen("b3").unwrap(), format!("{TRACE}-{upstream}-{sampled}"), "{headers:?}");
        assert_eq!(reply.seen("x-b3-spanid").as_deref(), Some(upstream), "{headers:?}");
        assert_eq!(reply.seen("x-b3-parentspanid"), None, "{headers:?}");
        if sent == 0 {
            assert_eq!(reply.seen("tracestate").as_deref(), Some("rojo=1"));
            assert_eq!(reply.seen("baggage").as_deref(), Some("k=v"));
            assert_eq!(server["state"], "rojo=1");
        }
    }
}

/// A request and the trace that begins with it share an identity, sampled or not; a trace or an id from elsewhere stands.
#[tokio::test]
async fn a_trace_that_begins_here_has_the_id_of_its_request() {
    for (share, flags, state) in [("0%", "02", "0"), ("100%", "03", "1")] {
        let propagate = json!({"sample": share, "propagate": ["tracecontext", "b3"]});
        let (gateway, _origin, receiver) = traced(propagate, true).await;
        let cases = [None, Some(("x-request-id", "abc".to_owned())), Some(("traceparent", parent(flags)))];
        for (sent, given) in cases.into_iter().enumerate() {
            let case = format!("{share} {given:?}");
            let call = given.iter().fold(Call::get("/pool"), |call, (name, value)| call.header(name, value));
            let reply = call.to(gateway.http()).await.expect(200);
            let id = reply.header("x-request-id");
            assert_eq!(reply.seen("x-request-id").as_deref(), Some(id), "{case}");
            let seen = reply.seen("traceparent").unwrap();
            let [_, trace, span, told] = *seen.split('-').collect::<Vec<_>>() else { panic!("{case}: {seen}") };
            assert_eq!((trace == id, told), (given.is_none(), flags), "{case}: {seen}");
            if share == "0%" {
                assert_eq!(span == SPAN, sent == 2, "{case}: {seen}");
                assert_eq!(span == &trace[16..], sent != 2, "{case}: {seen}");
            } else {
                let spans = receiver.spans(2 * (sent + 1)).await.split_off(2 * sent);
                assert_eq!(
                    (&only(&spans, "server")["trace"], &only(&spans, "client")["span"]),
                    (&json!(trace), &json!(span))
                );
                assert_eq!(text(only(&spans, "server"), "serin.request_id"), id, "{case}");
            }
            if sent < 2 {
                assert_eq!(reply.seen("b3").unwrap(), format!("{trace}-{span}-{state}"), "{case}");
            }
        }
    }
}

/// Who is trusted, who said what, and whether it is sampled at a share of 0 % and of 100 %.
#[tokio::test]
async fn only_who_is_trusted_decides_on_sampling() {
    let cases = [
        ("trusted_proxies", false, "01", [false, true]),
        ("trusted_proxies", false, "00", [false, true]),
        ("trusted_proxies", true, "01", [true, true]),
        ("trusted_proxies", true, "00", [false, false]),
        ("any", false, "01", [true, true]),
        ("any", false, "00", [false, false]),
        ("never", true, "01", [false, true]),
        ("never", true, "00", [false, true]),
    ];
    for (trust, trusted, flags, sampled) in cases {
        for (share, sampled) in ["0%", "100%"].into_iter().zip(sampled) {
            let case = format!("{trust} {trusted} {flags} {share}");
            let (gateway, _origin, receiver) = traced(json!({"sample": share, "trust_parent": trust}), trusted).await;
            let call = Call::get("/pool").header("traceparent", parent(flags)).header("tracestate", "a=1");
            let seen = call.to(gateway.http()).await.expect(200).seen("traceparent").unwrap();
            let (id, rest) = seen[3..].split_once('-').unwrap();
            assert_eq!(id, TRACE, "everybody's trace is joined: {case}");
            assert_eq!(rest.ends_with("-01"), sampled, "{case}: {seen}");
            let untouched = !sampled && flags == "00";
            assert_eq!(seen == parent(flags), untouched, "{case}: {seen}");
            if sampled {
                assert_eq!(only(&receiver.spans(2).await, "server")["parent"], SPAN, "{case}");
            } else {
                assert_eq!(stays_empty(&gateway, &receiver).await, 0, "{case}");
            }
        }
    }
}

/// The number of spans that there are after one that is forced by an error has come: none besides.
async fn stays_empty(gateway: &Gateway, receiver: &Receiver) -> usize {
    wait::until("the request to be counted", || async {
        (gateway.metrics().await.sum("serin_requests_total", &[]) > 0.5).then_some(())
    })
    .await;
    // Spans are handed over before a request is logged, and sent within two ticks.
    let _ = gateway.access_log(1).await;
    assert!(gateway.metrics().await.sum("serin_spans_dropped_total", &[]) < 0.5);
    receiver.now().await.len()
}

#[tokio::test]
async fn an_unsampled_context_passes_untouched_in_every_format() {
    let formats = json!({"propagate": ["tracecontext", "b3", "b3multi"], "sample": "0%", "trust_parent": "any"});
    let (receiver, origin) = (Receiver::start().await, Origin::start("a").await);
    let mut conf = traced_conf(&receiver, single(&origin), &formats);
    // Not even the version that was chosen is added.
    conf.service("pool")["propagate"] = json!({"tracestate": true});
    let gateway = Gateway::start(conf).await;
    let cases: [&[(&str, &str)]; 4] = [
        &[("traceparent", &parent("00")), ("tracestate", "rojo=1, congo=2")],
        &[("b3", &format!("{TRACE}-{SPAN}-0-{SPAN}"))],
        &[("b3", "0")],
        &[("x-b3-traceid", TRACE), ("x-b3-spanid", SPAN), ("x-b3-sampled", "0"), ("x-b3-parentspanid", SPAN)],
    ];
    for headers in cases {
        let call = headers.iter().fold(Call::get("/pool"), |call, (name, value)| call.header(name, value));
        let seen = call.to(gateway.http()).await.expect(200).json()["headers"].clone();
        let seen = seen.as_object().unwrap().iter().filter(|(name, _)| is_trace_header(name));
        let seen: BTreeSet<_> = seen.map(|(name, value)| (&**name, value.as_str().unwrap())).collect();
        assert_eq!(seen, headers.iter().copied().collect());
    }
    assert!(receiver.now().await.is_empty());
}

/// What a client says in one format counts in all of them: not even an untrusted one has others sample by the second.
#[tokio::test]
async fn what_contradicts_an_unsampled_context_goes_no_further() {
    let (no, yes) = (parent("00"), parent("01"));
    let (other, ids) = (format!("{SPAN}{SPAN}-{SPAN}-1"), [("x-b3-traceid", TRACE), ("x-b3-spanid", SPAN)]);
    let multi = |last: &[(&'static str, &'static str)]| [&ids[..], last].concat();
    let cases = [
        (json!(["tracecontext", "b3"]), vec![("traceparent", &*no), ("b3", &*other)], vec![("traceparent", &*no)]),
        (
            json!(["b3", "tracecontext"]),
            vec![("traceparent", &*yes), ("tracestate", "a=1"), ("b3", "0")],
            vec![("b3", "0")],
        ),
        (
            json!(["tracecontext", "baggage", "b3", "b3multi"]),
            [&[("traceparent", &*no)], &*multi(&[("x-b3-sampled", "1")])].concat(),
            vec![("traceparent", &*no)],
        ),
        (json!(["b3", "b3multi"]), [&[("b3", "0")], &*multi(&[("x-b3-flags", "1")])].concat(), vec![("b3", "0")]),
        (
            json!(["tracecontext", "b3multi"]),
            [&[("traceparent", &*no)], &*multi(&[("x-b3-sampled", "0")])].concat(),
            [&[("traceparent", &*no)], &*multi(&[("x-b3-sampled", "0")])].concat(),
        ),
        // Of several flags none counts, so that this is no context at all.
        (json!(["b3multi"]), multi(&[("x-b3-sampled", "0"), ("x-b3-flags", "1"), ("x-b3-flags", "1")]), vec![]),
    ];
    for (formats, sent, expected) in cases {
        let case = format!("{formats} {sent:?}");
        let (gateway, _origin, _receiver) = traced(json!({"propagate": formats, "sample": "0%"}), false).await;
        let call = sent.iter().fold(Call::get("/pool"), |call, (name, value)| call.header(name, value));
        let seen = call.to(gateway.http()).await.expect(200).json()["headers"].clone();
        let seen = seen.as_object().unwrap().iter().filter(|(name, _)| is_trace_header(name));
        let seen: BTreeSet<_> = seen.map(|(name, value)| (&**name, value.as_str().unwrap())).collect();
        if expected.is_empty() {
            assert!(seen.contains(&("x-b3-sampled", "0")), "{case}: {seen:?}");
            assert!(seen.iter().all(|(name, value)| *name != "x-b3-flags" && *value != TRACE), "{case}: {seen:?}");
        } else {
            assert_eq!(seen, expected.into_iter().collect(), "{case}");
        }
    }
}

#[tokio::test]
async fn a_full_tracestate_makes_room_for_the_version() {
    let (receiver, origin) = (Receiver::start().await, Origin::start("a").await);
    let mut conf = traced_conf(&receiver, single(&origin), &json!({"trust_parent": "any"}));
    conf.service("pool")["propagate"] = json!({"tracestate": true, "baggage": true});
    let gateway = Gateway::start(conf).await;
    let list = |count| (0..count).map(|key| format!("k{key}=v")).collect::<Vec<_>>().join(",");
    let call = Call::get("/pool").header("traceparent", parent("01")).header("tracestate", list(32));
    let reply = call.header("baggage", list(64)).to(gateway.http()).await.expect(200);
    assert_eq!(reply.seen("tracestate").unwrap(), format!("serin=all,{}", list(31)));
    assert_eq!(reply.seen("baggage").unwrap(), format!("serin.subset=all,{}", list(63)));
}

#[tokio::test]
async fn the_debug_header_stays_here_without_traces_as_well() {
    let (receiver, origin, dir) = (Receiver::start().await, Origin::start("a").await, gateway::directory());
    gateway::write_atomically(&dir.path().join("secret"), "a key of at least sixteen bytes");
    let mut conf = traced_conf(&receiver, single(&origin), &json!({"debug_header": "x-serin-debug"}));
    conf.bootstrap["tag_signing"] = json!({"key_file": "secret"});
    let gateway = Gateway::start_in(dir, conf.with_env("OTEL_SDK_DISABLED", "true")).await;
    let reply = Call::get("/pool").header("x-serin-debug", "trace;exp=1;sig=0").to(gateway.http()).await.expect(200);
    assert_eq!((reply.seen("x-serin-debug"), reply.seen("traceparent")), (None, None));
}

#[tokio::test]
async fn the_version_goes_into_the_state_of_sampled_traces_alone() {
    for (share, flags, state) in [("0%", "-02", None), ("100%", "-03", Some("serin=all"))] {
        let (receiver, origin) = (Receiver::start().await, Origin::start("a").await);
        let mut conf = traced_conf(&receiver, single(&origin), &json!({"sample": share}));
        conf.service("pool")["propagate"] = json!({"tracestate": true, "baggage": true});
        let gateway = Gateway::start(conf).await;
        let reply = Call::get("/pool").to(gateway.http()).await.expect(200);
        assert!(reply.seen("traceparent").unwrap().ends_with(flags), "{share}: every trace goes on");
        assert_eq!(reply.seen("tracestate").as_deref(), state, "{share}");
        assert_eq!(reply.seen("baggage").as_deref(), Some("serin.subset=all"), "{share}: later hops know in any case");
    }
}

fn is_trace_header(name: &str) -> bool {
    name.starts_with("trace") || name.contains("b3")
}

#[tokio::test]
async fn what_failed_or_was_slow_is_told_in_any_case() {
    let always = json!({"sample": "0%", "always": {"on_error": true, "slow_over": "2s"}});
    let (gateway, _origin, receiver) = traced(always, false).await;
    let seen = Call::get("/pool").to(gateway.http()).await.expect(200).seen("traceparent").unwrap();
    assert!(seen.ends_with("-02"), "not sampled, of a random identity: {seen}");
    let _ = Call::get("/pool/status/404").to(gateway.http()).await.expect(404);
    let _ = Call::get("/pool/status/500").to(gateway.http()).await.expect(500);
    let spans = receiver.spans(2).await;
    let server = only(&spans, "server");
    assert_eq!((text(server, "error.type"), &server["status"]), ("500", &json!("error")));
    assert_eq!(text(only(&spans, "client"), "error.type"), "500");
    let _ = Call::get("/pool/delay/2200").to(gateway.http()).await.expect(200);
    let spans = receiver.spans(4).await;
    let slow = &spans[2..];
    assert_eq!(
        (text(only(slow, "server"), "url.path"), &only(slow, "server")["status"]),
        ("/pool/delay/2200", &json!("unset"))
    );
    // What never got anywhere is told as well.
    let _ = Call::get("/pool/reset").to(gateway.http()).await.expect(502);
    let spans = receiver.spans(6).await;
    assert_eq!(text(only(&spans[4..], "server"), "error.type"), "upstream_reset");
    assert_eq!(spans.len(), 6, "and nothing else: {spans:#?}");
}

#[tokio::test]
async fn a_route_has_a_share_of_its_own() {
    let (receiver, origin) = (Receiver::start().await, Origin::start("a").await);
    let conf = single(&origin).with_route("quiet", json!({"path": {"prefix": "/quiet"}}), "pool");
    let mut conf = receiver.traces(conf, "grpc");
    conf.route("quiet")["trace"] = json!({"sample": "0%"});
    let gateway = Gateway::start(conf).await;
    for path in ["/quiet", "/quiet/x", "/pool"] {
        let _ = Call::get(path).to(gateway.http()).await.expect(200);
    }
    let spans = receiver.spans(2).await;
    assert_eq!((text(only(&spans, "server"), "serin.route"), spans.len()), ("pool", 2));
}

#[tokio::test]
async fn a_signed_header_forces_a_trace_and_goes_no_further() {
    const KEY: &str = "a key of at least sixteen bytes";
    let (receiver, origin, dir) = (Receiver::start().await, Origin::start("a").await, gateway::directory());
    gateway::write_atomically(&dir.path().join("secret"), KEY);
    let mut conf = receiver.traces(single(&origin), "grpc");
    conf.bootstrap["tag_signing"] = json!({"key_file": "secret"});
    conf.bootstrap["telemetry"]["traces"]["sample"] = json!("0%");
    conf.bootstrap["telemetry"]["traces"]["debug_header"] = json!("x-serin-debug");
    let gateway = Gateway::start_in(dir, conf).await;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let sign = |key: &str, value: &str, expires: u64| {
        let text = format!("{value};exp={expires}");
        let mac = Hmac::<Sha256>::new_from_slice(key.as_bytes()).unwrap().chain_update(&text);
        let hex: String = mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{text};sig={hex}")
    };
    let bad = [
        "trace".to_owned(),
        sign("another key of sixteen bytes", "trace", now + 60),
        sign(KEY, "trace", now - 60),
        sign(KEY, "canary", now + 60),
    ];
    for (token, sampled) in bad.iter().map(|token| (token, false)).chain([(&sign(KEY, "trace", now + 60), true)]) {
        let reply = Call::get("/pool").header("x-serin-debug", token).to(gateway.http()).await.expect(200);
        assert_eq!(reply.seen("traceparent").unwrap().ends_with("-03"), sampled, "{token}");
        assert_eq!(reply.seen("x-serin-debug"), None);
    }
    assert_eq!(receiver.spans(2).await.len(), 2);
    let file = gateway.dir().join("secret");
    let signed = gateway
        .cli(&["tag", "sign", "trace", "--ttl", "1m", "--key-file", &file.to_string_lossy()])
        .await
        .expect(0)
        .stdout;
    let _ = Call::get("/pool").header("x-serin-debug", signed.trim()).to(gateway.http()).await.expect(200);
    assert_eq!(receiver.spans(4).await.len(), 4);
}

#[tokio::test]
async fn client_gateway_and_upstream_are_one_trace() {
    let receiver = Receiver::start().await;
    let upstream = PyServer::start_with("otel_app.py", &[&receiver.http_url()]).await;
    let mut pool = json!({"instances": [{"address": format!("127.0.0.1:{}", upstream.port)}]});
    pool["propagate"] = json!({"tracestate": true, "baggage": false});
    let mut conf = receiver.traces(Conf::empty().with_service("pool", pool), "grpc");
    conf.bootstrap["telemetry"]["traces"]["sample"] = json!("0%");
    conf.bootstrap["telemetry"]["traces"]["trust_parent"] = json!("any");
    let gateway = Gateway::start(conf).await;
    let url = format!("http://{}/pool", gateway.http());
    let told = peers::client("otel_app.py", &[&receiver.http_url(), &url]).await;
    assert_eq!((&told["status"], &told["upstream"]["trace"]), (&json!(200), &told["trace"]));
    assert_eq!(
        told["upstream"],
        json!({"trace": told["trace"], "sampled": true, "state": "serin=all", "baggage": {"tenant": "blue"}})
    );
    let spans = receiver.spans(5).await;
    assert!(spans.iter().all(|span| span["trace"] == told["trace"]), "{spans:#?}");
    // From the root on, each is the parent of the next.
    let mut chain = vec![];
    let mut at = json!("");
    while let Some(next) = spans.iter().find(|span| span["parent"] == at) {
        chain.push((next["resource"]["service.name"].as_str().unwrap(), next["kind"].as_str().unwrap()));
        at = next["span"].clone();
    }
    let expected =
        [("client", "client"), ("serin", "server"), ("serin", "client"), ("server", "server"), ("server", "internal")];
    assert_eq!(chain, expected);
}

#[tokio::test]
async fn a_collector_takes_spans_and_metrics() {
    let (receiver, origin) = (Receiver::start().await, Origin::start("a").await);
    let rotel = Rotel::start(&receiver).await;
    for (done, protocol) in ["grpc", "http"].into_iter().enumerate() {
        let mut conf = receiver.traces(single(&origin), protocol);
        conf.bootstrap["telemetry"]["traces"]["otlp"] = rotel.otlp(protocol);
        conf.bootstrap["telemetry"]["metrics"]["otlp"] = rotel.otlp(protocol);
        conf.bootstrap["telemetry"]["metrics"]["otlp"]["interval"] = json!("100ms");
        conf.bootstrap["node"]["id"] = json!(protocol);
        let gateway = Gateway::start(conf).await;
        let _ = Call::get("/pool").to(gateway.http()).await.expect(200);
        let spans = receiver.spans(2 * (done + 1)).await.split_off(2 * done);
        assert_eq!(text(only(&spans, "client"), "serin.instance"), origin.address.to_string());
        wait::until("metrics", || async {
            let metrics = receiver.metrics().await;
            let mine = |point: &&Value| {
                point["resource"]["service.instance.id"] == protocol && point["name"] == "serin_requests_total"
            };
            metrics.iter().filter(mine).any(|point| point["value"] == 1.0).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn metrics_are_sent_as_they_are_told_with_exemplars() {
    for protocol in ["grpc", "http"] {
        let (receiver, origin) = (Receiver::start().await, Origin::start("a").await);
        let mut conf = receiver.traces(single(&origin), protocol);
        conf.bootstrap["telemetry"]["metrics"]["otlp"] = receiver.otlp(protocol);
        conf.bootstrap["telemetry"]["metrics"]["otlp"]["interval"] = json!("100ms");
        let gateway = Gateway::start(conf).await;
        for _ in 0..3 {
            let _ = Call::get("/pool").to(gateway.http()).await.expect(200);
        }
        let spans = receiver.spans(6).await;
        let traces: BTreeSet<_> = spans.iter().map(|span| span["trace"].as_str().unwrap().to_owned()).collect();
        let points = wait::until("three requests in the metrics", || async {
            let points = receiver.metrics().await;
            let of = |name: &str| points.iter().find(|p| p["name"] == name && p["value"] == 3.0).cloned();
            Some([of("serin_requests_total")?, of("serin_request_duration_seconds")?])
        })
        .await;
        let [requests, durations] = points;
        let labels = json!({"route": "pool", "service": "pool", "subset": "all", "code": "2xx"});
        assert_eq!((&requests["attributes"], &requests["kind"]), (&labels, &json!("sum")));
        assert_eq!((&durations["kind"], &durations["unit"]), (&json!("histogram"), &json!("s")));
        let exemplars = durations["exemplars"].as_array().unwrap();
        assert!(
            !exemplars.is_empty() && exemplars.iter().all(|id| traces.contains(id.as_str().unwrap())),
            "{durations}"
        );

        let page =
            Call::get("/metrics").header("accept", "application/openmetrics-text; version=1.0.0, text/plain; q=0.5");
        let page = gateway.admin(page).await.expect(200);
        assert!(page.header("content-type").starts_with("application/openmetrics-text; version=1.0.0"));
        let page = page.text();
        assert!(page.ends_with("# EOF\n") && page.contains("# TYPE serin_requests counter\n"), "{page}");
        let line = page.lines().find(|line| line.contains("# {trace_id=")).unwrap_or_else(|| panic!("{page}"));
        let id = line.split("trace_id=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
        assert!(line.starts_with("serin_request_duration_seconds_bucket{") && traces.contains(id), "{line}");
        let plain = gateway.admin(Call::get("/metrics")).await.expect(200);
        assert!(plain.header("content-type").starts_with("text/plain") && !plain.text().contains("trace_id"));
    }
}

#[tokio::test]
async fn a_receiver_that_fails_costs_spans_and_nothing_else() {
    const REQUESTS: u32 = 2_000;
    let hung = json!({"hang": true});
    let slow = json!({"delay": 0.3});
    for (mode, down) in [(json!({}), true), (hung, false), (slow, false)] {
        let (receiver, origin) = (Receiver::start().await, Origin::start("a").await);
        receiver.mode(mode.clone()).await;
        let mut conf = receiver.traces(single(&origin), "grpc");
        if down {
            conf.bootstrap["telemetry"]["traces"]["otlp"]["endpoint"] = json!(format!("http://{}", refusing_address()));
        }
        conf.bootstrap["telemetry"]["traces"]["otlp"]["timeout"] = json!("400ms");
        let conf = conf.with_env("OTEL_BSP_MAX_QUEUE_SIZE", "64").with_env("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "32");
        let gateway = Gateway::start(conf).await;
        let mut conn = Conn::http1(gateway.http()).await;
        for _ in 0..REQUESTS {
            let _ = Call::get("/pool").on(&mut conn).await.expect(200);
        }
        let (before, mut times) = (gateway.rss_kib(), vec![]);
        for _ in 0..REQUESTS {
            let start = Instant::now();
            let _ = Call::get("/pool").on(&mut conn).await.expect(200);
            times.push(start.elapsed());
        }
        times.sort_unstable();
        let p99 = times[times.len() * 99 / 100];
        assert!(p99 < Duration::from_millis(200), "{mode}: p99 {p99:?}");
        let grown = gateway.rss_kib().saturating_sub(before);
        assert!(grown < 8 * 1024, "{mode}: {grown} KiB");
        wait::until(format!("drops to be counted: {mode}"), || async {
            let metrics = gateway.metrics().await;
            let dropped = metrics.sum("serin_spans_dropped_total", &["reason=\"queue_full\""]);
            (dropped > f64::from(REQUESTS)).then_some(())
        })
        .await;
        if down || mode["hang"] == true {
            wait::until(format!("spans that were not delivered: {mode}"), || async {
                let metrics = gateway.metrics().await;
                (metrics.sum("serin_spans_dropped_total", &["reason=\"undelivered\""]) > 0.5).then_some(())
            })
            .await;
        }
        if !down {
            // It gets well again, and takes spans again.
            receiver.mode(json!({})).await;
            let known = receiver.now().await.len();
            wait::until(format!("spans to arrive again: {mode}"), || async {
                let _ = Call::get("/pool").to(gateway.http()).await.expect(200);
                (receiver.now().await.len() > known).then_some(())
            })
            .await;
        }
    }
}

#[tokio::test]
async fn a_receiver_with_tls_is_verified() {
    let (authority, dir) = (Authority::new(), gateway::directory());
    let receiver = Receiver::start_tls(&authority.issue("localhost").write(dir.path(), "receiver")).await;
    let origin = Origin::start("a").await;
    for (trusted, authority) in [(false, Authority::new()), (true, authority)] {
        let ca = dir.path().join("ca.pem");
        gateway::write_atomically(&ca, &authority.pem());
        let mut conf = receiver.traces(single(&origin), "grpc");
        let url = receiver.grpc_url().replace("http://", "https://");
        conf.bootstrap["telemetry"]["traces"]["otlp"] = json!({"endpoint": url, "ca_file": ca});
        let gateway = Gateway::start(conf).await;
        let _ = Call::get("/pool").to(gateway.http()).await.expect(200);
        if trusted {
            assert_eq!(receiver.spans(2).await.len(), 2);
        } else {
            wait::until("spans that were not delivered", || async {
                let metrics = gateway.metrics().await;
                (metrics.sum("serin_spans_dropped_total", &["reason=\"undelivered\""]) > 1.5).then_some(())
            })
            .await;
            assert!(receiver.now().await.is_empty());
        }
    }
}

#[tokio::test]
async fn refusals_are_retried_and_rejections_are_counted() {
    let (gateway, _origin, receiver) = traced(json!({}), false).await;
    receiver.mode(json!({"refuse": "UNAVAILABLE"})).await;
    let _ = Call::get("/pool").to(gateway.http()).await.expect(200);
    wait::until("a refusal", || async { (!receiver.calls().await.is_empty()).then_some(()) }).await;
    receiver.mode(json!({"reject": 1})).await;
    assert_eq!(receiver.spans(2).await.len(), 2, "sent again");
    let (rejected, sent) = wait::until("the counters", || async {
        let metrics = gateway.metrics().await;
        let rejected = metrics.sum("serin_spans_dropped_total", &["reason=\"rejected\""]);
        let sent = metrics.sum("serin_spans_sent_total", &[]);
        (rejected > 0.5 && sent > 0.5).then_some((rejected, sent))
    })
    .await;
    assert!(rejected < 1.5 && sent < 1.5, "{rejected} {sent}");
}

#[tokio::test]
async fn the_last_spans_are_sent_before_the_gateway_ends() {
    let (receiver, origin) = (Receiver::start().await, Origin::start("a").await);
    let mut conf = receiver.traces(single(&origin), "grpc");
    conf.env.clear();
    let gateway = Gateway::start(conf.with_env("OTEL_BSP_SCHEDULE_DELAY", "600000")).await;
    let _ = Call::get("/pool").to(gateway.http()).await.expect(200);
    let _ = gateway.access_log(1).await;
    assert!(receiver.now().await.is_empty());
    let killed = std::process::Command::new("kill").arg(gateway.pid().to_string()).status().unwrap();
    assert!(killed.success());
    assert_eq!(receiver.spans(2).await.len(), 2);
}

#[tokio::test]
async fn the_environment_says_what_the_document_does_not() {
    let (receiver, origin) = (Receiver::start().await, Origin::start("a").await);
    let bare = |vars: &[(&str, &str)]| {
        let mut conf = single(&origin).with_env("OTEL_BSP_SCHEDULE_DELAY", "20");
        conf.bootstrap["telemetry"]["traces"] = json!({});
        vars.iter().fold(conf, |conf, (name, value)| conf.with_env(name, value))
    };
    let url = receiver.http_url();
    let endpoint = [("OTEL_EXPORTER_OTLP_ENDPOINT", &*url), ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")];
    let on = [endpoint[0], endpoint[1], ("OTEL_TRACES_SAMPLER", "parentbased_always_on")];
    let gateway = Gateway::start(bare(&on)).await;
    let _ = Call::get("/pool").to(gateway.http()).await.expect(200);
    assert_eq!(receiver.spans(2).await.len(), 2);
    for off in [("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none")] {
        let gateway = Gateway::start(bare(&[on[0], on[1], on[2], off])).await;
        let reply = Call::get("/pool").to(gateway.http()).await.expect(200);
        assert_eq!(reply.seen("traceparent"), None, "{off:?}");
    }
}
