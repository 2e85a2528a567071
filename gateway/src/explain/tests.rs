use std::time::Instant;

use serde_json::{Value, json};
use serin_core::tag::Anonymous;

use super::preview::{Proposal, preview};
use super::*;
use crate::admin::tests::control;
use crate::conf::Percent;
use crate::control::change::{Actor, Change, SwitchKind};

const ADDRESS: &str = "127.0.0.1:9901";

fn question(value: Value) -> Question {
    serde_json::from_value(value).unwrap()
}

fn users(headers: &Value) -> Question {
    question(json!({ "url": "http://api.example.com/api/users/7", "headers": headers, "seed": 7 }))
}

fn trusted() -> Vec<IpNet> {
    vec!["10.0.0.0/8".parse().unwrap()]
}

#[test]
fn the_way_of_a_request() {
    let (_dir, control) = control(ADDRESS);
    let from_proxy = |mut question: Question| {
        question.client_ip = Some("10.0.0.1".to_owned());
        question
    };
    // Route, subset, reason, rule, fallback, status of an own answer.
    type Row = (Question, Option<&'static str>, Option<&'static str>, Option<&'static str>, Option<&'static str>);
    let cases: [(Row, Option<&str>, Option<u16>); 9] = [
        ((users(&json!({})), Some("users"), Some("v1"), Some("stable"), None), None, None),
        (
            (users(&json!({ "x-traffic-tag": "canary" })), Some("users"), Some("v2"), Some("tag"), Some("canary")),
            None,
            None,
        ),
        ((users(&json!({ "x-inside": "1" })), Some("users"), Some("v1"), Some("stable"), None), None, None),
        (
            (from_proxy(users(&json!({ "x-inside": "1" }))), Some("users"), Some("v2"), Some("tag"), Some("inside")),
            None,
            None,
        ),
        (
            (users(&json!({ "x-traffic-tag": "next" })), Some("users"), Some("v1"), Some("tag"), Some("next")),
            Some("absent"),
            None,
        ),
        ((question(json!({ "url": "http://b.example/old/x?q=1" })), Some("old"), None, None, None), None, Some(302)),
        ((question(json!({ "url": "http://b.example/" })), None, None, None, None), None, Some(404)),
        ((question(json!({ "url": "http://b.example/../x" })), None, None, None, None), None, Some(400)),
        (
            (
                question(json!({ "url": "http://API.example.com//api/./users/7" })),
                Some("users"),
                Some("v1"),
                Some("stable"),
                None,
            ),
            None,
            None,
        ),
    ];
    for ((question, route, subset, reason, rule), fallback, answer) in cases {
        let explanation = explain(&control.current(), &trusted(), &question).unwrap();
        let tag = explanation.tag.as_ref();
        assert_eq!(explanation.route.name.as_deref(), route, "{explanation:?}");
        assert_eq!(explanation.subset.as_deref(), subset, "{explanation:?}");
        assert_eq!(tag.map(|tag| &*tag.reason), reason, "{explanation:?}");
        assert_eq!(tag.and_then(|tag| tag.rule.as_deref()), rule, "{explanation:?}");
        assert_eq!(explanation.fallback.as_ref().map(|fallback| &*fallback.reason), fallback, "{explanation:?}");
        assert_eq!(explanation.answer.as_ref().map(|answer| answer.status), answer, "{explanation:?}");
        assert_eq!(explanation.pick.is_some(), subset.is_some(), "{explanation:?}");
    }
}

#[test]
fn it_says_what_was_passed_over() {
    let (_dir, control) = control(ADDRESS);
    let asked = question(json!({ "url": "http://api.example.com/api/users/new" }));
    let explanation = explain(&control.current(), &[], &asked).unwrap();
    assert_eq!(explanation.route.name.as_deref(), Some("users"));
    let miss = &explanation.route.near_misses[0];
    assert_eq!((&*miss.name, &miss.failed[..]), ("post-only", &["method is one of POST".to_owned()][..]));
    assert_eq!(explanation.upstream_path.as_deref(), Some("/users/new"));
    let verdicts: Vec<_> = explanation.tag.unwrap().rules.into_iter().map(|rule| rule.verdict).collect();
    assert_eq!(verdicts, ["no_match", "no_match", "no_match"]);
}

