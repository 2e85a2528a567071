//! Whole decisions, with the chains that ship: what goes where, why, and without an allocation.

#![expect(clippy::unwrap_used, reason = "tests may panic in their helpers as well")]

mod common;

use std::time::Instant;

use common::{decide, instances, rng, service, snapshot, traffic, view};
use http::HeaderMap;
use serin_core::decide::{self as core, Location, Recorder, Why};
use serin_core::snapshot::{Abort, ServiceTraffic};
use serin_core::subset::{FallbackReason, FallbackTo};

fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
    lines.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
}

#[test]
fn abort_beats_switches_beat_tags_beat_buckets() {
    let canary: &[_] = &[("x-traffic-tag", "canary"), ("x-user-id", "u")];
    let plain: &[_] = &[("x-user-id", "u")];
    let cases: [(&[_], _, _, _, _, _); 10] = [
        (canary, Abort::All, false, [0, 10_000], 0, Why::Abort),
        (plain, Abort::All, false, [0, 10_000], 0, Why::Abort),
        (canary, Abort::No, true, [0, 10_000], 0, Why::CanarySwitch),
        (canary, Abort::No, false, [10_000, 0], 1, Why::Tag),
        (canary, Abort::Weights, false, [10_000, 0], 1, Why::Tag),
        (plain, Abort::Weights, false, [0, 10_000], 0, Why::Abort),
        (plain, Abort::No, false, [0, 10_000], 1, Why::Bucket),
        (plain, Abort::No, false, [10_000, 0], 0, Why::Bucket),
        (&[], Abort::No, false, [0, 10_000], 1, Why::Random),
        (&[("cookie", "a=b; uid=u")], Abort::No, false, [10_000, 0], 0, Why::Bucket),
    ];
    for (lines, abort, switch, weights, subset, why) in cases {
        let mut snapshot = snapshot(1, 6);
        let mut flow = traffic(&snapshot.services[0], weights);
        (flow.abort, flow.canary_switch) = (abort, switch);
        snapshot.traffic = vec![flow];
        let headers = headers(lines);
        let (assignment, picked) =
            decide(&snapshot, view(&headers, "/api/0/users"), Instant::now(), &mut rng(), &mut ()).unwrap();
        assert_eq!((assignment.subset, assignment.why), (subset, why), "{lines:?} {abort:?} {switch} {weights:?}");
        let (location, instance) = picked.unwrap();
        assert_eq!(location.subset, Some(subset));
        assert_eq!(instance.label("version"), Some(["v1", "v2"][subset]));
    }
}

#[test]
fn fallback_says_why_and_goes_where_it_may() {
    let only_v1 = || instances(6).into_iter().filter(|i| i.label("version") == Some("v1")).collect::<Vec<_>>();
    let weightless = || {
        let mut all = instances(6);
        all.iter_mut().filter(|i| i.label("version") == Some("v2")).for_each(|i| i.weight = 0);
        all
    };
    let sick = || {
        let all = instances(6);
        all.iter().filter(|i| i.label("version") == Some("v2")).for_each(|i| i.vitals.set_checked(false));
        all
    };
    let v1 = FallbackTo::Subsets([0].into_iter().collect());
    let cases = [
        (only_v1(), v1.clone(), FallbackReason::Absent, Ok(Some(0))),
        (weightless(), v1.clone(), FallbackReason::Empty, Ok(Some(0))),
        (sick(), v1, FallbackReason::AllUnhealthy, Ok(Some(0))),
        (sick(), FallbackTo::Any, FallbackReason::AllUnhealthy, Ok(None)),
        (sick(), FallbackTo::None, FallbackReason::AllUnhealthy, Err(FallbackReason::AllUnhealthy)),
        (only_v1(), FallbackTo::None, FallbackReason::Absent, Err(FallbackReason::Absent)),
        (
            only_v1(),
            FallbackTo::Subsets([1].into_iter().collect()),
            FallbackReason::Absent,
            Err(FallbackReason::Absent),
        ),
    ];
    for (instances, to, reason, expected) in cases {
        let service = service(instances, to.clone(), "p2c");
        match (core::locate(&service, 1, Instant::now(), &mut ()), expected) {
            (Ok(location), Ok(subset)) => {
                assert_eq!((location.subset, location.fallback), (subset, Some(reason)), "{to:?}");
            }
            (Err(unavailable), Err(reason)) => assert_eq!(unavailable.reason, reason, "{to:?}"),
            (got, expected) => panic!("{:?} instead of {expected:?} with {to:?}", got.map(|l| l.subset)),
        }
    }
}

