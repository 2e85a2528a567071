use std::sync::LazyLock;

use http::HeaderValue;

use super::*;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const SPAN: &str = "b7ad6b7169203331";

fn policy(trust: TrustParent, formats: &[Propagation]) -> Policy {
    Policy {
        sample: Share::from(conf::Percent::from_hundredths(100).unwrap()),
        trust,
        formats: formats.to_vec().into(),
        on_error: false,
        slow_over: None,
        debug_header: Some(HeaderName::from_static("x-debug")),
    }
}

fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
    lines.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())).collect()
}

/// A draw that a share of 1 % does not take, and one that it does.
static MISS: LazyLock<Identity> = LazyLock::new(|| Identity::new([1, u64::MAX / 50]));
static HIT: LazyLock<Identity> = LazyLock::new(|| Identity::new([1, u64::MAX / 200]));

fn at(trusted_proxy: bool, identity: &Identity) -> Circumstances<'_> {
    Circumstances { trusted_proxy, debug: false, share: None, identity }
}

fn trace_id(digits: &str) -> TraceId {
    TraceId::from_hex(digits).unwrap()
}

fn span_id(digits: &str) -> SpanId {
    SpanId::from_hex(digits).unwrap()
}

fn parent(flags: &str) -> String {
    format!("00-{TRACE}-{SPAN}-{flags}")
}

#[test]
fn shares_are_exact() {
    let share = |hundredths| Share::from(conf::Percent::from_hundredths(hundredths).unwrap());
    assert!(!share(0).takes(0) && share(10_000).takes(u64::MAX) && share(1).takes(0));
    assert!(share(5_000).takes((1 << 63) - 1) && !share(5_000).takes(1 << 63));
}

/// Who said what, who is trusted, what was drawn; what comes of it, and whether the header passes as it is.
#[test]
fn who_decides_whether_a_request_is_sampled() {
    use TrustParent::{Any, Never, TrustedProxies};
    let (yes, no) = (parent("01"), parent("00"));
    let cases = [
        (Never, true, Some(&yes), &MISS, false, false),
        (Never, true, Some(&yes), &HIT, true, false),
        (Never, true, Some(&no), &MISS, false, true),
        (Never, true, Some(&no), &HIT, true, false),
        (TrustedProxies, false, Some(&yes), &MISS, false, false),
        (TrustedProxies, false, Some(&no), &MISS, false, true),
        (TrustedProxies, true, Some(&yes), &MISS, true, false),
        (TrustedProxies, true, Some(&no), &HIT, false, true),
        (Any, false, Some(&yes), &MISS, true, false),
        (Any, false, Some(&no), &HIT, false, true),
        (Any, false, None, &HIT, true, false),
        (Any, false, None, &MISS, false, false),
    ];
    for (trust, proxy, said, random, sampled, untouched) in cases {
        let policy = policy(trust, &[Propagation::Tracecontext]);
        let mut headers: HeaderMap = said.map(|said| headers(&[("traceparent", said)])).unwrap_or_default();
        let (context, trace) = policy.begin(&headers, &at(proxy, random));
        let case = format!("{trust:?} {proxy} {said:?} {random:?}");
        assert_eq!((context.sampled, context.untouched), (sampled, untouched), "{case}");
        assert_eq!(trace.is_some(), sampled, "{case}");
        policy.inject(&mut headers, &context, None, None);
        let sent = context::extract(&headers).unwrap();
        let (id, span) = said.map_or((random.trace_id(), None), |_| (trace_id(TRACE), Some(span_id(SPAN))));
        assert_eq!((sent.trace_id, sent.sampled), (id, Some(sampled)), "{case}");
        if let Some(trace) = trace {
            let told = (trace.trace_id, trace.parent, trace.span_id, trace.is_sampled());
            assert_eq!(told, (id, span, sent.span_id, true), "{case}");
        }
        assert_eq!(sent.span_id == span_id(SPAN), untouched, "{case}");
        assert_eq!(said.is_some_and(|said| headers["traceparent"] == **said), untouched, "{case}");
    }
}

