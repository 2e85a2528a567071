//! Guarded ramps: whether a rollout goes on to its next step, waits, or goes back. Pure: the numbers, the time that the
//! step has lasted and the plan are arguments.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

use crate::live::Tally;

/// What a guard looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Share of requests that did not fail.
    SuccessRate,
    /// Share of requests that failed.
    ErrorRate,
    /// Median latency.
    P50,
    /// 99th percentile of the latency.
    P99,
    /// Mean latency.
    Mean,
}

impl Measure {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::SuccessRate, Self::ErrorRate, Self::P50, Self::P99, Self::Mean];

    /// Its name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::SuccessRate => "success_rate",
            Self::ErrorRate => "error_rate",
            Self::P50 => "p50",
            Self::P99 => "p99",
            Self::Mean => "mean",
        }
    }

    fn is_share(self) -> bool {
        matches!(self, Self::SuccessRate | Self::ErrorRate)
    }

    /// What some requests measure: a share from 0 to 1, or milliseconds. A request that was meant for the subset and
    /// that it left to another one counts as failed.
    #[must_use]
    pub fn of(self, tally: &Tally) -> Option<f64> {
        let all = tally.requests + tally.missed;
        let failed = || (all > 0).then(|| (tally.errors + tally.missed) as f64 / all as f64);
        match self {
            Self::SuccessRate => failed().map(|failed| 1.0 - failed),
            Self::ErrorRate => failed(),
            Self::P50 => tally.quantile(0.5),
            Self::P99 => tally.quantile(0.99),
            Self::Mean => tally.mean(),
        }
    }

    /// A value of it, in words.
    #[must_use]
    pub fn show(self, value: f64) -> String {
        if self.is_share() {
            return format!("{}%", decimals(value * 100.0));
        }
        if value >= 10_000.0 { format!("{}s", decimals(value / 1e3)) } else { format!("{}ms", decimals(value)) }
    }
}

/// At most two decimals, none that are needless.
fn decimals(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// How a guard compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// `>=`
    AtLeast,
    /// `<=`
    AtMost,
    /// `>`
    Above,
    /// `<`
    Below,
}

impl Comparison {
    fn as_str(self) -> &'static str {
        match self {
            Self::AtLeast => ">=",
            Self::AtMost => "<=",
            Self::Above => ">",
            Self::Below => "<",
        }
    }

    fn holds(self, value: f64, bound: f64) -> bool {
        // 99.9 % of 1,000 are 999, whatever the last bit of a division says.
        let slack = bound.abs() * 1e-9;
        match self {
            Self::AtLeast => value >= bound - slack,
            Self::AtMost => value <= bound + slack,
            Self::Above => value > bound + slack,
            Self::Below => value < bound - slack,
        }
    }
}

/// What a guard compares with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// A share from 0 to 1, or milliseconds.
    Fixed(f64),
    /// So many times what the stable subset measures.
    Stable(f64),
}

/// A promise that the target of a ramp has to keep, such as `success_rate >= 99%` or `p99 <= 1.2 x stable`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Guard {
    /// What it looks at.
    pub measure: Measure,
    /// How it compares.
    pub comparison: Comparison,
    /// What it compares with.
    pub bound: Bound,
}

/// What guards look like, in words.
pub const EXPECTED: &str = "a guard such as `success_rate >= 99%`, `p99 <= 250ms` or `p99 <= 1.2 x stable`";

impl FromStr for Guard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (left, comparison, right) = split(text)?;
        let measure = Measure::ALL.into_iter().find(|measure| measure.as_str() == left);
        let names = Measure::ALL.map(|measure| format!("`{}`", measure.as_str())).join(", ");
        let measure = measure.ok_or_else(|| format!("expected one of {names} before the comparison, got `{left}`"))?;
        let bound = bound(measure, right)?;
        Ok(Self { measure, comparison, bound })
    }
}

