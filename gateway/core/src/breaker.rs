//! The circuit breaker of a subset: closed, open, half open; and the caps on what it serves at once.
//!
//! An attempt asks for a [`Permit`] and says with it how it ended. A permit that is dropped without a word gives its
//! place back, so that an open breaker always gets its probe.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::subset::BasisPoints;
use crate::window::Rolling;

/// When a breaker opens, for how long, and how much it lets through at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BreakerPolicy {
    /// Share of failed calls from which it opens; `None` is never.
    pub failure_rate: Option<BasisPoints>,
    /// From when on a call is slow; `None` is never.
    pub slow_call: Option<Duration>,
    /// Share of slow calls from which it opens.
    pub slow_rate: BasisPoints,
    /// Calls in the window below which it stays closed.
    pub min_calls: u32,
    /// What it judges by.
    pub window: CallWindow,
    /// How long it stays open the first time; every time in a row doubles it.
    pub open: Duration,
    /// The longest it stays open.
    pub max_open: Duration,
    /// Calls that are let through half open, and after which it closes or opens again; at least 1.
    pub half_open_probes: u32,
    /// Attempts that may hold a connection, or be about to.
    pub max_connections: u32,
    /// Attempts that may wait for a connection.
    pub max_pending: u32,
    /// Attempts that may be unfinished.
    pub max_requests: u32,
}

/// The calls that a closed breaker judges by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallWindow {
    /// Those of so long ago at most.
    Time(Duration),
    /// So many of the latest.
    Calls(u32),
}

/// State of a breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Lets everything through.
    Closed,
    /// Lets a few probes through.
    HalfOpen,
    /// Lets nothing through.
    Open,
}

impl Phase {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Closed, Self::HalfOpen, Self::Open];

    /// Its name in metrics and in the API.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::HalfOpen => "half_open",
            Self::Open => "open",
        }
    }
}

/// Why an attempt was not let through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The breaker is open for so long yet, or half open with all its probes under way (zero).
    Open(Duration),
    /// A cap on what is served at once.
    Overflow,
}

/// Told of every change of state.
pub type OnTurn = Box<dyn Fn(Phase, Phase) + Send + Sync>;

/// A breaker. Asking a closed one takes no lock.
pub struct Breaker {
    policy: BreakerPolicy,
    on_turn: OnTurn,
    phase: AtomicU8,
    /// Number of turns so far: what was let through before the last one says nothing any more.
    era: AtomicU64,
    pending: AtomicU32,
    connected: AtomicU32,
    state: Mutex<State>,
}

/// A breaker for people to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerView {
    /// State.
    pub phase: Phase,
    /// How long it stays open yet.
    pub left: Duration,
    /// Times it opened in a row.
    pub opened: u32,
    /// What it judges by: calls, failures and slow ones in the window, or among the probes.
    pub calls: [u64; 3],
    /// Attempts that hold a connection.
    pub connected: u32,
    /// Attempts that wait for one.
    pub pending: u32,
}

struct State {
    phase: Phase,
    until: Instant,
    opened: u32,
    calls: Calls,
    /// Probes that are under way.
    probing: u32,
    /// Probes that ended, that failed and that were slow.
    probed: [u64; 3],
}

enum Calls {
    Time(Box<Rolling<3>>),
    Latest { of: usize, calls: VecDeque<[u64; 3]>, sums: [u64; 3] },
}

impl Calls {
    fn new(window: CallWindow, now: Instant) -> Self {
        match window {
            CallWindow::Time(length) => Self::Time(Box::new(Rolling::new(now, length))),
            CallWindow::Calls(of) => {
                let of = of.max(1) as usize;
                Self::Latest { of, calls: VecDeque::with_capacity(of), sums: [0; 3] }
            }
        }
    }

    fn add(&mut self, now: Instant, call: [u64; 3]) -> [u64; 3] {
        match self {
            Self::Time(rolling) => rolling.add(now, call),
            Self::Latest { of, calls, sums } => {
                let oldest = if calls.len() == *of { calls.pop_front() } else { None };
                calls.push_back(call);
                for at in 0..3 {
                    sums[at] = sums[at] + call[at] - oldest.map_or(0, |oldest| oldest[at]);
                }
                *sums
            }
        }
    }

