//! The admin API: reads what is in force, flips the traffic document, explains and previews. [`endpoints`] is the one
//! table that both the router and the OpenAPI document are made from. Beside the API there is the [`console`].

mod body;
mod console;
mod endpoint;
mod entrance;
mod guard;
mod live;
mod openapi;
mod precondition;
mod problem;
mod ramp;
mod read;
mod tail;
mod token;
mod unique;
mod view;
mod write;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use axum::Router;
use axum::routing::{MethodRouter, get, patch, post, put};
use axum::serve::ListenerExt as _;
use http::Method;
use ipnet::IpNet;
use tokio::net::TcpListener;
use tokio::sync::watch;

use self::endpoint::Endpoint;
use self::entrance::Entrance;
use crate::conf::Role;
use crate::control::Control;
use crate::control::history::Entry;
use crate::explain::preview::{Preview, Proposal};
use crate::explain::{Explanation, Question};
use crate::overload::Overload;

pub use self::entrance::Tls;
pub use self::live::{Figures, LivePage, SeriesPage, ServiceLive, SubsetLive, SubsetSeries};
pub use self::problem::{ProblemDocument, Wrong};
pub use self::ramp::{GuardView, RampList, RampStart, RampView};
pub use self::read::{Alive, Config, HistoryPage, NodeView, Ready};
pub use self::token::{Holder, Tokens, text as token_text};
pub use self::view::{
    CallsView, CheckView, ConnectionsView, InstanceView, LoadView, RateLimitView, ServiceList, ServiceSummary,
    ServiceView, SubsetView,
};
pub use self::write::{Rearmed, Reason, Replacement, RollbackTo, ServicePatch, SwitchTo, Written};

/// Header in which callers say who they are, for the history. It is believed: authentication is the token's part.
pub const OPERATOR: &str = "x-serin-operator";

/// What the handlers work on.
#[derive(Clone)]
pub struct State {
    control: Arc<Control>,
    tokens: Arc<Tokens>,
    hosts: Arc<[String]>,
    draining: Arc<AtomicBool>,
    trusted: Arc<[IpNet]>,
    loopback: bool,
    overload: Option<Arc<Overload>>,
}

impl State {
    /// State of the admin API of one gateway. If there are `tokens`, callers must show one. While `draining`, the gateway
    /// is not ready.
    #[must_use]
    pub fn new(control: Arc<Control>, tokens: Arc<Tokens>, draining: Arc<AtomicBool>) -> Self {
        let bootstrap = &control.bootstrap;
        let trusted = bootstrap.trusted_proxies.iter().map(|network| network.0).collect();
        let loopback = bootstrap.admin.address.ip().is_loopback();
        let hosts = bootstrap.admin.hosts.iter().map(ToString::to_string).collect();
        Self { trusted, loopback, hosts, control, tokens, draining, overload: None }
    }

    /// Also shows whether the gateway sheds load.
    #[must_use]
    pub fn with_overload(self, overload: Arc<Overload>) -> Self {
        Self { overload: Some(overload), ..self }
    }

    fn is_draining(&self) -> bool {
        self.draining.load(Relaxed)
    }
}

/// Serves the admin API, over TLS if there is any, until `shutdown` becomes true or its sender is gone.
///
/// # Errors
/// If the listener breaks.
pub async fn serve(
    state: State,
    listener: TcpListener,
    tls: Option<Tls>,
    mut shutdown: watch::Receiver<bool>,
) -> io::Result<()> {
    let tail = Arc::clone(&state.control.metrics().tail);
    let service = router(state).into_make_service_with_connect_info::<SocketAddr>();
    let stop = async move {
        // An error means that the sender is gone, and the gateway with it.
        let _ = shutdown.wait_for(|stop| *stop).await;
        tail.close();
    };
    match tls {
        None => axum::serve(listener, service).with_graceful_shutdown(stop).await,
        Some(tls) => {
            let entrance = Entrance::open(listener, tls)?.tap_io(|_| ());
            axum::serve(entrance, service).with_graceful_shutdown(stop).await
        }
    }
}

/// The routes of the table behind the guard.
pub fn router(state: State) -> Router {
    let mut router = Router::new();
    for endpoint in endpoints() {
        router = router.route(endpoint.path, endpoint.handler);
    }
    console::routes(router)
        .fallback(problem::not_found)
        .method_not_allowed_fallback(problem::method_not_allowed)
        .layer(axum::middleware::from_fn_with_state(state.clone(), guard::guard))
        .with_state(state)
}

