//! Outlier detection: what the attempts at an instance say of it, as pure values. An instance is degraded (half of its
//! weight) before it is ejected, and comes back by itself after a time that grows with the number of its ejections.

use std::time::{Duration, Instant};

use crate::subset::BasisPoints;
use crate::window::Rolling;

/// How an attempt ended, as far as the instance is to blame. What a limit or a breaker refused is no attempt, and an
/// attempt that the client gave up says nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// An answer that is not the instance's failure.
    Success,
    /// A status from 500 to 599, or a gRPC status that stands for one.
    ServerError,
    /// No answer: no connection, a connection that broke, or a timeout.
    Local,
}

impl Outcome {
    /// What an HTTP status says.
    #[must_use]
    pub fn of_status(status: u16) -> Self {
        if (500..600).contains(&status) { Self::ServerError } else { Self::Success }
    }

    /// What a gRPC status says, as Envoy maps it to HTTP: `UNKNOWN`, `DEADLINE_EXCEEDED`, `INTERNAL`, `UNAVAILABLE` and
    /// `DATA_LOSS` are 5xx, `RESOURCE_EXHAUSTED` is 429 and so no failure. `UNIMPLEMENTED` (501 there) is the caller's
    /// mistake and none either. A status that is no number of gRPC's is `UNKNOWN`.
    #[must_use]
    pub fn of_grpc(status: &str) -> Self {
        match status.trim().parse::<u8>() {
            Ok(0 | 1 | 3 | 5..=12 | 16) => Self::Success,
            _ => Self::ServerError,
        }
    }
}

/// What makes an instance an outlier. `None` switches a rule off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutlierPolicy {
    /// Server errors in a row that eject; half of them, rounded up, degrade.
    pub consecutive_5xx: Option<u32>,
    /// Attempts in a row without an answer that eject; half of them, rounded up, degrade.
    pub consecutive_local: Option<u32>,
    /// Success rate in the window below which an instance is degraded.
    pub success_rate: Option<BasisPoints>,
    /// Share of failures in the window from which a degraded instance is ejected.
    pub failure_percentage: Option<BasisPoints>,
    /// Mean latency in the window above which the weight is cut to limit / mean, to a tenth at least.
    pub mean_latency: Option<Duration>,
    /// The window.
    pub window: Duration,
    /// Requests in the window below which it says nothing.
    pub min_requests: u32,
    /// Time of the first ejection; the nth lasts n times as long.
    pub base_ejection: Duration,
    /// Longest ejection.
    pub max_ejection: Duration,
    /// Share of a subset that may be ejected at once, rounded down but at least one instance.
    pub max_ejection_percent: BasisPoints,
}

/// Why an instance is ejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// Server errors in a row.
    Consecutive5xx,
    /// Attempts without an answer in a row.
    ConsecutiveLocal,
    /// Too many failures in the window.
    FailurePercentage,
}

impl Cause {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Consecutive5xx, Self::ConsecutiveLocal, Self::FailurePercentage];

    /// Its name in metrics and logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Consecutive5xx => "consecutive_5xx",
            Self::ConsecutiveLocal => "consecutive_local",
            Self::FailurePercentage => "failure_percentage",
        }
    }
}

/// Share of its weight that a degraded instance keeps.
pub const DEGRADED: f64 = 0.5;
/// Share of its weight that the slowest instance keeps.
const SLOWEST: f64 = 0.1;
/// After an ejection was refused by the cap, how long until the next one is asked for.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// What is known of one instance's attempts.
#[derive(Clone, Debug)]
pub struct Watch {
    recent: Rolling<3>,
    window: Duration,
    run_5xx: u32,
    run_local: u32,
    degraded: bool,
    latency_share: f64,
    quiet_until: Option<Instant>,
}

/// What the attempts in the window add up to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Recent {
    /// Attempts.
    pub total: u64,
    /// Failures among them.
    pub failed: u64,
    /// Mean latency of those that were answered without a failure.
    pub mean_latency: Duration,
}

impl Recent {
    fn of([total, failed, micros]: [u64; 3]) -> Self {
        let answered = total - failed;
        Self { total, failed, mean_latency: Duration::from_micros(micros.checked_div(answered).unwrap_or(0)) }
    }

    /// Share of attempts that did not fail, in 0..=1; `None` without any.
    #[must_use]
    pub fn success_rate(&self) -> Option<f64> {
        (self.total > 0).then(|| (self.total - self.failed) as f64 / self.total as f64)
    }
}