fn split(text: &str) -> Result<(&str, Comparison, &str), String> {
    use Comparison::{Above, AtLeast, AtMost, Below};
    // The longer ones first: `>` is a part of `>=`.
    for comparison in [AtLeast, AtMost, Above, Below] {
        if let Some((left, right)) = text.split_once(comparison.as_str()) {
            return Ok((left.trim_matches(' '), comparison, right.trim_matches(' ')));
        }
    }
    Err(format!("expected {EXPECTED}, got `{text}`: there is none of `>=`, `<=`, `>`, `<` in it"))
}

fn bound(measure: Measure, text: &str) -> Result<Bound, String> {
    if let Some(factor) = text.strip_suffix("stable") {
        let factor = factor.trim_end_matches(' ');
        let number = match factor.strip_suffix(['x', '*', '×']) {
            Some(number) => positive(number).filter(|number| *number > 0.0),
            None if factor.is_empty() => Some(1.0),
            None => None,
        };
        return number
            .map(Bound::Stable)
            .ok_or_else(|| format!("expected a factor such as `1.2 x stable` after the comparison, got `{text}`"));
    }
    if measure.is_share() {
        let share = text.strip_suffix('%').and_then(positive).filter(|share| *share <= 100.0);
        return share.map(|percent| Bound::Fixed(percent / 100.0)).ok_or_else(|| {
            let name = measure.as_str();
            format!(
                "expected a percentage such as `99%` or a factor such as `1.2 x stable` after `{name}`, got `{text}`"
            )
        });
    }
    let millis = match (text.strip_suffix("ms"), text.strip_suffix('s')) {
        (Some(millis), _) => positive(millis),
        (None, Some(seconds)) => positive(seconds).map(|seconds| seconds * 1e3),
        (None, None) => None,
    };
    millis.map(Bound::Fixed).ok_or_else(|| {
        let name = measure.as_str();
        format!("expected a duration such as `250ms` or `1.5s`, or a factor such as `1.2 x stable`, after `{name}`, got `{text}`")
    })
}

/// A number without a sign, an exponent or a word in it.
fn positive(text: &str) -> Option<f64> {
    let text = text.trim_end_matches(' ');
    let plain = (1..=12).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    text.parse::<f64>().ok().filter(|_| plain && !text.starts_with('.') && !text.ends_with('.'))
}

impl fmt::Display for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ", self.measure.as_str(), self.comparison.as_str())?;
        match self.bound {
            Bound::Fixed(value) if self.measure.is_share() => write!(f, "{}%", plain(value * 100.0)),
            Bound::Fixed(millis) => write!(f, "{}ms", plain(millis)),
            Bound::Stable(factor) => write!(f, "{} x stable", plain(factor)),
        }
    }
}

/// As many decimals as the number has, up to eight.
fn plain(value: f64) -> String {
    let text = format!("{value:.8}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Requests of a subset.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seen {
    /// Since the step began.
    pub step: Tally,
    /// In the last seconds of it.
    pub recent: Tally,
}

/// What became of a guard.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Finding {
    /// It holds.
    Good(Figures),
    /// It does not.
    Bad(Figures),
    /// There are too few requests to tell.
    TooFew,
}

/// What a guard compared: shares from 0 to 1, or milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figures {
    /// What the target measures.
    pub value: f64,
    /// What it was compared with.
    pub bound: f64,
}

impl Guard {
    /// Looks at the requests of the target and of the stable subset, each at least `least`.
    #[must_use]
    pub fn look(&self, target: &Tally, stable: &Tally, least: u64) -> Finding {
        let enough = |tally: &Tally| tally.requests + tally.missed >= least.max(1);
        let value = self.measure.of(target).filter(|_| enough(target));
        let bound = match self.bound {
            Bound::Fixed(bound) => Some(bound),
            Bound::Stable(factor) => self.measure.of(stable).filter(|_| enough(stable)).map(|value| value * factor),
        };
        match value.zip(bound) {
            None => Finding::TooFew,
            Some((value, bound)) if self.comparison.holds(value, bound) => Finding::Good(Figures { value, bound }),
            Some((value, bound)) => Finding::Bad(Figures { value, bound }),
        }
    }

