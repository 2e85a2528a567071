//! Makes of the configuration what sends telemetry: the tracer that requests use, and the services that run behind it.

use std::sync::Arc;
use std::time::SystemTime;

use opentelemetry_proto::tonic::resource::v1::Resource;
use tokio::sync::Mutex;

use super::otlp::Signal;
use super::otlp::client::Client;
use super::otlp::metrics::{MetricsExport, interval};
use super::otlp::receiver::{Env, Receiver};
use super::otlp::resource::resource;
use super::otlp::spans::{Flush, SpanExport};
use super::traces::queue::Batching;
use super::traces::{Policy, Share, Tracer};
use crate::conf::{self, Percent, Propagation, TrustParent};
use crate::control::Control;

/// What sends telemetry; all of it is optional.
#[derive(Default)]
pub struct Exports {
    /// Makes traces.
    pub tracer: Option<Tracer>,
    /// Sends spans.
    pub spans: Option<SpanExport>,
    /// Has spans that wait sent at once.
    pub flush: Option<Flush>,
    /// Sends metrics.
    pub metrics: Option<MetricsExport>,
}

impl Exports {
    /// What the bootstrap document and the environment ask for.
    ///
    /// # Errors
    /// A sentence about a variable that holds what it must not, or certificates that cannot be read.
    pub fn new(control: &Arc<Control>, env: Env<'_>) -> Result<Self, String> {
        let telemetry = &control.bootstrap.telemetry;
        if env("OTEL_SDK_DISABLED").is_some_and(|told| told.eq_ignore_ascii_case("true")) {
            return Ok(Self::default());
        }
        let resource = resource(&control.bootstrap.node, env);
        let mut exports = Self::default();
        if let Some(conf) = telemetry.traces.as_ref().filter(|_| !is_none("OTEL_TRACES_EXPORTER", env)) {
            exports.trace(conf, &resource, control, env)?;
        }
        if let Some(conf) = telemetry.metrics.as_ref().filter(|_| !is_none("OTEL_METRICS_EXPORTER", env)) {
            let receiver = Receiver::resolve(&conf.otlp.receiver(), Signal::Metrics, env)?;
            exports.metrics = Some(MetricsExport {
                control: Arc::clone(control),
                resource,
                interval: interval(&conf.otlp, env)?,
                client: Mutex::new(Client::new(receiver)?),
                start: SystemTime::now(),
            });
        }
        Ok(exports)
    }

    fn trace(
        &mut self,
        conf: &conf::Traces,
        resource: &Resource,
        control: &Control,
        env: Env<'_>,
    ) -> Result<(), String> {
        let client = Client::new(Receiver::resolve(&conf.otlp, Signal::Traces, env)?)?;
        let counters = control.metrics().spans.clone();
        let dropped = counters.overflow.clone();
        let (spans, queue, flush) = SpanExport::new(client, resource, Batching::resolve(env)?, counters);
        self.tracer = Some(Tracer::new(policy(conf, env)?, queue, dropped));
        (self.spans, self.flush) = (Some(spans), Some(flush));
        Ok(())
    }
}

/// Whether a signal is turned off by a variable that names its exporter.
fn is_none(name: &str, env: Env<'_>) -> bool {
    env(name).is_some_and(|told| told.trim().eq_ignore_ascii_case("none"))
}

/// How requests are traced.
fn policy(conf: &conf::Traces, env: Env<'_>) -> Result<Policy, String> {
    let sampler = Sampler::resolve(env)?;
    let share = conf.sample.map(Share::from).or(sampler.share);
    Ok(Policy {
        sample: share.unwrap_or_else(|| Share::from(Percent::of_whole(1))),
        trust: if sampler.ignores_parents { TrustParent::Never } else { conf.trust_parent },
        formats: conf.propagate.clone().unwrap_or_else(|| propagators(env)).into(),
        on_error: conf.always.on_error,
        slow_over: conf.always.slow_over.map(|limit| limit.duration()),
        debug_header: conf.debug_header.as_ref().map(|name| name.0.clone()),
    })
}

