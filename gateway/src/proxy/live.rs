//! What a finished request adds to the live numbers.

use std::time::Duration;

use super::ctx::Ctx;
use crate::telemetry::live::ServiceMeters;

/// Counts a finished request. Streams count with the time to their head, for they may last for days. What a limit
/// refused says nothing of any subset. `status` is what the request counts as ([`Ctx::judged`]).
pub(super) fn count(meters: &ServiceMeters, ctx: &Ctx, status: u16, duration: Duration) {
    let Some(upstream) = &ctx.upstream else { return };
    let refused = upstream.tried.is_empty() && matches!(ctx.error, Some("rate_limit" | "concurrency_limit"));
    let served = upstream.subset.filter(|_| !refused);
    let to_head = upstream.head_at.filter(|_| upstream.stream).map(|at| at.saturating_duration_since(ctx.start));
    meters.of(served).record(to_head.unwrap_or(duration), status >= 500);
    let meant = upstream.assignment.subset;
    if !refused && served != Some(meant) {
        meters.of(Some(meant)).miss();
    }
}
