//! A thousand short lives of a service on a virtual clock: instances slow down, fail, hang, flap, fail their checks and
//! recover, while the real decisions, outlier detection, breakers and the retry budget work on them. What must hold
//! holds in each. A life that breaks a promise names its seed: `SERIN_SEED=17 cargo test --test simulation`.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "tests may panic in their helpers as well")]

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use common::view;
use http::{HeaderMap, Method, StatusCode};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::json;
use serin_core::breaker::{Breaker, BreakerPolicy, CallWindow, Permit, Phase};
use serin_core::chain::ChainPlan;
use serin_core::decide::{self, Assignment, Attempt};
use serin_core::guard::Guards;
use serin_core::instance::{Health, InFlight, Instance, Vitals};
use serin_core::outlier::{Outcome, OutlierPolicy};
use serin_core::plugin::Node;
use serin_core::retry::{Across, BudgetPolicy, Failure, RetryBudget, RetryOn, RetryPolicy};
use serin_core::slow_start::SlowStart;
use serin_core::snapshot::{Service, ServiceParts, ServiceTraffic};
use serin_core::subset::{Fallback, FallbackReason, FallbackTo};
use serin_core::tag::Anonymous;

const SEEDS: u64 = 1_000;
/// Picks that give every instance its turn within a few seconds.
const PICKS: [&str; 6] = ["round_robin", "random", "weighted_random", "weighted_round_robin", "p2c", "least_request"];

/// In ms: trouble lasts from `TROUBLE` to `CALM`; from `SETTLED` to `END` everything must be as if nothing had been.
const TROUBLE: u64 = 500;
const CALM: u64 = 6_500;
const SETTLED: u64 = 11_500;
const END: u64 = 16_500;
/// Between two requests.
const STEP: u64 = 25;
const MAX_OPEN: u64 = 1_200;

#[derive(Clone, Copy, Debug)]
enum State {
    Fine,
    Slow,
    Errors,
    Refuses,
    Hangs,
    Flaps,
}

struct Request {
    assignment: Assignment,
    method: Method,
    tried: Vec<u32>,
}

struct UnderWay {
    request: Request,
    outcome: Outcome,
    began: Instant,
    permit: Option<Permit>,
    _flight: InFlight,
}

struct Life {
    rng: StdRng,
    start: Instant,
    at: u64,
    service: Service,
    traffic: ServiceTraffic,
    states: Vec<State>,
    under_way: BTreeMap<(u64, u64), UnderWay>,
    requests: u64,
    attempts: u64,
    /// By subset: since when its breaker is open, and how often it was seen to open.
    open_since: [Option<u64>; 2],
    opened: u64,
    ejected: u64,
    /// Picks by instance since all is settled.
    settled: Vec<u64>,
    /// Everything that happened, in a number.
    trace: u64,
}

fn outlier(rng: &mut StdRng) -> OutlierPolicy {
    OutlierPolicy {
        consecutive_5xx: Some(rng.random_range(2..6)),
        consecutive_local: Some(rng.random_range(1..4)),
        success_rate: Some(9_500),
        failure_percentage: Some(8_500),
        mean_latency: Some(Duration::from_millis(100)),
        window: Duration::from_secs(2),
        min_requests: 5,
        base_ejection: Duration::from_millis(500),
        max_ejection: Duration::from_secs(2),
        max_ejection_percent: [1_000, 3_000, 6_700, 10_000][rng.random_range(0..4)],
    }
}

fn breaker(rng: &mut StdRng, start: Instant) -> Arc<Breaker> {
    let by_time = CallWindow::Time(Duration::from_secs(1));
    let policy = BreakerPolicy {
        failure_rate: Some(5_000),
        slow_call: Some(Duration::from_millis(200)),
        slow_rate: 5_000,
        min_calls: 5,
        window: if rng.random() { by_time } else { CallWindow::Calls(10) },
        open: Duration::from_millis(300),
        max_open: Duration::from_millis(MAX_OPEN),
        half_open_probes: rng.random_range(1..4),
        max_connections: rng.random_range(3..40),
        max_pending: 40,
        max_requests: 40,
    };
    Arc::new(Breaker::new(policy, start, Box::new(|_, _| {})))
}