    /// What a figure of it was, in words: `p99 <= 1.2 x stable is broken: 61.5ms, at most 24ms`.
    fn broken(&self, figures: Figures, since: &str, target: &Tally) -> String {
        let words = match self.comparison {
            Comparison::AtLeast => "at least",
            Comparison::AtMost => "at most",
            Comparison::Above => "more than",
            Comparison::Below => "less than",
        };
        let (value, bound) = (self.measure.show(figures.value), self.measure.show(figures.bound));
        let missed = match (self.measure.is_share(), target.missed) {
            (true, missed @ 1..) => format!(", {missed} of which other subsets had to serve"),
            _ => String::new(),
        };
        let all = target.requests + target.missed;
        format!("{self} is broken: {value}, expected {words} {bound}, over {all} requests {since}{missed}")
    }
}

/// A ramp's rules.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// How many steps there are.
    pub steps: usize,
    /// How long a step lasts at least.
    pub every: Duration,
    /// What has to hold.
    pub guards: Vec<Guard>,
    /// Requests that it takes to tell, of the target and, where it is compared with, of the stable subset.
    pub min_requests: u64,
}

/// What is to be done with a ramp.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The step goes on.
    Wait,
    /// The step has lasted, but there is too little to tell by: it goes on until there is more, and this is why.
    Hold(String),
    /// On to the next step.
    Advance,
    /// The last step has lasted.
    Done,
    /// A guard is broken: everything goes to the stable subset, and this is why.
    Breach(String),
}

/// Judges a step that has lasted for `elapsed`. A guard is looked at over the whole step and, where they are enough,
/// over its last seconds alone, so that a long good while does not hide a bad end.
#[must_use]
pub fn judge(plan: &Plan, step: usize, elapsed: Duration, target: &Seen, stable: &Seen) -> Verdict {
    let least = plan.min_requests;
    for guard in &plan.guards {
        let spans = [(&target.step, &stable.step, "of this step"), (&target.recent, &stable.recent, "just now")];
        for (target, stable, since) in spans {
            if let Finding::Bad(figures) = guard.look(target, stable, least) {
                return Verdict::Breach(guard.broken(figures, since, target));
            }
        }
    }
    if elapsed < plan.every {
        return Verdict::Wait;
    }
    if let Some(missing) = missing(plan, target, stable) {
        return Verdict::Hold(missing);
    }
    if step + 1 < plan.steps { Verdict::Advance } else { Verdict::Done }
}

/// What is missing to judge a step by, in words. A ramp without guards needs its requests as well.
#[must_use]
pub fn missing(plan: &Plan, target: &Seen, stable: &Seen) -> Option<String> {
    let short = |seen: &Seen, whose: &str| {
        let have = seen.step.requests + seen.step.missed;
        (have < plan.min_requests).then(|| format!("{have} of {} requests to {whose}", plan.min_requests))
    };
    let relative = plan.guards.iter().any(|guard| matches!(guard.bound, Bound::Stable(_)));
    let known = |guard: &Guard| guard.look(&target.step, &stable.step, plan.min_requests) != Finding::TooFew;
    short(target, "the target").or_else(|| relative.then(|| short(stable, "the stable subset")).flatten()).or_else(
        || {
            let unknown = plan.guards.iter().find(|guard| !known(guard))?;
            Some(format!("nothing to tell `{unknown}` by"))
        },
    )
}

/// How long a step has lasted. It begins with what the wall clock says when the ramp is taken up, at the start of the
/// process for one, and then only knows monotonic time, so that a clock that jumps skips nothing.
#[derive(Clone, Copy, Debug)]
pub struct StepClock {
    taken_up: Instant,
    before: Duration,
}

impl StepClock {
    /// A step that by the wall clock has lasted for `before`.
    #[must_use]
    pub fn new(now: Instant, before: Duration) -> Self {
        Self { taken_up: now, before }
    }

