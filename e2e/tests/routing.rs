//! Promise: the most specific route wins; rewrites, redirects, header edits and forwarded headers are as configured.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use serin_e2e::client::{Call, Conn};
use serin_e2e::origin::refusing_address;
use serin_e2e::{Conf, Gateway, Origin, World, conf, world};

/// A gateway with a route, a service and an origin for each `(name, match)`.
async fn routes(routes: &[(&str, Value)]) -> (Vec<Origin>, Gateway) {
    let names: Vec<_> = routes.iter().map(|(name, _)| *name).collect();
    let origins = world::origins(&names).await;
    let mut conf = Conf::empty();
    for ((name, matches), origin) in routes.iter().zip(&origins) {
        conf.routing["services"][*name] = conf::pool(&[origin], json!([{"round_robin": {}}]));
        conf = conf.with_route(name, matches.clone(), name);
    }
    (origins, Gateway::start(conf).await)
}

/// Sends each call and compares who answered; "" is a 404.
async fn check(gateway: &Gateway, cases: Vec<(Call, &str)>) {
    for (call, expected) in cases {
        let reply = call.clone().to(gateway.http()).await;
        let answered = if reply.status == 404 { String::new() } else { reply.origin() };
        assert_eq!(answered, expected, "{call:?}");
    }
}

#[tokio::test]
async fn paths_match_exactly_by_prefix_template_and_regex() {
    let (_origins, gateway) = routes(&[
        ("prefix", json!({"path": {"prefix": "/api/users"}})),
        ("longer", json!({"path": {"prefix": "/api/users/admin"}})),
        ("exact", json!({"path": {"exact": "/api/users/me"}})),
        ("template", json!({"path": {"template": "/api/users/{id}/posts"}})),
        ("regex", json!({"path": {"regex": "/v[0-9]+/.*"}})),
    ])
    .await;
    let cases = [
        ("/api/users", "prefix"),
        ("/api/users/", "prefix"),
        ("/api/users/7?q=1", "prefix"),
        ("/api/usersx", ""),
        ("/api/user", ""),
        ("/api/users/admin", "longer"),
        ("/api/users/admin/x", "longer"),
        ("/api/users/administrator", "prefix"),
        ("/api/users/me", "exact"),
        ("/api/users/me?x=y", "exact"),
        ("/api/users/me/", "prefix"),
        ("/api/users/7/posts", "template"),
        ("/api/users/7/posts/1", "prefix"),
        ("/api/users/a/b/posts", "prefix"),
        ("/v2/anything", "regex"),
        ("/v/anything", ""),
        ("/x/v2/anything", ""),
        ("/API/users", ""),
        ("/", ""),
    ];
    check(&gateway, cases.map(|(path, expected)| (Call::get(path), expected)).into()).await;
}

#[tokio::test]
async fn dot_segments_cannot_reach_another_route() {
    let (_origins, gateway) = routes(&[
        ("public", json!({"path": {"prefix": "/public"}})),
        ("private", json!({"path": {"prefix": "/private"}})),
    ])
    .await;
    for path in ["/public/../private/x", "/public/%2e%2e/private/x", "/public/%2E./private/x", "/public//../private/x"]
    {
        let reply = Call::get(path).to(gateway.http()).await;
        if reply.status == 200 {
            let seen = reply.json();
            // Whoever answers must see a path that is below its own prefix.
            let (name, path) = (seen["name"].as_str().unwrap(), seen["path"].as_str().unwrap());
            assert!(path.starts_with(&format!("/{name}")) && !path.contains(".."), "{seen}");
        } else {
            assert!(reply.status.is_client_error(), "{path}: {}", reply.status);
        }
    }
}

#[tokio::test]
async fn hosts_match_exactly_by_wildcard_or_not_at_all() {
    let path = json!({"prefix": "/"});
    let (_origins, gateway) = routes(&[
        ("any", json!({"path": {"prefix": "/any"}})),
        ("wild", json!({"hosts": ["*.example.org"], "path": path})),
        ("deeper", json!({"hosts": ["*.eu.example.org"], "path": path})),
        ("exact", json!({"hosts": ["api.example.com", "www.example.org"], "path": path})),
    ])
    .await;
    let cases = [
        ("api.example.com", "/", "exact"),
        ("API.Example.COM", "/", "exact"),
        ("api.example.com:8080", "/", "exact"),
        ("www.example.org", "/", "exact"),
        ("x.example.org", "/", "wild"),
        ("x.y.example.org", "/", "wild"),
        ("x.eu.example.org", "/", "deeper"),
        ("x.example.org", "/any", "wild"),
        ("example.org", "/", ""),
        ("xexample.org", "/", ""),
        ("other.com", "/", ""),
        ("other.com", "/any", "any"),
    ];
    check(&gateway, cases.map(|(host, path, expected)| (Call::get(path).host(host), expected)).into()).await;
}

