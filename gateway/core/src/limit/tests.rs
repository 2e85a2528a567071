use std::net::IpAddr;

use http::{HeaderMap, HeaderValue, Method};

use super::*;
use crate::request::{Claims, RequestView};

const SECOND: Duration = Duration::from_secs(1);

pub(super) fn per_second(units: u32, burst: u32) -> Quota {
    Quota::new(units, SECOND, burst).unwrap().named("rule")
}

pub(super) fn header(name: &str) -> KeyPart {
    KeyPart::Header(name.parse().unwrap())
}

pub(super) fn limiter(key: &[KeyPart], quota: Quota, now: Instant) -> Limiter {
    let rule = Rule {
        name: "rule".into(),
        key: key.to_vec(),
        quota,
        overrides: HashMap::new(),
        cost: None,
        dry_run: false,
        fail_closed: false,
    };
    Limiter { rule, store: Arc::new(Store::new(1_000, 7, now)), leases: None }
}

/// A request in words: `name:value` header fields, and the words `ip=`, `query=`, `claim=`, `route=`, `service=`,
/// `subset=`.
pub(super) fn with<R>(words: &str, check: impl FnOnce(&Subject<'_>) -> R) -> R {
    let mut headers = HeaderMap::new();
    let (mut ip, mut claims, mut query) = (IpAddr::from([10, 0, 0, 1]), Claims::new(), None);
    let (mut route, mut service, mut subset) = ("r", "s", "v1");
    for word in words.split_whitespace() {
        match word.split_once('=').unwrap_or((word, "")) {
            ("ip", value) => ip = value.parse().unwrap(),
            ("query", value) => query = Some(value),
            ("claim", value) => drop(claims.insert("sub".to_owned(), value.to_owned())),
            ("route", value) => route = value,
            ("service", value) => service = value,
            ("subset", value) => subset = value,
            _ => {
                let (name, value) = word.split_once(':').unwrap();
                headers.append(http::HeaderName::try_from(name).unwrap(), HeaderValue::from_str(value).unwrap());
            }
        }
    }
    let request = RequestView {
        method: &Method::GET,
        host: "",
        path: "/",
        query,
        headers: &headers,
        client_ip: ip,
        from_trusted_proxy: false,
        claims: Some(&claims),
        unix_time: 0,
    };
    check(&Subject { request, route, service, subset })
}

/// Whether two requests are counted together.
#[test]
fn keys() {
    let cases: [(&[KeyPart], &str, &str, bool); 19] = [
        (&[], "x-u:1", "x-u:2 ip=::1", true),
        (&[header("x-u")], "x-u:1", "x-u:1 ip=9.9.9.9", true),
        (&[header("x-u")], "x-u:1", "x-u:2", false),
        (&[header("x-u")], "", "ip=9.9.9.9", true),
        (&[header("x-u")], "", "x-u:1", false),
        (&[header("x-u"), header("x-v")], "x-u:1 x-v:23", "x-u:12 x-v:3", false),
        (&[header("x-u"), header("x-v")], "x-u:1", "x-v:1", false),
        (&[header("x-u"), KeyPart::Route], "x-u:1 route=a", "x-u:1 route=b", false),
        (&[header("x-u"), KeyPart::ClientIp], "ip=1.1.1.1", "ip=2.2.2.2", false),
        (&[KeyPart::ClientIp], "ip=1.1.1.1", "ip=::ffff:1.1.1.1", true),
        (&[KeyPart::ClientIp], "ip=2001:db8:0:1::1", "ip=2001:db8:0:1:ffff::9", true),
        (&[KeyPart::ClientIp], "ip=2001:db8:0:1::1", "ip=2001:db8:0:2::1", false),
        (&[KeyPart::Cookie("uid".into())], "cookie:uid=1;b=2", "cookie:a=1;uid=1", true),
        (&[KeyPart::Query("k".into())], "query=k=1&b=2", "query=k=2", false),
        (&[KeyPart::Claim("sub".into())], "claim=a", "claim=b", false),
        (&[KeyPart::Claim("sub".into())], "", "x-u:1", true),
        (&[KeyPart::Service], "service=a", "service=b", false),
        (&[KeyPart::Tag], "subset=v1", "subset=v2", false),
        (&[KeyPart::Tag], "subset=v1 route=a", "subset=v1 route=b", true),
    ];
    for (key, one, other, together) in cases {
        let now = Instant::now();
        let limiter = limiter(key, per_second(1, 1), now);
        assert!(with(one, |subject| limiter.take(subject, now, None)).within, "{key:?}");
        let second = with(other, |subject| limiter.take(subject, now, None).within);
        assert_eq!(second, !together, "{key:?}: {one} and {other}");
    }
}

/// The promise: ten seconds at ten times the limit let through limit x 10 s + burst, within 1 %.
#[test]
fn what_is_let_through_is_exact() {
    let cases = [(100, SECOND, 200), (3, SECOND, 1), (7_000, SECOND, 7_000), (60, 60 * SECOND, 5)];
    for (units, per, burst) in cases {
        let start = Instant::now();
        let limiter = limiter(&[], Quota::new(units, per, burst).unwrap(), start);
        let expected = f64::from(units) * 10.0 / per.as_secs_f64() + f64::from(burst);
        let sent = (expected * 10.0).max(1_000.0) as u32;
        let gap = 10 * SECOND / sent;
        let admitted =
            with("", |subject| (0..sent).filter(|n| limiter.take(subject, start + gap * *n, None).within).count());
        let off = (admitted as f64 - expected).abs();
        assert!(off <= (expected * 0.01).max(1.0), "{units} per {per:?}: {admitted} of {expected}");
    }
}

#[test]
fn what_is_left_and_how_long_to_wait_is_told() {
    let now = Instant::now();
    let limiter = limiter(&[header("x-u")], per_second(10, 3), now);
    with("x-u:1", |subject| {
        let told = |standing: Standing<'_>| (standing.within, standing.remaining, standing.wait.as_millis());
        assert_eq!(told(limiter.peek(subject, now)), (true, 2, 100));
        assert_eq!(told(limiter.take(subject, now, None)), (true, 2, 100), "a look takes nothing");
        assert_eq!(told(limiter.take(subject, now, None)), (true, 1, 200));
        assert_eq!(told(limiter.take(subject, now, None)), (true, 0, 300));
        assert_eq!(told(limiter.take(subject, now, None)), (false, 0, 100));
        assert_eq!(told(limiter.take(subject, now + SECOND / 20, None)), (false, 0, 50));
        assert_eq!(told(limiter.take(subject, now + SECOND / 10, None)), (true, 0, 300));
    });
}

/// A clock that goes back or jumps (fault 27): time is monotonic, and what is earlier than before counts as now.
#[test]
fn an_instant_from_the_past_is_no_harm() {
    let now = Instant::now() + 3_600 * SECOND;
    let limiter = limiter(&[], per_second(1, 1), Instant::now());
    with("", |subject| {
        assert!(limiter.take(subject, now, None).within);
        assert!(!limiter.take(subject, now - 10 * SECOND, None).within);
        assert!(limiter.take(subject, now + SECOND, None).within);
    });
}

#[test]
fn costs() {
    let now = Instant::now();
    let mut limiter = limiter(&[], per_second(10, 100), now);
    limiter.rule.cost = Some(Cost { header: "x-cost".parse().unwrap(), max: NonZeroU32::new(50).unwrap() });
    let cases = [
        ("", 1),
        ("x-cost:7", 7),
        ("x-cost:0", 1),
        ("x-cost:-5", 1),
        ("x-cost:many", 1),
        ("x-cost:51", 50),
        ("x-cost:99999999999999999999", 1),
        ("x-cost:4294967296", 50),
    ];
    for (words, expected) in cases {
        assert_eq!(with(words, |subject| limiter.cost(subject).get()), expected, "{words}");
    }
    let spent = ["x-cost:50", "x-cost:30", "x-cost:21", "x-cost:20", ""];
    let within = spent.map(|words| with(words, |subject| limiter.take(subject, now, None).within));
    assert_eq!(within, [true, true, false, true, false], "what is refused costs nothing");
}

#[test]
fn overrides_are_by_the_first_part() {
    let now = Instant::now();
    let mut limiter = limiter(&[header("x-u"), KeyPart::Route], per_second(1, 1), now);
    limiter.rule.overrides.insert("vip".into(), per_second(10, 3));
    let admitted =
        |words: &str| (0..9).filter(|_| with(words, |subject| limiter.take(subject, now, None).within)).count();
    assert_eq!(["x-u:vip", "x-u:vip route=b", "x-u:me", "x-u:me route=vip"].map(admitted), [3, 3, 1, 1]);
}

/// A quota that changes begins afresh; the other quotas of the rule go on where they were.
#[test]
fn a_changed_quota_begins_afresh_and_others_go_on() {
    let now = Instant::now();
    let mut before = limiter(&[header("x-u")], per_second(1, 1), now);
    before.rule.overrides.insert("vip".into(), per_second(1, 2));
    let both =
        |limiter: &Limiter| ["x-u:me", "x-u:vip"].map(|words| with(words, |s| limiter.take(s, now, None).within));
    assert_eq!([both(&before), both(&before), both(&before)], [[true, true], [false, true], [false, false]]);
    let mut after = Limiter { rule: before.rule.clone(), store: Arc::clone(&before.store), leases: None };
    assert_eq!(both(&after), [false, false], "nothing has changed");
    after.rule.quota = per_second(2, 1);
    assert_eq!(both(&after), [true, false], "only one has changed");
}

#[test]
fn who_is_over_one_limit_uses_up_no_other() {
    let now = Instant::now();
    let (all, each) = (limiter(&[], per_second(3, 3), now), limiter(&[header("x-u")], per_second(1, 1), now));
    let refused = |words: &str| with(words, |subject| judge(&[&all, &each], &[], subject, now, false).refused_by);
    let got = ["x-u:1", "x-u:1", "x-u:1", "x-u:2", "x-u:3", "x-u:4"].map(refused);
    assert_eq!(got, [None, Some(1), Some(1), None, None, Some(0)]);
}

#[test]
fn a_dry_run_only_counts() {
    let now = Instant::now();
    let (mut trial, real) = (limiter(&[], per_second(1, 1), now), limiter(&[], per_second(2, 2), now));
    trial.rule.dry_run = true;
    let both = [&trial, &real];
    with("", |subject| {
        let told = |observe| {
            let judgement = judge(&both, &[], subject, now, observe);
            let fields = fields(&both, &judgement, observe).map(|fields| fields.state);
            let within: Vec<_> = judgement.standings.iter().map(|standing| standing.within).collect();
            (judgement.refused_by, within, fields)
        };
        let field = |text| Some(HeaderValue::from_static(text));
        assert_eq!(told(false), (None, vec![true, true], field("\"rule\";r=1;t=1")));
        assert_eq!(told(false), (None, vec![false, true], field("\"rule\";r=0;t=1")));
        assert_eq!(told(false), (Some(1), vec![false, false], field("\"rule\";r=0;t=1")));
        assert_eq!(told(true), (None, vec![false, false], None), "with the switch on, every rule is one");
    });
}

#[test]
fn fields_name_every_rule() {
    let now = Instant::now();
    let quota = per_second(100, 200).named("per-user");
    let (mut one, two) = (limiter(&[], quota, now), limiter(&[], per_second(5, 5), now));
    one.rule.name = "per-user".into();
    with("", |subject| {
        let both = [&one, &two];
        let fields = fields(&both, &judge(&both, &[], subject, now, false), false).unwrap();
        assert_eq!(fields.policy, "\"per-user\";q=100;w=1;burst=200, \"rule\";q=5;w=1");
        assert_eq!(fields.state, "\"per-user\";r=199;t=1, \"rule\";r=4;t=1");
    });
    let cases = [(0, 0), (1, 1), (999, 1), (1_000, 1), (1_001, 2)];
    for (millis, expected) in cases {
        assert_eq!(seconds(Duration::from_millis(millis)), expected, "{millis} ms");
    }
}

/// A store of 10 keys at 1/s, with so many of them in it.
fn filled(keys: usize, now: Instant) -> Limiter {
    let mut limiter = limiter(&[header("x-u")], per_second(1, 1), now);
    limiter.store = Arc::new(Store::new(10, 7, now));
    for key in 0..keys {
        assert!(with(&format!("x-u:old-{key}"), |subject| limiter.take(subject, now, None)).within);
    }
    limiter
}

#[test]
fn keys_that_find_no_room_share_a_bucket() {
    let now = Instant::now();
    let limiter = filled(10, now);
    let take = |words: &str, now| with(words, |subject| limiter.take(subject, now, None));
    let (first, second, known) = (take("x-u:a", now), take("x-u:b", now), take("x-u:old-3", now));
    assert_eq!((first.within, first.full), (true, true), "the shared bucket has one left");
    assert_eq!((second.within, second.full), (false, true), "now it has not");
    assert_eq!((known.within, known.full), (false, false), "who is known has a bucket of his own");
    assert_eq!(limiter.store.len(), 11, "with the shared one");
    // After a second all are whole again: a new key makes room by itself.
    let later = take("x-u:c", now + SECOND);
    assert_eq!((later.within, later.full, limiter.store.len()), (true, false, 1));
}

#[test]
fn a_full_store_is_not_swept_for_every_request() {
    let now = Instant::now();
    let limiter = filled(10, now);
    let take = |words: &str, now| with(words, |subject| limiter.take(subject, now, None).full);
    assert!(take("x-u:a", now + SECOND / 2), "swept in vain");
    assert!(take("x-u:b", now + SECOND / 2 + SECOND / 20), "too early for another");
    assert!(!take("x-u:b", now + SECOND));
}

#[test]
fn sweeping_drops_keys_that_are_whole_again() {
    let now = Instant::now();
    let limiter = filled(10, now);
    limiter.store.sweep(now + SECOND / 2);
    assert_eq!(limiter.store.len(), 10);
    limiter.store.sweep(now + SECOND);
    assert!(limiter.store.is_empty());
    with("x-u:old-1", |subject| assert!(limiter.take(subject, now + SECOND, None).within));
}
