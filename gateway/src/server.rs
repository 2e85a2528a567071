//! Wires the parts and runs them: control path, proxy, admin API, file watch, shutdown.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use pingora::apps::HttpServerOptions;
use pingora::connectors::{ConnectorOptions, TransportConnector};
use pingora::proxy::http_proxy;
use pingora::server::configuration::ServerConf;
use pingora::server::{RunArgs, Server, ShutdownSignal, ShutdownSignalWatch, ShutdownWatch};
use pingora::services::background::{BackgroundService, GenBackgroundService};
use pingora::services::listening::Service;
use serin_core::plugin::Catalogue;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::admin;
use crate::conf::{Bootstrap, LogTarget, Problems};
use crate::connection::Connections;
use crate::connection::limits::ListenerLimits;
use crate::connection::permits::Permits;
use crate::control::Control;
use crate::control::watch::watch;
use crate::listen::{self, Accepts, Certificates, Reload};
use crate::overload::Overload;
use crate::proxy::Edge;
use crate::pulse::Pulse;
use crate::telemetry::access_log::{AccessLog, Sink};
use crate::telemetry::metrics::Metrics;
use crate::telemetry::names::CERTIFICATES;
use crate::telemetry::otlp::receiver::environment;
use crate::telemetry::otlp::spans::Flush;
use crate::telemetry::setup::Exports;
use crate::telemetry::traces::Tracer;
use crate::upkeep::UpkeepService;

/// Idle connections to upstreams that are kept, in all.
const UPSTREAM_POOL: usize = 4_096;
/// Client connections over all listeners, unless the configuration says otherwise: what Envoy's edge has.
const CONNECTIONS: u32 = 50_000;
/// Attempts that pingora would make at most; the retry policy of a service allows fewer.
const MAX_ATTEMPTS: usize = 16;
/// How often, and how many times at most, a listener is tried until it accepts.
const LISTEN_POLL: Duration = Duration::from_millis(2);
const LISTEN_POLLS: usize = 2_500;
/// How often a draining gateway looks whether the last request has finished.
const DRAIN_POLL: Duration = Duration::from_millis(20);
/// How long the last spans may take.
const FLUSH: Duration = Duration::from_secs(1);

/// Why the gateway does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A document is not sound.
    #[error("{0}")]
    Documents(#[from] Problems),
    /// An address cannot be listened on.
    #[error("cannot listen on {address} ({name}): {error}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What it is for.
        name: String,
        /// What the system said.
        error: std::io::Error,
    },
    /// Certificates cannot be used.
    #[error("listener {0}: {1}")]
    Tls(String, String),
    /// Something else that the system refused.
    #[error("{0}: {1}")]
    System(&'static str, String),
}

/// Runs a gateway until it is told to stop.
///
/// # Errors
/// If it cannot start. Nothing is left running then.
pub fn run(bootstrap: Bootstrap, catalogue: Catalogue) -> Result<(), StartError> {
    let metrics = Metrics::new().map_err(|error| StartError::System("metrics", error.to_string()))?;
    let control = Arc::new(Control::start(bootstrap, catalogue, Arc::new(metrics))?);
    let bootstrap = &control.bootstrap;
    let certificates = certificates(bootstrap)?;
    let admin = bind(*bootstrap.admin.address, "admin")?;
    for listener in &bootstrap.listeners {
        // pingora would retry for half a minute and then panic.
        drop(bind(*listener.address, &listener.name)?);
    }
    let token = bootstrap.admin.token_file.as_deref().map(admin::Token::read).transpose();
    let token = token.map_err(|problem| StartError::System("admin.token_file", problem))?;
    watch_files(&control, &certificates)?;
    let draining = Arc::new(AtomicBool::new(false));
    let overload = Arc::new(Overload::new(&bootstrap.overload, control.metrics().overload()));
    let watched = overload.watch(Arc::clone(&control.live), control.metrics().in_flight.clone());
    watched.map_err(|error| StartError::System("overload", error.to_string()))?;
    let mut server = Server::new_with_opt_and_conf(None, server_conf(bootstrap));
    server.bootstrap();
    let exports = Exports::new(&control, &environment).map_err(|problem| StartError::System("telemetry", problem))?;
    let Exports { tracer, spans, flush, metrics } = exports;
    server.add_service(proxy_service(&server, &control, &certificates, &draining, &overload, tracer)?);
    if let Some(spans) = spans {
        server.add_service(GenBackgroundService::new("spans".to_owned(), Arc::new(spans)));
    }
    if let Some(metrics) = metrics {
        server.add_service(GenBackgroundService::new("metrics".to_owned(), Arc::new(metrics)));
    }
    let state = admin::State::new(Arc::clone(&control), token, Arc::clone(&draining)).with_overload(overload);
    let admin = AdminService { control: Arc::clone(&control), listener: admin, state };
    server.add_service(GenBackgroundService::new("admin".to_owned(), Arc::new(admin)));
    let upkeep = UpkeepService(Arc::clone(control.upkeep()));
    server.add_service(GenBackgroundService::new("upkeep".to_owned(), Arc::new(upkeep)));
    let pulse = Pulse(Arc::clone(&control));
    server.add_service(GenBackgroundService::new("pulse".to_owned(), Arc::new(pulse)));
    tracing::info!(
        listeners = %bootstrap.listeners.iter().map(|l| l.address.to_string()).collect::<Vec<_>>().join(", "),
        admin = %*bootstrap.admin.address,
        "ready"
    );
    let stop = Stop { control: Arc::clone(&control), draining, flush };
    server.run(RunArgs { shutdown_signal: Box::new(stop) });
    Ok(())
}