impl Watch {
    /// Nothing seen yet.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        let window = Duration::from_secs(10);
        Self {
            recent: Rolling::new(now, window),
            window,
            run_5xx: 0,
            run_local: 0,
            degraded: false,
            latency_share: 1.0,
            quiet_until: None,
        }
    }

    /// Takes one attempt in. Gives why the instance should be ejected, if it should.
    pub fn record(
        &mut self,
        policy: &OutlierPolicy,
        now: Instant,
        outcome: Outcome,
        latency: Duration,
    ) -> Option<Cause> {
        if self.window != policy.window {
            self.window = policy.window;
            self.recent = Rolling::new(now, policy.window);
        }
        match outcome {
            Outcome::Success => (self.run_5xx, self.run_local) = (0, 0),
            Outcome::ServerError => (self.run_5xx, self.run_local) = (self.run_5xx.saturating_add(1), 0),
            Outcome::Local => self.run_local = self.run_local.saturating_add(1),
        }
        let micros = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX >> 16).min(u64::MAX >> 16);
        let sample = if outcome == Outcome::Success { [1, 0, micros] } else { [1, 1, 0] };
        let recent = Recent::of(self.recent.add(now, sample));
        // A success ejects nobody, whatever came before it.
        self.judge(policy, now, recent).filter(|_| outcome != Outcome::Success)
    }

    fn judge(&mut self, policy: &OutlierPolicy, now: Instant, recent: Recent) -> Option<Cause> {
        let enough = recent.total >= u64::from(policy.min_requests);
        let runs = [(policy.consecutive_5xx, self.run_5xx), (policy.consecutive_local, self.run_local)];
        let halfway = runs.iter().any(|(limit, run)| limit.is_some_and(|limit| limit > 1 && *run >= limit.div_ceil(2)));
        let below = policy
            .success_rate
            .is_some_and(|least| enough && (recent.total - recent.failed) * 10_000 < recent.total * u64::from(least));
        let was_degraded = std::mem::replace(&mut self.degraded, halfway || below);
        self.latency_share = match policy.mean_latency {
            Some(limit) if enough && recent.mean_latency > limit => {
                (limit.as_secs_f64() / recent.mean_latency.as_secs_f64()).max(SLOWEST)
            }
            _ => 1.0,
        };
        if self.quiet_until.is_some_and(|until| now < until) {
            return None;
        }
        let over = |(limit, run): (Option<u32>, u32)| limit.is_some_and(|limit| run >= limit);
        let failing = policy
            .failure_percentage
            .is_some_and(|most| enough && was_degraded && recent.failed * 10_000 >= recent.total * u64::from(most));
        let causes = [over(runs[0]), over(runs[1]), failing];
        causes.into_iter().zip(Cause::ALL).find_map(|(holds, cause)| holds.then_some(cause))
    }

    /// The ejection was refused: it is asked for again only after a while.
    pub fn spare(&mut self, now: Instant) {
        self.quiet_until = Some(now + ASK_AGAIN);
    }

    /// Forgets everything: the instance has a new chance.
    pub fn clear(&mut self) {
        self.recent.clear();
        (self.run_5xx, self.run_local, self.degraded, self.latency_share) = (0, 0, false, 1.0);
    }

    /// Whether it is degraded.
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        self.degraded
    }

    /// Share of its weight that its latency leaves it, in 0.1..=1.
    #[must_use]
    pub fn latency_share(&self) -> f64 {
        self.latency_share
    }

    /// Share of its weight that it keeps, in 0.05..=1.
    #[must_use]
    pub fn share(&self) -> f64 {
        self.latency_share * if self.degraded { DEGRADED } else { 1.0 }
    }

    /// What the window holds.
    pub fn recent(&mut self, now: Instant) -> Recent {
        Recent::of(self.recent.sums(now))
    }
}

/// How often an instance was ejected of late.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ejections {
    count: u32,
    ended: Option<(Instant, Duration)>,
}

impl Ejections {
    /// How many count at `now`: one is forgotten for every base ejection time since the last one ended.
    #[must_use]
    pub fn count(&self, now: Instant) -> u32 {
        let Some((ended, base)) = self.ended else { return 0 };
        let periods = now.saturating_duration_since(ended).as_nanos() / base.as_nanos().max(1);
        self.count.saturating_sub(u32::try_from(periods).unwrap_or(u32::MAX))
    }

    /// Counts one that begins at `now`, and gives its length.
    pub fn begin(&mut self, policy: &OutlierPolicy, now: Instant) -> Duration {
        self.count = self.count(now).saturating_add(1);
        let longest = policy.max_ejection.max(policy.base_ejection);
        let time = policy.base_ejection.saturating_mul(self.count).min(longest);
        self.ended = Some((now + time, policy.base_ejection));
        time
    }

