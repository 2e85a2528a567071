//! Wires the parts and runs them: control path, proxy, admin API, file watch, shutdown.

mod sockets;
mod stop;
mod stoppable;
mod upgrade;

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use async_trait::async_trait;
use nix::sys::prctl;
use pingora::apps::HttpServerOptions;
use pingora::connectors::{ConnectorOptions, TransportConnector};
use pingora::proxy::http_proxy;
use pingora::server::configuration::ServerConf;
use pingora::server::{RunArgs, Server, ShutdownWatch};
use pingora::services::background::{BackgroundService, GenBackgroundService};
use pingora::services::listening::Service;
use sd_notify::NotifyState;
use serin_core::plugin::Catalogue;
use serin_core::strict::{self, Policy};
use tokio::sync::watch;

use self::sockets::{Socket, Sockets};
use self::stop::Stop;
use self::stoppable::Stoppable;
use self::upgrade::Predecessor;
use crate::admin;
use crate::conf::{Bootstrap, LogTarget, Problems};
use crate::connection::limits::ListenerLimits;
use crate::connection::permits::Permits;
use crate::connection::{Connections, Parts, Proxied, Refuser};
use crate::control::Control;
use crate::control::watch as documents;
use crate::drain::{Drain, Office};
use crate::listen::{self, Accepts, Certificates, Reload};
use crate::overload::Overload;
use crate::proxy::Edge;
use crate::proxy::headers::ForwardingHeaders;
use crate::pulse::Pulse;
use crate::telemetry::access_log::{AccessLog, Sink};
use crate::telemetry::metrics::Metrics;
use crate::telemetry::names::CERTIFICATES;
use crate::telemetry::otlp::receiver::environment;
use crate::telemetry::setup::Exports;
use crate::telemetry::traces::Tracer;
use crate::upkeep::UpkeepService;

/// Idle connections to upstreams that are kept, in all.
const UPSTREAM_POOL: usize = 4_096;
/// Client connections over all listeners, unless the configuration says otherwise: what Envoy's edge has.
const CONNECTIONS: u32 = 50_000;
/// Attempts that pingora would make at most; the retry policy of a service allows fewer.
const MAX_ATTEMPTS: usize = 16;

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

/// Whether a gateway takes over from one that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// It is the first one: it opens its sockets itself.
    Fresh,
    /// It takes the sockets of the gateway that has the same state directory, which then drains.
    Upgrade,
}