fn instances(rng: &mut StdRng, start: Instant) -> Vec<Instance> {
    let changes = Arc::default();
    let (stable, canary) = (rng.random_range(1..8), rng.random_range(1..4));
    let versions = std::iter::repeat_n("v1", stable).chain(std::iter::repeat_n("v2", canary));
    let mut instances: Vec<_> = (0..)
        .zip(versions)
        .map(|(index, version)| Instance {
            index,
            address: ((0x0a00_0000 + index).to_be_bytes(), 8080).into(),
            labels: [("version".into(), version.into())].into(),
            zone: None,
            cluster: None,
            weight: [0, 50, 100, 100][rng.random_range(0..4)],
            vitals: Arc::new(Vitals::among(start, &changes)),
        })
        .collect();
    instances[0].weight = 100;
    instances
}

fn service(rng: &mut StdRng, pick: &str, start: Instant) -> Service {
    let balancer = serin_plugins::builtin().balancers.build(pick, json!({}), &Node::default()).unwrap().unwrap();
    let budget = RetryBudget::new(BudgetPolicy { percent: 2_000, min_per_second: 0 }, start);
    let guards = Guards {
        outlier: Some(outlier(rng)),
        panic_threshold: [0, 5_000][rng.random_range(0..2)],
        breakers: vec![Some(breaker(rng, start)), Some(breaker(rng, start))],
        budget: Some(Arc::new(budget)),
        slow_start: Some(SlowStart { window: Duration::from_secs(2), initial: 0.2, aggression: 1.0 }),
        ..Guards::default()
    };
    let to = [FallbackTo::Subsets([0].into_iter().collect()), FallbackTo::Any, FallbackTo::None];
    let on = [RetryOn::ConnectFailure, RetryOn::Reset, RetryOn::Timeout, RetryOn::ServerError];
    Service::new(ServiceParts {
        name: "users".into(),
        instances: instances(rng, start),
        subsets: ["v1", "v2"].map(|v| (v.into(), vec![("version".into(), v.into())])).into(),
        stable: 0,
        user_key: Vec::new(),
        anonymous: Anonymous::Random,
        salt: "".into(),
        tags: Vec::new(),
        fallback: Fallback {
            on: FallbackReason::ALL.into_iter().collect(),
            to: to[rng.random_range(0..3)].clone(),
            max_share: 10_000,
        },
        retry: RetryPolicy {
            attempts: 3,
            on: on.into_iter().collect(),
            across: [Across::Same, Across::Stable, Across::Any][rng.random_range(0..3)],
            hedge_after: None,
        },
        chain: ChainPlan { narrows: Vec::new(), pick: (pick.into(), balancer) },
        guards,
    })
    .unwrap()
}

impl Life {
    fn new(seed: u64) -> Self {
        let (mut rng, start) = (StdRng::seed_from_u64(seed), Instant::now());
        let service = service(&mut rng, PICKS[(seed % PICKS.len() as u64) as usize], start);
        Self {
            traffic: common::traffic(&service, [6_000, 4_000]),
            states: vec![State::Fine; service.instances.len()],
            settled: vec![0; service.instances.len()],
            rng,
            start,
            at: 0,
            service,
            under_way: BTreeMap::new(),
            requests: 0,
            attempts: 0,
            open_since: [None; 2],
            opened: 0,
            ejected: 0,
            trace: 0,
        }
    }

    fn now(&self) -> Instant {
        self.start + Duration::from_millis(self.at)
    }

    fn live(&mut self) {
        while self.at < END {
            self.weather();
            while let Some((&(at, serial), _)) = self.under_way.first_key_value().filter(|((at, _), _)| *at <= self.at)
            {
                let ended = self.under_way.remove(&(at, serial)).unwrap();
                self.end(ended);
            }
            self.requests += 1;
            self.service.guards.budget.as_ref().unwrap().count_request(self.now());
            let headers = HeaderMap::new();
            let request = view(&headers, "/");
            let assignment = decide::assign(&self.service, &self.traffic, None, &request, &mut self.rng, &mut ());
            let method = if self.rng.random_ratio(1, 5) { Method::POST } else { Method::GET };
            self.send(Request { assignment, method, tried: Vec::new() });
            self.check_breakers();
            self.at += STEP;
        }
    }