    /// The ejection ended early.
    pub fn end(&mut self, now: Instant) {
        if let Some((ended, _)) = &mut self.ended {
            *ended = now.min(*ended);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn policy() -> OutlierPolicy {
        OutlierPolicy {
            consecutive_5xx: Some(5),
            consecutive_local: Some(3),
            success_rate: Some(9_500),
            failure_percentage: Some(8_500),
            mean_latency: Some(Duration::from_millis(500)),
            window: Duration::from_secs(10),
            min_requests: 20,
            base_ejection: Duration::from_secs(30),
            max_ejection: Duration::from_secs(300),
            max_ejection_percent: 3_000,
        }
    }

    /// `s` success, `e` server error, `l` local; the last attempt's verdict and what holds after it.
    fn run(policy: &OutlierPolicy, text: &str) -> (Option<Cause>, bool) {
        let start = Instant::now();
        let mut watch = Watch::new(start);
        let mut cause = None;
        for (at, outcome) in text.chars().filter(|c| !c.is_whitespace()).enumerate() {
            let outcome = match outcome {
                's' => Outcome::Success,
                'e' => Outcome::ServerError,
                _ => Outcome::Local,
            };
            let now = start + Duration::from_millis(at as u64);
            assert_eq!(cause, None, "{text} at {at}");
            cause = watch.record(policy, now, outcome, Duration::from_millis(1));
        }
        (cause, watch.is_degraded())
    }

    #[test]
    fn degraded_before_ejected() {
        let by_share = OutlierPolicy { consecutive_5xx: None, consecutive_local: None, ..policy() };
        let off = OutlierPolicy { success_rate: None, failure_percentage: None, ..by_share };
        let cases = [
            (policy(), "ee", None, false),
            (policy(), "eee", None, true),
            (policy(), "eees", None, false),
            (policy(), "eeee", None, true),
            (policy(), "eeeee", Some(Cause::Consecutive5xx), true),
            (policy(), "l", None, false),
            (policy(), "ll", None, true),
            (policy(), "lll", Some(Cause::ConsecutiveLocal), true),
            (policy(), "llsl", None, false),
            (policy(), "lle", None, false),
            (by_share.clone(), "eeeeeeeeeeeeeeeeeee", None, false),
            (by_share.clone(), "eeeeeeeeeeeeeeeeeeee", None, true),
            (by_share.clone(), "eeeeeeeeeeeeeeeeeeeee", Some(Cause::FailurePercentage), true),
            (by_share.clone(), "eeeeeeeeeeeeeeeeeeees", None, true),
            (by_share.clone(), "sssssssssssssssssssee", None, true),
            (by_share, "ssssssssssssssssssse", None, false),
            (off, "eeeeeeeeeeeeeeeeeeeeeeeeeeeeellllllllllllll", None, false),
        ];
        for (policy, text, cause, degraded) in cases {
            assert_eq!(run(&policy, text), (cause, degraded), "{text}");
        }
    }

    #[test]
    fn a_slow_instance_loses_weight_and_the_window_forgets() {
        let (policy, start) = (policy(), Instant::now());
        let mut watch = Watch::new(start);
        let at = |ms: u64| start + Duration::from_millis(ms);
        for number in 0..20 {
            watch.record(&policy, at(number), Outcome::Success, Duration::from_secs(1));
        }
        assert!((watch.share() - 0.5).abs() < 1e-9, "500 ms of 1 s: {}", watch.share());
        for number in 0..20 {
            watch.record(&policy, at(100 + number), Outcome::Success, Duration::from_secs(60));
        }
        assert!((watch.share() - 0.1).abs() < 1e-9, "never less than a tenth");
        watch.record(&policy, at(60_000), Outcome::Success, Duration::from_millis(1));
        assert_eq!(watch.share(), 1.0);
        assert_eq!(watch.recent(at(60_000)).total, 1);
    }

    #[test]
    fn ejections_grow_are_capped_and_decay() {
        let (policy, start) = (policy(), Instant::now());
        let mut ejections = Ejections::default();
        let mut now = start;
        for expected in [30, 60, 90, 120, 150, 180, 210, 240, 270, 300, 300] {
            let time = ejections.begin(&policy, now);
            assert_eq!(time.as_secs(), expected);
            now += time;
        }
        let later = now + Duration::from_secs(30 * 9);
        assert_eq!((ejections.count(now), ejections.count(later)), (11, 2));
        assert_eq!(ejections.begin(&policy, later).as_secs(), 90);
        assert_eq!(ejections.count(later + Duration::from_secs(3_600)), 0);
    }

    #[test]
    fn statuses() {
        use Outcome::{ServerError, Success};
        for (status, outcome) in
            [(200, Success), (404, Success), (429, Success), (500, ServerError), (504, ServerError)]
        {
            assert_eq!(Outcome::of_status(status), outcome, "{status}");
        }
        let failures = ["2", "4", "13", "14", "15", "17", "x", ""];
        for status in 0..=17 {
            let text = status.to_string();
            let failure = failures.contains(&&*text);
            assert_eq!(Outcome::of_grpc(&text) == ServerError, failure, "{text}");
        }
        assert_eq!(Outcome::of_grpc("what"), ServerError);
    }
}
