//! `load_reports`: thins the candidates out by the load that they report. A service with `load_reports` has it at the
//! end of its narrows by itself.

use std::sync::Arc;

use rand::Rng;
use serin_core::candidates::Candidates;
use serin_core::chain::{Narrow, Narrowing, PickCx};
use serin_core::instance::Instance;
use serin_core::plugin::{BuildError, Node, Plugin};

use crate::Empty;

/// Keeps each candidate with the probability of its load factor (see [`serin_core::load`]), so that over many requests
/// it has that part of its weight with any pick. If none is left, all stay.
#[derive(Debug)]
pub struct LoadReports;

impl Plugin for LoadReports {
    const NAME: &'static str = "load_reports";
    type Conf = Empty;
    type Made = dyn Narrowing;

    fn build(_conf: Empty, _node: &Node) -> Result<Arc<dyn Narrowing>, BuildError> {
        Ok(Arc::new(Self))
    }
}

impl Narrowing for LoadReports {
    fn prepare(&self, _pool: &[Instance]) -> Arc<dyn Narrow> {
        Arc::new(Self)
    }
}

impl Narrow for LoadReports {
    fn narrow(&self, cx: &mut PickCx<'_>, candidates: &mut Candidates<'_>) {
        let now = cx.now;
        let factors = candidates.iter().map(|(_, instance)| instance.vitals.load_factor(now));
        let (least, most) = factors.fold((f64::INFINITY, 0.0f64), |(least, most), f| (least.min(f), most.max(f)));
        if least >= most {
            return;
        }
        let mut draws = Draws::default();
        candidates.retain(|_, instance| {
            let part = instance.vitals.load_factor(now) / most;
            part >= 1.0 || draws.next(cx.rng) < part
        });
    }
}

/// Numbers in [0, 1), four to a call of the generator.
#[derive(Default)]
struct Draws {
    bits: u64,
    left: u32,
}

impl Draws {
    fn next(&mut self, rng: &mut dyn Rng) -> f64 {
        if self.left == 0 {
            (self.bits, self.left) = (rng.next_u64(), 4);
        }
        let drawn = (self.bits & 0xffff) as f64 / 65_536.0;
        self.bits >>= 16;
        self.left -= 1;
        drawn
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serin_core::load::{LoadBoard, LoadPolicy, LoadReport};

    use super::*;
    use crate::laws::with_cx;
    use crate::testing::{pool, rng};

    /// How often each slot of 10,000 pools is left, with these utilisations at the same rate.
    fn left(utilizations: &[f64]) -> Vec<f64> {
        let (pool, now) = (pool(&vec![100; utilizations.len()]), std::time::Instant::now());
        let (second, zero) = (Duration::from_secs(1), Duration::ZERO);
        let policy =
            LoadPolicy { expire_after: second, update_every: zero, blackout: zero, error_penalty: 1.0, weights: true };
        let board = LoadBoard::new(policy, now);
        for (instance, &cpu) in pool.iter().zip(utilizations) {
            board.note(&pool, &instance.vitals, LoadReport { cpu, rps: 100.0, ..LoadReport::default() }, now);
        }
        let (mut rng, mut counts) = (rng(3), vec![0.0; pool.len()]);
        for _ in 0..10_000 {
            let mut candidates = Candidates::new(&pool);
            with_cx(&mut rng, 0, &[], |cx| {
                cx.now = now;
                LoadReports.narrow(cx, &mut candidates);
            });
            assert!(!candidates.is_empty());
            candidates.slots().for_each(|slot| counts[slot] += 1e-4);
        }
        counts
    }

    #[test]
    fn a_candidate_stays_as_often_as_its_factor_says() {
        let cases: [(&[f64], &[f64]); 4] = [
            (&[0.5, 0.5, 0.5], &[1.0, 1.0, 1.0]),
            (&[0.2, 0.8], &[1.0, 0.25]),
            (&[0.8, 0.4, 0.2, 0.2, 0.8, 0.2], &[0.25, 0.5, 1.0, 1.0, 0.25, 1.0]),
            (&[0.5], &[1.0]),
        ];
        for (utilizations, wanted) in cases {
            for (found, wanted) in left(utilizations).iter().zip(wanted) {
                assert!((found - wanted).abs() < 0.02, "{utilizations:?}: {found} for {wanted}");
            }
        }
    }
}
