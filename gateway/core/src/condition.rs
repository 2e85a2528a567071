//! What is known of one instance's health and weight, as a value: outlier detection, ejection, slow start and the load
//! it reports.

use std::time::{Duration, Instant};

use crate::instance::Health;
use crate::outlier::{Cause, Ejections, Outcome, OutlierPolicy, Recent, Watch};
use crate::slow_start::SlowStart;

/// A relative change of the weight that is worth making new tables for.
const NOTABLE: f64 = 0.1;

/// See the module. Changes only through the [`Vitals`](crate::instance::Vitals) that hold it.
#[derive(Debug)]
pub(crate) struct Condition {
    watch: Watch,
    ejections: Ejections,
    ejected: Option<(Instant, Cause)>,
    slow_start: Option<SlowStart>,
    came_back: bool,
    warm_since: Option<Instant>,
    /// The part that the load it reports leaves it, and until when that holds.
    load: Option<(f64, Instant)>,
    /// The share that was last told of as a change.
    told: f64,
    returned: bool,
}

/// What one attempt led to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// Why the instance should be ejected.
    pub eject: Option<Cause>,
    /// It became degraded, or no longer is.
    pub degraded: Option<bool>,
    /// It is the first attempt since an ejection ended.
    pub returned: bool,
}

/// Health and weight of an instance, for people to read. Shares are in 0..=1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Standing {
    /// Health.
    pub health: Health,
    /// Share of its weight that is in force while it takes traffic.
    pub factor: f64,
    /// The part of it that is slow start.
    pub slow_start: f64,
    /// Whether it is degraded.
    pub degraded: bool,
    /// The part of it that is its latency.
    pub latency: f64,
    /// The part of it that is the load it reports.
    pub load: f64,
    /// Attempts in the window of outlier detection.
    pub recent: Recent,
    /// Ejections that still count.
    pub ejections: u32,
    /// What is left of an ejection, and its cause.
    pub ejected: Option<(Duration, Cause)>,
}