    /// Trouble comes and goes.
    fn weather(&mut self) {
        if self.at == CALM {
            self.states.fill(State::Fine);
            self.service.instances.iter().for_each(|instance| instance.vitals.set_checked(true));
        }
        if !(TROUBLE..CALM).contains(&self.at) {
            return;
        }
        for at in 0..self.states.len() {
            if self.rng.random_ratio(1, 40) {
                use State::{Errors, Fine, Flaps, Hangs, Refuses, Slow};
                self.states[at] = [Fine, Slow, Errors, Errors, Refuses, Hangs, Flaps][self.rng.random_range(0..7)];
            }
            if self.rng.random_ratio(1, 200) {
                let healthy = self.rng.random();
                self.service.instances[at].vitals.set_checked(healthy);
            }
        }
    }

    /// How an attempt at an instance ends, and after how many ms.
    fn fate(&mut self, index: u32) -> (Outcome, u64) {
        let quick = self.rng.random_range(2..15);
        match self.states[index as usize] {
            State::Fine => (Outcome::Success, quick),
            State::Slow => (Outcome::Success, quick * 40),
            State::Errors if self.rng.random_ratio(4, 5) => (Outcome::ServerError, quick),
            State::Errors => (Outcome::Success, quick),
            State::Refuses => (Outcome::Local, 1),
            State::Hangs => (Outcome::Local, 500),
            State::Flaps if (self.at / 500).is_multiple_of(2) => (Outcome::Local, 1),
            State::Flaps => (Outcome::Success, quick),
        }
    }

    fn send(&mut self, mut request: Request) {
        let (now, wanted) = (self.now(), request.assignment.subset);
        let located = if request.tried.is_empty() {
            decide::locate(&self.service, wanted, now, &mut ())
        } else {
            decide::locate_retry(&self.service, wanted, now, &mut ())
        };
        let Ok(mut location) = located else { return };
        let headers = HeaderMap::new();
        let attempt =
            Attempt { request: view(&headers, "/"), bucket: request.assignment.bucket, tried: &request.tried, now };
        let instance = decide::pick(&location, &self.traffic, attempt, &mut self.rng, &mut ());
        let instance = instance.expect("a pool that can serve has somebody to pick");
        assert!(instance.weight > 0, "{} was picked, which has the weight 0", instance.address);
        let healthy = instance.vitals.health() == Health::Healthy;
        assert!(healthy || location.panic, "{} was picked without a panic, which is not healthy", instance.address);
        let (index, flight) = (instance.index, InFlight::start(&instance.vitals));
        if let Some(permit) = &mut location.permit {
            permit.connected();
        }
        let permit = location.permit.take();
        self.attempts += 1;
        self.settled[index as usize] += u64::from(self.at >= SETTLED);
        self.trace = (self.trace ^ (u64::from(index) + self.at)).wrapping_mul(0x0100_0000_01b3);
        request.tried.push(index);
        let (outcome, takes) = self.fate(index);
        let key = (self.at + takes, self.attempts);
        // One in fifty clients goes away: its attempt says nothing, and a probe is given back.
        if !self.rng.random_ratio(1, 50) {
            self.under_way.insert(key, UnderWay { request, outcome, began: now, permit, _flight: flight });
        }
    }