#[tokio::test]
async fn methods_headers_and_query_narrow_a_route() {
    let path = json!({"prefix": "/x"});
    let (_origins, gateway) = routes(&[
        ("plain", json!({"path": path})),
        ("post", json!({"path": path, "methods": ["POST", "PUT"]})),
        ("header", json!({"path": path, "headers": [{"x-a": "1"}]})),
        ("both", json!({"path": path, "headers": [{"x-a": "1"}, {"x-b": {"prefix": "be"}}]})),
        ("query", json!({"path": path, "query": [{"debug": {"present": true}}]})),
        ("regex", json!({"path": path, "headers": [{"x-a": {"regex": "^[a-f]{3}$"}}]})),
        ("list", json!({"path": path, "headers": [{"x-c": {"in": ["red", "green"]}}]})),
    ])
    .await;
    let get = || Call::get("/x");
    let cases = vec![
        (get(), "plain"),
        (Call::new("DELETE", "/x"), "plain"),
        (Call::post("/x", ""), "post"),
        (Call::new("PUT", "/x"), "post"),
        (get().header("x-a", "1"), "header"),
        (get().header("X-A", "1"), "header"),
        (get().header("x-a", "2"), "plain"),
        (get().header("x-a", "1").header("x-b", "beta"), "both"),
        (get().header("x-a", "1").header("x-b", "alpha"), "header"),
        (Call::get("/x?debug"), "query"),
        (Call::get("/x?a=b&debug=0"), "query"),
        (Call::get("/x?nodebug"), "plain"),
        (get().header("x-a", "abc"), "regex"),
        (get().header("x-a", "abcd"), "plain"),
        (get().header("x-c", "green"), "list"),
        (get().header("x-c", "blue"), "plain"),
    ];
    check(&gateway, cases).await;
}

#[tokio::test]
async fn equally_specific_routes_go_by_their_order() {
    let (_origins, gateway) = routes(&[
        ("first", json!({"path": {"prefix": "/x"}, "headers": [{"x-a": {"present": true}}]})),
        ("second", json!({"path": {"prefix": "/x"}, "headers": [{"x-b": {"present": true}}]})),
        ("third", json!({"path": {"prefix": "/x"}, "headers": [{"x-b": {"present": true}}]})),
    ])
    .await;
    let cases = vec![
        (Call::get("/x").header("x-a", "1").header("x-b", "1"), "first"),
        (Call::get("/x").header("x-b", "1"), "second"),
        (Call::get("/x"), ""),
    ];
    check(&gateway, cases).await;
}

/// A world with one more route `/edge`, and what `change` makes of it.
async fn edge(change: impl FnOnce(&mut Value, &mut Conf)) -> World {
    World::with(&["v1-a"], |conf| {
        conf.weights(&[("v1", "100%"), ("v2", "0%")]);
        *conf = conf.clone().with_route("edge", json!({"path": {"prefix": "/edge"}}), "users");
        let mut route = conf.route("edge").clone();
        change(&mut route, conf);
        *conf.route("edge") = route;
    })
    .await
}

#[tokio::test]
async fn the_prefix_is_rewritten_and_the_query_stays() {
    let world = edge(|route, _| route["rewrite"] = json!({"prefix": "/users"})).await;
    let cases = [
        ("/edge", "/users"),
        ("/edge/", "/users/"),
        ("/edge/7/x?q=/edge", "/users/7/x?q=/edge"),
        ("/edge?q=1", "/users?q=1"),
        ("/edge/a%20b", "/users/a%20b"),
        ("/other/edge/7", "/other/edge/7"),
    ];
    for (path, upstream) in cases {
        assert_eq!(world.send(Call::get(path)).await.json()["path"], upstream, "{path}");
    }
    let to_root = edge(|route, _| route["rewrite"] = json!({"prefix": "/"})).await;
    for (path, upstream) in [("/edge", "/"), ("/edge/7", "/7"), ("/edge//7", "/7")] {
        let seen = to_root.send(Call::get(path)).await.json();
        let same = seen["path"].as_str().unwrap().replace("//", "/") == upstream;
        assert!(same, "{path}: {seen}");
    }
}

#[tokio::test]
async fn the_host_is_rewritten_on_demand() {
    let world = edge(|route, _| route["rewrite"] = json!({"host": "inner.test"})).await;
    assert_eq!(world.send(Call::get("/edge")).await.seen("host").as_deref(), Some("inner.test"));
    assert_eq!(world.send(Call::get("/")).await.seen("host").as_deref(), Some("api.example.com"));
}

