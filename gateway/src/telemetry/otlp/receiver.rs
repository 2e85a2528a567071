//! The receiver of a signal: what the document says, then what the `OTEL_*` variables of the environment say
//! (<https://opentelemetry.io/docs/specs/otel/protocol/exporter/>), then the defaults.

use std::path::PathBuf;
use std::time::Duration;

use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use percent_encoding::percent_decode_str;

use super::Signal;
use crate::conf::{Compression, Endpoint, Otlp, OtlpProtocol};

/// How long a receiver may take, unless somebody says otherwise.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Reads a variable of the environment.
pub type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The environment of the process. What is empty is as if it were not set.
#[must_use]
pub fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.trim().is_empty())
}

/// A receiver.
#[derive(Clone, Debug)]
pub struct Receiver {
    /// Where messages go.
    pub uri: Uri,
    /// How.
    pub protocol: OtlpProtocol,
    /// With which fields.
    pub headers: HeaderMap,
    /// How long it may take.
    pub timeout: Duration,
    /// Whether they are compressed.
    pub compression: Compression,
    /// By which certificates it is verified.
    pub ca_file: Option<PathBuf>,
}

impl Receiver {
    /// The receiver of a signal.
    ///
    /// # Errors
    /// A variable that holds what it must not.
    pub fn resolve(conf: &Otlp, signal: Signal, env: Env<'_>) -> Result<Self, String> {
        let variable = |name: &str| Variable::of(signal, name, env);
        let protocol = match (conf.protocol, variable("PROTOCOL")) {
            (Some(protocol), _) => protocol,
            (None, Some(told)) => match &*told.value {
                "grpc" => OtlpProtocol::Grpc,
                "http/protobuf" => OtlpProtocol::Http,
                _ => return Err(told.refuse("grpc or http/protobuf")),
            },
            (None, None) => OtlpProtocol::default(),
        };
        let compression = match (conf.compression, variable("COMPRESSION")) {
            (Some(compression), _) => compression,
            (None, Some(told)) => match &*told.value {
                "gzip" => Compression::Gzip,
                "none" => Compression::None,
                _ => return Err(told.refuse("gzip or none")),
            },
            (None, None) => Compression::default(),
        };
        let timeout = match (conf.timeout, variable("TIMEOUT")) {
            (Some(timeout), _) => timeout.duration(),
            (None, Some(told)) => Duration::from_millis(told.number()?),
            (None, None) => TIMEOUT,
        };
        Ok(Self {
            uri: uri(conf.endpoint.as_ref(), protocol, signal, env)?,
            protocol,
            headers: headers(conf, variable("HEADERS").as_ref())?,
            timeout,
            compression,
            ca_file: conf.ca_file.clone().or_else(|| Some(variable("CERTIFICATE")?.value.into())),
        })
    }
}

/// A variable of the environment that is set.
pub(super) struct Variable {
    name: String,
    /// Its value.
    pub(super) value: String,
}

impl Variable {
    /// The variable of a signal alone, or that of all signals.
    fn of(signal: Signal, name: &str, env: Env<'_>) -> Option<Self> {
        let own = format!("OTEL_EXPORTER_OTLP_{}_{name}", signal.variable());
        Self::named(own, env).or_else(|| Self::named(format!("OTEL_EXPORTER_OTLP_{name}"), env))
    }

    /// A variable.
    pub(super) fn named(name: impl Into<String>, env: Env<'_>) -> Option<Self> {
        let name = name.into();
        env(&name).map(|value| Self { name, value: value.trim().to_owned() })
    }

    /// Its value as a number above 0.
    pub(super) fn number(&self) -> Result<u64, String> {
        let number = self.value.parse().ok().filter(|number| *number > 0);
        number.ok_or_else(|| self.refuse("a whole number above 0"))
    }

    /// What is wrong with it. Its value is not told: there are secrets among them.
    pub(super) fn refuse(&self, expected: &str) -> String {
        format!("{}: expected {expected}", self.name)
    }
}

fn uri(conf: Option<&Endpoint>, protocol: OtlpProtocol, signal: Signal, env: Env<'_>) -> Result<Uri, String> {
    let own = format!("OTEL_EXPORTER_OTLP_{}_ENDPOINT", signal.variable());
    let parse = |told: Variable| told.value.parse::<Endpoint>().map_err(|problem| format!("{}: {problem}", told.name));
    let (base, whole) = match conf {
        Some(endpoint) => (endpoint.clone(), false),
        None => match (Variable::named(own, env), Variable::named("OTEL_EXPORTER_OTLP_ENDPOINT", env)) {
            // That of one signal is taken as it is.
            (Some(own), _) => (parse(own)?, true),
            (None, Some(base)) => (parse(base)?, false),
            (None, None) => {
                let port = if protocol == OtlpProtocol::Grpc { 4317 } else { 4318 };
                (format!("http://127.0.0.1:{port}").parse()?, false)
            }
        },
    };
    let path = base.uri().path().trim_end_matches('/');
    let path = match protocol {
        OtlpProtocol::Grpc => signal.method().to_owned(),
        OtlpProtocol::Http if whole => base.uri().path().to_owned(),
        OtlpProtocol::Http if path.ends_with(signal.path()) => path.to_owned(),
        OtlpProtocol::Http => format!("{path}{}", signal.path()),
    };
    let mut parts = base.uri().clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::try_from(path).map_err(|error| error.to_string())?);
    Uri::from_parts(parts).map_err(|error| error.to_string())
}

