//! The load that instances report of themselves, and the part of its weight that each has by it.
//!
//! The weights are those of gRPC's `client_side_weighted_round_robin` (gRFC A58): requests per second divided by
//! utilisation, with errors counted as utilisation. Only their proportions matter, so the greatest becomes the factor 1.

mod report;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

pub use self::report::{BadReport, LONGEST, LoadReport};
use crate::instance::{Instance, Vitals};

/// No instance falls below this part of its weight, so that its next report can lift it again.
const LEAST_FACTOR: f64 = 0.01;

/// How reports are used.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadPolicy {
    /// A report that is older is none; more than 0.
    pub expire_after: Duration,
    /// How often weights are made from reports, at most.
    pub update_every: Duration,
    /// How long an instance must have reported before its reports make its weight.
    pub blackout: Duration,
    /// How much an error counts as utilisation, from 0.
    pub error_penalty: f64,
    /// Whether weights are made at all.
    pub weights: bool,
}

/// What one instance reported last. Picks read atomics; the rest is behind a lock that is held for an assignment.
#[derive(Debug)]
pub struct Reported {
    epoch: Instant,
    /// Nanoseconds since `epoch` until which the report holds; 0 before the first.
    expires: AtomicU64,
    utilization: AtomicU64,
    last: Mutex<Last>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Last {
    report: LoadReport,
    at: Option<Instant>,
    /// Since when there was always a report that had not expired.
    since: Option<Instant>,
    /// Number of picks at an earlier time, for the rate of an instance that reports none.
    picks: Option<(Instant, u64)>,
    weight: Option<f64>,
}

impl Reported {
    /// Nothing yet of an instance that was first seen at `epoch`.
    #[must_use]
    pub fn new(epoch: Instant) -> Self {
        Self { epoch, expires: AtomicU64::new(0), utilization: AtomicU64::new(0), last: Mutex::default() }
    }

    /// The last report and when it came; `None` if there is none that holds at `now`.
    #[must_use]
    pub fn report(&self, now: Instant) -> Option<(LoadReport, Instant)> {
        let last = *self.lock();
        self.holds(now).then_some(last.report).zip(last.at)
    }

    /// The utilisation by the last report; `None` if there is none that holds at `now`.
    #[must_use]
    pub fn utilization(&self, now: Instant) -> Option<f64> {
        self.holds(now).then(|| f64::from_bits(self.utilization.load(Relaxed)))
    }

    fn holds(&self, now: Instant) -> bool {
        self.since_epoch(now) < self.expires.load(Relaxed)
    }

    fn store(&self, report: LoadReport, now: Instant, expire_after: Duration) {
        let mut last = self.lock();
        if !self.holds(now) {
            last.since = Some(now);
        }
        last.report = report;
        last.at = Some(now);
        drop(last);
        self.utilization.store(report.utilization().to_bits(), Relaxed);
        self.expires.store(self.after(now, expire_after), Relaxed);
    }

    fn after(&self, now: Instant, span: Duration) -> u64 {
        now.checked_add(span).map_or(u64::MAX, |then| self.since_epoch(then))
    }

    /// The weight by the last report; the one before if no request was sent since, and none before the blackout ends.
    fn weigh(&self, picks: u64, now: Instant, policy: &LoadPolicy) -> Option<f64> {
        let mut last = self.lock();
        let own = last.picks.replace((now, picks)).map_or(0.0, |(then, before)| {
            picks.saturating_sub(before) as f64 / now.saturating_duration_since(then).as_secs_f64().max(1e-3)
        });
        if !self.holds(now) {
            last.weight = None;
            return None;
        }
        let waited = last.since.is_some_and(|since| now.saturating_duration_since(since) >= policy.blackout);
        if let Some(weight) = last.report.weight(own, policy.error_penalty).filter(|_| waited) {
            last.weight = Some(weight);
        }
        last.weight
    }