fn server_conf(bootstrap: &Bootstrap) -> ServerConf {
    let cpus = || std::thread::available_parallelism().map_or(1, usize::from);
    ServerConf {
        threads: bootstrap.threads.map_or_else(cpus, |threads| usize::from(threads.get())),
        upstream_keepalive_pool_size: UPSTREAM_POOL,
        max_retries: MAX_ATTEMPTS,
        grace_period_seconds: Some(1),
        graceful_shutdown_timeout_seconds: Some(1),
        ..ServerConf::default()
    }
}

type NamedCertificates = Vec<Option<Arc<Certificates>>>;

/// The certificates of every listener, in their order.
fn certificates(bootstrap: &Bootstrap) -> Result<NamedCertificates, StartError> {
    let load = |listener: &crate::conf::Listener| {
        let loaded = listener.tls.as_ref().map(Certificates::load).transpose();
        loaded.map(|c| c.map(Arc::new)).map_err(|problem| StartError::Tls(listener.name.to_string(), problem))
    };
    bootstrap.listeners.iter().map(load).collect()
}

fn bind(address: SocketAddr, name: &str) -> Result<TcpListener, StartError> {
    let refused = |error| StartError::Listen { address, name: name.to_owned(), error };
    let listener = TcpListener::bind(address).map_err(refused)?;
    listener.set_nonblocking(true).map_err(refused)?;
    Ok(listener)
}

fn watch_files(control: &Arc<Control>, certificates: &NamedCertificates) -> Result<(), StartError> {
    let certificates: Vec<_> = certificates.iter().flatten().cloned().collect();
    let bootstrap = &control.bootstrap;
    let mut files: Vec<PathBuf> = vec![bootstrap.routing.file.clone(), bootstrap.traffic.file.clone()];
    files.extend(certificates.iter().flat_map(|certificates| certificates.files()));
    let control = Arc::clone(control);
    let changed = move || {
        control.reload_traffic();
        control.reload_routing();
        for certificates in &certificates {
            let began = Instant::now();
            match certificates.reload() {
                Reload::Same => continue,
                Reload::Fresh => tracing::info!("certificates reloaded"),
                Reload::Refused(problem) => {
                    tracing::error!(%problem, "certificates refused, the old ones stay");
                    control.metrics().count_document(CERTIFICATES, false, began.elapsed());
                    continue;
                }
            }
            control.metrics().count_document(CERTIFICATES, true, began.elapsed());
        }
    };
    watch(&files, changed).map_err(|error| StartError::System("watch", error.to_string()))
}

fn proxy_service(
    server: &Server,
    control: &Arc<Control>,
    certificates: &NamedCertificates,
    draining: &Arc<AtomicBool>,
    overload: &Arc<Overload>,
    tracer: Option<Tracer>,
) -> Result<Service<Connections>, StartError> {
    let (bootstrap, metrics) = (&control.bootstrap, control.metrics());
    let trusted: Vec<_> = bootstrap.trusted_proxies.iter().map(|network| network.0).collect();
    let (limits, refusals) = (ListenerLimits::new(bootstrap), Arc::new(metrics.refusals()));
    let connector = Arc::new(TransportConnector::new(Some(ConnectorOptions::from_server_conf(&server.configuration))));
    let edge = Edge {
        live: Arc::clone(&control.live),
        trusted: trusted.clone(),
        limits: limits.clone(),
        refusals: Arc::clone(&refusals),
        forwarding: (&bootstrap.forwarding).into(),
        protocols: clear_text(bootstrap),
        access_log: access_log(control)?,
        tracer,
        metrics: Arc::clone(metrics),
        draining: Arc::clone(draining),
        overload: Arc::clone(overload),
        connector: Arc::clone(&connector),
    };
    let mut options = HttpServerOptions::default();
    let h2c = bootstrap.listeners.iter().any(|listener| listener.tls.is_none() && Accepts::of(listener).h2c);
    options.h2c = h2c;
    let mut proxy = http_proxy(&server.configuration, edge);
    proxy.server_options = Some(options);
    let permits = Permits::new(&bootstrap.limits, CONNECTIONS, &trusted).shown_in(metrics.client_connections.clone());
    let upkeep = Arc::clone(control.upkeep());
    let mut connections = Connections::new(proxy, Arc::clone(overload), upkeep, connector, Arc::new(permits), refusals);
    for listener in &bootstrap.listeners {
        let (address, own) = (*listener.address, &listener.limits);
        let counts = own.connections.is_some() || own.connections_per_ip.is_some();
        let permits = counts.then(|| Permits::new(own, u32::MAX, &trusted));
        connections.add(address, Accepts::of(listener).h2c, limits.at(|| Some(address)), permits);
    }
    let mut service = Service::new("proxy".to_owned(), connections);
    for (listener, certificates) in bootstrap.listeners.iter().zip(certificates) {
        let endpoint = listen::endpoint(listener, certificates.clone());
        let endpoint = endpoint.map_err(|error| StartError::Tls(listener.name.to_string(), error.to_string()))?;
        service.add_listener(endpoint);
    }
    Ok(service)
}

