//! Active health checks. What is checked follows from the generation in force: an address is checked once per way to
//! check it, for all services that do; a reload that changes neither leaves its checker running. A new instance is
//! taken for healthy until it fails its checks.

pub mod probe;

mod grpc;

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::SystemTime;

use pingora::upstreams::peer::HttpPeer;
use serin_core::check::{self, Streak, Thresholds};
use serin_core::instance::Vitals;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use self::probe::{Prober, Reason};
use crate::conf::{HealthCheck, UpstreamTls};
use crate::pool::identity::Identity;
use crate::proxy::peer::Protocol;
use crate::telemetry::metrics::{CheckMetrics, Metrics};

/// Targets that may be known besides those that are checked, before the dead ones among them are dropped.
const SPARE: usize = 256;

/// What makes two checks the same one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// The instance.
    pub address: SocketAddr,
    /// What is asked, and how often.
    pub check: Arc<HealthCheck>,
    /// The protocol it is asked in.
    pub protocol: Protocol,
    /// TLS settings.
    pub tls: Option<Arc<UpstreamTls>>,
}

/// An instance that is checked.
pub struct Target {
    key: Key,
    peer: HttpPeer,
    identity: Option<Identity>,
    thresholds: Thresholds,
    state: Mutex<TargetState>,
    metrics: CheckMetrics,
}

struct TargetState {
    streak: Streak,
    last: Option<LastCheck>,
    watchers: Vec<Watcher>,
}

impl TargetState {
    /// A new checker takes over what an earlier one found of the instance, so that another interval does not bring a dead
    /// instance back.
    fn watch(&mut self, watchers: Vec<Watcher>, new: bool) {
        if new && watchers.iter().any(|watcher| !watcher.vitals.passes_checks()) {
            self.streak = Streak::new(false);
        }
        let healthy = self.streak.is_healthy();
        watchers.iter().for_each(|watcher| watcher.vitals.set_checked(healthy));
        self.watchers = watchers;
    }
}

/// A service that has the instance.
struct Watcher {
    service: Arc<str>,
    vitals: Arc<Vitals>,
}

/// The latest check of an instance.
#[derive(Clone, Debug)]
pub struct LastCheck {
    /// Why it failed, if it did.
    pub failure: Option<Reason>,
    /// When it ended.
    pub at: SystemTime,
    /// How often in a row this was the result.
    pub in_a_row: u32,
}

/// All checks.
pub struct Checks {
    metrics: Arc<Metrics>,
    known: Mutex<HashMap<Key, Weak<Target>>>,
    running: Mutex<HashMap<Key, Running>>,
    runtime: OnceLock<(Handle, Arc<Prober>)>,
}

struct Running {
    target: Arc<Target>,
    task: Option<AbortHandle>,
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

/// An instance of a service in force, for [`Checks::apply`].
pub struct Wanted<'a> {
    /// Name of the service.
    pub service: &'a Arc<str>,
    /// Its vitals in that service.
    pub vitals: &'a Arc<Vitals>,
    /// How it is checked; `None` is not at all.
    pub target: Option<&'a Arc<Target>>,
}

