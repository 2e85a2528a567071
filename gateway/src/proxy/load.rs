//! Load reports (ORCA) in responses: read, noted, and taken out.

use std::time::Instant;

use http::{HeaderMap, HeaderName};
use serin_core::load::{BadReport, LoadBoard, LoadReport};

use super::Edge;
use super::ctx::Ctx;
use crate::telemetry::metrics::ReportMetrics;

static TEXT: HeaderName = HeaderName::from_static("endpoint-load-metrics");
static BINARY: HeaderName = HeaderName::from_static("endpoint-load-metrics-bin");

/// What a service does with load reports.
pub struct LoadSide {
    /// Takes the reports.
    pub board: LoadBoard,
    /// Whether clients get them too.
    pub forward: bool,
    /// Counts them.
    pub metrics: ReportMetrics,
}

/// The report in a response's head or trailers, and its names, if there is one.
fn find(headers: &HeaderMap) -> Option<Result<LoadReport, BadReport>> {
    let text = headers.get(&TEXT).map(|value| LoadReport::parse(value.as_bytes()));
    text.or_else(|| headers.get(&BINARY).map(|value| LoadReport::base64(value.as_bytes())))
}

impl Edge {
    /// Notes the report in a response's head or trailers, if its service wants it. True if the fields that carry reports
    /// are to be taken out, with [`strip`]. A report that cannot be read is counted and else ignored.
    pub(super) fn note_report(&self, ctx: &Ctx, headers: &HeaderMap) -> bool {
        let Some(load) = ctx.service_side().and_then(|side| side.load.as_ref()) else { return false };
        let Some(found) = find(headers) else { return false };
        match (found, ctx.chosen(), &ctx.upstream) {
            (Ok(report), Some((_, service)), Some(upstream)) => {
                load.metrics.good.inc();
                let tried = upstream.tried.last().and_then(|&index| service.instances.get(index as usize));
                if let Some(instance) = tried {
                    load.board.note(&service.instances, &instance.vitals, report, Instant::now());
                }
            }
            _ => load.metrics.bad.inc(),
        }
        !load.forward
    }
}

/// Takes reports out by what removes a field.
pub(super) fn strip(mut remove: impl FnMut(&HeaderName)) {
    remove(&TEXT);
    remove(&BINARY);
}
