//! Brings up to date what is only counted when somebody looks, before metrics are read or sent.

use std::time::Instant;

use crate::control::Control;
use crate::control::generation::Generation;
use crate::{limits, upkeep};

/// Brings the metrics of the generation in force up to date.
pub fn observe(control: &Control) {
    let (current, now) = (control.current(), Instant::now());
    limits::look(&current);
    for (service, side) in current.core.services.iter().zip(&current.services) {
        side.metrics.guard.refresh(service, now);
    }
    upkeep::observe(&current);
    control.metrics().sources.refresh(now);
    count_missed(control, &current);
}

/// Narrows count for themselves what they missed; the metrics take it over when somebody reads them.
fn count_missed(control: &Control, current: &Generation) {
    for service in &current.core.services {
        let subsets = service.subsets.iter().map(|subset| &subset.pool);
        for pool in subsets.chain([&service.any, &service.any_stable]) {
            for (narrow, count) in pool.chain.missed() {
                control.metrics().count_missed(&service.name, narrow, count);
            }
        }
    }
}