impl Checks {
    /// No checks yet.
    #[must_use]
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Self { metrics, known: Mutex::default(), running: Mutex::default(), runtime: OnceLock::new() }
    }

    /// The target of a check: the one there is already, or a new one. `peer` is how its instance is connected to.
    /// Nothing is checked before it is in force.
    #[must_use]
    pub fn target(&self, key: Key, peer: &HttpPeer) -> Arc<Target> {
        let mut known = lock(&self.known);
        if let Some(target) = known.get(&key).and_then(Weak::upgrade) {
            return target;
        }
        let target = Arc::new(Target::new(key.clone(), peer, &self.metrics));
        known.insert(key, Arc::downgrade(&target));
        target
    }

    /// Checks what is wanted from now on, and nothing else.
    pub fn apply<'a>(&self, wanted: impl Iterator<Item = Wanted<'a>>) {
        let by_key = by_key(wanted);
        let mut running = lock(&self.running);
        let gone: Vec<Key> = running.keys().filter(|key| !by_key.contains_key(*key)).cloned().collect();
        for key in &gone {
            running.remove(key);
        }
        for (key, (target, watchers)) in by_key {
            let new = !running.contains_key(&key);
            target.watch(watchers, new);
            let entry = running.entry(key).or_insert_with(|| Running { target, task: None });
            self.start_task(entry);
        }
        self.forget(&running, &gone);
        drop(running);
        lock(&self.known).retain(|_, target| target.strong_count() > 0);
    }

    /// Checks what is wanted of some services from now on, in place of what they had; everything else stays as it is.
    pub fn exchange<'a>(
        &self,
        services: &HashSet<&str>,
        had: impl Iterator<Item = &'a Arc<Target>>,
        wanted: impl Iterator<Item = Wanted<'a>>,
    ) {
        let mut by_key = by_key(wanted);
        for target in had {
            by_key.entry(target.key.clone()).or_insert_with(|| (Arc::clone(target), Vec::new()));
        }
        let mut running = lock(&self.running);
        let mut gone = Vec::new();
        for (key, (target, watchers)) in by_key {
            let known = running.get(&key).map(|running| Arc::clone(&running.target));
            let new = known.is_none();
            let target = known.unwrap_or(target);
            if target.exchange(services, watchers, new) {
                let entry = running.entry(key).or_insert_with(|| Running { target, task: None });
                self.start_task(entry);
            } else if running.remove(&key).is_some() {
                gone.push(key);
            }
        }
        self.forget(&running, &gone);
        let most = 2 * running.len() + SPARE;
        drop(running);
        let mut known = lock(&self.known);
        if known.len() > most {
            known.retain(|_, target| target.strong_count() > 0);
        }
    }

    /// Drops the series of checks that ended, if there is no other one of the same name.
    fn forget(&self, running: &HashMap<Key, Running>, gone: &[Key]) {
        self.metrics.checkers.set(i64::try_from(running.len()).unwrap_or(i64::MAX));
        if gone.is_empty() {
            return;
        }
        let labels = |key: &Key| (key.address, key.check.probe.name());
        let shown: HashSet<_> = running.keys().map(labels).collect();
        for (address, check) in gone.iter().map(labels).filter(|labels| !shown.contains(labels)) {
            self.metrics.forget_check(&address.to_string(), check);
        }
    }

    /// Runs the checks on the runtime it is called on, now and whatever comes into force later.
    pub fn start(&self) {
        let _ = self.runtime.set((Handle::current(), Arc::new(Prober::default())));
        lock(&self.running).values_mut().for_each(|running| self.start_task(running));
    }

    fn start_task(&self, running: &mut Running) {
        if let (None, Some((runtime, prober))) = (&running.task, self.runtime.get()) {
            let task = runtime.spawn(keep_checking(Arc::clone(&running.target), Arc::clone(prober)));
            running.task = Some(task.abort_handle());
        }
    }
}

/// What is wanted, by check. What is not checked is taken for healthy.
fn by_key<'a>(wanted: impl Iterator<Item = Wanted<'a>>) -> HashMap<Key, (Arc<Target>, Vec<Watcher>)> {
    let mut by_key: HashMap<Key, (Arc<Target>, Vec<Watcher>)> = HashMap::new();
    for Wanted { service, vitals, target } in wanted {
        match target {
            None => vitals.set_checked(true),
            Some(target) => {
                let entry = by_key.entry(target.key.clone()).or_insert_with(|| (Arc::clone(target), Vec::new()));
                entry.1.push(Watcher { service: Arc::clone(service), vitals: Arc::clone(vitals) });
            }
        }
    }
    by_key
}

impl Target {
    fn new(key: Key, peer: &HttpPeer, metrics: &Metrics) -> Self {
        let check = &key.check;
        Self {
            peer: probe::peer(&key, peer),
            identity: key.tls.as_ref().and_then(|tls| Identity::one_of(&tls.san)),
            thresholds: Thresholds {
                unhealthy_after: u32::from(check.unhealthy_after),
                healthy_after: u32::from(check.healthy_after),
            },
            state: Mutex::new(TargetState { streak: Streak::new(true), last: None, watchers: Vec::new() }),
            metrics: metrics.check(&key.address.to_string(), check.probe.name()),
            key,
        }
    }

    /// The latest check.
    #[must_use]
    pub fn last(&self) -> Option<LastCheck> {
        lock(&self.state).last.clone()
    }

    /// Tells these services from now on.
    fn watch(&self, watchers: Vec<Watcher>, new: bool) {
        lock(&self.state).watch(watchers, new);
    }

    /// Tells these watchers in place of those that some services had; true if anybody is left.
    fn exchange(&self, services: &HashSet<&str>, mut watchers: Vec<Watcher>, new: bool) -> bool {
        let mut state = lock(&self.state);
        let others = std::mem::take(&mut state.watchers).into_iter();
        watchers.extend(others.filter(|watcher| !services.contains(&*watcher.service)));
        state.watch(watchers, new);
        !state.watchers.is_empty()
    }

