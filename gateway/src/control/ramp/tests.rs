use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::driver;
use super::*;
use crate::admin::tests::control;
use crate::control::Control;
use crate::control::change::{Actor, Change, SwitchKind};
use crate::control::history::Entry;

fn percent(text: &str) -> Percent {
    text.parse().unwrap()
}

fn anna() -> Actor {
    Actor { by: "anna".to_owned(), from: "127.0.0.1".to_owned(), token: None }
}

/// A control path with made-up time, and requests that it is told of.
struct Bench {
    _dir: tempfile::TempDir,
    control: Arc<Control>,
    now: Instant,
    wall: SystemTime,
}

impl Bench {
    fn new() -> Self {
        let (dir, control) = control("127.0.0.1:9901");
        Self { _dir: dir, control, now: Instant::now(), wall: SystemTime::now() }
    }

    /// With a ramp to v2 by 10 %, 50 % and 100 %, a minute each, whose guards are these.
    fn ramping(guards: &[&str]) -> Self {
        let bench = Self::new();
        bench.act(Act::Start(Box::new(ramp(guards)))).unwrap_or_else(|error| panic!("{error}"));
        bench.tick();
        bench
    }

    fn act(&self, act: Act) -> Result<(), FlipError> {
        let at = Moment::of(self.wall);
        let change = RampChange { service: "users".to_owned(), act, by: "anna".to_owned(), at };
        self.flip(Change::Ramp(change))
    }

    #[expect(clippy::needless_pass_by_value, reason = "helpers take what tests write in place")]
    fn flip(&self, change: Change) -> Result<(), FlipError> {
        self.control.flip(&anna(), &change, "", None).map(drop)
    }

    fn flip_weights(&self, v1: &str, v2: &str) {
        let weights = [("v1", v1), ("v2", v2)].map(|(name, share)| (name.parse().unwrap(), percent(share)));
        let change = Change::Service { name: "users".to_owned(), weights: Some(weights.into()), abort: None };
        self.flip(change).unwrap_or_else(|error| panic!("{error}"));
    }

    fn tick(&self) {
        driver::tick(&self.control, self.now, self.wall);
    }

    fn pass(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
        self.wall += Duration::from_secs(seconds);
        self.tick();
    }

    /// So many requests of a subset by its position, and how many of them failed.
    fn serve(&self, subset: usize, requests: u64, errors: u64, millis: u64) {
        let current = self.control.current();
        let meter = current.services[0].metrics.live.of(Some(subset));
        (0..requests).for_each(|number| meter.record(Duration::from_millis(millis), number < errors));
    }

    fn serve_both(&self, requests: u64) {
        self.serve(0, requests, 0, 10);
        self.serve(1, requests, 0, 10);
    }

    fn ramp(&self) -> Ramp {
        self.entry().ramp.unwrap_or_else(|| panic!("no ramp"))
    }

    fn entry(&self) -> ServiceTraffic {
        self.control.current().traffic.services["users"].clone()
    }

    /// State, step counted from 0, and the weights of v1 and v2.
    fn place(&self) -> (RampState, usize, String) {
        let (ramp, entry) = (self.ramp(), self.entry());
        (ramp.state, ramp.step, format!("{} {}", entry.weights["v1"], entry.weights["v2"]))
    }

    fn latest(&self) -> Entry {
        self.control.history().remove(0)
    }
}

fn ramp(guards: &[&str]) -> Ramp {
    Ramp {
        every: "1m".parse().unwrap(),
        guards: guards.iter().map(|text| text.parse().unwrap()).collect(),
        min_requests: 100,
        ..Ramp::new("v2".parse().unwrap(), ["10%", "50%", "100%"].map(percent).to_vec())
    }
}

fn is_at(bench: &Bench, state: RampState, step: usize, weights: &str) {
    assert_eq!(bench.place(), (state, step, weights.to_owned()));
}

const BOTH: [&str; 2] = ["success_rate >= 99%", "p99 <= 1.2 x stable"];