/// Runs a gateway until it is told to stop.
///
/// # Errors
/// If it cannot start. Nothing is left running then.
pub fn run(bootstrap: Bootstrap, catalogue: Catalogue, start: Start) -> Result<(), StartError> {
    if let Err(error) = prctl::set_thp_disable(true) {
        // Zeroing a huge page takes milliseconds, in which no other thread gets the core.
        tracing::debug!(%error, "huge pages stay as the system has them");
    }
    let metrics = Metrics::new().map_err(|error| StartError::System("metrics", error.to_string()))?;
    let control = Arc::new(Control::start(bootstrap, catalogue, Arc::new(metrics))?);
    let bootstrap = &control.bootstrap;
    let certificates = certificates(bootstrap)?;
    let tokens = admin::Tokens::load(&bootstrap.admin).map(Arc::new);
    let tokens = tokens.map_err(|problem| StartError::System("admin", problem))?;
    let tls = bootstrap.admin.tls.as_ref().map(admin::Tls::load).transpose();
    let tls = tls.map_err(|problem| StartError::System("admin.tls", problem))?;
    let (predecessor, inherited) = predecessor(bootstrap, start)?;
    let drain = Arc::new(Drain::new(if predecessor.is_some() { Office::Waiting } else { Office::Held }));
    let sockets = Sockets::open(bootstrap, inherited)?;
    let spare = sockets.duplicate().map_err(|error| StartError::System("sockets", error.to_string()))?;
    watch_files(&control, in_use(bootstrap, &certificates, tls.as_ref()), &tokens, &drain)?;
    control.follow();
    let overload = Arc::new(Overload::new(&bootstrap.overload, control.metrics().overload()));
    let watched = overload.watch(Arc::clone(&control.live), control.metrics().in_flight.clone());
    watched.map_err(|error| StartError::System("overload", error.to_string()))?;
    let mut server = Server::new_with_opt_and_conf(None, server_conf(bootstrap));
    server.bootstrap();
    let exports = Exports::new(&control, &environment).map_err(|problem| StartError::System("telemetry", problem))?;
    let Exports { tracer, spans, flush, metrics } = exports;
    let addresses = sockets.addresses();
    let (listener, table) = sockets.into_table();
    let (accepts, alone, close_admin) = (watched_flag(), watched_flag(), watched_flag());
    let proxy = proxy_service(&server, &control, &certificates, &addresses, &drain, &overload, tracer)?;
    let (stop, serving) = (drain.stopping(), accepts.subscribe());
    server.add_service(Stoppable { service: proxy, sockets: table, stop, accepts });
    if let Some(spans) = spans {
        server.add_service(GenBackgroundService::new("spans".to_owned(), Arc::new(spans)));
    }
    if let Some(metrics) = metrics {
        server.add_service(GenBackgroundService::new("metrics".to_owned(), Arc::new(metrics)));
    }
    let state = admin::State::new(Arc::clone(&control), tokens, drain.unready()).with_overload(overload);
    let admin = AdminService {
        control: Arc::clone(&control),
        state,
        listener,
        tls,
        serving,
        predecessor: Mutex::new(predecessor),
        drain: Arc::clone(&drain),
        alone: Arc::clone(&alone),
        close: close_admin.subscribe(),
    };
    server.add_service(GenBackgroundService::new("admin".to_owned(), Arc::new(admin)));
    let upkeep = UpkeepService(Arc::clone(control.upkeep()));
    server.add_service(GenBackgroundService::new("upkeep".to_owned(), Arc::new(upkeep)));
    let pulse = Pulse { control: Arc::clone(&control), drain: Arc::clone(&drain) };
    server.add_service(GenBackgroundService::new("pulse".to_owned(), Arc::new(pulse)));
    tracing::info!(
        listeners = %addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
        admin = %*bootstrap.admin.address,
        "ready"
    );
    let (spare, alone) = (Arc::new(spare), alone.subscribe());
    let stop = Stop { control: Arc::clone(&control), drain, spare, alone, close_admin, flush };
    server.run(RunArgs { shutdown_signal: Box::new(stop) });
    Ok(())
}

fn watched_flag() -> Arc<watch::Sender<bool>> {
    Arc::new(watch::Sender::new(false))
}