#[test]
fn the_first_sound_format_counts_and_all_are_written() {
    use Propagation::{B3, B3multi, Tracecontext};
    let policy = policy(TrustParent::Any, &[Tracecontext, B3, B3multi]);
    let other = "1".repeat(32);
    let mut all = headers(&[("traceparent", "00-bad"), ("tracestate", "a=1"), ("b3", &format!("{other}-{SPAN}-1"))]);
    let (context, trace) = policy.begin(&all, &at(false, &MISS));
    assert_eq!(trace.map(|trace| (trace.trace_id, trace.is_sampled())), Some((trace_id(&other), true)));
    policy.inject(&mut all, &context, None, None);
    let span = MISS.span_id().to_string();
    assert_eq!(all["traceparent"], format!("00-{other}-{span}-01"));
    assert_eq!(all["b3"], format!("{other}-{span}-1"));
    assert_eq!((&all["x-b3-traceid"], &all["x-b3-spanid"]), (&other.parse().unwrap(), &span.parse().unwrap()));
    assert_eq!(all["x-b3-sampled"], "1");
    assert!(!all.contains_key("tracestate"), "it belongs to no trace that is known");
}

#[test]
fn a_mere_decision_counts_if_it_is_trusted() {
    for (said, trusted, sampled) in [("0", true, false), ("1", true, true), ("1", false, false), ("0", false, true)] {
        let trust = if trusted { TrustParent::Any } else { TrustParent::Never };
        let random = if sampled && !trusted { &HIT } else { &MISS };
        let (context, trace) = policy(trust, &[Propagation::B3]).begin(&headers(&[("b3", said)]), &at(false, random));
        let parent = trace.map(|trace| trace.parent);
        assert_eq!((context.sampled, parent), (sampled, sampled.then_some(None)), "{said} {trusted}");
    }
}

#[test]
fn state_goes_with_its_trace() {
    let policy = policy(TrustParent::Any, &[Propagation::Tracecontext]);
    for (parent, state, kept) in [(&*parent("01"), "a=1", true), (&parent("01"), "A=1", false), ("bad", "a=1", false)] {
        let mut headers = headers(&[("traceparent", parent), ("tracestate", state)]);
        let (context, trace) = policy.begin(&headers, &at(false, &HIT));
        assert_eq!(trace.map(|trace| trace.keeps_state), Some(kept), "{parent} {state}");
        policy.inject(&mut headers, &context, None, None);
        assert_eq!(headers.contains_key("tracestate"), kept, "{parent} {state}");
    }
}