    /// How long the step has lasted.
    #[must_use]
    pub fn elapsed(&self, now: Instant) -> Duration {
        self.before + now.saturating_duration_since(self.taken_up)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::live::Meter;

    fn tally(requests: u64, errors: u64, millis: u64) -> Tally {
        let meter = Meter::default();
        (0..requests).for_each(|number| meter.record(Duration::from_millis(millis), number < errors));
        meter.read()
    }

    fn seen(requests: u64, errors: u64, millis: u64) -> Seen {
        Seen { step: tally(requests, errors, millis), recent: Tally::default() }
    }

    fn plan(guards: &[&str]) -> Plan {
        let guards = guards.iter().map(|text| text.parse().unwrap()).collect();
        Plan { steps: 3, every: Duration::from_secs(60), guards, min_requests: 200 }
    }

    const SHORT: Duration = Duration::from_secs(59);
    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn guards_are_read_and_written() {
        let cases = [
            ("success_rate >= 99%", Ok("success_rate >= 99%")),
            ("success_rate>=99.95%", Ok("success_rate >= 99.95%")),
            ("error_rate < 0.5 %", Ok("error_rate < 0.5%")),
            ("p99 <= 1.2 x stable", Ok("p99 <= 1.2 x stable")),
            ("p50 <= 1.5x stable", Ok("p50 <= 1.5 x stable")),
            ("p50 <= 2 * stable", Ok("p50 <= 2 x stable")),
            ("error_rate <= stable", Ok("error_rate <= 1 x stable")),
            ("p99 < 250ms", Ok("p99 < 250ms")),
            ("mean > 1.5s", Ok("mean > 1500ms")),
            ("p99", Err("`>=`")),
            ("", Err("a guard such as")),
            ("p95 <= 10ms", Err("`p50`, `p99`")),
            (">= 99%", Err("got ``")),
            ("p99 <= 10", Err("a duration such as")),
            ("p99 <= 10%", Err("a duration such as")),
            ("success_rate >= 99", Err("a percentage such as")),
            ("success_rate >= 101%", Err("a percentage such as")),
            ("success_rate >= 10ms", Err("a percentage such as")),
            ("p99 <= x stable", Err("a factor such as")),
            ("p99 <= 0 x stable", Err("a factor such as")),
            ("p99 <= 1.2 stable", Err("a factor such as")),
            ("p99 <= -1ms", Err("a duration such as")),
            ("p99 <= 1e3ms", Err("a duration such as")),
            ("p99 <= infms", Err("a duration such as")),
            ("p99 == 10ms", Err("`>=`")),
            ("p99 <= 10ms ms", Err("a duration such as")),
        ];
        for (text, wanted) in cases {
            match (text.parse::<Guard>(), wanted) {
                (Ok(guard), Ok(shown)) => assert_eq!(guard.to_string(), shown, "{text}"),
                (Err(error), Err(part)) => assert!(error.contains(part), "{text}: {error}"),
                (got, _) => panic!("{text}: {got:?}"),
            }
        }
    }

    #[test]
    fn verdicts() {
        let both = ["success_rate >= 99%", "p99 <= 1.2 x stable"];
        type Case = (&'static str, usize, Duration, Seen, Seen, Verdict);
        let hold = |text: &str| Verdict::Hold(text.to_owned());
        let cases: [Case; 10] = [
            ("good, early", 0, SHORT, seen(500, 0, 10), seen(500, 0, 10), Verdict::Wait),
            ("good, and it has lasted", 0, LONG, seen(500, 5, 10), seen(500, 0, 10), Verdict::Advance),
            ("good, and it was the last step", 2, LONG, seen(200, 0, 10), seen(200, 0, 10), Verdict::Done),
            ("too little, early", 0, SHORT, seen(199, 199, 900), seen(500, 0, 10), Verdict::Wait),
            ("too little", 0, LONG, seen(199, 199, 900), seen(500, 0, 10), hold("199 of 200 requests to the target")),
            ("nothing", 0, LONG, seen(0, 0, 0), seen(0, 0, 0), hold("0 of 200 requests to the target")),
            ("no stable", 0, LONG, seen(500, 0, 900), seen(7, 0, 9), hold("7 of 200 requests to the stable subset")),
            (
                "errors, though stable says too little",
                1,
                SHORT,
                seen(500, 6, 10),
                seen(7, 0, 10),
                Verdict::Breach(
                    "success_rate >= 99% is broken: 98.8%, expected at least 99%, over 500 requests of this step"
                        .to_owned(),
                ),
            ),
            (
                "slow",
                1,
                LONG,
                seen(500, 0, 20),
                seen(500, 0, 10),
                Verdict::Breach("p99 <= 1.2 x stable is broken: ".to_owned()),
            ),
            (
                "bad only just now",
                1,
                SHORT,
                Seen { step: tally(100_000, 0, 10), recent: tally(200, 200, 10) },
                seen(500, 0, 10),
                Verdict::Breach(
                    "success_rate >= 99% is broken: 0%, expected at least 99%, over 200 requests just now".to_owned(),
                ),
            ),
        ];
        for (name, step, elapsed, target, stable, wanted) in cases {
            let got = judge(&plan(&both), step, elapsed, &target, &stable);
            match (&got, &wanted) {
                (Verdict::Breach(got), Verdict::Breach(wanted)) => assert!(got.starts_with(&**wanted), "{name}: {got}"),
                _ => assert_eq!(got, wanted, "{name}"),
            }
        }
    }

    #[test]
    fn what_the_target_leaves_to_others_counts_as_failed() {
        let mut target = seen(100, 0, 10);
        target.step.missed = 100;
        let verdict = judge(&plan(&["success_rate >= 99%"]), 0, SHORT, &target, &Seen::default());
        let Verdict::Breach(why) = verdict else { panic!("{verdict:?}") };
        assert!(why.contains("50%") && why.contains("100 of which other subsets had to serve"), "{why}");
        let mut all_missed = Seen::default();
        all_missed.step.missed = 300;
        let slow = plan(&["p99 <= 10ms"]);
        let wanted = Verdict::Hold("nothing to tell `p99 <= 10ms` by".to_owned());
        assert_eq!(judge(&slow, 0, LONG, &all_missed, &Seen::default()), wanted);
    }

    #[test]
    fn a_clock_that_jumps_skips_nothing() {
        let now = Instant::now();
        let clock = StepClock::new(now, Duration::from_secs(40));
        assert_eq!(clock.elapsed(now), Duration::from_secs(40));
        assert_eq!(clock.elapsed(now + Duration::from_secs(5)), Duration::from_secs(45));
        assert_eq!(clock.elapsed(now - Duration::from_secs(5)), Duration::from_secs(40));
    }

    fn any_seen() -> impl Strategy<Value = Seen> {
        let tally = || {
            (0..400_u64, 0..400_u64, 1..100_u64, 0..50_u64).prop_map(|(requests, errors, millis, missed)| {
                let mut tally = tally(requests, errors.min(requests), millis);
                tally.missed = missed;
                tally
            })
        };
        (tally(), tally()).prop_map(|(step, recent)| Seen { step, recent })
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 200, ..ProptestConfig::default() })]