/// The same functions, called as the proxy calls them, come to the same subset and instance.
#[test]
fn it_is_what_requests_get() {
    let (_dir, control) = control(ADDRESS);
    let generation = control.current();
    let (service, traffic) = (&generation.core.services[0], &generation.core.traffic[0]);
    assert_eq!(service.anonymous, Anonymous::Stable);
    let mut canaries = 0;
    for user in 0..2_000 {
        let asked = users(&json!({ "x-user-id": user.to_string() }));
        let explanation = explain(&generation, &[], &asked).unwrap();
        let understood = asked.understand(&[]).unwrap();
        let view = understood.view("api.example.com", "/api/users/7");
        let mut rng = StdRng::seed_from_u64(user);
        let assignment = decide::assign(service, traffic, None, &view, &mut rng, &mut ());
        let location =
            decide::locate(service, assignment.subset, Instant::now(), &mut ()).unwrap_or_else(|_| panic!("{user}"));
        let (bucket, now) = (assignment.bucket, Instant::now());
        // Round robin takes its turn here, and not when it is explained.
        let picked =
            decide::pick(&location, traffic, Attempt { request: view, bucket, tried: &[], now }, &mut rng, &mut ())
                .unwrap();
        assert_eq!(explanation.subset.as_deref(), Some(&*service.subsets[assignment.subset].name));
        assert_eq!(explanation.pick.unwrap().instance, picked.address.to_string(), "user {user}");
        assert_eq!(explanation.bucket, Some(format!("{:016x}", bucket.0)));
        canaries += usize::from(assignment.subset != service.stable);
    }
    assert!((140..260).contains(&canaries), "{canaries} of 2,000 at 10 %");
}

#[test]
fn the_same_seed_gives_the_same_answer() {
    let (_dir, control) = control(ADDRESS);
    let generation = control.current();
    let first = explain(&generation, &[], &question(json!({ "url": "http://api.example.com/api/users" }))).unwrap();
    let again = json!({ "url": "http://api.example.com/api/users", "seed": first.seed });
    assert_eq!(explain(&generation, &[], &question(again)).unwrap(), first);
}

fn weights(v1: &str, v2: &str, v3: &str) -> Option<IndexMap<crate::conf::Name, Percent>> {
    let pairs = [("v1", v1), ("v2", v2), ("v3", v3)];
    Some(pairs.into_iter().map(|(name, weight)| (name.parse().unwrap(), weight.parse().unwrap())).collect())
}

#[test]
fn previews() {
    let (_dir, control) = control(ADDRESS);
    let change = |weights| Change::Service { name: "users".to_owned(), weights, abort: None };
    let cases = [
        (weights("90%", "10%", "0%"), weights("85.5%", "14.5%", "0%"), vec!["v1 v2 4.50%"], "4.50%"),
        (weights("90%", "10%", "0%"), weights("90%", "10%", "0%"), vec![], "0.00%"),
        (weights("90%", "10%", "0%"), weights("100%", "0%", "0%"), vec!["v2 v1 10.00%"], "10.00%"),
        (
            weights("80%", "10%", "10%"),
            weights("75%", "10%", "15%"),
            vec!["v1 v2 0.48%", "v1 v3 4.52%", "v2 v3 0.48%"],
            "5.48%",
        ),
    ];
    for (from, to, expected, moved) in cases {
        control.flip(&Actor::file(), &change(from.clone()), "", None).unwrap();
        let proposal = Proposal { service: "users".parse().unwrap(), weights: to.clone() };
        let preview = preview(&control.current(), &proposal).unwrap();
        let moves: Vec<_> = preview.moves.iter().map(|m| format!("{} {} {}", m.from, m.to, m.share)).collect();
        assert_eq!(
            (moves, &*preview.moved),
            (expected.into_iter().map(str::to_owned).collect(), moved),
            "{from:?} {to:?}"
        );
        assert_eq!(preview.held, None);
    }
}

#[test]
fn what_holds_weights_back_is_said() {
    let (_dir, control) = control(ADDRESS);
    let proposal = Proposal { service: "users".parse().unwrap(), weights: None };
    let abort = |abort| Change::Service { name: "users".to_owned(), weights: None, abort: Some(abort) };
    let canary = |on| Change::Switch { kind: SwitchKind::Canary, service: None, on };
    let cases = [
        (abort(Abort::All), Some("aborted")),
        (abort(Abort::Weights), Some("aborted")),
        (canary(true), Some("switch")),
        (abort(Abort::Off), Some("switch")),
        (canary(false), None),
    ];
    for (change, held) in cases {
        control.flip(&Actor::file(), &change, "", None).unwrap();
        let preview = preview(&control.current(), &proposal).unwrap();
        assert_eq!(preview.from["v1"].to_string(), if held.is_some() { "100%" } else { "90%" }, "{change}");
        assert_eq!(preview.to["v1"].to_string(), "90%", "{change}");
        assert_eq!(preview.moved, if held.is_some() { "10.00%" } else { "0.00%" }, "{change}");
        let said = preview.held.unwrap_or_default();
        assert!(said.contains(held.unwrap_or_default()) && said.is_empty() == held.is_none(), "{change}: {said}");
        let explanation = explain(&control.current(), &[], &users(&json!({}))).unwrap();
        assert_eq!(explanation.weights, preview.from, "{change}");
    }
}
