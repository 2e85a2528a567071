//! Promise: override tags, tag rules and users' buckets decide the version, in that order, on every replica alike.

#![expect(clippy::needless_pass_by_value, reason = "helpers take what tests write in place")]

use std::collections::BTreeSet;
use std::time::{SystemTime, UNIX_EPOCH};

use data_encoding::BASE64URL_NOPAD;
use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use serin_e2e::client::{Call, Conn};
use serin_e2e::{Conf, Gateway, World, gateway, world};
use sha2::Sha256;

const KEY: &str = "a key of at least sixteen bytes";

fn tag(when: Value, trust: &str) -> Value {
    json!([{"name": "canary", "when": when, "subset": "v2", "trust": trust}])
}

/// Everybody is on v1, unless `tags` say otherwise.
fn only_tags(conf: &mut Conf, tags: Value) {
    conf.service("users")["tags"] = tags;
    conf.weights(&[("v1", "100%"), ("v2", "0%")]);
}

async fn tagged(tags: Value) -> World {
    World::with(&["v1-a", "v2-a"], |conf| only_tags(conf, tags)).await
}

async fn check(world: &World, cases: Vec<(Call, &str)>) {
    for (call, expected) in cases {
        let reply = world.send(call.clone()).await;
        assert_eq!(world::version(&reply.origin()), expected, "{call:?}");
    }
}

#[tokio::test]
async fn rules_look_at_every_part_of_a_request() {
    let get = || Call::get("/");
    let cases = [
        (
            json!({"header": {"x-traffic-tag": "canary"}}),
            get().header("x-traffic-tag", "canary"),
            get().header("x-traffic-tag", "Canary"),
        ),
        (
            json!({"header": {"x-team": {"prefix": "qa-"}}}),
            get().header("x-team", "qa-1"),
            get().header("x-team", "dev-qa-1"),
        ),
        (
            json!({"header": {"x-team": {"regex": "^(qa|dev)$"}}}),
            get().header("x-team", "dev"),
            get().header("x-team", "devs"),
        ),
        (json!({"header": {"x-team": {"in": ["a", "b"]}}}), get().header("x-team", "b"), get().header("x-team", "c")),
        (json!({"header": {"x-beta": {"present": true}}}), get().header("x-beta", ""), get()),
        (
            json!({"cookie": {"tag": "canary"}}),
            get().header("cookie", "a=b; tag=canary; c=d"),
            get().header("cookie", "xtag=canary"),
        ),
        (json!({"query": {"v": "2"}}), Call::get("/?a=1&v=2"), Call::get("/?vv=2&v=3")),
        (json!({"method": ["POST"]}), Call::post("/", "x"), get()),
        (json!({"path": {"prefix": "/beta"}}), Call::get("/beta/x"), Call::get("/betas")),
        (
            json!({"header": {"x-team": "qa"}, "method": ["GET"]}),
            get().header("x-team", "qa"),
            Call::post("/", "").header("x-team", "qa"),
        ),
    ];
    for (when, matching, other) in cases {
        let world = tagged(tag(when, "any")).await;
        check(&world, vec![(matching, "v2"), (other, "v1")]).await;
    }
}

#[tokio::test]
async fn the_first_rule_that_matches_wins() {
    let rule = |name: &str, header: &str, subset: &str| json!({"name": name, "when": {"header": {(header): {"present": true}}}, "subset": subset, "trust": "any"});
    let world = tagged(json!([rule("back", "x-back", "v1"), rule("forth", "x-forth", "v2")])).await;
    let cases = vec![
        (Call::get("/").header("x-forth", "1"), "v2"),
        (Call::get("/").header("x-forth", "1").header("x-back", "1"), "v1"),
    ];
    check(&world, cases).await;
}

#[tokio::test]
async fn tags_go_on_while_a_weighted_rollout_runs() {
    let world = World::with(&["v1-a", "v2-a"], |conf| {
        conf.service("users")["tags"] = tag(json!({"header": {"x-traffic-tag": "canary"}}), "any");
        conf.weights(&[("v1", "50%"), ("v2", "50%")]);
    })
    .await;
    let untagged: BTreeSet<_> = world.burst(30).await.into_iter().collect();
    assert_eq!(untagged.len(), 2, "the rollout goes on: {untagged:?}");
    for user in 0..30 {
        let call = Call::get("/").user(format!("u{user}")).header("x-traffic-tag", "canary");
        assert_eq!(world.send(call).await.origin(), "v2-a");
    }
}

