//! Counters of one route, by subset and status class. A combination becomes a series when it is first seen.

use std::sync::{Arc, OnceLock};

use prometheus::IntCounter;

use super::Metrics;
use crate::telemetry::names;

/// Counters of one route.
pub struct RouteMetrics {
    metrics: Arc<Metrics>,
    route: Arc<str>,
    service: Arc<str>,
    subsets: Vec<Arc<str>>,
    /// `None` for what is not in force any more when it is first seen.
    cells: Box<[OnceLock<Option<IntCounter>>]>,
}

impl Metrics {
    /// Counters of one route.
    #[must_use]
    pub fn route(self: &Arc<Self>, route: &Arc<str>, service: &Arc<str>, subsets: Vec<Arc<str>>) -> RouteMetrics {
        let cells = (0..(subsets.len() + 1) * names::CLASSES.len()).map(|_| OnceLock::new()).collect();
        RouteMetrics {
            metrics: Arc::clone(self),
            route: Arc::clone(route),
            service: Arc::clone(service),
            subsets,
            cells,
        }
    }
}

impl RouteMetrics {
    /// Name of the route's service; `none` if it has none.
    #[must_use]
    pub fn service(&self) -> &Arc<str> {
        &self.service
    }

    /// Counts a finished request; a subset of `None` is any.
    pub fn count(&self, subset: Option<usize>, status: u16) {
        let row = subset.unwrap_or(self.subsets.len());
        let class = names::class(status);
        let Some(cell) = self.cells.get(row * names::CLASSES.len() + class) else { return };
        if let Some(counter) = cell.get_or_init(|| self.series(row, names::CLASSES[class])) {
            counter.inc();
        }
    }

    fn series(&self, row: usize, class: &str) -> Option<IntCounter> {
        let subset = self.subsets.get(row).map_or("any", |subset| &**subset);
        let labels = [("route", &*self.route), ("service", &*self.service), ("subset", subset)];
        let kept = self.metrics.keeps(names::REQUESTS, &labels);
        kept.then(|| self.metrics.requests.with_label_values(&[&*self.route, &*self.service, subset, class]))
    }
}