/// What the clear-text listeners serve, if pingora has to accept more on some of them than they are for.
fn clear_text(bootstrap: &Bootstrap) -> Vec<(SocketAddr, Accepts)> {
    let clear = bootstrap.listeners.iter().filter(|listener| listener.tls.is_none());
    let accepts: Vec<_> = clear.map(|listener| (*listener.address, Accepts::of(listener))).collect();
    let all_alike = accepts.iter().all(|(_, accepts)| !accepts.h2c) || accepts.iter().all(|(_, a)| a.http1 && a.h2c);
    if all_alike { Vec::new() } else { accepts }
}

fn access_log(control: &Control) -> Result<Option<AccessLog>, StartError> {
    let Some(conf) = &control.bootstrap.telemetry.access_log else { return Ok(None) };
    let sink = match &conf.path {
        LogTarget::Stdout => Sink::Stdout,
        LogTarget::Stderr => Sink::Stderr,
        LogTarget::File(path) => Sink::File(path.clone()),
    };
    let log = AccessLog::start(&sink, control.metrics().log_dropped.clone());
    log.map(Some).map_err(|error| StartError::System("telemetry.access_log", error.to_string()))
}

struct AdminService {
    control: Arc<Control>,
    listener: TcpListener,
    state: admin::State,
}

#[async_trait]
impl BackgroundService for AdminService {
    async fn start(&self, shutdown: ShutdownWatch) {
        // Whoever is told that the gateway is ready may connect at once.
        for listener in &self.control.bootstrap.listeners {
            accepting(*listener.address).await;
        }
        let listener = self.listener.try_clone().and_then(tokio::net::TcpListener::from_std);
        let served = match listener {
            Ok(listener) => admin::serve(self.state.clone(), listener, shutdown).await,
            Err(error) => Err(error),
        };
        if let Err(error) = served {
            tracing::error!(%error, "the admin API stopped");
        }
    }
}

/// Returns when an address is listened on, or after a while all the same.
async fn accepting(address: SocketAddr) {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    for _ in 0..LISTEN_POLLS {
        if tokio::net::TcpStream::connect((ip, address.port())).await.is_ok() {
            return;
        }
        tokio::time::sleep(LISTEN_POLL).await;
    }
}

/// Decides when and how to stop: SIGINT at once, SIGTERM when the last request has finished or the drain time is over.
struct Stop {
    control: Arc<Control>,
    draining: Arc<AtomicBool>,
    /// Has spans that wait sent.
    flush: Option<Flush>,
}

#[async_trait]
impl ShutdownSignalWatch for Stop {
    async fn recv(&self) -> ShutdownSignal {
        let (Ok(mut terminate), Ok(mut interrupt)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
        else {
            tracing::error!("signals cannot be received");
            return std::future::pending().await;
        };
        tokio::select! {
            _ = terminate.recv() => self.drain(&mut interrupt).await,
            _ = interrupt.recv() => ShutdownSignal::FastShutdown,
        }
    }
}

impl Stop {
    /// Fails readiness and has every response close its connection, until nothing is in flight.
    async fn drain(&self, interrupt: &mut Signal) -> ShutdownSignal {
        tracing::info!("draining");
        self.draining.store(true, Relaxed);
        let idle = async {
            while self.control.metrics().in_flight.get() > 0 {
                tokio::time::sleep(DRAIN_POLL).await;
            }
        };
        let drain = self.control.bootstrap.drain.duration();
        let drained = async {
            let finished = tokio::time::timeout(drain, idle).await;
            if let Some(flush) = &self.flush {
                // A receiver that does not answer is not waited for.
                let _ = tokio::time::timeout(FLUSH, flush.now()).await;
            }
            match finished {
                Ok(()) => ShutdownSignal::FastShutdown,
                Err(_) => ShutdownSignal::GracefulTerminate,
            }
        };
        tokio::select! {
            signal = drained => signal,
            _ = interrupt.recv() => ShutdownSignal::FastShutdown,
        }
    }
}