#[tokio::test]
async fn a_tag_of_trusted_proxies_is_taken_from_them_alone() {
    for (source, name) in [("header", "x-traffic-tag"), ("cookie", "tag")] {
        for trusted in [true, false] {
            let world = World::with(&["v1-a", "v2-a"], |conf| {
                only_tags(conf, tag(json!({(source): {(name): "canary"}}), "trusted_proxies"));
                conf.bootstrap["trusted_proxies"] =
                    if trusted { json!(["127.0.0.1/32"]) } else { json!(["10.0.0.0/8"]) };
            })
            .await;
            let call = match source {
                "header" => Call::get("/").header(name, "canary"),
                _ => Call::get("/").header("cookie", "keep=1; tag=canary"),
            };
            let reply = world.send(call.header("x-forwarded-for", "10.0.0.1")).await;
            assert_eq!(reply.origin(), if trusted { "v2-a" } else { "v1-a" }, "{source}, trusted: {trusted}");
            let seen = reply.seen(if source == "header" { name } else { source }).unwrap_or_default();
            assert_eq!(seen.contains("canary"), trusted, "{source} upstream: {seen:?}");
            assert!(source == "header" || seen.contains("keep=1"), "other cookies stay: {seen:?}");
        }
    }
}

fn hmac(message: &str) -> Vec<u8> {
    let mac = Hmac::<Sha256>::new_from_slice(KEY.as_bytes());
    mac.map(|mac| mac.chain_update(message).finalize().into_bytes().to_vec()).unwrap_or_default()
}