    fn sums(&mut self, now: Instant) -> [u64; 3] {
        match self {
            Self::Time(rolling) => rolling.sums(now),
            Self::Latest { sums, .. } => *sums,
        }
    }

    fn clear(&mut self) {
        match self {
            Self::Time(rolling) => rolling.clear(),
            Self::Latest { calls, sums, .. } => {
                calls.clear();
                *sums = [0; 3];
            }
        }
    }
}

impl Breaker {
    /// A closed breaker.
    #[must_use]
    pub fn new(policy: BreakerPolicy, now: Instant, on_turn: OnTurn) -> Self {
        let calls = Calls::new(policy.window, now);
        Self {
            policy,
            on_turn,
            phase: AtomicU8::new(Phase::Closed as u8),
            era: AtomicU64::new(0),
            pending: AtomicU32::new(0),
            connected: AtomicU32::new(0),
            state: Mutex::new(State { phase: Phase::Closed, until: now, opened: 0, calls, probing: 0, probed: [0; 3] }),
        }
    }

    /// The one that takes the place of `before` under another policy: open or half open as that is, for as long as that
    /// would be, so that tuning a breaker in an incident does not let the flood through. It judges by what comes now.
    #[must_use]
    pub fn after(before: &Self, policy: BreakerPolicy, now: Instant, on_turn: OnTurn) -> Self {
        let breaker = Self::new(policy, now, on_turn);
        let (phase, until, opened) = {
            let state = before.state();
            (state.phase, state.until, state.opened)
        };
        {
            let mut state = breaker.state();
            (state.phase, state.until, state.opened) = (phase, until, opened);
        }
        breaker.phase.store(phase as u8, Release);
        breaker
    }

    /// What it was made for.
    #[must_use]
    pub fn policy(&self) -> &BreakerPolicy {
        &self.policy
    }

    /// Its state; one that may let a probe through is open until somebody asks.
    #[must_use]
    pub fn phase(&self) -> Phase {
        Phase::ALL[usize::from(self.phase.load(Acquire)).min(2)]
    }

    /// Lets an attempt through, or not.
    ///
    /// # Errors
    /// If it is open, or a cap is reached. Neither counts against any instance.
    pub fn admit(self: &Arc<Self>, now: Instant) -> Result<Permit, Refusal> {
        let era = self.era.load(Acquire);
        if self.phase() == Phase::Closed {
            self.reserve()?;
            return Ok(self.permit(era, false));
        }
        let mut state = self.state();
        let due = state.phase == Phase::Open && now >= state.until;
        let turn = due.then(|| self.turn(&mut state, Phase::HalfOpen, now));
        let admitted = self.admit_guarded(&mut state, now);
        drop(state);
        self.tell(turn);
        admitted
    }

    /// Whether an attempt would be let through; changes nothing.
    ///
    /// # Errors
    /// As [`Breaker::admit`].
    pub fn peek(&self, now: Instant) -> Result<(), Refusal> {
        if self.phase() != Phase::Closed {
            self.state().refuses(&self.policy, now)?;
        }
        let (connected, pending) = (self.connected.load(Acquire), self.pending.load(Acquire));
        if self.is_full(pending, connected) { Err(Refusal::Overflow) } else { Ok(()) }
    }

    /// All there is to know.
    #[must_use]
    pub fn view(&self, now: Instant) -> BreakerView {
        let mut state = self.state();
        let calls = if state.phase == Phase::Closed { state.calls.sums(now) } else { state.probed };
        let open = state.phase == Phase::Open;
        BreakerView {
            phase: state.phase,
            left: if open { state.until.saturating_duration_since(now) } else { Duration::ZERO },
            opened: state.opened,
            calls,
            connected: self.connected.load(Relaxed),
            pending: self.pending.load(Relaxed),
        }
    }

    fn admit_guarded(self: &Arc<Self>, state: &mut State, now: Instant) -> Result<Permit, Refusal> {
        state.refuses(&self.policy, now)?;
        self.reserve()?;
        let probe = state.phase == Phase::HalfOpen;
        state.probing += u32::from(probe);
        Ok(self.permit(self.era.load(Acquire), probe))
    }