impl Condition {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            watch: Watch::new(now),
            ejections: Ejections::default(),
            ejected: None,
            slow_start: None,
            came_back: false,
            warm_since: None,
            load: None,
            told: 1.0,
            returned: false,
        }
    }

    pub(crate) fn is_ejected(&self) -> bool {
        self.ejected.is_some()
    }

    /// What the attempt leads to, and whether the weight changed notably.
    pub(crate) fn observe(
        &mut self,
        policy: &OutlierPolicy,
        now: Instant,
        outcome: Outcome,
        latency: Duration,
    ) -> (Observed, bool) {
        if self.is_ejected() {
            return (Observed::default(), false);
        }
        let was_degraded = self.watch.is_degraded();
        let eject = self.watch.record(policy, now, outcome, latency);
        let degraded = self.watch.is_degraded();
        let observed = Observed {
            eject,
            degraded: (was_degraded != degraded).then_some(degraded),
            returned: std::mem::take(&mut self.returned),
        };
        (observed, self.is_notable())
    }

    /// Forgets what the attempts said; whether that changes the weight.
    pub(crate) fn pardon(&mut self) -> bool {
        self.watch.clear();
        self.is_notable()
    }

    pub(crate) fn spare(&mut self, now: Instant) {
        self.watch.spare(now);
    }

    pub(crate) fn eject(&mut self, policy: &OutlierPolicy, now: Instant, cause: Cause) -> Duration {
        let time = self.ejections.begin(policy, now);
        self.ejected = Some((now + time, cause));
        self.watch.clear();
        self.returned = false;
        time
    }

    /// Ends the ejection; whether there was one.
    pub(crate) fn end_ejection(&mut self) {
        if self.ejected.take().is_some() {
            self.returned = true;
            self.come_back();
        }
    }

    /// The instance takes traffic (again): slow start begins when this is next settled.
    pub(crate) fn come_back(&mut self) {
        self.came_back = true;
        self.watch.clear();
    }

    /// Does what is due, and gives when something is due next: the end of an ejection or of slow start.
    pub(crate) fn settle(&mut self, now: Instant) -> Option<Instant> {
        if self.ejected.is_some_and(|(until, _)| until <= now) {
            self.end_ejection();
        }
        if std::mem::take(&mut self.came_back) {
            self.ejections.end(now);
            self.warm_since = self.slow_start.map(|_| now);
        }
        let warm_at = self.warm_since.zip(self.slow_start).map(|(since, slow_start)| since + slow_start.window);
        if warm_at.is_none_or(|at| at <= now) {
            self.warm_since = None;
        }
        self.load = self.load.filter(|(_, until)| *until > now);
        self.told = self.share();
        let until = [self.ejected.map(|(until, _)| until), self.load.map(|(_, until)| until)];
        until.into_iter().flatten().chain(warm_at.filter(|&at| at > now)).min()
    }

    pub(crate) fn set_slow_start(&mut self, slow_start: Option<SlowStart>) -> bool {
        std::mem::replace(&mut self.slow_start, slow_start) != slow_start
    }

    pub(crate) fn set_load_share(&mut self, share: f64, until: Instant) -> bool {
        self.load = Some((share.clamp(0.0, 1.0), until));
        self.is_notable()
    }

    /// The part of its weight that is not a matter of time.
    fn share(&self) -> f64 {
        self.watch.share() * self.load.map_or(1.0, |(share, _)| share)
    }

    pub(crate) fn load_share(&self, now: Instant) -> f64 {
        self.load.filter(|(_, until)| *until > now).map_or(1.0, |(share, _)| share)
    }

    /// Whether the weight has changed so much since it was last told that others should know. Degrading always does.
    fn is_notable(&mut self) -> bool {
        let share = self.share();
        let notable = (share - self.told).abs() > NOTABLE * self.told || (share == 1.0) != (self.told == 1.0);
        if notable {
            self.told = share;
        }
        notable
    }

    pub(crate) fn factor(&self, now: Instant) -> f64 {
        self.slow_start_share(now) * self.watch.share() * self.load_share(now)
    }

    fn slow_start_share(&self, now: Instant) -> f64 {
        let Some((since, slow_start)) = self.warm_since.zip(self.slow_start) else { return 1.0 };
        slow_start.share(now.saturating_duration_since(since))
    }

    pub(crate) fn standing(&mut self, now: Instant) -> Standing {
        Standing {
            health: Health::Healthy,
            factor: self.factor(now),
            slow_start: self.slow_start_share(now),
            degraded: self.watch.is_degraded(),
            latency: self.watch.latency_share(),
            load: self.load_share(now),
            recent: self.watch.recent(now),
            ejections: self.ejections.count(now),
            ejected: self.ejected.map(|(until, cause)| (until.saturating_duration_since(now), cause)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outlier::tests::policy;

    #[test]
    fn who_comes_back_begins_slowly() {
        let (start, policy) = (Instant::now(), policy());
        let after = |secs| start + Duration::from_secs(secs);
        let mut condition = Condition::new(start);
        condition.set_slow_start(Some(SlowStart { window: Duration::from_secs(300), initial: 0.5, aggression: 1.0 }));
        condition.settle(start);
        assert_eq!(condition.factor(start), 1.0, "an instance of the first snapshot is warm");
        condition.eject(&policy, start, Cause::Consecutive5xx);
        assert_eq!(condition.settle(after(10)), Some(after(30)));
        assert_eq!(condition.settle(after(30)), Some(after(330)));
        for (at, share) in [(30, 0.5), (90, 0.6), (330, 1.0)] {
            assert!((condition.factor(after(at)) - share).abs() < 1e-9, "{at}");
        }
        assert_eq!(condition.settle(after(330)), None);
    }

    #[test]
    fn what_is_ejected_is_not_judged_and_has_a_new_chance_after() {
        let (start, policy) = (Instant::now(), policy());
        let mut condition = Condition::new(start);
        let fail = |condition: &mut Condition, at| condition.observe(&policy, at, Outcome::Local, Duration::ZERO).0;
        assert_eq!(fail(&mut condition, start).eject, None);
        assert_eq!(fail(&mut condition, start).degraded, Some(true));
        let cause = fail(&mut condition, start).eject.unwrap();
        condition.eject(&policy, start, cause);
        assert_eq!(fail(&mut condition, start), Observed::default());
        let later = start + Duration::from_secs(30);
        condition.settle(later);
        let first = fail(&mut condition, later);
        assert_eq!((first.returned, first.eject, first.degraded), (true, None, None));
        assert!(!fail(&mut condition, later).returned);
    }
}