#[test]
fn any_spares_the_canary_from_untagged_traffic() {
    let mut all = instances(6);
    all.iter_mut().filter(|i| i.label("version") == Some("v1")).for_each(|i| i.weight = 0);
    let service = service(all, FallbackTo::Any, "p2c");
    assert!(
        core::locate(&service, 0, Instant::now(), &mut ()).is_err(),
        "only a canary is left, which is not for everybody"
    );
}

#[test]
fn a_tenth_of_users_and_a_fifth_of_instances_are_two_things() {
    let mut snapshot = snapshot(1, 33);
    snapshot.traffic = vec![traffic(&snapshot.services[0], [8_000, 2_000])];
    let (headers, mut rng, mut canary) = (HeaderMap::new(), rng(), 0);
    for _ in 0..100_000 {
        let (assignment, _) =
            decide(&snapshot, view(&headers, "/api/0/users"), Instant::now(), &mut rng, &mut ()).unwrap();
        canary += assignment.subset;
    }
    // Three sigma of 100,000 draws at 20 %.
    assert!((canary as f64 - 20_000.0).abs() < 3.0 * 126.5, "{canary}");
}

/// The instance that step 4 picks for a plain request.
fn picked<R: Recorder>(location: &Location<'_>, flow: &ServiceTraffic, headers: &HeaderMap, recorder: &mut R) -> u32 {
    let bucket = serin_core::tag::Bucket(1);
    let attempt = core::Attempt { request: view(headers, "/"), bucket, tried: &[], now: Instant::now() };
    core::pick(location, flow, attempt, &mut rng(), recorder).unwrap().index
}

#[test]
fn explaining_changes_nothing() {
    struct Explain;
    impl Recorder for Explain {
        const DRY_RUN: bool = true;
    }
    for pick in ["round_robin", "weighted_round_robin"] {
        let service = service(instances(12), FallbackTo::None, pick);
        let flow = traffic(&service, [10_000, 0]);
        let location = core::locate(&service, 0, Instant::now(), &mut ()).unwrap();
        let headers = HeaderMap::new();
        let explain = || picked(&location, &flow, &headers, &mut Explain);
        let first = explain();
        assert!((0..5).all(|_| explain() == first), "{pick}");
        let real = || picked(&location, &flow, &headers, &mut ());
        assert_eq!(real(), first, "{pick}: the next request gets what was explained");
        assert_ne!(real(), first, "{pick}: and only that one");
    }
}

#[test]
fn a_decision_allocates_nothing() {
    for (routes, instances) in [(10, 3), (10_000, 1_000)] {
        let snapshot = snapshot(routes, instances);
        // Somebody is out, and somebody else is weak.
        snapshot.services[0].instances[0].vitals.set_checked(false);
        let far = Instant::now() + std::time::Duration::from_secs(3_600);
        snapshot.services[0].instances[1].vitals.set_load_share(0.5, far);
        let headers = headers(&[("x-user-id", "user-1"), ("accept", "*/*")]);
        let (mut rng, now) = (rng(), Instant::now());
        let mut once = || {
            let decision = decide(&snapshot, view(&headers, "/api/7/users/1"), now, &mut rng, &mut ());
            assert!(decision.is_some_and(|(_, picked)| picked.is_ok()));
        };
        once();
        let counted = allocation_counter::measure(|| (0..1_000).for_each(|_| once()));
        assert_eq!(counted.count_total, 0, "{routes} routes, {instances} instances");
    }
}
