//! Sends metrics: the families of `/metrics`, under the same names, as OTLP has them.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Exemplar, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint, ResourceMetrics,
    ScopeMetrics, Sum, exemplar, metric, number_data_point,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use pingora::server::ShutdownWatch;
use pingora::services::background::BackgroundService;
use prometheus::proto::{self, MetricFamily, MetricType};
use prost::Message as _;
use tokio::sync::Mutex;
use tokio::time::MissedTickBehavior;

use super::client::Client;
use super::receiver::{Env, Variable};
use super::{Complaint, SCHEMA, SCOPE, Signal, deliver, unix_nanos};
use crate::conf::MetricsOtlp;
use crate::control::Control;
use crate::telemetry::exemplars::{self, Exemplars};
use crate::telemetry::observe::observe;

/// How often metrics are sent, unless somebody says otherwise (the specification's default).
const INTERVAL: Duration = Duration::from_secs(60);

/// How often metrics are sent.
///
/// # Errors
/// A variable that is no number.
pub fn interval(conf: &MetricsOtlp, env: Env<'_>) -> Result<Duration, String> {
    match (conf.interval, Variable::named("OTEL_METRIC_EXPORT_INTERVAL", env)) {
        (Some(interval), _) => Ok(interval.duration()),
        (None, Some(told)) => told.number().map(Duration::from_millis),
        (None, None) => Ok(INTERVAL),
    }
}

/// Sends metrics in the background.
pub struct MetricsExport {
    /// Whose metrics they are.
    pub control: Arc<Control>,
    /// Who they are from.
    pub resource: Resource,
    /// How often they are sent.
    pub interval: Duration,
    /// Whom to.
    pub client: Mutex<Client>,
    /// When counting began.
    pub start: SystemTime,
}

#[async_trait]
impl BackgroundService for MetricsExport {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        let mut ticks = tokio::time::interval_at(tokio::time::Instant::now() + self.interval, self.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut complaint = Complaint::default();
        loop {
            tokio::select! {
                _ = ticks.tick() => self.send(&mut complaint).await,
                _ = shutdown.changed() => return,
            }
        }
    }
}

impl MetricsExport {
    async fn send(&self, complaint: &mut Complaint) {
        observe(&self.control);
        let metrics = self.control.metrics();
        let message = message(&self.resource, &metrics.gather(), &metrics.exemplars, self.start, SystemTime::now());
        let outcome = deliver(&mut *self.client.lock().await, message).await;
        metrics.count_metrics_export(outcome.is_ok());
        complaint.note(Signal::Metrics, outcome.map(drop).as_ref().copied());
    }
}

/// An `ExportMetricsServiceRequest` of families.
fn message(
    resource: &Resource,
    families: &[MetricFamily],
    exemplars: &Exemplars,
    start: SystemTime,
    now: SystemTime,
) -> Bytes {
    let span = (unix_nanos(start), unix_nanos(now));
    let scope = InstrumentationScope {
        name: SCOPE.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    };
    let metrics = families.iter().filter_map(|family| of_family(family, exemplars, span)).collect();
    let scope_metrics = ScopeMetrics { scope: Some(scope), metrics, schema_url: SCHEMA.to_owned() };
    let resource_metrics = ResourceMetrics {
        resource: Some(resource.clone()),
        scope_metrics: vec![scope_metrics],
        ..ResourceMetrics::default()
    };
    ExportMetricsServiceRequest { resource_metrics: vec![resource_metrics] }.encode_to_vec().into()
}

/// A family; `None` for kinds that there are none of.
fn of_family(family: &MetricFamily, exemplars: &Exemplars, span: (u64, u64)) -> Option<Metric> {
    let temporality = AggregationTemporality::Cumulative.into();
    let numbers = |value: fn(&proto::Metric) -> f64, start| {
        family.get_metric().iter().map(|metric| number(metric, value(metric), (start, span.1))).collect()
    };
    let data = match family.get_field_type() {
        MetricType::COUNTER => metric::Data::Sum(Sum {
            data_points: numbers(|metric| metric.get_counter().get_value(), span.0),
            aggregation_temporality: temporality,
            is_monotonic: true,
        }),
        MetricType::GAUGE => {
            metric::Data::Gauge(Gauge { data_points: numbers(|metric| metric.get_gauge().get_value(), 0) })
        }
        MetricType::HISTOGRAM => metric::Data::Histogram(Histogram {
            data_points: family.get_metric().iter().map(|m| histogram(family.name(), m, exemplars, span)).collect(),
            aggregation_temporality: temporality,
        }),
        MetricType::SUMMARY | MetricType::UNTYPED => return None,
    };
    let unit = unit(family.name()).to_owned();
    let (name, description) = (family.name().to_owned(), family.help().to_owned());
    Some(Metric { name, description, unit, data: Some(data), ..Metric::default() })
}