    /// Takes in how an attempt ended that was let through in the era that still lasts.
    fn record(&self, era: u64, now: Instant, failed: bool, latency: Duration) {
        let call = [1, u64::from(failed), u64::from(self.policy.slow_call.is_some_and(|slow| latency >= slow))];
        let mut state = self.state();
        if era != self.era.load(Acquire) {
            return;
        }
        let next = match state.phase {
            Phase::Closed => {
                let sums = state.calls.add(now, call);
                let enough = sums[0] >= u64::from(self.policy.min_calls);
                (enough && self.is_too_much(sums, sums[0])).then_some(Phase::Open)
            }
            Phase::HalfOpen => {
                state.probing = state.probing.saturating_sub(1);
                state.probed.iter_mut().zip(call).for_each(|(sum, value)| *sum += value);
                let probes = u64::from(self.policy.half_open_probes.max(1));
                let done = (state.probed[0] >= probes).then_some(Phase::Closed);
                if self.is_too_much(state.probed, probes) { Some(Phase::Open) } else { done }
            }
            Phase::Open => None,
        };
        let turn = next.map(|to| self.turn(&mut state, to, now));
        drop(state);
        self.tell(turn);
    }

    /// A probe of this era went away without an answer.
    fn give_back(&self, era: u64) {
        let mut state = self.state();
        if era == self.era.load(Acquire) {
            state.probing = state.probing.saturating_sub(1);
        }
    }

    /// Whether so many failed or slow calls are too many of `total`.
    fn is_too_much(&self, [_, failed, slow]: [u64; 3], total: u64) -> bool {
        let reaches = |part: u64, rate: BasisPoints| part > 0 && part * 10_000 >= total * u64::from(rate);
        self.policy.failure_rate.is_some_and(|rate| reaches(failed, rate)) || reaches(slow, self.policy.slow_rate)
    }

    fn turn(&self, state: &mut State, to: Phase, now: Instant) -> (Phase, Phase) {
        let from = std::mem::replace(&mut state.phase, to);
        match to {
            Phase::Open => {
                let times = 1u32.checked_shl(state.opened).unwrap_or(u32::MAX);
                let time = self.policy.open.saturating_mul(times).min(self.policy.max_open.max(self.policy.open));
                state.until = now + time;
                state.opened = state.opened.saturating_add(1).min(31);
            }
            Phase::Closed => state.opened = 0,
            Phase::HalfOpen => {}
        }
        state.calls.clear();
        (state.probing, state.probed) = (0, [0; 3]);
        self.era.fetch_add(1, AcqRel);
        self.phase.store(to as u8, Release);
        (from, to)
    }

    fn tell(&self, turn: Option<(Phase, Phase)>) {
        if let Some((from, to)) = turn {
            (self.on_turn)(from, to);
        }
    }

    /// Takes a place among those that wait for a connection. Connected attempts are counted on before they are counted
    /// off, so that the caps hold at every moment.
    fn reserve(&self) -> Result<(), Refusal> {
        let pending = self.pending.fetch_add(1, AcqRel);
        if self.is_full(pending, self.connected.load(Acquire)) {
            self.pending.fetch_sub(1, AcqRel);
            return Err(Refusal::Overflow);
        }
        Ok(())
    }

    fn is_full(&self, pending: u32, connected: u32) -> bool {
        let most = self.policy.max_connections.min(self.policy.max_requests);
        pending >= self.policy.max_pending || pending.saturating_add(connected) >= most
    }

    fn permit(self: &Arc<Self>, era: u64, probe: bool) -> Permit {
        Permit { breaker: Arc::clone(self), era, probe, connected: false, told: false }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn refuses(&self, policy: &BreakerPolicy, now: Instant) -> Result<(), Refusal> {
        match self.phase {
            Phase::Open if now < self.until => Err(Refusal::Open(self.until - now)),
            Phase::HalfOpen
                if u64::from(self.probing) + self.probed[0] >= u64::from(policy.half_open_probes.max(1)) =>
            {
                Err(Refusal::Open(Duration::ZERO))
            }
            _ => Ok(()),
        }
    }
}

impl std::fmt::Debug for Breaker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Breaker").field("policy", &self.policy).field("phase", &self.phase()).finish_non_exhaustive()
    }
}