#[test]
fn a_ramp_goes_through_to_its_end_by_audited_flips() {
    let mut bench = Bench::ramping(&BOTH);
    is_at(&bench, RampState::Running, 0, "90% 10%");
    bench.serve_both(100);
    bench.pass(59);
    is_at(&bench, RampState::Running, 0, "90% 10%");
    bench.pass(1);
    is_at(&bench, RampState::Running, 1, "50% 50%");
    let entry = bench.latest();
    assert_eq!((&*entry.actor.by, &*entry.action), ("ramp", "ramp users next step"));
    assert_eq!(entry.reason, "step 2 of 3: 50% to v2");
    for weights in ["0% 100%", "0% 100%"] {
        bench.serve_both(100);
        bench.pass(60);
        assert_eq!(bench.place().2, weights);
    }
    is_at(&bench, RampState::Done, 2, "0% 100%");
    let revision = bench.control.current().traffic_revision;
    bench.serve(1, 500, 500, 10);
    bench.pass(600);
    assert_eq!(bench.control.current().traffic_revision, revision, "what is done is left alone");
}

#[test]
fn the_last_step_compares_with_what_the_stable_subset_measured_before() {
    for (millis, state) in [(11, RampState::Done), (100, RampState::Aborted)] {
        let mut bench = Bench::ramping(&BOTH);
        for _ in 0..2 {
            bench.serve_both(100);
            bench.pass(60);
        }
        is_at(&bench, RampState::Running, 2, "0% 100%");
        bench.serve(1, 100, 0, millis);
        bench.pass(60);
        assert_eq!(bench.ramp().state, state, "{millis} ms");
    }
}

#[test]
fn a_last_step_that_began_before_the_process_is_judged_without_the_stable_subset() {
    for (errors, state) in [(0, RampState::Done), (50, RampState::Aborted)] {
        let mut bench = Bench::new();
        let only = Ramp { steps: vec![percent("100%")], ..ramp(&BOTH) };
        bench.act(Act::Start(Box::new(only))).unwrap_or_else(|error| panic!("{error}"));
        bench.tick();
        bench.serve(1, 99, 0, 10);
        bench.pass(60);
        assert_eq!(bench.ramp().state, RampState::Held);
        bench.serve(1, 100, errors, 10);
        bench.pass(1);
        assert_eq!(bench.ramp().state, state, "{errors} errors");
    }
}

#[test]
fn too_little_holds_and_never_passes_nor_rolls_back() {
    let mut bench = Bench::ramping(&BOTH);
    bench.serve(1, 99, 99, 900);
    bench.pass(600);
    is_at(&bench, RampState::Held, 0, "90% 10%");
    assert_eq!(bench.ramp().reason, "99 of 100 requests to the target");
    let revision = bench.control.current().traffic_revision;
    bench.pass(600);
    assert_eq!(bench.control.current().traffic_revision, revision, "held is said once");
    bench.serve(1, 1, 0, 10);
    bench.pass(1);
    is_at(&bench, RampState::Aborted, 0, "100% 0%");
    let mut bench = Bench::ramping(&BOTH);
    bench.serve(1, 100, 0, 10);
    bench.pass(60);
    assert_eq!(bench.ramp().reason, "0 of 100 requests to the stable subset");
    bench.serve(0, 100, 0, 10);
    bench.pass(1);
    is_at(&bench, RampState::Running, 1, "50% 50%");
}

#[test]
fn a_breach_sends_everything_to_stable_and_says_why() {
    let mut bench = Bench::ramping(&BOTH);
    bench.serve_both(100);
    bench.serve(1, 100, 100, 10);
    bench.pass(1);
    is_at(&bench, RampState::Aborted, 0, "100% 0%");
    assert_eq!(bench.entry().abort, Abort::All, "tagged requests as well");
    let wanted = "success_rate >= 99% is broken: 50%, expected at least 99%, over 200 requests of this step";
    assert_eq!(bench.ramp().reason, wanted);
    let entry = bench.latest();
    assert_eq!((&*entry.actor.by, &*entry.action, &*entry.reason), ("ramp", "ramp users abort", wanted));

    bench.act(Act::Start(Box::new(ramp(&["p99 <= 1.2 x stable"])))).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(bench.entry().abort, Abort::Off, "the next ramp ends the abort of the last one");
    bench.tick();
    bench.serve(0, 100, 0, 10);
    bench.serve(1, 100, 0, 50);
    bench.pass(1);
    is_at(&bench, RampState::Aborted, 0, "100% 0%");
    assert!(bench.ramp().reason.starts_with("p99 <= 1.2 x stable is broken: "), "{}", bench.ramp().reason);
}

