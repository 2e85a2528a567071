//! A service of the routing document, built.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pingora::protocols::tls::CaType;
use pingora::utils::tls::CertKey;
use pingora::utils::tls::WrappedX509;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use rustls::sign::CertifiedKey;
use serin_core::chain::ChainPlan;
use serin_core::instance::{Instance, Vitals};
use serin_core::load::{LoadBoard, LoadPolicy};
use serin_core::retry::{self, RetryPolicy};
use serin_core::selfguard::{Budget, SelfGuard};
use serin_core::snapshot::{Service, ServiceParts};
use serin_core::subset::{self, FallbackReason};
use serin_core::tag::{self, KeySource, TagRule};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::route::{condition, path_match};
use super::{Workshop, guard, upkeep};
use crate::conf;
use crate::control::generation::{Propagate, ServiceSide, Timeouts};
use crate::jwt::Verifier;
use crate::pool::InstancePool;
use crate::proxy::headers;
use crate::proxy::load::LoadSide;
use crate::proxy::peer::{Protocol, UpstreamTls};
use crate::telemetry::metrics;

/// Builds both sides of a service. Instances that were there before keep their vitals.
///
/// # Errors
/// A sentence about a file that cannot be used.
pub(super) fn build(
    workshop: &Workshop,
    name: &str,
    conf: &conf::Service,
    before: Option<(&Service, &ServiceSide)>,
    now: Instant,
) -> Result<(Service, ServiceSide), String> {
    let instances = instances(conf, before.map(|(service, _)| service), now);
    let pools = before.map_or(&[][..], |(_, side)| &side.pools);
    let side =
        side(workshop, name, conf, &instances, pools, now).map_err(|problem| format!("services.{name}: {problem}"))?;
    let position = |subset: &str| conf.subsets.get_index_of(subset).ok_or_else(|| format!("no subset {subset}"));
    let tags = conf.tags.iter().map(|rule| tag_rule(rule, position(&rule.subset)?)).collect::<Result<_, String>>()?;
    let parts = ServiceParts {
        name: name.into(),
        instances,
        subsets: conf.subsets.iter().map(|(name, labels)| (name.shared(), pairs(labels))).collect(),
        stable: position(conf.stable())?,
        user_key: conf.user_key.iter().map(key_source).collect(),
        anonymous: anonymous(&conf.anonymous),
        salt: (*conf.salt).into(),
        tags,
        fallback: fallback(&conf.fallback, conf, position)?,
        retry: retry_policy(&conf.retry),
        chain: chain(workshop, conf)?,
        guards: guard::build(conf, before.map(|(service, _)| service), &side.metrics.guard, now),
    };
    let service = Service::new(parts).map_err(|error| format!("services.{name}.subsets: {error}"))?;
    Ok((service, side))
}

/// The instances in order of their addresses, whatever the order they are listed in.
fn instances(conf: &conf::Service, before: Option<&Service>, now: Instant) -> Vec<Instance> {
    let known: HashMap<SocketAddr, &Arc<Vitals>> =
        before.iter().flat_map(|service| service.instances.iter()).map(|i| (i.address, &i.vitals)).collect();
    let changes = known.values().next().map_or_else(Arc::default, |vitals| Arc::clone(vitals.changes()));
    let fresh = || {
        let vitals = Vitals::among(now, &changes);
        if before.is_some() && conf.slow_start.is_some() {
            vitals.start_warming();
        }
        Arc::new(vitals)
    };
    if conf.outlier_detection.is_none() {
        known.values().for_each(|vitals| vitals.pardon());
    }
    let mut instances: Vec<Instance> = conf
        .instances
        .iter()
        .map(|instance| Instance {
            index: 0,
            address: *instance.address,
            labels: pairs(&instance.labels).into(),
            zone: instance.zone.as_ref().map(conf::Name::shared),
            cluster: instance.cluster.as_ref().map(conf::Name::shared),
            weight: instance.weight,
            vitals: known.get(&*instance.address).map_or_else(fresh, |v| Arc::clone(v)),
        })
        .collect();
    instances.sort_by_key(|instance| instance.address);
    for (index, instance) in instances.iter_mut().enumerate() {
        instance.index = u32::try_from(index).unwrap_or(u32::MAX);
    }
    instances
}