/// The unit that a name ends in (<https://ucum.org>).
fn unit(name: &str) -> &'static str {
    let base = name.strip_suffix("_total").unwrap_or(name);
    [("_seconds", "s"), ("_bytes", "By"), ("_ratio", "1")]
        .iter()
        .find_map(|(suffix, unit)| base.ends_with(suffix).then_some(*unit))
        .unwrap_or_default()
}

fn number(metric: &proto::Metric, value: f64, (start, now): (u64, u64)) -> NumberDataPoint {
    NumberDataPoint {
        attributes: attributes(metric),
        start_time_unix_nano: start,
        time_unix_nano: now,
        value: Some(number_data_point::Value::AsDouble(value)),
        ..NumberDataPoint::default()
    }
}

fn histogram(name: &str, metric: &proto::Metric, all: &Exemplars, (start, now): (u64, u64)) -> HistogramDataPoint {
    let told = metric.get_histogram();
    // Prometheus' buckets are cumulative, and the last one may be left out; OTLP's are not, and it may not.
    let finite = || told.get_bucket().iter().filter(|bucket| bucket.upper_bound().is_finite());
    let ends = finite().map(|bucket| bucket.cumulative_count()).chain([told.get_sample_count()]);
    let counts = ends.scan(0, |before, end| Some(end.saturating_sub(std::mem::replace(before, end))));
    let exemplar = |exemplar: exemplars::Exemplar| Exemplar {
        time_unix_nano: unix_nanos(exemplar.at),
        span_id: exemplar.span_id.to_bytes().to_vec(),
        trace_id: exemplar.trace_id.to_bytes().to_vec(),
        value: Some(exemplar::Value::AsDouble(exemplar.value)),
        ..Exemplar::default()
    };
    HistogramDataPoint {
        attributes: attributes(metric),
        start_time_unix_nano: start,
        time_unix_nano: now,
        count: told.get_sample_count(),
        sum: Some(told.get_sample_sum()),
        bucket_counts: counts.collect(),
        explicit_bounds: finite().map(|bucket| bucket.upper_bound()).collect(),
        exemplars: all.of(name, metric.get_label()).into_iter().flatten().map(exemplar).collect(),
        ..HistogramDataPoint::default()
    }
}

fn attributes(metric: &proto::Metric) -> Vec<KeyValue> {
    let pair = |label: &proto::LabelPair| KeyValue {
        key: label.name().to_owned(),
        value: Some(AnyValue { value: Some(any_value::Value::StringValue(label.value().to_owned())) }),
        ..KeyValue::default()
    };
    metric.get_label().iter().map(pair).collect()
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, IntGauge, Opts, Registry};

    use super::*;

    #[test]
    fn families_are_told_as_they_are() {
        let registry = Registry::new();
        let counters = IntCounterVec::new(Opts::new("a_total", "A."), &["code"]).unwrap();
        let gauge = IntGauge::new("b", "B.").unwrap();
        let histograms =
            HistogramVec::new(HistogramOpts::new("c_seconds", "C.").buckets(vec![0.1, 1.0]), &["service"]).unwrap();
        registry.register(Box::new(counters.clone())).unwrap();
        registry.register(Box::new(gauge.clone())).unwrap();
        registry.register(Box::new(histograms.clone())).unwrap();
        counters.with_label_values(&["2xx"]).inc_by(7);
        gauge.set(-3);
        for value in [0.05, 0.5, 0.6, 7.0] {
            histograms.with_label_values(&["users"]).observe(value);
        }
        let (start, now) = (UNIX_EPOCH + Duration::from_nanos(5), UNIX_EPOCH + Duration::from_nanos(9));
        let message = message(&Resource::default(), &registry.gather(), &Exemplars::default(), start, now);
        let read = ExportMetricsServiceRequest::decode(message).unwrap();
        let [a, b, c] = &read.resource_metrics[0].scope_metrics[0].metrics[..] else { panic!("{read:?}") };
        let Some(metric::Data::Sum(sum)) = &a.data else { panic!("{a:?}") };
        assert!(sum.is_monotonic && sum.aggregation_temporality == 2);
        let point = &sum.data_points[0];
        assert_eq!(
            (point.value, point.start_time_unix_nano, point.time_unix_nano),
            (Some(number_data_point::Value::AsDouble(7.0)), 5, 9)
        );
        assert_eq!((point.attributes[0].key.as_str(), a.description.as_str()), ("code", "A."));
        let Some(metric::Data::Gauge(gauge)) = &b.data else { panic!("{b:?}") };
        assert_eq!(gauge.data_points[0].value, Some(number_data_point::Value::AsDouble(-3.0)));
        let Some(metric::Data::Histogram(histogram)) = &c.data else { panic!("{c:?}") };
        let point = &histogram.data_points[0];
        assert_eq!((&*point.bucket_counts, &*point.explicit_bounds), (&[1, 2, 1][..], &[0.1, 1.0][..]));
        assert_eq!((point.count, c.unit.as_str()), (4, "s"));
    }
}