    fn note(&self, result: Result<(), Reason>) {
        let mut state = lock(&self.state);
        let passed = result.is_ok();
        self.metrics.count(passed);
        let change = state.streak.note(passed, self.thresholds);
        let in_a_row = state.streak.in_a_row();
        state.last = Some(LastCheck { failure: result.err(), at: SystemTime::now(), in_a_row });
        for watcher in &state.watchers {
            if passed {
                watcher.vitals.end_ejection();
            }
            if let Some(healthy) = change {
                watcher.vitals.set_checked(healthy);
            }
        }
        if let Some(healthy) = change {
            self.tell(&state, healthy);
        }
    }

    fn tell(&self, state: &TargetState, healthy: bool) {
        let services = state.watchers.iter().map(|watcher| &*watcher.service).collect::<Vec<_>>().join(", ");
        let (instance, check) = (self.key.address, self.key.check.probe.name());
        let reason = state.last.as_ref().and_then(|last| last.failure.as_ref());
        match (healthy, reason) {
            (false, Some(reason)) => tracing::warn!(%instance, check, services, %reason, "instance is unhealthy"),
            _ => tracing::info!(%instance, check, services, "instance is healthy again"),
        }
    }
}

/// Checks an instance again and again. The interval is from begin to begin, so that slow checks are no fewer.
async fn keep_checking(target: Arc<Target>, prober: Arc<Prober>) {
    let interval = target.key.check.interval.duration();
    let due = |delay| prober.began + check::on_tick(prober.began.elapsed() + delay, interval);
    let mut next = due(check::first_delay(interval, rand::random()));
    loop {
        tokio::time::sleep_until(next).await;
        next = due(check::next_delay(interval, rand::random()));
        // Boxed, so that a checker that waits is small.
        target.note(Box::pin(prober.probe(&target)).await);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is behind these locks is whole between any two statements.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use serin_core::instance::Health;
    use serin_core::outlier::{Cause, OutlierPolicy};

    use super::*;
    use crate::proxy::peer;

    fn key(text: &str, port: u16) -> Key {
        Key {
            address: SocketAddr::from(([127, 0, 0, 1], port)),
            check: Arc::new(serde_json::from_str(text).unwrap()),
            protocol: Protocol::Http1,
            tls: None,
        }
    }

    struct Bench {
        checks: Checks,
        service: Arc<str>,
    }

    impl Bench {
        fn new() -> Self {
            Self { checks: Checks::new(Arc::new(Metrics::new().unwrap())), service: "s".into() }
        }

        fn target(&self, text: &str, port: u16) -> Arc<Target> {
            let key = key(text, port);
            let peer = peer::template(key.address, key.protocol, None);
            self.checks.target(key, &peer)
        }

        fn apply(&self, wanted: &[(&Arc<Vitals>, Option<&Arc<Target>>)]) {
            let service = &self.service;
            self.checks.apply(wanted.iter().map(|(vitals, target)| Wanted { service, vitals, target: *target }));
        }

        fn running(&self) -> usize {
            lock(&self.checks.running).len()
        }
    }

    fn vitals() -> Arc<Vitals> {
        Arc::new(Vitals::new(Instant::now()))
    }

    const TCP: &str = r#"{"tcp": {}}"#;
    const OFTEN: &str = r#"{"tcp": {}, "interval": "1s"}"#;

    #[test]
    fn the_same_check_is_made_once_and_ends_with_its_last_service() {
        let bench = Bench::new();
        let (one, two) = (bench.target(TCP, 1), bench.target(TCP, 1));
        assert!(Arc::ptr_eq(&one, &two));
        assert!(!Arc::ptr_eq(&one, &bench.target(OFTEN, 1)) && !Arc::ptr_eq(&one, &bench.target(TCP, 2)));
        let (a, b) = (vitals(), vitals());
        bench.apply(&[(&a, Some(&one)), (&b, Some(&two))]);
        assert_eq!(bench.running(), 1);
        for _ in 0..3 {
            one.note(Err(Reason::Refused));
        }
        assert_eq!((a.health(), b.health()), (Health::Unhealthy, Health::Unhealthy));
        bench.apply(&[(&a, None), (&b, Some(&two))]);
        assert_eq!((a.health(), b.health(), bench.running()), (Health::Healthy, Health::Unhealthy, 1));
        bench.apply(&[(&a, None)]);
        assert_eq!(bench.running(), 0);
    }

    #[test]
    fn other_instances_of_a_service_leave_the_checks_of_others_alone() {
        let bench = Bench::new();
        let [shared, own, new] = [1, 2, 3].map(|port| bench.target(TCP, port));
        let (services, all): ([Arc<str>; 2], _) = (["s".into(), "t".into()], [vitals(), vitals(), vitals(), vitals()]);
        let wanted = |service: usize, of: usize, target| Wanted {
            service: &services[service],
            vitals: &all[of],
            target: Some(target),
        };
        bench.checks.apply([wanted(0, 0, &shared), wanted(0, 1, &own), wanted(1, 2, &shared)].into_iter());
        for _ in 0..3 {
            shared.note(Err(Reason::Refused));
        }
        // `s` loses both and gets a third one; `t` has one of the two as well.
        let exchange = |had: &[&Arc<Target>], wanted: Vec<Wanted<'_>>| {
            bench.checks.exchange(&HashSet::from(["s"]), had.iter().copied(), wanted.into_iter());
        };
        exchange(&[&shared, &own], vec![wanted(0, 3, &new)]);
        assert_eq!((bench.running(), lock(&shared.state).watchers.len()), (2, 1));
        assert_eq!(all[3].health(), Health::Healthy);
        for _ in 0..3 {
            new.note(Err(Reason::Refused));
        }
        assert_eq!((all[2].health(), all[3].health()), (Health::Unhealthy, Health::Unhealthy));
        // Back: what is known of the shared one is known of it in `s` as well.
        exchange(&[&new], vec![wanted(0, 0, &shared)]);
        assert_eq!((bench.running(), lock(&shared.state).watchers.len()), (1, 2));
        assert_eq!(all[0].health(), Health::Unhealthy);
        exchange(&[&shared], vec![]);
        assert_eq!((bench.running(), lock(&shared.state).watchers.len()), (1, 1));
    }

    #[test]
    fn what_was_found_is_taken_over_by_the_next_checker() {
        let bench = Bench::new();
        let (vitals, first) = (vitals(), bench.target(TCP, 1));
        bench.apply(&[(&vitals, Some(&first))]);
        assert_eq!(vitals.health(), Health::Healthy, "a new instance is taken for healthy");
        for _ in 0..3 {
            first.note(Err(Reason::Timeout));
        }
        let second = bench.target(OFTEN, 1);
        bench.apply(&[(&vitals, Some(&second))]);
        assert_eq!(vitals.health(), Health::Unhealthy);
        second.note(Ok(()));
        assert_eq!(vitals.health(), Health::Unhealthy);
        second.note(Ok(()));
        assert_eq!(vitals.health(), Health::Healthy);
        let last = second.last().unwrap();
        assert_eq!((last.failure, last.in_a_row), (None, 2));
    }

    #[test]
    fn a_pass_ends_an_ejection() {
        let bench = Bench::new();
        let (vitals, target) = (vitals(), bench.target(TCP, 1));
        bench.apply(&[(&vitals, Some(&target))]);
        let policy = OutlierPolicy {
            consecutive_5xx: Some(5),
            consecutive_local: None,
            success_rate: None,
            failure_percentage: None,
            mean_latency: None,
            window: Duration::from_secs(10),
            min_requests: 20,
            base_ejection: Duration::from_secs(30),
            max_ejection: Duration::from_secs(300),
            max_ejection_percent: 10_000,
        };
        vitals.eject(&policy, Instant::now(), Cause::Consecutive5xx);
        target.note(Err(Reason::Timeout));
        assert_eq!(vitals.health(), Health::Ejected);
        target.note(Ok(()));
        assert_eq!(vitals.health(), Health::Healthy);
    }

    #[tokio::test]
    async fn a_task_lives_as_long_as_its_check_is_in_force() {
        let bench = Bench::new();
        let (vitals, target) = (vitals(), bench.target(TCP, 1));
        bench.apply(&[(&vitals, Some(&target))]);
        bench.checks.start();
        let task = lock(&bench.checks.running).values().next().unwrap().task.clone().unwrap();
        bench.apply(&[(&vitals, Some(&target))]);
        assert_eq!(lock(&bench.checks.running).values().next().unwrap().task.as_ref().unwrap().id(), task.id());
        assert!(!task.is_finished());
        bench.apply(&[]);
        while !task.is_finished() {
            tokio::task::yield_now().await;
        }
        assert_eq!(Arc::strong_count(&target), 1);
    }
}
