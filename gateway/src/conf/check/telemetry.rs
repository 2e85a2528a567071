//! Checks of what the gateway tells of itself.

use super::super::bootstrap::Bootstrap;
use super::super::problem::At;
use super::super::telemetry::{Otlp, Traces};
use super::Report;
use super::service::positive;

/// Checks the section `telemetry` of a bootstrap document.
pub(super) fn telemetry(document: &Bootstrap, report: &mut Report<'_>) {
    let at = At::ROOT.key("telemetry");
    if let Some(conf) = &document.telemetry.traces {
        traces(conf, document.tag_signing.is_some(), &at.key("traces"), report);
    }
    if let Some(conf) = &document.telemetry.metrics {
        let (metrics, at) = (&conf.otlp, at.key("metrics"));
        let at = at.key("otlp");
        receiver(&metrics.receiver(), &at, report);
        positive(metrics.interval, &at.key("interval"), report);
    }
}

fn traces(conf: &Traces, has_key: bool, at: &At<'_>, report: &mut Report<'_>) {
    receiver(&conf.otlp, &at.key("otlp"), report);
    let list = at.key("propagate");
    let formats = conf.propagate.as_deref().unwrap_or_default();
    for (index, format) in formats.iter().enumerate() {
        if formats[..index].contains(format) {
            report.say(&list.index(index), "the format is here a second time");
        }
    }
    positive(conf.always.slow_over, &at.key("always").key("slow_over"), report);
    if conf.debug_header.is_some() && !has_key {
        report.say(&at.key("debug_header"), "needs a key that it is signed with: set `tag_signing`");
    }
}

fn receiver(conf: &Otlp, at: &At<'_>, report: &mut Report<'_>) {
    positive(conf.timeout, &at.key("timeout"), report);
    let headers = at.key("headers");
    for (name, value) in &conf.headers {
        if http::HeaderValue::from_str(value).is_err() {
            report.say(&headers.key(name.as_str()), "is no value of a header");
        }
    }
}