#[tokio::test]
async fn redirects_and_fixed_answers_need_no_upstream() {
    let redirect = |redirect: Value| {
        move |route: &mut Value, _: &mut Conf| {
            route.as_object_mut().unwrap().remove("service");
            route["redirect"] = redirect;
        }
    };
    let cases = [
        (json!({"scheme": "https", "status": 301}), 301, "https://api.example.com/edge/x?q=1"),
        (json!({"path": "/new"}), 302, "http://api.example.com/new?q=1"),
        (json!({"prefix": "/new", "status": 308}), 308, "http://api.example.com/new/x?q=1"),
        (json!({"host": "other.test", "status": 307}), 307, "http://other.test/edge/x?q=1"),
    ];
    for (config, status, location) in cases {
        let world = edge(redirect(config.clone())).await;
        let reply = world.send(Call::get("/edge/x?q=1")).await.expect(status);
        let full = match reply.header("location") {
            path if path.starts_with('/') => format!("http://api.example.com{path}"),
            url => url.to_owned(),
        };
        assert_eq!(full, location, "{config}");
        assert_eq!(world.origins[0].hits(), 0);
    }
    let world = edge(|route, _| {
        route.as_object_mut().unwrap().remove("service");
        route["respond"] = json!({"status": 410, "body": "gone for good"});
    })
    .await;
    assert_eq!(world.send(Call::get("/edge")).await.expect(410).text(), "gone for good");
}

#[tokio::test]
async fn headers_are_edited_in_both_directions() {
    let edits = |prefix: &str| {
        json!({
            "set": {(format!("{prefix}-set")): "ours"},
            "add": {(format!("{prefix}-add")): "more"},
            "remove": [format!("{prefix}-origin-secret"), format!("{prefix}-gone")],
        })
    };
    let world = edge(|route, _| {
        route["request_headers"] = edits("x");
        route["response_headers"] = edits("x");
    })
    .await;
    let call = |path| Call::get(path).header("x-set", "theirs").header("x-add", "some").header("x-gone", "1");
    let reply = world.send(call("/edge")).await;
    assert_eq!(reply.seen("x-set").as_deref(), Some("ours"));
    assert_eq!(reply.seen("x-add").as_deref(), Some("some, more"));
    assert_eq!(reply.seen("x-gone"), None);
    assert_eq!((reply.header("x-set"), reply.header("x-add")), ("ours", "more"));
    assert_eq!(reply.header("x-origin-secret"), "", "the origin's header is removed");

    let untouched = world.send(call("/")).await;
    assert_eq!((untouched.seen("x-set").as_deref(), untouched.header("x-set")), (Some("theirs"), ""));
    assert_eq!(untouched.header("x-origin-secret"), "from the origin");
}

#[tokio::test]
async fn no_route_is_404_and_keeps_the_connection() {
    let (_origins, gateway) = routes(&[("only", json!({"path": {"exact": "/only"}}))]).await;
    for mut conn in [Conn::http1(gateway.http()).await, Conn::h2c(gateway.http()).await] {
        for _ in 0..3 {
            let _ = Call::get("/nothing").on(&mut conn).await.expect(404);
            assert_eq!(Call::get("/only").on(&mut conn).await.origin(), "only");
        }
    }
}

#[tokio::test]
async fn hop_by_hop_headers_stay_on_their_hop() {
    let world = World::start().await;
    let call = Call::get("/").header("connection", "x-hop, keep-alive").header("x-hop", "1");
    let reply = world.send(call.header("proxy-connection", "keep-alive").header("te", "trailers")).await;
    assert_eq!((reply.seen("x-hop"), reply.seen("proxy-connection")), (None, None));
}