fn pairs(labels: &conf::Labels) -> Vec<(Box<str>, Box<str>)> {
    let mut pairs: Vec<_> = labels.iter().map(|(name, value)| ((**name).into(), (**value).into())).collect();
    pairs.sort();
    pairs
}

fn side(
    workshop: &Workshop,
    name: &str,
    conf: &conf::Service,
    instances: &[Instance],
    pools: &[Arc<InstancePool>],
    now: Instant,
) -> Result<ServiceSide, String> {
    let tls = conf.tls.as_ref().map(upstream_tls).transpose()?;
    let protocol = match conf.protocol {
        conf::UpstreamProtocol::Http1 => Protocol::Http1,
        conf::UpstreamProtocol::H2 => Protocol::H2,
        conf::UpstreamProtocol::H2c => Protocol::H2c,
    };
    let subsets: Vec<Arc<str>> = conf.subsets.keys().map(conf::Name::shared).collect();
    let addresses: Vec<String> = instances.iter().map(|instance| instance.address.to_string()).collect();
    let pools = upkeep::pools(workshop, name, conf, protocol, instances, pools, now);
    let peers = upkeep::peers(&pools, protocol, tls.as_ref());
    Ok(ServiceSide {
        name: name.into(),
        checks: upkeep::checks(workshop, conf, protocol, instances, &peers),
        peers,
        pools,
        timeouts: timeouts(conf.timeouts),
        propagate: Propagate {
            header: conf.propagate.header.as_option().map(|name| name.0.clone()),
            baggage: members(headers::BAGGAGE_KEY, if conf.propagate.baggage { &subsets } else { &[] })?,
            tracestate: members(headers::TRACESTATE_KEY, if conf.propagate.tracestate { &subsets } else { &[] })?,
        },
        jwt: conf.jwt.as_ref().map(Verifier::new).transpose()?,
        guard: Arc::new(SelfGuard::new(budget(&conf.self_guard), now)),
        load: conf.load_reports.as_ref().map(|reports| LoadSide {
            board: LoadBoard::new(load_policy(reports), now),
            forward: reports.forward,
            metrics: workshop.metrics.load_reports(name),
        }),
        metrics: workshop.metrics.service(
            &name.into(),
            &metrics::ServiceParts {
                subsets: &subsets,
                instances: &addresses,
                tags: &conf.tags.iter().map(|rule| (&*rule.name, &*rule.subset)).collect::<Vec<_>>(),
                strategy: &strategy(conf),
                outlier: conf.outlier_detection.is_some(),
                breaker: conf.circuit_breaker.is_some(),
            },
        ),
        rate_limits: Vec::new(),
        concurrency: None,
    })
}

/// The name of a chain in metrics: those of its links, joined by `+`.
fn strategy(conf: &conf::Service) -> String {
    let links: Vec<&str> = conf.balancer.iter().map(|link| &*link.name).collect();
    if links.is_empty() { ChainPlan::default().pick.0.to_string() } else { links.join("+") }
}

fn budget(conf: &conf::SelfGuard) -> Budget {
    Budget { decision: conf.decision_p99.duration(), sustained: conf.sustained.duration() }
}

fn load_policy(conf: &conf::LoadReports) -> LoadPolicy {
    LoadPolicy {
        expire_after: conf.expire_after.duration(),
        update_every: conf.update_every.duration(),
        blackout: conf.blackout.duration(),
        error_penalty: f64::from(conf.error_penalty.hundredths()) / 10_000.0,
        weights: conf.weights,
    }
}

/// The members of list headers that name subsets.
fn members(key: &str, subsets: &[Arc<str>]) -> Result<Vec<http::HeaderValue>, String> {
    let member = |subset: &Arc<str>| format!("{key}={subset}").parse();
    subsets
        .iter()
        .map(member)
        .collect::<Result<_, _>>()
        .map_err(|error: http::header::InvalidHeaderValue| error.to_string())
}