    fn end(&mut self, ended: UnderWay) {
        let UnderWay { request, outcome, began, mut permit, .. } = ended;
        let (now, index) = (self.now(), request.tried[request.tried.len() - 1]);
        let latency = now.saturating_duration_since(began);
        let before = self.service.instances[index as usize].vitals.health();
        self.service.observe(index, now, outcome, latency);
        if let Some(permit) = &mut permit {
            permit.record(now, outcome != Outcome::Success, latency);
        }
        drop(permit);
        if before == Health::Healthy && self.service.instances[index as usize].vitals.health() == Health::Ejected {
            self.ejected += 1;
            self.check_cap();
        }
        let failure = match outcome {
            Outcome::Success => return,
            Outcome::ServerError => Failure::Status(StatusCode::SERVICE_UNAVAILABLE),
            Outcome::Local if latency < Duration::from_millis(100) => Failure::Connect,
            Outcome::Local => Failure::Timeout,
        };
        let wanted = self.service.retry.verdict(failure, request.tried.len(), &request.method, true);
        if wanted && self.service.guards.budget.as_ref().unwrap().spend(now) {
            self.send(request);
        }
    }

    fn check_cap(&self) {
        let most = self.service.guards.outlier.as_ref().unwrap().max_ejection_percent as usize;
        for subset in &self.service.subsets {
            let weighted: Vec<_> = subset.pool.instances.iter().filter(|i| i.weight > 0).collect();
            let ejected = weighted.iter().filter(|i| i.vitals.is_ejected()).count();
            let cap = (weighted.len() * most / 10_000).max(1);
            assert!(ejected <= cap, "{ejected} of {} in {} are ejected", weighted.len(), subset.name);
        }
    }

    /// Whoever is open lets a probe through soon after its longest time: there is traffic for it all the time.
    fn check_breakers(&mut self) {
        for (at, subset) in self.service.subsets.iter().enumerate() {
            let open = subset.breaker.as_ref().unwrap().phase() == Phase::Open;
            let since = &mut self.open_since[at];
            let asked = subset.pool.headcount(self.start + Duration::from_millis(self.at)).healthy > 0;
            self.opened += u64::from(open && since.is_none());
            match *since {
                _ if !open => *since = None,
                // Nobody asks a subset without a healthy instance, nor its breaker.
                Some(since) if asked => {
                    let waited = self.at - since;
                    assert!(waited <= MAX_OPEN + 2_000, "the breaker of {} lets no probe through", subset.name);
                }
                _ => *since = Some(self.at),
            }
        }
    }

    fn check_end(&self) {
        assert!(self.attempts * 10 <= self.requests * 12, "{} attempts for {} requests", self.attempts, self.requests);
        for subset in &self.service.subsets {
            let view = subset.breaker.as_ref().unwrap().view(self.now());
            assert_eq!(view.phase, Phase::Closed, "the breaker of {} never closed again: {view:?}", subset.name);
            for instance in subset.pool.instances.iter().filter(|instance| instance.weight > 0) {
                let standing = instance.vitals.standing(self.now());
                assert_eq!((standing.health, standing.factor), (Health::Healthy, 1.0), "{}", instance.address);
                let picks = self.settled[instance.index as usize];
                assert!(picks > 0, "{} starves: {:?}", instance.address, self.settled);
            }
        }
    }
}

/// Breakers that opened, ejections, and the trace of a life.
fn live(seed: u64) -> (u64, u64, u64) {
    let mut life = Life::new(seed);
    life.live();
    life.check_end();
    (life.opened, life.ejected, life.trace)
}

#[test]
fn a_thousand_lives() {
    if let Some(seed) = std::env::var_os("SERIN_SEED") {
        live(seed.to_str().unwrap().parse().unwrap());
        return;
    }
    let (opened, ejected, next) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let work = || {
        while let Some(seed) = Some(next.fetch_add(1, Relaxed)).filter(|&seed| seed < SEEDS) {
            let lived = std::panic::catch_unwind(|| live(seed));
            let Ok((o, e, _)) = lived else { panic!("the life with SERIN_SEED={seed} broke a promise") };
            opened.fetch_add(o, Relaxed);
            ejected.fetch_add(e, Relaxed);
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2).map(|_| scope.spawn(work)).collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    // Lives without trouble would prove nothing.
    assert!(opened.load(Relaxed) > SEEDS && ejected.load(Relaxed) > SEEDS, "{opened:?} opened, {ejected:?} ejected");
}

#[test]
fn the_same_seed_is_the_same_life() {
    for seed in 0..12 {
        assert_eq!(live(seed), live(seed), "{seed}");
    }
}