/// The process that is taken over from, and its sockets.
fn predecessor(bootstrap: &Bootstrap, start: Start) -> Result<(Option<Predecessor>, Vec<Socket>), StartError> {
    if start == Start::Fresh {
        return Ok((None, Vec::new()));
    }
    let directory = bootstrap.state_dir();
    let asked = Predecessor::ask(&directory);
    let nobody = |error| {
        let detail =
            format!("no running gateway with the state directory {} gave its sockets: {error}", directory.display());
        StartError::System("--upgrade", detail)
    };
    asked.map(|(predecessor, sockets)| (Some(predecessor), sockets)).map_err(nobody)
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
/// A listener's name, and its certificates.
type Named = (String, Arc<Certificates>);

/// The certificates of every listener, in their order.
fn certificates(bootstrap: &Bootstrap) -> Result<NamedCertificates, StartError> {
    let load = |listener: &crate::conf::Listener| {
        let loaded = listener.tls.as_ref().map(Certificates::load).transpose();
        loaded.map(|c| c.map(Arc::new)).map_err(|problem| StartError::Tls(listener.name.to_string(), problem))
    };
    bootstrap.listeners.iter().map(load).collect()
}

/// All certificates that are served, by the name of the listener.
fn in_use(bootstrap: &Bootstrap, listeners: &NamedCertificates, admin: Option<&admin::Tls>) -> Vec<Named> {
    let names = bootstrap.listeners.iter().map(|listener| listener.name.to_string());
    let listeners = names.zip(listeners).filter_map(|(name, of)| Some((name, Arc::clone(of.as_ref()?))));
    let admin = admin.map(|tls| ("admin".to_owned(), Arc::clone(tls.certificates())));
    listeners.chain(admin).collect()
}

fn watch_files(
    control: &Arc<Control>,
    certificates: Vec<Named>,
    tokens: &Arc<admin::Tokens>,
    drain: &Arc<Drain>,
) -> Result<(), StartError> {
    let bootstrap = &control.bootstrap;
    let documents = [&bootstrap.routing, &bootstrap.traffic].into_iter().filter_map(|place| place.file());
    let mut files: Vec<PathBuf> = documents.map(Path::to_owned).collect();
    files.extend(certificates.iter().flat_map(|(_, certificates)| certificates.files()));
    files.extend(tokens.files());
    for (listener, certificates) in &certificates {
        control.metrics().certificates.set(listener, &certificates.expiries());
    }
    let (control, tokens, drain) = (Arc::clone(control), Arc::clone(tokens), Arc::clone(drain));
    let changed = move || {
        if drain.is(Office::Left) {
            return;
        }
        control.reload();
        if let Err(problem) = tokens.reload() {
            tracing::error!(%problem, "tokens refused, the old ones stay");
        }
        for (listener, certificates) in &certificates {
            let began = Instant::now();
            match certificates.reload() {
                Reload::Same => continue,
                Reload::Fresh => {
                    control.metrics().certificates.set(listener, &certificates.expiries());
                    tracing::info!(listener, "certificates reloaded");
                }
                Reload::Refused(problem) => {
                    tracing::error!(listener, %problem, "certificates refused, the old ones stay");
                    control.metrics().count_document(CERTIFICATES, false, began.elapsed());
                    continue;
                }
            }
            control.metrics().count_document(CERTIFICATES, true, began.elapsed());
        }
    };
    documents::watch(&files, changed).map_err(|error| StartError::System("watch", error.to_string()))
}

fn proxy_service(
    server: &Server,
    control: &Arc<Control>,
    certificates: &NamedCertificates,
    addresses: &[SocketAddr],
    drain: &Arc<Drain>,
    overload: &Arc<Overload>,
    tracer: Option<Tracer>,
) -> Result<Service<Connections>, StartError> {
    let (bootstrap, metrics) = (&control.bootstrap, control.metrics());
    let trusted: Vec<_> = bootstrap.trusted_proxies.iter().map(|network| network.0).collect();
    let (limits, refusals) = (ListenerLimits::new(bootstrap), Arc::new(metrics.refusals()));
    let connector = Arc::new(TransportConnector::new(Some(ConnectorOptions::from_server_conf(&server.configuration))));
    let access_log = access_log(control)?.map(Arc::new);
    let odd_names = bootstrap.requests.underscores_in_headers.to_core();
    let proxied = Arc::new(Proxied::new(bootstrap, addresses, &trusted));
    let forwarding = ForwardingHeaders::from(&bootstrap.forwarding);
    let request_id = forwarding.request_id.clone();
    let edge = Edge {
        live: Arc::clone(&control.live),
        trusted: trusted.clone(),
        limits: limits.clone(),
        refusals: Arc::clone(&refusals),
        forwarding,
        protocols: clear_text(bootstrap, addresses),
        access_log: access_log.clone(),
        policy: Policy { limits: strict::Limits::NONE, odd_names },
        guarded: bootstrap.requests.guarded_headers.iter().map(|name| name.0.clone()).collect(),
        tracer,
        debug_header: bootstrap
            .telemetry
            .traces
            .as_ref()
            .and_then(|traces| Some(traces.debug_header.as_ref()?.0.clone())),
        metrics: Arc::clone(metrics),
        draining: drain.closing(),
        overload: Arc::clone(overload),
        connector: Arc::clone(&connector),
    };
    let mut options = HttpServerOptions::default();
    let h2c = bootstrap.listeners.iter().any(|listener| listener.tls.is_none() && Accepts::of(listener).h2c);
    options.h2c = h2c;
    let mut proxy = http_proxy(&server.configuration, edge);
    proxy.server_options = Some(options);
    let permits =
        Permits::new(&bootstrap.limits.clients, CONNECTIONS, &trusted).shown_in(metrics.client_connections.clone());
    let parts = Parts {
        overload: Arc::clone(overload),
        upkeep: Arc::clone(control.upkeep()),
        connector,
        permits: Arc::new(permits),
        refusals,
        refuser: Refuser { metrics: Arc::clone(metrics), access_log, live: Arc::clone(&control.live), request_id },
        odd_names,
        proxied: Arc::clone(&proxied),
        drain: Arc::clone(drain),
    };
    let mut connections = Connections::new(proxy, parts);
    for (listener, &address) in bootstrap.listeners.iter().zip(addresses) {
        let own = &listener.limits;
        let counts = own.connections.is_some() || own.connections_per_ip.is_some();
        let permits = counts.then(|| Permits::new(own, u32::MAX, &trusted));
        connections.add(address, Accepts::of(listener).h2c, limits.at(|| Some(*listener.address)), permits);
    }
    let mut service = Service::new("proxy".to_owned(), connections);
    if proxied.is_needed() {
        service.endpoints().set_pre_tls_callback(proxied);
    }
    for ((listener, address), certificates) in bootstrap.listeners.iter().zip(addresses).zip(certificates) {
        let endpoint = listen::endpoint(listener, *address, certificates.clone());
        let endpoint = endpoint.map_err(|error| StartError::Tls(listener.name.to_string(), error.to_string()))?;
        service.add_listener(endpoint);
    }
    Ok(service)
}

/// What the clear-text listeners serve, if pingora has to accept more on some of them than they are for.
fn clear_text(bootstrap: &Bootstrap, addresses: &[SocketAddr]) -> Vec<(SocketAddr, Accepts)> {
    let clear = bootstrap.listeners.iter().zip(addresses).filter(|(listener, _)| listener.tls.is_none());
    let accepts: Vec<_> = clear.map(|(listener, address)| (*address, Accepts::of(listener))).collect();
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
    state: admin::State,
    listener: TcpListener,
    tls: Option<admin::Tls>,
    /// Becomes true when clients' connections are accepted.
    serving: watch::Receiver<bool>,
    predecessor: Mutex<Option<Predecessor>>,
    drain: Arc<Drain>,
    /// Is told once no other process serves.
    alone: Arc<watch::Sender<bool>>,
    close: watch::Receiver<bool>,
}

#[async_trait]
impl BackgroundService for AdminService {
    async fn start(&self, _pingoras: ShutdownWatch) {
        // Whoever is told that the gateway is ready may connect at once. An error means that the proxy is gone.
        let _ = self.serving.clone().wait_for(|serving| *serving).await;
        self.take_over().await;
        self.control.enlist();
        stop::tell(&[NotifyState::Ready]);
        let listener = self.listener.try_clone().and_then(tokio::net::TcpListener::from_std);
        let served = match listener {
            Ok(listener) => admin::serve(self.state.clone(), listener, self.tls.clone(), self.close.clone()).await,
            Err(error) => Err(error),
        };
        if let Err(error) = served {
            tracing::error!(%error, "the admin API stopped");
        }
    }
}

impl AdminService {
    /// Sends the predecessor home, if there is one.
    async fn take_over(&self) {
        let predecessor = self.predecessor.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(predecessor) = predecessor {
            match tokio::task::spawn_blocking(|| predecessor.relieve()).await {
                Ok(Ok(())) => tracing::info!("took over"),
                Ok(Err(error)) => tracing::warn!(%error, "the process before this one ended before it was told to"),
                Err(error) => tracing::error!(%error, "the process before this one cannot be told"),
            }
            self.drain.set_office(Office::Held);
        }
        self.alone.send_replace(true);
    }
}