/// Timeouts as the proxy has them.
#[must_use]
pub(super) fn timeouts(conf: conf::Timeouts) -> Timeouts {
    Timeouts {
        connect: conf.connect.duration(),
        first_byte: conf.first_byte.duration(),
        idle: conf.idle.duration(),
        request: conf.request.as_option().map(|span| span.duration()),
    }
}

fn upstream_tls(conf: &conf::UpstreamTls) -> Result<UpstreamTls, String> {
    Ok(UpstreamTls {
        sni: conf.asked_name().unwrap_or_default().to_owned(),
        ca: conf.ca.as_deref().map(authorities).transpose()?,
        verify: conf.verify,
        by_name: conf.san.is_empty(),
        client: conf.client_cert.as_deref().zip(conf.client_key.as_deref()).map(client_certificate).transpose()?,
    })
}

/// Reads the certificate to show to upstreams. pingora panics on one that is none and on a key that is none, and finds out
/// only in a handshake that they do not fit, so that is seen to here.
fn client_certificate((cert, key): (&Path, &Path)) -> Result<Arc<CertKey>, String> {
    let bad = |path: &Path, error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let chain: Vec<CertificateDer<'static>> =
        CertificateDer::pem_file_iter(cert).and_then(Iterator::collect).map_err(|error| bad(cert, &error))?;
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| bad(key, &error))?;
    for der in &chain {
        X509Certificate::from_der(der).map_err(|error| bad(cert, &error))?;
    }
    pingora::tls::install_default_crypto_provider();
    let provider = CryptoProvider::get_default().ok_or("no cryptography is installed")?;
    CertifiedKey::from_der(chain.clone(), secret.clone_key(), provider).map_err(|error| bad(key, &error))?;
    let chain = chain.iter().map(|der| der.to_vec()).collect();
    Ok(Arc::new(CertKey::new(chain, secret.secret_der().to_vec())))
}

/// Reads certificates of authorities. pingora takes them as parsed certificates and panics on one that is none, so
/// they are parsed here first.
fn authorities(path: &Path) -> Result<Arc<CaType>, String> {
    let bad = |error: &dyn std::fmt::Display| format!("{} holds no usable certificates: {error}", path.display());
    let ders = CertificateDer::pem_file_iter(path).map_err(|error| bad(&error))?;
    let certificates = ders
        .map(|der| {
            let der = der.map_err(|error| bad(&error))?;
            WrappedX509::try_new(der.to_vec(), |raw| X509Certificate::from_der(raw).map(|(_, parsed)| parsed))
                .map_err(|error| bad(&error))
        })
        .collect::<Result<Vec<_>, String>>()?;
    if certificates.is_empty() {
        return Err(bad(&"it is empty"));
    }
    Ok(certificates.into())
}

fn key_source(key: &conf::UserKey) -> KeySource {
    match key {
        conf::UserKey::Header(name) => KeySource::Header(name.0.clone()),
        conf::UserKey::Cookie(name) => KeySource::Cookie(name.as_str().into()),
        conf::UserKey::Query(name) => KeySource::Query(name.as_str().into()),
        conf::UserKey::Claim(name) => KeySource::Claim(name.as_str().into()),
        conf::UserKey::ClientIp => KeySource::ClientIp,
    }
}

fn anonymous(conf: &conf::Anonymous) -> tag::Anonymous {
    match conf {
        conf::Anonymous::Random => tag::Anonymous::Random,
        conf::Anonymous::Ip => tag::Anonymous::Ip,
        conf::Anonymous::Stable => tag::Anonymous::Stable,
        conf::Anonymous::Cookie(cookie) => tag::Anonymous::Cookie {
            name: cookie.name.as_str().into(),
            max_age: cookie.max_age.duration().max(Duration::from_secs(1)).as_secs(),
        },
    }
}