/// The formats of `OTEL_PROPAGATORS`. What is not known is left out with a warning, as the specification has it.
fn propagators(env: Env<'_>) -> Vec<Propagation> {
    let Some(told) = env("OTEL_PROPAGATORS") else { return vec![Propagation::Tracecontext, Propagation::Baggage] };
    let known = |name: &str| match name {
        "tracecontext" => Some(Propagation::Tracecontext),
        "baggage" => Some(Propagation::Baggage),
        "b3" => Some(Propagation::B3),
        "b3multi" => Some(Propagation::B3multi),
        "none" | "" => None,
        _ => {
            tracing::warn!(name, "OTEL_PROPAGATORS names a format that there is none of here");
            None
        }
    };
    let mut formats = Vec::new();
    for format in told.split(',').filter_map(|name| known(name.trim())) {
        if !formats.contains(&format) {
            formats.push(format);
        }
    }
    formats
}

/// What `OTEL_TRACES_SAMPLER` says.
#[derive(Debug, Default, PartialEq)]
struct Sampler {
    share: Option<Share>,
    ignores_parents: bool,
}

impl Sampler {
    fn resolve(env: Env<'_>) -> Result<Self, String> {
        let Some(told) = env("OTEL_TRACES_SAMPLER") else { return Ok(Self::default()) };
        let ratio = || {
            let ratio = env("OTEL_TRACES_SAMPLER_ARG").map_or(Some(1.0), |told| told.trim().parse::<f64>().ok());
            let ratio = ratio.filter(|ratio| (0.0..=1.0).contains(ratio));
            ratio.map(Share::of).ok_or_else(|| "OTEL_TRACES_SAMPLER_ARG: expected a number from 0 to 1".to_owned())
        };
        let (kind, parents) =
            told.trim().strip_prefix("parentbased_").map_or((told.trim(), false), |kind| (kind, true));
        let share = match kind {
            "always_on" => Share::of(1.0),
            "always_off" => Share::of(0.0),
            "traceidratio" => ratio()?,
            _ => return Err(
                "OTEL_TRACES_SAMPLER: expected always_on, always_off, traceidratio or parentbased_ before one of them"
                    .to_owned(),
            ),
        };
        Ok(Self { share: Some(share), ignores_parents: !parents })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_propagators_of_the_environment() {
        use Propagation::{B3, Baggage, Tracecontext};
        let cases: [(Option<&str>, &[Propagation]); 4] = [
            (None, &[Tracecontext, Baggage]),
            (Some("b3, tracecontext,b3"), &[B3, Tracecontext]),
            (Some("jaeger,baggage"), &[Baggage]),
            (Some("none"), &[]),
        ];
        for (told, formats) in cases {
            assert_eq!(propagators(&|_| told.map(str::to_owned)), formats, "{told:?}");
        }
    }

    #[test]
    fn the_sampler_of_the_environment() {
        let sampler = |told: &str, arg: Option<&str>| {
            Sampler::resolve(&|name| match name {
                "OTEL_TRACES_SAMPLER" => Some(told.to_owned()),
                _ => arg.map(str::to_owned),
            })
        };
        let cases = [
            ("always_on", None, 1.0, true),
            ("always_off", None, 0.0, true),
            ("traceidratio", Some("0.25"), 0.25, true),
            ("parentbased_traceidratio", Some("0.5"), 0.5, false),
            ("parentbased_traceidratio", None, 1.0, false),
            ("parentbased_always_on", None, 1.0, false),
        ];
        for (told, arg, share, ignores_parents) in cases {
            let expected = Sampler { share: Some(Share::of(share)), ignores_parents };
            assert_eq!(sampler(told, arg), Ok(expected), "{told} {arg:?}");
        }
        assert!(sampler("jaeger_remote", None).unwrap_err().contains("OTEL_TRACES_SAMPLER:"));
        assert!(sampler("traceidratio", Some("2")).unwrap_err().contains("OTEL_TRACES_SAMPLER_ARG"));
        assert_eq!(Sampler::resolve(&|_| None), Ok(Sampler::default()));
    }
}