/// An attempt that was let through. It takes up its place for as long as it lives.
#[derive(Debug)]
pub struct Permit {
    breaker: Arc<Breaker>,
    era: u64,
    probe: bool,
    connected: bool,
    told: bool,
}

impl Permit {
    /// It has its connection.
    pub fn connected(&mut self) {
        if !std::mem::replace(&mut self.connected, true) {
            self.breaker.connected.fetch_add(1, AcqRel);
            self.breaker.pending.fetch_sub(1, AcqRel);
        }
    }

    /// How it ended: whether it failed, and how long it took to an answer. Only the first word counts.
    pub fn record(&mut self, now: Instant, failed: bool, latency: Duration) {
        if !std::mem::replace(&mut self.told, true) {
            self.breaker.record(self.era, now, failed, latency);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let place = if self.connected { &self.breaker.connected } else { &self.breaker.pending };
        place.fetch_sub(1, AcqRel);
        if self.probe && !self.told {
            self.breaker.give_back(self.era);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn policy() -> BreakerPolicy {
        BreakerPolicy {
            failure_rate: Some(5_000),
            slow_call: Some(Duration::from_secs(2)),
            slow_rate: 5_000,
            min_calls: 4,
            window: CallWindow::Time(Duration::from_secs(10)),
            open: Duration::from_secs(5),
            max_open: Duration::from_secs(12),
            half_open_probes: 2,
            max_connections: 100,
            max_pending: 100,
            max_requests: 100,
        }
    }

    struct Bench {
        breaker: Arc<Breaker>,
        turns: mpsc::Receiver<(Phase, Phase)>,
        start: Instant,
    }

    impl Bench {
        fn new(policy: BreakerPolicy) -> Self {
            let (tell, turns) = mpsc::channel();
            let start = Instant::now();
            let breaker =
                Arc::new(Breaker::new(policy, start, Box::new(move |from, to| tell.send((from, to)).unwrap())));
            Self { breaker, turns, start }
        }

        fn at(&self, secs: u64) -> Instant {
            self.start + Duration::from_secs(secs)
        }

        fn admit(&self, secs: u64) -> Result<Permit, Refusal> {
            let admitted = self.breaker.admit(self.at(secs));
            admitted.map(|mut permit| {
                permit.connected();
                permit
            })
        }

        /// One call per letter: `s` fine, `f` failed, `l` slow.
        fn calls(&self, secs: u64, text: &str) {
            for call in text.chars() {
                let latency = Duration::from_secs(if call == 'l' { 2 } else { 0 });
                self.admit(secs).unwrap().record(self.at(secs), call == 'f', latency);
            }
        }

        fn turns(&self) -> Vec<Phase> {
            self.turns.try_iter().map(|(_, to)| to).collect()
        }
    }

    #[test]
    fn opens_on_rates_of_enough_calls() {
        let count = BreakerPolicy { window: CallWindow::Calls(4), ..policy() };
        let cases = [
            (policy(), "fff", Phase::Closed),
            (policy(), "sssf", Phase::Closed),
            (policy(), "ssff", Phase::Open),
            (policy(), "slsl", Phase::Open),
            (policy(), "slsf", Phase::Closed),
            (BreakerPolicy { failure_rate: None, ..policy() }, "ffffff", Phase::Closed),
            (BreakerPolicy { slow_call: None, ..policy() }, "llllll", Phase::Closed),
            (policy(), "ssssssssff", Phase::Closed),
            (count.clone(), "ssssssssff", Phase::Open),
            (count, "ssssfssssf", Phase::Closed),
        ];
        for (policy, calls, phase) in cases {
            let bench = Bench::new(policy);
            bench.calls(0, calls);
            assert_eq!(bench.breaker.phase(), phase, "{calls}");
        }
        let bench = Bench::new(policy());
        bench.calls(0, "ff");
        bench.calls(11, "fs");
        assert_eq!(bench.breaker.phase(), Phase::Closed, "the window forgets");
    }

    #[test]
    fn half_open_closes_or_opens_for_longer() {
        let bench = Bench::new(policy());
        bench.calls(0, "ffff");
        assert_eq!(bench.admit(4).unwrap_err(), Refusal::Open(Duration::from_secs(1)));
        assert_eq!(bench.breaker.peek(bench.at(5)), Ok(()), "it would let a probe through");
        assert_eq!(bench.breaker.phase(), Phase::Open, "asking changes nothing");
        bench.calls(5, "f");
        assert_eq!(bench.turns(), [Phase::Open, Phase::HalfOpen, Phase::Open], "one of two is half");
        assert_eq!(bench.admit(14).unwrap_err(), Refusal::Open(Duration::from_secs(1)), "10 s the second time");
        bench.calls(15, "f");
        assert_eq!(bench.breaker.view(bench.at(15)).left, Duration::from_secs(12), "never more than 12 s");
        bench.calls(27, "ss");
        assert_eq!(bench.turns(), [Phase::HalfOpen, Phase::Open, Phase::HalfOpen, Phase::Closed]);
        bench.calls(27, "ffff");
        assert_eq!(bench.breaker.view(bench.at(27)).left, Duration::from_secs(5), "5 s after it was closed");
    }

    #[test]
    fn a_probe_without_an_answer_is_given_back() {
        let bench = Bench::new(policy());
        bench.calls(0, "ffff");
        let (first, second) = (bench.admit(5).unwrap(), bench.admit(5).unwrap());
        assert_eq!(bench.admit(5).unwrap_err(), Refusal::Open(Duration::ZERO));
        assert_eq!(bench.breaker.peek(bench.at(5)), Err(Refusal::Open(Duration::ZERO)));
        drop((first, second));
        bench.calls(5, "ss");
        assert_eq!(bench.breaker.phase(), Phase::Closed);
    }

    #[test]
    fn what_was_let_through_before_a_turn_says_nothing_after_it() {
        let bench = Bench::new(policy());
        let mut old: Vec<_> = (0..10).map(|_| bench.admit(0).unwrap()).collect();
        bench.calls(0, "ffff");
        let mut probe = bench.admit(5).unwrap();
        old.iter_mut().for_each(|permit| permit.record(bench.at(5), true, Duration::ZERO));
        assert_eq!(bench.breaker.phase(), Phase::HalfOpen);
        probe.record(bench.at(5), false, Duration::ZERO);
        probe.record(bench.at(5), true, Duration::ZERO);
        bench.calls(5, "s");
        assert_eq!(bench.breaker.phase(), Phase::Closed);
    }

    #[test]
    fn caps_hold_and_places_are_given_back() {
        let cases = [
            (BreakerPolicy { max_connections: 3, ..policy() }, true),
            (BreakerPolicy { max_requests: 3, ..policy() }, true),
            (BreakerPolicy { max_pending: 3, ..policy() }, false),
        ];
        for (policy, connect) in cases {
            let bench = Bench::new(policy);
            let take = || {
                let mut permit = bench.breaker.admit(bench.start)?;
                if connect {
                    permit.connected();
                }
                Ok::<_, Refusal>(permit)
            };
            let mut held: Vec<_> = (0..3).map(|_| take().unwrap()).collect();
            assert_eq!(take().unwrap_err(), Refusal::Overflow);
            assert_eq!(bench.breaker.peek(bench.start), Err(Refusal::Overflow));
            held.pop();
            held.push(take().unwrap());
            drop(held);
            let view = bench.breaker.view(bench.start);
            assert_eq!((view.connected, view.pending, view.phase), (0, 0, Phase::Closed));
        }
    }

    #[test]
    fn caps_hold_between_threads() {
        let bench = Bench::new(BreakerPolicy { max_connections: 7, ..policy() });
        let most = AtomicU32::new(0);
        let busy = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..2_000 {
                        let held: Vec<_> = (0..4).filter_map(|_| bench.breaker.admit(bench.start).ok()).collect();
                        let count = held.len() as u32;
                        most.fetch_max(busy.fetch_add(count, AcqRel) + count, AcqRel);
                        busy.fetch_sub(count, AcqRel);
                        held.into_iter().for_each(|mut permit| permit.connected());
                    }
                });
            }
        });
        assert!(most.load(Relaxed) <= 7, "{most:?}");
        let view = bench.breaker.view(bench.start);
        assert_eq!((view.connected, view.pending), (0, 0));
    }
}