fn tag_rule(rule: &conf::TagRule, subset: usize) -> Result<TagRule, String> {
    let conf::When { header, cookie, query, claim, method, path } = &rule.when;
    use serin_core::matcher::Condition;
    let mut when = Vec::new();
    for (name, value) in header {
        when.push(Condition::Header(name.0.clone(), condition(value)?));
    }
    for (name, value) in cookie {
        when.push(Condition::Cookie(name.as_str().into(), condition(value)?));
    }
    for (name, value) in query {
        when.push(Condition::Query((**name).into(), condition(value)?));
    }
    for (name, value) in claim {
        when.push(Condition::Claim((**name).into(), condition(value)?));
    }
    if !method.is_empty() {
        when.push(Condition::Method(method.iter().map(|method| method.0.clone()).collect()));
    }
    if let Some(path) = path {
        when.push(Condition::Path(path_match(Some(path))?));
    }
    let trust = match rule.trust {
        conf::Trust::Any => tag::Trust::Any,
        conf::Trust::TrustedProxies => tag::Trust::TrustedProxies,
        conf::Trust::Signed => tag::Trust::Signed,
    };
    Ok(TagRule { name: rule.name.shared(), when, subset, trust })
}

fn fallback(
    fallback: &conf::Fallback,
    service: &conf::Service,
    position: impl Fn(&str) -> Result<usize, String>,
) -> Result<subset::Fallback, String> {
    let reason = |on: &conf::FallbackOn| match on {
        conf::FallbackOn::Absent => FallbackReason::Absent,
        conf::FallbackOn::Empty => FallbackReason::Empty,
        conf::FallbackOn::AllUnhealthy => FallbackReason::AllUnhealthy,
        conf::FallbackOn::BreakerOpen => FallbackReason::BreakerOpen,
    };
    let to = match &fallback.to {
        conf::FallbackTo::Any => subset::FallbackTo::Any,
        conf::FallbackTo::None => subset::FallbackTo::None,
        conf::FallbackTo::Stable => subset::FallbackTo::Subsets([position(service.stable())?].into_iter().collect()),
        conf::FallbackTo::Subsets(names) => {
            subset::FallbackTo::Subsets(names.iter().map(|name| position(name)).collect::<Result<_, _>>()?)
        }
    };
    Ok(subset::Fallback {
        on: fallback.on.iter().map(reason).collect(),
        to,
        max_share: fallback.max_share.as_option().map_or(10_000, |share| share.hundredths()),
    })
}

fn retry_policy(conf: &conf::Retry) -> RetryPolicy {
    let on = |on: &conf::RetryOn| match on {
        conf::RetryOn::ConnectFailure => retry::RetryOn::ConnectFailure,
        conf::RetryOn::Reset => retry::RetryOn::Reset,
        conf::RetryOn::Timeout => retry::RetryOn::Timeout,
        conf::RetryOn::ServerError => retry::RetryOn::ServerError,
        conf::RetryOn::Status(status) => retry::RetryOn::Status(*status),
    };
    RetryPolicy {
        attempts: usize::from(conf.attempts),
        on: conf.on.iter().map(on).collect(),
        across: match conf.across {
            conf::Across::Same => retry::Across::Same,
            conf::Across::Stable => retry::Across::Stable,
            conf::Across::Any => retry::Across::Any,
        },
        hedge_after: conf.hedge_after.map(conf::Span::duration),
    }
}

fn chain(workshop: &Workshop, conf: &conf::Service) -> Result<ChainPlan, String> {
    let Some((last, narrows)) = conf.balancer.split_last() else { return Ok(ChainPlan::default()) };
    let Workshop { catalogue, node, .. } = workshop;
    let unknown = |name: &str| format!("balancer: nothing is called {name}");
    let narrow = |link: &conf::Link| {
        let built = catalogue.narrows.build(&link.name, link.conf.clone(), node);
        let built = built.ok_or_else(|| unknown(&link.name))?.map_err(|error| error.to_string())?;
        Ok::<_, String>((link.name.as_str().into(), built))
    };
    let pick = catalogue.balancers.build(&last.name, last.conf.clone(), node);
    Ok(ChainPlan {
        narrows: narrows.iter().map(narrow).collect::<Result<_, _>>()?,
        pick: (last.name.as_str().into(), pick.ok_or_else(|| unknown(&last.name))?.map_err(|e| e.to_string())?),
    })
}