        #[test]
        fn too_little_never_passes_and_never_rolls_back(
            target in any_seen(), stable in any_seen(), step in 0..3_usize, seconds in 0..200_u64,
        ) {
            let plan = plan(&["success_rate >= 99%", "p99 <= 1.2 x stable"]);
            let all = |tally: &Tally| tally.requests + tally.missed;
            let elapsed = Duration::from_secs(seconds);
            match judge(&plan, step, elapsed, &target, &stable) {
                Verdict::Breach(_) => prop_assert!(all(&target.step) >= 200 || all(&target.recent) >= 200),
                Verdict::Advance | Verdict::Done => {
                    prop_assert!(all(&target.step) >= 200 && all(&stable.step) >= 200);
                    prop_assert!(elapsed >= plan.every);
                    prop_assert!(Measure::SuccessRate.of(&target.step) >= Some(0.99));
                }
                Verdict::Hold(_) => prop_assert!(elapsed >= plan.every),
                Verdict::Wait => prop_assert!(elapsed < plan.every),
            }
        }

        #[test]
        fn whatever_is_read_is_written_so_that_it_is_read_again(text in "(success_rate|error_rate|p50|p99|mean) ?[<>]=? ?[0-9.]{1,6} ?(%|ms|s|x stable)?") {
            if let Ok(guard) = text.parse::<Guard>() {
                let again: Guard = guard.to_string().parse().unwrap();
                prop_assert_eq!(again.to_string(), guard.to_string());
            }
        }
    }
}