/// What is told of the version: only traces that are sampled take it into their state.
#[test]
fn what_goes_upstream_is_known() {
    let policy = policy(TrustParent::Any, &[Propagation::Tracecontext, Propagation::Baggage]);
    let (yes, no) = (parent("01"), parent("00"));
    let cases: [(&[(&'static str, &str)], _, _); 7] = [
        (&[], &HIT, Carried { takes_state: true, bare: true }),
        (&[], &MISS, Carried { takes_state: false, bare: true }),
        (&[("baggage", "a=b")], &HIT, Carried { takes_state: true, bare: false }),
        (&[("tracestate", "a=b")], &MISS, Carried { takes_state: false, bare: false }),
        (&[("traceparent", &yes)], &MISS, Carried { takes_state: true, bare: false }),
        (&[("traceparent", &no)], &HIT, Carried { takes_state: false, bare: false }),
        (&[("b3", "0")], &HIT, Carried { takes_state: true, bare: false }),
    ];
    for (lines, random, expected) in cases {
        let mut headers = headers(lines);
        let (context, _) = policy.begin(&headers, &at(false, random));
        assert_eq!(policy.inject(&mut headers, &context, None, None), expected, "{lines:?}");
    }
    for (lines, takes_state) in
        [(&[("traceparent", &*yes)], true), (&[("traceparent", &no)], false), (&[("b3", "1")], false)]
    {
        assert_eq!(Carried::by(&headers(lines)), Carried { takes_state, bare: false }, "{lines:?}");
    }
}

#[test]
fn other_samplers_take_what_is_taken_here() {
    let policy = policy(TrustParent::Never, &[Propagation::Tracecontext]);
    for random in [&HIT, &MISS] {
        let (context, _) = policy.begin(&HeaderMap::new(), &at(false, random));
        let lower = u64::from_be_bytes(random.trace_id().to_bytes()[8..].try_into().unwrap());
        assert_eq!(context.sampled, lower >> 1 < (1 << 63) / 100, "as TraceIdRatioBased has it");
    }
}

#[test]
fn a_debug_header_forces_and_is_not_passed_on() {
    let policy = policy(TrustParent::Never, &[Propagation::Tracecontext]);
    let mut headers = headers(&[("x-debug", "signed")]);
    let (context, trace) = policy.begin(&headers, &Circumstances { debug: true, ..at(false, &MISS) });
    assert!(context.sampled && trace.is_some_and(|trace| trace.is_sampled()));
    policy.inject(&mut headers, &context, None, None);
    assert!(!headers.contains_key("x-debug"));
}

#[test]
fn a_route_has_its_own_share() {
    let policy = policy(TrustParent::Never, &[Propagation::Tracecontext]);
    let [all, none] = [10_000, 0].map(|hundredths| Share::from(conf::Percent::from_hundredths(hundredths).unwrap()));
    for (share, sampled) in [(None, false), (Some(&all), true), (Some(&none), false)] {
        let (context, trace) = policy.begin(&HeaderMap::new(), &Circumstances { share, ..at(false, &MISS) });
        assert_eq!((context.sampled, trace.is_some()), (sampled, sampled));
        assert_eq!(policy.is_plain(&HeaderMap::new(), share, &MISS), !sampled);
    }
}

#[test]
fn what_may_yet_be_sent_is_recorded() {
    let policy = Policy { on_error: true, ..policy(TrustParent::Never, &[Propagation::Tracecontext]) };
    let (context, trace) = policy.begin(&HeaderMap::new(), &at(false, &MISS));
    assert!(!context.sampled && trace.is_some_and(|trace| !trace.is_sampled()));
}

/// Most requests take a short way. What it tells others is what the long way would.
#[test]
fn the_short_way_is_that_of_plain_requests() {
    let plain = policy(TrustParent::Any, &[Propagation::Tracecontext, Propagation::B3]);
    let slow = Policy { slow_over: Some(Duration::from_secs(1)), ..plain.clone() };
    let on_error = Policy { on_error: true, ..plain.clone() };
    let cases: [(&Policy, &[(&'static str, &str)], _, _); 8] = [
        (&plain, &[("x-user", "1"), ("te", "trailers"), ("trailer", "b"), ("x-b", "1")], &MISS, true),
        (&plain, &[], &HIT, false),
        (&slow, &[], &MISS, false),
        (&on_error, &[], &MISS, false),
        (&plain, &[("x-debug", "1")], &MISS, false),
        (&plain, &[("b3", "no")], &MISS, false),
        (&plain, &[("x-b3-flags", "1")], &MISS, false),
        (&plain, &[("baggage", "a=b")], &MISS, false),
    ];
    for (policy, lines, identity, expected) in cases {
        let headers = headers(lines);
        assert_eq!(policy.is_plain(&headers, None, identity), expected, "{lines:?}");
        if expected {
            let (mut short, mut long) = (headers.clone(), headers.clone());
            let (context, trace) = policy.begin(&headers, &at(false, identity));
            let carried = policy.inject(&mut short, &SpanContext::PLAIN, Some(identity), None);
            assert_eq!(policy.inject(&mut long, &context, None, None), carried, "{lines:?}");
            assert!(short == long && trace.is_none(), "{short:?} {long:?}");
        }
    }
}
