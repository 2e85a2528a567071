//! What the gateway tells of itself, and whom: access log, traces, metrics.

use std::path::PathBuf;

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::scalar::{Endpoint, HeaderName, LogTarget, Percent, Span};

/// What the gateway tells of itself. Whatever is written here goes before the `OTEL_*` variables of the environment,
/// which go before the defaults.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Telemetry {
    /// Access log. Default: none is written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access_log: Option<AccessLog>,
    /// Traces. Default: none are made, and trace headers pass like any others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traces: Option<Traces>,
    /// Metrics that are sent, besides those that are asked for at `/metrics`. Default: none are sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<MetricsExport>,
}

/// The access log: one line per request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AccessLog {
    /// `stdout`, `stderr` or the path of a file that lines are appended to.
    pub path: LogTarget,
    /// Form of the lines.
    pub format: LogFormat,
}

/// Form of the lines of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// A JSON object per line.
    #[default]
    Json,
}

/// Traces: a span per request and one per attempt, for the requests that are sampled.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Traces {
    /// Where spans are sent.
    pub otlp: Otlp,
    /// Share of the requests without a parent that is obeyed. Default: that of `OTEL_TRACES_SAMPLER_ARG`, or `1%`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample: Option<Percent>,
    /// Whose word on sampling is taken. Everybody's trace is joined; of those who are not trusted, `sample` decides.
    pub trust_parent: TrustParent,
    /// Formats of trace headers, in the order of preference: what comes in is read in the first one that is sound, and
    /// goes out in all of them. Default: those of `OTEL_PROPAGATORS`, or `[tracecontext, baggage]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub propagate: Option<Vec<Propagation>>,
    /// Requests whose spans are sent although they were not sampled. Whether they are is known when they end, so other
    /// services have nothing of such a trace.
    #[serde(skip_serializing_if = "Always::is_empty")]
    pub always: Always,
    /// Header that has a request sampled if it holds `trace`, signed as override tags are (`serin tag sign trace`); needs
    /// `tag_signing`. It is never passed on. Default: there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub debug_header: Option<HeaderName>,
}

/// Whose word on sampling is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TrustParent {
    /// Anybody's.
    Any,
    /// That of `trusted_proxies`.
    #[default]
    TrustedProxies,
    /// Nobody's.
    Never,
}

/// A format of trace headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Propagation {
    /// `traceparent` and `tracestate` (W3C Trace Context).
    Tracecontext,
    /// `baggage` (W3C Baggage): members that are malformed, or too many, are not passed on.
    Baggage,
    /// `b3`, all in one header (Zipkin).
    B3,
    /// `X-B3-TraceId` and those with it (Zipkin).
    B3multi,
}

/// Requests whose spans are sent although they were not sampled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Always {
    /// Those that failed: a status of 500 or more, a response that broke off, a gRPC status that says so.
    pub on_error: bool,
    /// Those that took longer than this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slow_over: Option<Span>,
}

impl Always {
    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A receiver of OTLP.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Otlp {
    /// Its URL; with `http`, `/v1/traces` or `/v1/metrics` is added. Default: that of `OTEL_EXPORTER_OTLP_ENDPOINT`, or
    /// `http://127.0.0.1:4317`, with `http` port 4318.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<Endpoint>,
    /// How it is spoken to. Default: that of `OTEL_EXPORTER_OTLP_PROTOCOL`, or `grpc`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<OtlpProtocol>,
    /// Header fields that it gets, besides those of `OTEL_EXPORTER_OTLP_HEADERS`, which is the place for secrets.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub headers: IndexMap<HeaderName, String>,
    /// How long it may take to answer. Default: that of `OTEL_EXPORTER_OTLP_TIMEOUT`, or `10s`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Span>,
    /// How what is sent is compressed. Default: that of `OTEL_EXPORTER_OTLP_COMPRESSION`, or `none`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compression: Option<Compression>,
    /// File of the certificates (PEM) that it is verified by, if its URL begins with `https`. Default: that of
    /// `OTEL_EXPORTER_OTLP_CERTIFICATE`, or those of the system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<PathBuf>,
}

/// Metrics that are sent: the same numbers as at `/metrics`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MetricsExport {
    /// Where they are sent, and how often.
    pub otlp: MetricsOtlp,
}

/// A receiver of OTLP, and how often it gets something.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MetricsOtlp {
    /// See `traces.otlp.endpoint`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<Endpoint>,
    /// See `traces.otlp.protocol`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<OtlpProtocol>,
    /// See `traces.otlp.headers`.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub headers: IndexMap<HeaderName, String>,
    /// See `traces.otlp.timeout`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Span>,
    /// See `traces.otlp.compression`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compression: Option<Compression>,
    /// See `traces.otlp.ca_file`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<PathBuf>,
    /// How often they are sent. Default: that of `OTEL_METRIC_EXPORT_INTERVAL`, or `1m`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<Span>,
}

impl MetricsOtlp {
    /// The receiver alone.
    #[must_use]
    pub fn receiver(&self) -> Otlp {
        let Self { endpoint, protocol, headers, timeout, compression, ca_file, .. } = self.clone();
        Otlp { endpoint, protocol, headers, timeout, compression, ca_file }
    }
}

/// How a receiver of OTLP is spoken to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OtlpProtocol {
    /// gRPC.
    #[default]
    Grpc,
    /// Protobuf over HTTP/1.1.
    Http,
}

/// How what is sent is compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Compression {
    /// Not at all.
    #[default]
    None,
    /// gzip.
    Gzip,
}