#[tokio::test]
async fn forwarded_headers_tell_who_asked() {
    let call = || {
        let call = Call::get("/").header("x-forwarded-for", "203.0.113.9").header("x-forwarded-proto", "https");
        call.header("x-forwarded-host", "evil.test").header("forwarded", "for=203.0.113.9")
    };
    let untrusted = World::with(&["v1-a"], |conf| {
        conf.bootstrap["forwarding"] = json!({"x_forwarded": true, "forwarded": true});
    })
    .await;
    let reply = untrusted.send(call()).await;
    let cases =
        [("x-forwarded-for", "127.0.0.1"), ("x-forwarded-proto", "http"), ("x-forwarded-host", "api.example.com")];
    for (name, value) in cases {
        assert_eq!(reply.seen(name).as_deref(), Some(value), "{name} of a client that nobody trusts");
    }
    let forwarded = reply.seen("forwarded").unwrap().to_lowercase();
    for part in ["for=127.0.0.1", "proto=http", "host=api.example.com"] {
        assert!(forwarded.replace('"', "").contains(part), "no {part} in {forwarded}");
    }
    assert!(!forwarded.contains("203.0.113.9"), "{forwarded}");
    assert_eq!(untrusted.gateway.access_log(1).await[0]["client_ip"], "127.0.0.1");

    let trusted = World::with(&["v1-a"], |conf| {
        conf.bootstrap["forwarding"] = json!({"x_forwarded": true, "forwarded": true});
        conf.bootstrap["trusted_proxies"] = json!(["127.0.0.0/8"]);
    })
    .await;
    let reply = trusted.send(call()).await;
    assert_eq!(reply.seen("x-forwarded-for").as_deref(), Some("203.0.113.9, 127.0.0.1"));
    assert_eq!(reply.seen("x-forwarded-proto").as_deref(), Some("https"));
    assert_eq!(trusted.gateway.access_log(1).await[0]["client_ip"], "203.0.113.9");

    let off = World::with(&["v1-a"], |conf| {
        conf.bootstrap["forwarding"] = json!({"x_forwarded": false, "forwarded": false});
    })
    .await;
    let reply = off.send(Call::get("/")).await;
    assert_eq!((reply.seen("x-forwarded-for"), reply.seen("forwarded")), (None, None));
}

#[tokio::test]
async fn every_request_has_an_id() {
    let theirs = "8d1c5b42-aaaa-bbbb-cccc-0123456789ab";
    let world = World::start().await;
    let ids: BTreeSet<_> = [world.send(Call::get("/")).await, world.send(Call::get("/")).await]
        .iter()
        .map(|r| r.seen("x-request-id"))
        .collect();
    assert_eq!(ids.len(), 2, "{ids:?}");
    assert!(ids.iter().flatten().all(|id| id.len() >= 16), "{ids:?}");
    let reply = world.send(Call::get("/").header("x-request-id", theirs)).await;
    assert_ne!(reply.seen("x-request-id").as_deref(), Some(theirs), "a client that nobody trusts");

    let trusting = World::with(&["v1-a"], |conf| conf.bootstrap["trusted_proxies"] = json!(["127.0.0.1/32"])).await;
    let reply = trusting.send(Call::get("/").header("x-request-id", theirs)).await;
    assert_eq!(reply.seen("x-request-id").as_deref(), Some(theirs));

    let renamed =
        World::with(&["v1-a"], |conf| conf.bootstrap["forwarding"] = json!({"request_id": "x-correlation-id"})).await;
    assert!(renamed.send(Call::get("/")).await.seen("x-correlation-id").is_some());
}

/// Whoever answers, and why: the client can say which request it was, and the log knows it under that name.
#[tokio::test]
async fn every_answer_has_the_id_of_its_request() {
    let own = [
        json!({"name": "hello", "match": {"path": {"exact": "/hello"}}, "respond": {"status": 200, "body": "hi"}}),
        json!({"name": "moved", "match": {"path": {"exact": "/moved"}}, "redirect": {"path": "/hello"}}),
        json!({"name": "mute", "match": {"path": {"exact": "/mute"}}, "respond": {"status": 200, "body": "hi"},
               "response_headers": {"remove": ["x-request-id"]}}),
    ];
    let nobody = json!({"instances": [{"address": refusing_address()}], "subsets": {"all": {}}, "stable": "all"});
    let origin = Origin::start("a").await;
    let conf = Conf::empty().with_service("pool", conf::pool(&[&origin], json!([{"round_robin": {}}])));
    let mut conf = conf.with_service("dead", nobody);
    conf.routing["routes"].as_array_mut().unwrap().extend(own);
    let gateway = Gateway::start(conf).await;
    let cases = [
        (Call::get("/pool"), 200),
        (Call::get("/hello"), 200),
        (Call::get("/moved"), 302),
        (Call::get("/nowhere"), 404),
        (Call::get("/dead"), 502),
        (Call::post("/dead", "body"), 502),
        (Call::new("TRACE", "/pool"), 405),
        (Call::get("/pool/%00"), 400),
        (Call::get(&format!("/{}", "x".repeat(60_000))), 414),
    ];
    let mut ids = BTreeSet::new();
    for (call, status) in cases {
        let reply = call.to(gateway.http()).await.expect(status);
        let id = reply.header("x-request-id");
        assert_eq!(id.len(), 32, "{status} {id:?}");
        ids.insert(id.to_owned());
    }
    let logged = gateway.access_log(ids.len()).await;
    assert_eq!(logged.iter().map(|line| line["request_id"].as_str().unwrap().to_owned()).collect::<BTreeSet<_>>(), ids);
    let mute = Call::get("/mute").to(gateway.http()).await.expect(200);
    assert_eq!(mute.header("x-request-id"), "", "a route's own edits have the last word");
}