    fn since_epoch(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.epoch).as_nanos()).unwrap_or(u64::MAX)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Last> {
        // What it holds is right between any two statements.
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes the reports of a service's instances.
#[derive(Debug)]
pub struct LoadBoard {
    policy: LoadPolicy,
    epoch: Instant,
    /// Nanoseconds since `epoch` at which weights are made the next time.
    due: AtomicU64,
}

impl LoadBoard {
    /// A board that begins at `now`.
    #[must_use]
    pub fn new(policy: LoadPolicy, now: Instant) -> Self {
        Self { policy, epoch: now, due: AtomicU64::new(0) }
    }

    /// How reports are used.
    #[must_use]
    pub fn policy(&self) -> &LoadPolicy {
        &self.policy
    }

    /// Notes a report of one of the instances; now and then it makes new factors for all of them.
    pub fn note(&self, instances: &[Instance], vitals: &Vitals, report: LoadReport, now: Instant) {
        vitals.reported().store(report, now, self.policy.expire_after);
        if !self.policy.weights {
            return;
        }
        let nanos = |span: Duration| u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        let at = nanos(now.saturating_duration_since(self.epoch));
        let due = self.due.load(Relaxed);
        let next = at.saturating_add(nanos(self.policy.update_every));
        if at >= due && self.due.compare_exchange(due, next, Relaxed, Relaxed).is_ok() {
            self.rebalance(instances, now);
        }
    }

    /// Instances whose reports make no weight have the mean of the others'; with fewer than two weights all have 1.
    fn rebalance(&self, instances: &[Instance], now: Instant) {
        let weigh = |instance: &Instance| {
            let vitals = &instance.vitals;
            vitals.reported().weigh(vitals.picks(), now, &self.policy)
        };
        // This is once a second at most, and not on behalf of every request.
        let weights: Vec<Option<f64>> = instances.iter().map(weigh).collect();
        let known = || weights.iter().flatten().copied();
        let (count, most) = (known().count(), known().fold(0.0, f64::max));
        let mean = known().sum::<f64>() / count.max(1) as f64;
        let until = now.checked_add(self.policy.expire_after).unwrap_or(now);
        for (instance, weight) in instances.iter().zip(&weights) {
            let factor = if count < 2 { 1.0 } else { weight.unwrap_or(mean) / most };
            let factor = if factor.is_finite() { factor.clamp(LEAST_FACTOR, 1.0) } else { 1.0 };
            instance.vitals.set_load_share(factor, until);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::instance::InFlight;

    const POLICY: LoadPolicy = LoadPolicy {
        expire_after: Duration::from_secs(180),
        update_every: Duration::from_secs(1),
        blackout: Duration::from_secs(10),
        error_penalty: 1.0,
        weights: true,
    };

    fn pool(n: u32, now: Instant) -> Vec<Instance> {
        let instance = |index| Instance {
            index,
            address: ([127, 0, 0, 1], 9000).into(),
            labels: Arc::default(),
            zone: None,
            cluster: None,
            weight: 100,
            vitals: Arc::new(Vitals::new(now)),
        };
        (0..n).map(instance).collect()
    }

    fn report(utilization: f64, rps: f64, eps: f64) -> LoadReport {
        LoadReport { cpu: utilization, rps, eps, ..LoadReport::default() }
    }

    /// Every instance that has one sends its report each second, for 12 s.
    fn factors(reports: &[Option<LoadReport>]) -> Vec<f64> {
        let start = Instant::now();
        let (board, pool) = (LoadBoard::new(POLICY, start), pool(reports.len() as u32, start));
        for second in 0..12 {
            for (instance, report) in pool.iter().zip(reports).filter_map(|(i, report)| Some((i, (*report)?))) {
                (0..50).for_each(|_| drop(InFlight::start(&instance.vitals)));
                board.note(&pool, &instance.vitals, report, start + Duration::from_secs(second));
            }
        }
        let end = start + Duration::from_secs(12);
        pool.iter().map(|instance| (instance.vitals.load_share(end) * 1000.0).round() / 1000.0).collect()
    }

    #[test]
    fn weights_are_those_of_grfc_a58() {
        let cases: [(&[Option<LoadReport>], &[f64]); 6] = [
            (&[Some(report(0.2, 100.0, 0.0)), Some(report(0.8, 100.0, 0.0))], &[1.0, 0.25]),
            // Half of the requests fail, which counts as a utilisation of 0.5.
            (&[Some(report(0.5, 100.0, 0.0)), Some(report(0.5, 100.0, 50.0))], &[1.0, 0.5]),
            // Without a report: the mean.
            (&[Some(report(0.2, 100.0, 0.0)), Some(report(0.8, 100.0, 0.0)), None], &[1.0, 0.25, 0.625]),
            // One weight is none.
            (&[Some(report(0.2, 100.0, 0.0)), None], &[1.0, 1.0]),
            // Without a rate the gateway's own counts.
            (&[Some(report(0.2, 0.0, 0.0)), Some(report(0.4, 0.0, 0.0))], &[1.0, 0.5]),
            (&[Some(report(0.2, 1e6, 0.0)), Some(report(1.0, 1.0, 0.0))], &[1.0, 0.01]),
        ];
        for (reports, expected) in cases {
            assert_eq!(factors(reports), expected, "{reports:?}");
        }
    }

    #[test]
    fn nothing_moves_before_the_blackout_ends() {
        let start = Instant::now();
        let (board, pool) = (LoadBoard::new(POLICY, start), pool(2, start));
        let note = |second, who: usize, utilization| {
            let now = start + Duration::from_secs(second);
            board.note(&pool, &pool[who].vitals, report(utilization, 100.0, 0.0), now);
        };
        for second in 0..9 {
            note(second, 0, 0.2);
            note(second, 1, 0.8);
            assert_eq!(pool[1].vitals.load_share(start + Duration::from_secs(second)), 1.0);
        }
        (9..13).for_each(|second| (0..2).for_each(|who| note(second, who, [0.2, 0.8][who])));
        assert_eq!(pool[1].vitals.load_share(start + Duration::from_secs(13)), 0.25);
    }

    #[test]
    fn stale_reports_expire() {
        let start = Instant::now();
        let (board, pool) = (LoadBoard::new(POLICY, start), pool(3, start));
        let at = |second| start + Duration::from_secs(second);
        for second in 0..12 {
            for (instance, utilization) in pool.iter().zip([0.2, 0.8, 0.2]) {
                board.note(&pool, &instance.vitals, report(utilization, 100.0, 0.0), at(second));
            }
        }
        assert_eq!((pool[1].vitals.load_share(at(12)), pool[1].vitals.utilization(at(12))), (0.25, Some(0.8)));
        board.note(&pool, &pool[0].vitals, report(0.2, 100.0, 0.0), at(180));
        board.note(&pool, &pool[2].vitals, report(0.2, 100.0, 0.0), at(180));
        assert_eq!(pool[1].vitals.utilization(at(191)), None);
        board.note(&pool, &pool[0].vitals, report(0.2, 100.0, 0.0), at(192));
        assert_eq!(pool[1].vitals.load_share(at(192)), 1.0, "the mean of the others");
        assert!(pool[1].vitals.reported().report(at(192)).is_none());
    }

    #[test]
    fn factors_expire_when_nobody_reports_any_longer() {
        let start = Instant::now();
        let (board, pool) = (LoadBoard::new(POLICY, start), pool(2, start));
        let at = |second| start + Duration::from_secs(second);
        for second in 0..12 {
            for (instance, utilization) in pool.iter().zip([0.2, 0.8]) {
                board.note(&pool, &instance.vitals, report(utilization, 100.0, 0.0), at(second));
            }
        }
        assert_eq!(pool[1].vitals.load_share(at(190)), 0.25);
        assert_eq!(pool[1].vitals.load_share(at(192)), 1.0);
    }
}