#[test]
fn a_good_step_does_not_hide_its_bad_end() {
    let mut bench = Bench::ramping(&["success_rate >= 99%"]);
    bench.serve(1, 100_000, 0, 10);
    bench.pass(30);
    bench.control.metrics().live.tick();
    bench.serve(1, 100, 100, 10);
    bench.control.metrics().live.tick();
    // Among the last ten seconds as well are the good ones, which are forgotten one by one.
    (0..9).for_each(|_| bench.control.metrics().live.tick());
    bench.pass(1);
    is_at(&bench, RampState::Aborted, 0, "100% 0%");
    assert!(bench.ramp().reason.contains("over 100 requests just now"), "{}", bench.ramp().reason);
}

#[test]
fn pause_resume_and_abort() {
    let mut bench = Bench::ramping(&BOTH);
    bench.serve_both(100);
    bench.pass(50);
    bench.act(Act::Pause("lunch".to_owned())).unwrap_or_else(|error| panic!("{error}"));
    bench.pass(600);
    is_at(&bench, RampState::Paused, 0, "90% 10%");
    bench.act(Act::Resume).unwrap_or_else(|error| panic!("{error}"));
    bench.tick();
    bench.serve_both(100);
    bench.pass(59);
    is_at(&bench, RampState::Running, 0, "90% 10%");
    bench.pass(1);
    is_at(&bench, RampState::Running, 1, "50% 50%");
    bench.act(Act::Abort("enough".to_owned())).unwrap_or_else(|error| panic!("{error}"));
    is_at(&bench, RampState::Aborted, 1, "100% 0%");
    for act in [Act::Pause(String::new()), Act::Resume, Act::Abort(String::new()), Act::Advance, Act::Finish] {
        let error = bench.act(act.clone()).expect_err("it is over");
        assert!(error.to_string().contains("the ramp of users is aborted"), "{act:?}: {error}");
    }
}