/// The fields of the environment (`a=b,c=d`, with values that are percent-encoded), then those of the document.
fn headers(conf: &Otlp, told: Option<&Variable>) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    for pair in told.into_iter().flat_map(|told| told.value.split(',')).filter(|pair| !pair.trim().is_empty()) {
        let parsed = pair.split_once('=').and_then(|(name, value)| {
            let value = percent_decode_str(value.trim()).decode_utf8().ok()?;
            let mut value = HeaderValue::from_str(&value).ok()?;
            value.set_sensitive(true);
            Some((name.trim().parse::<HeaderName>().ok()?, value))
        });
        let (name, value) = parsed.ok_or_else(|| {
            told.as_ref()
                .map_or_else(String::new, |told| told.refuse("pairs such as api-key=secret, with commas between"))
        })?;
        headers.insert(name, value);
    }
    for (name, value) in &conf.headers {
        let value = HeaderValue::from_str(value).map_err(|error| format!("{name}: {error}"))?;
        headers.insert(name.0.clone(), value);
    }
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Variables and their values.
    type Vars<'a> = &'a [(&'a str, &'a str)];

    fn resolve(conf: &str, signal: Signal, vars: Vars<'_>) -> Result<Receiver, String> {
        let conf: Otlp = serde_json::from_str(conf).unwrap();
        let env = |name: &str| vars.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        Receiver::resolve(&conf, signal, &env)
    }

    #[test]
    fn the_document_goes_before_the_environment() {
        use Signal::{Metrics, Traces};
        let base = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://a:1/in/");
        let own = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://b:2/as/is");
        let http = ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf");
        let cases: [(&str, Signal, Vars<'_>, &str); 11] = [
            ("{}", Traces, &[], "http://127.0.0.1:4317/opentelemetry.proto.collector.trace.v1.TraceService/Export"),
            (
                "{}",
                Metrics,
                &[],
                "http://127.0.0.1:4317/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
            ),
            ("{}", Traces, &[http], "http://127.0.0.1:4318/v1/traces"),
            ("{}", Metrics, &[http, base], "http://a:1/in/v1/metrics"),
            ("{}", Traces, &[http, base, own], "http://b:2/as/is"),
            ("{}", Metrics, &[http, base, own], "http://a:1/in/v1/metrics"),
            ("{}", Traces, &[base], "http://a:1/opentelemetry.proto.collector.trace.v1.TraceService/Export"),
            (r#"{"endpoint": "https://c"}"#, Traces, &[http, base, own], "https://c/v1/traces"),
            (r#"{"endpoint": "http://c/v1/traces"}"#, Traces, &[http], "http://c/v1/traces"),
            (
                r#"{"protocol": "http"}"#,
                Traces,
                &[("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")],
                "http://127.0.0.1:4318/v1/traces",
            ),
            (
                "{}",
                Traces,
                &[("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc"), http],
                "http://127.0.0.1:4317/opentelemetry.proto.collector.trace.v1.TraceService/Export",
            ),
        ];
        for (conf, signal, vars, expected) in cases {
            assert_eq!(resolve(conf, signal, vars).unwrap().uri, *expected, "{conf} {vars:?}");
        }
    }

    #[test]
    fn fields_times_and_compression() {
        let vars = [
            ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=a%20b, x-team = core,"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "1500"),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
            ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/ca.pem"),
        ];
        let told = resolve(r#"{"headers": {"x-team": "edge"}}"#, Signal::Traces, &vars).unwrap();
        assert_eq!(
            (&told.headers["api-key"], &told.headers["x-team"]),
            (&"a b".parse().unwrap(), &"edge".parse().unwrap())
        );
        assert!(!format!("{told:?}").contains("a b"), "secrets are not shown");
        assert_eq!((told.timeout, told.compression), (Duration::from_millis(1500), Compression::Gzip));
        assert_eq!(told.ca_file, Some("/ca.pem".into()));
        let own = resolve(r#"{"timeout": "2s", "compression": "none"}"#, Signal::Traces, &vars).unwrap();
        assert_eq!((own.timeout, own.compression), (Duration::from_secs(2), Compression::None));
    }

    #[test]
    fn what_the_environment_must_not_hold() {
        for (name, value) in [
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "1s"),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "zstd"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "localhost:4317"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "hush"),
            ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "a b=hush"),
        ] {
            let problem = resolve("{}", Signal::Traces, &[(name, value)]).unwrap_err();
            assert!(problem.contains(name) && !problem.contains("hush"), "{problem}");
        }
    }
}
