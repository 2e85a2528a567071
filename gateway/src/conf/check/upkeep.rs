//! Checks of what keeps instances and connections in shape: health checks and connection pools.

use std::time::Duration;

use http::uri::{Authority, PathAndQuery};

use super::super::problem::At;
use super::super::routing::{Probe, Service, UpstreamProtocol};
use super::Report;
use super::service::positive;

/// Shortest and longest time between two checks of an instance.
const INTERVAL: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(3_600));

/// Checks how a service's instances are checked.
pub(super) fn health_check(service: &Service, at: &At<'_>, report: &mut Report<'_>) {
    let Some(check) = &service.health_check else { return };
    let at = at.key("health_check");
    let interval = check.interval.duration();
    if interval < INTERVAL.0 || interval > INTERVAL.1 {
        report.say(&at.key("interval"), format!("expected `100ms` to `1h`, got `{}`", check.interval));
    }
    positive(Some(check.timeout), &at.key("timeout"), report);
    if check.timeout > check.interval {
        let message = format!("must be at most the interval: `{}` is more than `{}`", check.timeout, check.interval);
        report.say(&at.key("timeout"), message);
    }
    match &check.probe {
        Probe::Http(http) => {
            let at = at.key("http");
            if !http.path.starts_with('/') || http.path.parse::<PathAndQuery>().is_err() {
                report.say(&at.key("path"), format!("expected a path such as `/healthz`, got {:?}", http.path));
            }
            if let Some(host) = &http.host
                && (host.contains('@') || host.parse::<Authority>().is_err())
            {
                report.say(&at.key("host"), format!("{host:?} is no host such as `users.internal` or `10.0.0.1:80`"));
            }
        }
        Probe::Grpc(_) if service.protocol == UpstreamProtocol::Http1 => {
            report.say(&at.key("grpc"), "gRPC needs HTTP/2, and this service has the protocol `http1`: set `protocol`");
        }
        Probe::Grpc(_) | Probe::Tcp(_) => {}
    }
}

/// Checks how a service's connections are kept.
pub(super) fn pool(service: &Service, at: &At<'_>, report: &mut Report<'_>) {
    let (pool, at) = (&service.pool, at.key("pool"));
    positive(Some(pool.idle), &at.key("idle"), report);
    let lifetime = pool.max_lifetime.as_option().copied();
    positive(lifetime, &at.key("max_lifetime"), report);
    if let Some(lifetime) = lifetime.filter(|&lifetime| pool.idle > lifetime) {
        let message = format!("must be at most `max_lifetime`: `{}` is more than `{lifetime}`", pool.idle);
        report.say(&at.key("idle"), message);
    }
    let Some(most) = pool.max_connections else { return };
    if pool.min_idle > most {
        report.say(
            &at.key("min_idle"),
            format!("must be at most `max_connections`: {} is more than {most}", pool.min_idle),
        );
    }
    if service.protocol != UpstreamProtocol::Http1 {
        let message = "has no effect on HTTP/2, where one connection carries many requests";
        report.say(&at.key("max_connections"), message);
    }
}
