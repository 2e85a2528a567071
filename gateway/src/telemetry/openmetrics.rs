//! Metrics as text, in the form of OpenMetrics 1.0 (<https://prometheus.io/docs/specs/om/open_metrics_spec/>), which can
//! carry exemplars. It is what Prometheus asks for; the older form is prometheus' own encoder.

use std::fmt::{self, Display, Write};
use std::time::UNIX_EPOCH;

use prometheus::proto::{LabelPair, Metric, MetricFamily, MetricType};

use super::exemplars::{Exemplar, Exemplars};

/// Its media type.
pub const MEDIA_TYPE: &str = "application/openmetrics-text";
/// Its content type.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Whether somebody who accepts `accept` is to get it: it is named, and not refused.
#[must_use]
pub fn is_asked_for(accept: &str) -> bool {
    let mut ranges = accept.split(',').map(|range| range.split(';').map(str::trim));
    ranges.any(|mut range| {
        range.next().is_some_and(|kind| kind.eq_ignore_ascii_case(MEDIA_TYPE))
            && !range.any(|parameter| matches!(parameter, "q=0" | "q=0.0" | "q=0.00" | "q=0.000"))
    })
}

/// Writes families.
///
/// # Errors
/// Only those of the writer.
pub fn write(out: &mut impl Write, families: &[MetricFamily], exemplars: &Exemplars) -> fmt::Result {
    for family in families {
        let kind = family.get_field_type();
        let (name, kind) = match kind {
            // A counter's family has no suffix; its samples have.
            MetricType::COUNTER => (family.name().strip_suffix("_total").unwrap_or(family.name()), "counter"),
            MetricType::GAUGE => (family.name(), "gauge"),
            MetricType::HISTOGRAM => (family.name(), "histogram"),
            MetricType::SUMMARY | MetricType::UNTYPED => continue,
        };
        writeln!(out, "# TYPE {name} {kind}")?;
        writeln!(out, "# HELP {name} {}", Escaped(family.help()))?;
        for metric in family.get_metric() {
            match family.get_field_type() {
                MetricType::COUNTER => {
                    sample(out, name, "_total", metric, None, Number(metric.get_counter().get_value()))?
                }
                MetricType::GAUGE => sample(out, name, "", metric, None, Number(metric.get_gauge().get_value()))?,
                _ => histogram(out, name, metric, &exemplars.of(name, metric.get_label()))?,
            }
            if family.get_field_type() != MetricType::HISTOGRAM {
                out.write_char('\n')?;
            }
        }
    }
    out.write_str("# EOF\n")
}

fn histogram(out: &mut impl Write, name: &str, metric: &Metric, exemplars: &[Option<Exemplar>]) -> fmt::Result {
    let told = metric.get_histogram();
    let finite = told.get_bucket().iter().filter(|bucket| bucket.upper_bound().is_finite());
    let buckets = finite.map(|bucket| (bucket.upper_bound(), bucket.cumulative_count()));
    for (at, (bound, count)) in buckets.chain([(f64::INFINITY, told.get_sample_count())]).enumerate() {
        sample(out, name, "_bucket", metric, Some(bound), count)?;
        if let Some(Some(exemplar)) = exemplars.get(at) {
            let seconds = exemplar.at.duration_since(UNIX_EPOCH).unwrap_or_default();
            let (trace, span) = (exemplar.trace_id, exemplar.span_id);
            write!(out, " # {{trace_id=\"{trace}\",span_id=\"{span}\"}} {}", Number(exemplar.value))?;
            write!(out, " {}.{:03}", seconds.as_secs(), seconds.subsec_millis())?;
        }
        out.write_char('\n')?;
    }
    sample(out, name, "_sum", metric, None, Number(told.get_sample_sum()))?;
    out.write_char('\n')?;
    sample(out, name, "_count", metric, None, told.get_sample_count())?;
    out.write_char('\n')
}

/// A sample, without the end of its line.
fn sample(
    out: &mut impl Write,
    name: &str,
    suffix: &str,
    metric: &Metric,
    bound: Option<f64>,
    value: impl Display,
) -> fmt::Result {
    write!(out, "{name}{suffix}")?;
    let labels: &[LabelPair] = metric.get_label();
    if !labels.is_empty() || bound.is_some() {
        out.write_char('{')?;
        for (at, label) in labels.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            write!(out, "{comma}{}=\"{}\"", label.name(), Escaped(label.value()))?;
        }
        if let Some(bound) = bound {
            let comma = if labels.is_empty() { "" } else { "," };
            write!(out, "{comma}le=\"{}\"", Number(bound))?;
        }
        out.write_char('}')?;
    }
    write!(out, " {value}")
}