fn signed(value: &str, expires: u64) -> String {
    let text = format!("{value};exp={expires}");
    let hex: String = hmac(&text).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{text};sig={hex}")
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// A world in whose directory lies the file `secret` with [`KEY`].
async fn with_secret(change: impl FnOnce(&mut Conf)) -> World {
    let dir = gateway::directory();
    gateway::write_atomically(&dir.path().join("secret"), KEY);
    let origins = world::origins(&["v1-a", "v2-a"]).await;
    let mut conf = world::users_conf(&origins);
    change(&mut conf);
    World { gateway: Gateway::start_in(dir, conf).await, origins }
}

#[tokio::test]
async fn a_signed_tag_needs_a_valid_signature_that_has_not_expired() {
    let world = with_secret(|conf| {
        only_tags(conf, tag(json!({"header": {"x-traffic-tag": "canary"}}), "signed"));
        conf.bootstrap["tag_signing"] = json!({"key_file": "secret"});
    })
    .await;
    let good = signed("canary", now() + 60);
    let cases = [
        (good.clone(), true),
        (signed("canary", now() - 1), false),
        (signed("other", now() + 60), false),
        (good.replace("canary", "canarx"), false),
        (good.replace(";exp=1", ";exp=2"), false),
        (good[..good.len() - 2].to_owned(), false),
        ("canary".to_owned(), false),
        (format!("canary;exp={};sig=", now() + 60), false),
    ];
    for (value, accepted) in cases {
        let reply = world.send(Call::get("/").header("x-traffic-tag", &value)).await;
        assert_eq!(reply.origin(), if accepted { "v2-a" } else { "v1-a" }, "{value}");
        if !accepted && value != signed("other", now() + 60) {
            assert_eq!(reply.seen("x-traffic-tag"), None, "{value} is stripped");
        }
    }
}

fn jwt(claims: &Value) -> String {
    let part = |value: &Value| BASE64URL_NOPAD.encode(value.to_string().as_bytes());
    let text = format!("{}.{}", part(&json!({"alg": "HS256", "typ": "JWT"})), part(claims));
    format!("{text}.{}", BASE64URL_NOPAD.encode(&hmac(&text)))
}

#[tokio::test]
async fn verified_claims_tag_and_identify() {
    let world = with_secret(|conf| {
        let service = conf.service("users");
        service["jwt"] = json!({"algorithms": ["HS256"], "secret_file": "secret"});
        service["user_key"] = json!([{"claim": "sub"}]);
        service["tags"] = tag(json!({"claim": {"plan": "beta"}}), "any");
        conf.weights(&[("v1", "50%"), ("v2", "50%")]);
    })
    .await;
    let call = |token: &str| Call::get("/").header("authorization", format!("Bearer {token}"));
    let beta = jwt(&json!({"sub": "u1", "plan": "beta", "exp": now() + 60}));
    assert_eq!(world.send(call(&beta)).await.origin(), "v2-a");

    let mut versions = BTreeSet::new();
    for user in 0..20 {
        let token = jwt(&json!({"sub": format!("u{user}"), "plan": "free", "exp": now() + 60}));
        let first = world.send(call(&token)).await.origin();
        assert_eq!(world.send(call(&token)).await.origin(), first, "user {user} stays");
        versions.insert(first);
    }
    assert_eq!(versions.len(), 2);
    // `anonymous: stable` shows that a token that does not verify identifies nobody.
    let forged = format!("{}x.{}", &beta[..beta.rfind('.').unwrap_or(0) - 1], "AAAA");
    let expired = jwt(&json!({"sub": "u1", "plan": "beta", "exp": now() - 3_600}));
    for token in [forged.as_str(), &expired, "none", ""] {
        assert_eq!(world.send(call(token)).await.origin(), "v1-a", "{token}");
    }
}

#[tokio::test]
async fn a_user_has_the_same_version_on_every_replica() {
    let first = World::with(&["v1-a", "v1-b", "v2-a"], |conf| {
        conf.weights(&[("v1", "50%"), ("v2", "50%")]);
    })
    .await;
    let second = Gateway::start(first.gateway.conf.clone()).await;
    let mut conns = [Conn::http1(first.http()).await, Conn::http1(second.http()).await];
    let mut all = BTreeSet::new();
    for user in 0..200 {
        let mut versions = BTreeSet::new();
        for conn in &mut conns {
            // The key is the first that is there: the header, or else the cookie.
            for call in
                [Call::get("/").user(format!("u{user}")), Call::get("/").header("cookie", format!("uid=u{user}"))]
            {
                versions.insert(world::version(&call.on(conn).await.origin()));
            }
        }
        assert_eq!(versions.len(), 1, "user {user} on {versions:?}");
        all.extend(versions);
    }
    assert_eq!(all.len(), 2);
}

#[tokio::test]
async fn another_salt_is_another_split() {
    let mut splits = vec![];
    for salt in ["one", "two", "one"] {
        let world = World::with(&["v1-a", "v2-a"], |conf| {
            conf.service("users")["salt"] = json!(salt);
            conf.weights(&[("v1", "50%"), ("v2", "50%")]);
        })
        .await;
        splits.push(world.burst(200).await);
    }
    assert_eq!(splits[0], splits[2]);
    let differ = splits[0].iter().zip(&splits[1]).filter(|(a, b)| a != b).count();
    // Independent halves differ for 100 of 200 users; 25 are three and a half sigma.
    assert!(differ.abs_diff(100) <= 25, "{differ} of 200 users differ");
}

async fn anonymous(mode: Value) -> World {
    World::with(&["v1-a", "v2-a"], |conf| {
        conf.service("users")["anonymous"] = mode;
        conf.weights(&[("v1", "50%"), ("v2", "50%")]);
    })
    .await
}

/// The versions that 40 requests without a user reach.
async fn crowd(world: &World) -> BTreeSet<String> {
    let mut versions = BTreeSet::new();
    for _ in 0..40 {
        versions.insert(world.send(Call::get("/")).await.origin());
    }
    versions
}

#[tokio::test]
async fn requests_without_a_user_go_as_configured() {
    for (mode, versions) in [("random", 2), ("ip", 1), ("stable", 1), ("cookie", 2)] {
        let world = anonymous(json!(mode)).await;
        let seen = crowd(&world).await;
        assert_eq!(seen.len(), versions, "{mode}: {seen:?}");
        assert!(mode != "stable" || seen.contains("v1-a"));
        let issued = world.send(Call::get("/")).await.headers.contains_key("set-cookie");
        assert_eq!(issued, mode == "cookie", "{mode}");
    }
}

#[tokio::test]
async fn different_addresses_are_different_users() {
    let world = World::with(&["v1-a", "v2-a"], |conf| {
        conf.service("users")["anonymous"] = json!("ip");
        conf.bootstrap["trusted_proxies"] = json!(["127.0.0.1/32"]);
        conf.weights(&[("v1", "50%"), ("v2", "50%")]);
    })
    .await;
    let mut versions = BTreeSet::new();
    for host in 1..40 {
        let call = || Call::get("/").header("x-forwarded-for", format!("203.0.113.{host}"));
        let first = world.send(call()).await.origin();
        assert_eq!(world.send(call()).await.origin(), first);
        versions.insert(first);
    }
    assert_eq!(versions.len(), 2);
}

#[tokio::test]
async fn an_issued_cookie_keeps_its_user() {
    let world = anonymous(json!({"cookie": {"name": "sid", "max_age": "30d"}})).await;
    let mut cookies = BTreeSet::new();
    for _ in 0..10 {
        let reply = world.send(Call::get("/")).await;
        let version = reply.origin();
        let issued = reply.header("set-cookie").to_owned();
        let attributes = issued.to_lowercase();
        for part in ["sid=", "max-age=2592000", "path=/", "httponly", "samesite="] {
            assert!(attributes.contains(part), "no {part} in {issued}");
        }
        let cookie = issued.split(';').next().unwrap_or_default().to_owned();
        for _ in 0..5 {
            let again = world.send(Call::get("/").header("cookie", &cookie)).await;
            assert_eq!(again.origin(), version, "{cookie}");
            assert!(!again.headers.contains_key("set-cookie"), "it is issued once");
        }
        cookies.insert(cookie);
    }
    assert_eq!(cookies.len(), 10, "each client has its own");
    let known = world.send(Call::get("/").user("u1")).await;
    assert!(!known.headers.contains_key("set-cookie"), "users with a key need none");
}