#[test]
fn operators_have_the_last_word() {
    type Flip = (&'static str, fn(&Bench));
    let flips: [Flip; 4] = [
        ("the weights were changed by anna", |bench| bench.flip_weights("80%", "20%")),
        ("the rollout was aborted by anna", |bench| {
            let change = Change::Service { name: "users".to_owned(), weights: None, abort: Some(Abort::All) };
            bench.flip(change).unwrap_or_else(|error| panic!("{error}"));
        }),
        ("the canary switch was turned on by anna", |bench| {
            let change = Change::Switch { kind: SwitchKind::Canary, service: None, on: true };
            bench.flip(change).unwrap_or_else(|error| panic!("{error}"));
        }),
        ("anna went back to revision 1", |bench| {
            bench.flip(Change::Rollback(1)).unwrap_or_else(|error| panic!("{error}"));
        }),
    ];
    for (why, flip) in flips {
        let mut bench = Bench::ramping(&BOTH);
        flip(&bench);
        let (ramp, flipped) = (bench.ramp(), bench.entry());
        assert_eq!((ramp.state, &*ramp.reason), (RampState::Paused, why));
        assert_eq!(bench.latest().actor.by, "anna", "it is one flip, and hers: {why}");
        bench.serve_both(500);
        bench.pass(600);
        assert_eq!(bench.entry(), flipped, "nothing fights her: {why}");
    }
}

#[test]
fn other_flips_leave_a_ramp_alone() {
    let bench = Bench::ramping(&BOTH);
    bench.flip_weights("90%", "10%");
    let change = Change::Switch { kind: SwitchKind::Balancer, service: None, on: true };
    bench.flip(change).unwrap_or_else(|error| panic!("{error}"));
    let mut same = Traffic::clone(&bench.control.current().traffic);
    bench.flip(Change::Replace(same.clone())).unwrap_or_else(|error| panic!("{error}"));
    is_at(&bench, RampState::Running, 0, "90% 10%");
    same.services["users"].ramp = None;
    bench.flip(Change::Replace(same)).unwrap_or_else(|error| panic!("{error}"));
    is_at(&bench, RampState::Running, 0, "90% 10%");
}

#[test]
fn a_rollback_into_a_ramp_does_not_start_it() {
    let bench = Bench::ramping(&BOTH);
    let revision = bench.control.current().traffic_revision;
    bench.act(Act::Abort("enough".to_owned())).unwrap_or_else(|error| panic!("{error}"));
    bench.flip(Change::Rollback(revision)).unwrap_or_else(|error| panic!("{error}"));
    is_at(&bench, RampState::Paused, 0, "90% 10%");
    bench.act(Act::Resume).unwrap_or_else(|error| panic!("{error}"));
    is_at(&bench, RampState::Running, 0, "90% 10%");
}

#[test]
fn a_restart_goes_on_where_it_was() {
    let bench = Bench::ramping(&[]);
    let traffic = bench.control.current().traffic.clone();
    let mut again = Bench::new();
    again.flip(Change::Replace(Traffic::clone(&traffic))).unwrap_or_else(|error| panic!("{error}"));
    (again.now, again.wall) = (again.now + Duration::from_secs(1), bench.wall + Duration::from_secs(40));
    again.tick();
    again.serve_both(100);
    again.pass(19);
    is_at(&again, RampState::Running, 0, "90% 10%");
    again.pass(1);
    is_at(&again, RampState::Running, 1, "50% 50%");
    again.wall += Duration::from_secs(86_400);
    again.serve_both(100);
    again.tick();
    is_at(&again, RampState::Running, 1, "50% 50%");
}

#[test]
fn a_step_whose_time_is_long_over_still_needs_its_requests() {
    let bench = Bench::ramping(&[]);
    let traffic = bench.control.current().traffic.clone();
    let mut again = Bench::new();
    again.flip(Change::Replace(Traffic::clone(&traffic))).unwrap_or_else(|error| panic!("{error}"));
    again.wall = bench.wall + Duration::from_secs(86_400);
    again.tick();
    is_at(&again, RampState::Held, 0, "90% 10%");
    again.serve(1, 100, 0, 10);
    again.pass(1);
    is_at(&again, RampState::Running, 1, "50% 50%");
    again.pass(59);
    is_at(&again, RampState::Running, 1, "50% 50%");
}

#[test]
fn what_does_not_fit_is_refused() {
    let start = |to: &str, steps: &[&str]| {
        let steps = steps.iter().map(|text| percent(text)).collect();
        Act::Start(Box::new(Ramp::new(to.parse().unwrap(), steps)))
    };
    let bench = Bench::new();
    let cases = [
        (start("v9", &["1%"]), "unknown subset `v9`"),
        (start("v1", &["1%"]), "`v1` is the stable subset"),
        (start("v2", &["5%", "5%"]), "5% comes after 5%: expected steps that ascend"),
        (start("v2", &["0%", "5%"]), "expected a first step above 0%"),
        (start("v3", &["1%"]), "v2 has 10% of users: a ramp to v3 needs all but v3 on v1"),
        (Act::Pause(String::new()), "users has no ramp"),
    ];
    for (act, part) in cases {
        let error = bench.act(act).expect_err(part).to_string();
        assert!(error.contains(part), "{error}");
    }
    bench.act(start("v2", &["20%"])).unwrap_or_else(|error| panic!("{error}"));
    let error = bench.act(start("v2", &["20%"])).expect_err("there is one").to_string();
    assert!(error.contains("has a ramp already, to v2, running, step 1 of 1 (20%)"), "{error}");
    bench.act(Act::Pause(String::new())).unwrap_or_else(|error| panic!("{error}"));
    let change = Change::Switch { kind: SwitchKind::Canary, service: Some("users".to_owned()), on: true };
    bench.flip(change).unwrap_or_else(|error| panic!("{error}"));
    let error = bench.act(Act::Resume).expect_err("the switch is on").to_string();
    assert!(error.contains("the canary switch is on for users"), "{error}");
}