/// A number in the canonical form of the specification: `1.0` for 1, `1e-07` for what is small.
struct Number(f64);

impl Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            f64::INFINITY => f.write_str("+Inf"),
            f64::NEG_INFINITY => f.write_str("-Inf"),
            number if number.is_nan() => f.write_str("NaN"),
            number if number != 0.0 && number.abs() < 1e-4 => {
                let text = format!("{number:e}");
                let (digits, exponent) = text.split_once("e-").unwrap_or((&text, "0"));
                write!(f, "{digits}e-{exponent:0>2}")
            }
            number => write!(f, "{number:?}"),
        }
    }
}

/// A text as it stands between quotes.
struct Escaped<'a>(&'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| match c {
            '\n' => f.write_str("\\n"),
            '\\' => f.write_str("\\\\"),
            '"' => f.write_str("\\\""),
            c => f.write_char(c),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use opentelemetry::trace::{SpanId, TraceId};
    use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, IntGauge, Opts, Registry};

    use super::*;
    use crate::telemetry::names;

    #[test]
    fn who_gets_it() {
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        let cases = [
            (prometheus, true),
            ("application/OpenMetrics-Text", true),
            ("*/*", false),
            ("", false),
            ("text/plain", false),
            ("application/openmetrics-text;q=0, text/plain", false),
        ];
        for (accept, asked) in cases {
            assert_eq!(is_asked_for(accept), asked, "{accept}");
        }
    }

    #[test]
    fn numbers_are_canonical() {
        let cases = [
            (1.0, "1.0"),
            (0.0, "0.0"),
            (1e-4, "0.0001"),
            (1e-5, "1e-05"),
            (2.5e-7, "2.5e-07"),
            (f64::INFINITY, "+Inf"),
        ];
        for (number, text) in cases {
            assert_eq!(Number(number).to_string(), text);
        }
    }

    #[test]
    fn the_text_is_that_of_the_specification() {
        let registry = Registry::new();
        let counters = IntCounterVec::new(Opts::new("a_total", "A \"\\\n."), &["code"]).unwrap();
        let gauge = IntGauge::new("b", "B.").unwrap();
        let options = HistogramOpts::new(names::REQUEST_SECONDS, "C.").buckets(vec![0.1, 1.0]);
        let histograms = HistogramVec::new(options, &["service", "subset"]).unwrap();
        registry.register(Box::new(counters.clone())).unwrap();
        registry.register(Box::new(gauge.clone())).unwrap();
        registry.register(Box::new(histograms.clone())).unwrap();
        counters.with_label_values(&["2\"x\n"]).inc_by(7);
        gauge.set(-3);
        histograms.with_label_values(&["users", "v1"]).observe(0.5);
        let exemplars = Exemplars::default();
        exemplars.slots(&"users".into(), "v1", &[0.1, 1.0]).note(Exemplar {
            trace_id: TraceId::from(1),
            span_id: SpanId::from(2),
            value: 0.5,
            at: UNIX_EPOCH + Duration::from_millis(1_500),
        });
        let mut text = String::new();
        write(&mut text, &registry.gather(), &exemplars).unwrap();
        let expected = r#"# TYPE a counter
# HELP a A \"\\\n.
a_total{code="2\"x\n"} 7.0
# TYPE b gauge
# HELP b B.
b -3.0
# TYPE serin_request_duration_seconds histogram
# HELP serin_request_duration_seconds C.
serin_request_duration_seconds_bucket{service="users",subset="v1",le="0.1"} 0
serin_request_duration_seconds_bucket{service="users",subset="v1",le="1.0"} 1 # {trace_id="00000000000000000000000000000001",span_id="0000000000000002"} 0.5 1.500
serin_request_duration_seconds_bucket{service="users",subset="v1",le="+Inf"} 1
serin_request_duration_seconds_sum{service="users",subset="v1"} 0.5
serin_request_duration_seconds_count{service="users",subset="v1"} 1
# EOF
"#;
        assert_eq!(text, expected);
    }
}