/// Every endpoint.
fn endpoints() -> Vec<Endpoint> {
    vec![
        Endpoint::new(Method::GET, "/healthz", get(read::healthz), "Whether the process answers")
            .returns::<Alive>()
            .open(),
        Endpoint::new(Method::GET, "/readyz", get(read::readyz), "Whether the gateway takes traffic")
            .query("verbose", "boolean", "Also show the state of the documents; needs the token.")
            .returns::<Ready>()
            .open(),
        Endpoint::new(Method::GET, "/metrics", get(read::metrics), "Metrics in Prometheus' text format").returns_text(),
        Endpoint::new(Method::GET, "/v1/config", get(read::config), "The documents in force, without secrets")
            .returns::<Config>(),
        Endpoint::new(Method::GET, "/v1/services", get(read::services), "All services").returns::<ServiceList>(),
        Endpoint::new(Method::GET, "/v1/services/{service}", get(read::service), "Subsets and instances of a service")
            .returns::<ServiceView>(),
        Endpoint::new(Method::GET, "/v1/live", get(live::live), "Live requests, errors and latencies")
            .query("seconds", "integer", "Over the last so many whole seconds, 1 to 300 [60].")
            .query("series", "boolean", "Also second by second.")
            .returns::<LivePage>(),
        Endpoint::new(Method::GET, "/v1/tail", get(tail::tail), "Decisions as they happen, a JSON object a line")
            .query("service", "string", "Only of this service.")
            .query("subset", "string", "Only those that this subset served.")
            .query("user", "string", "Only those of this user, by his key. Answers show no more than his bucket.")
            .returns_lines(),
        Endpoint::new(
            Method::POST,
            "/v1/services/{service}/rearm",
            post(write::rearm),
            "Put a balancer chain back in force that the gateway took out",
        )
        .takes::<Reason>()
        .returns::<Rearmed>(),
        Endpoint::new(Method::GET, "/v1/traffic", get(read::traffic), "The traffic document in force")
            .returns::<crate::conf::Traffic>()
            .tagged(),
        Endpoint::new(Method::PUT, "/v1/traffic", put(write::replace), "Replace the traffic document")
            .takes::<Replacement>()
            .returns::<Written>()
            .needs(Role::Configure)
            .conditional(true),
        Endpoint::new(
            Method::PATCH,
            "/v1/traffic/services/{service}",
            patch(write::patch_service),
            "Change weights or abort of a service",
        )
        .takes::<ServicePatch>()
        .returns::<Written>()
        .conditional(false),
        Endpoint::new(Method::PUT, "/v1/switches/{switch}", put(write::switch), "Turn a kill switch on or off")
            .takes::<SwitchTo>()
            .returns::<Written>()
            .conditional(false),
        Endpoint::new(Method::GET, "/v1/ramps", get(ramp::list), "All guarded ramps").returns::<RampList>(),
        Endpoint::new(
            Method::GET,
            "/v1/ramps/{service}",
            get(ramp::show),
            "The guarded ramp of a service, under way or ended",
        )
        .returns::<RampView>(),
        ramp_change("/v1/ramps/{service}", post(ramp::start), "Start a guarded ramp").takes::<RampStart>(),
        ramp_change("/v1/ramps/{service}/pause", post(ramp::pause), "Pause a ramp; weights stay").takes::<Reason>(),
        ramp_change(
            "/v1/ramps/{service}/resume",
            post(ramp::resume),
            "Go on with a paused ramp; the time of its step begins anew",
        )
        .takes::<Reason>(),
        ramp_change("/v1/ramps/{service}/abort", post(ramp::abort), "End a ramp: everything to the stable subset")
            .takes::<Reason>(),
        Endpoint::new(Method::GET, "/v1/history", get(read::history), "Changes and refusals, newest first")
            .query("limit", "integer", "At most so many entries, 1 to 1,000 [100].")
            .query("document", "string", "Only of `routing` or `traffic`.")
            .returns::<HistoryPage>(),
        Endpoint::new(Method::POST, "/v1/rollback", post(write::rollback), "Go back to an earlier traffic document")
            .takes::<RollbackTo>()
            .returns::<Written>()
            .conditional(false),
        Endpoint::new(Method::POST, "/v1/explain", post(read::explain), "Explain the decision for a request")
            .takes::<Question>()
            .needs(Role::Read)
            .returns::<Explanation>(),
        Endpoint::new(Method::POST, "/v1/preview", post(read::preview), "Preview who moves under new weights")
            .takes::<Proposal>()
            .needs(Role::Read)
            .returns::<Preview>(),
        Endpoint::new(Method::GET, "/v1/openapi.json", get(read::openapi), "This description").returns_any(),
    ]
}

fn ramp_change(path: &'static str, handler: MethodRouter<State>, summary: &'static str) -> Endpoint {
    Endpoint::new(Method::POST, path, handler, summary).returns::<Written>().conditional(false)
}

/// The OpenAPI 3.1 document of the API.
#[must_use]
pub fn openapi() -> serde_json::Value {
    openapi::document(&endpoints())
}

/// An entry of the history, as the API shows it.
pub type HistoryEntry = Entry;

#[cfg(test)]
pub(crate) mod tests;
