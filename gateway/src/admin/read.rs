//! Handlers that change nothing.

use axum::Json;
use axum::extract::{Path, RawQuery, State as Extract};
use axum::response::{IntoResponse, Response};
use http::header::{ACCEPT, CONTENT_TYPE, ETAG};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::body::Body;
use super::precondition::etag;
use super::problem::ApiError;
use super::view::{self, ServiceList, ServiceView};
use super::{HistoryEntry, State};
use crate::conf::Traffic;
use crate::control::Status;
use crate::explain::preview::{self, Preview, Proposal};
use crate::explain::{self, Explanation, Question, Revisions};
use crate::overload::ResourceStatus;
use crate::telemetry::observe::observe;
use crate::telemetry::openmetrics;

/// Content type of metrics, unless OpenMetrics is asked for.
const PLAIN_TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
/// Entries of the history that are shown unless more are asked for.
const HISTORY_PAGE: usize = 100;

/// That the process answers.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Alive {
    /// `ok`.
    pub status: String,
    /// Version of the gateway.
    pub version: String,
}

/// Whether the gateway takes traffic.
#[derive(Serialize, JsonSchema)]
pub struct Ready {
    /// Whether it does.
    pub ready: bool,
    /// State of the documents, if it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub documents: Option<Status>,
    /// What may run out, how much of it is used, and whether load is shed for want of it, if it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overload: Option<Vec<ResourceStatus>>,
}

/// The documents in force, without secrets.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Config {
    /// Which gateway this is.
    #[serde(default)]
    pub node: NodeView,
    /// What the gateway was started with.
    pub bootstrap: Value,
    /// The routing document. Values of header edits that look like credentials are left out.
    pub routing: Value,
    /// The traffic document.
    pub traffic: Traffic,
    /// Revisions of the two.
    pub revision: Revisions,
}

/// Which gateway this is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeView {
    /// Its identity: the configured one, or the name of the host.
    pub id: String,
    /// Its zone.
    pub zone: Option<String>,
    /// Its cluster.
    pub cluster: Option<String>,
    /// Version of the gateway.
    pub version: String,
}

/// A part of the history, newest first.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct HistoryPage {
    /// The entries.
    pub entries: Vec<HistoryEntry>,
}

pub(super) async fn healthz() -> Json<Alive> {
    Json(Alive { status: "ok".to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() })
}

pub(super) async fn readyz(Extract(state): Extract<State>, RawQuery(query): RawQuery) -> Result<Response, ApiError> {
    let ready = !state.is_draining();
    let documents = match is_verbose(query.as_deref()) {
        false => None,
        true => Some(blocking(&state, |state| state.control.status()).await?),
    };
    let in_flight = state.control.metrics().in_flight.get();
    let shown = state.overload.as_ref().filter(|_| documents.is_some());
    let overload = shown.map(|overload| overload.status(in_flight));
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    Ok((status, Json(Ready { ready, documents, overload })).into_response())
}

/// Whether the query says `verbose`, alone or with a yes. A probe that says anything else with it is told what it was without.
pub(super) fn is_verbose(query: Option<&str>) -> bool {
    const YES: [&str; 5] = ["", "1", "true", "yes", "on"];
    param(query, "verbose").is_some_and(|value| YES.iter().any(|yes| yes.eq_ignore_ascii_case(value)))
}

pub(super) async fn metrics(Extract(state): Extract<State>, headers: HeaderMap) -> Result<Response, ApiError> {
    observe(&state.control);
    let failed = |error: String| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, error);
    let metrics = state.control.metrics();
    let accepts = headers.get_all(ACCEPT).iter().filter_map(|accept| accept.to_str().ok());
    let (kind, text) = if accepts.into_iter().any(openmetrics::is_asked_for) {
        (openmetrics::CONTENT_TYPE, metrics.render_openmetrics().map_err(|error| failed(error.to_string()))?)
    } else {
        (PLAIN_TEXT, metrics.render().map_err(|error| failed(error.to_string()))?)
    };
    Ok(([(CONTENT_TYPE, kind)], text).into_response())
}

pub(super) async fn config(Extract(state): Extract<State>) -> Result<Json<Config>, ApiError> {
    let current = state.control.current();
    let internal = |error: serde_json::Error| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string());
    let mut routing = serde_json::to_value(&*current.routing).map_err(internal)?;
    view::leave_out_secrets(&mut routing);
    let node = state.control.node();
    Ok(Json(Config {
        node: NodeView {
            id: node.id.to_string(),
            zone: node.zone.as_ref().map(ToString::to_string),
            cluster: node.cluster.as_ref().map(ToString::to_string),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        },
        bootstrap: serde_json::to_value(&state.control.bootstrap).map_err(internal)?,
        routing,
        traffic: Traffic { revision: current.traffic_revision, ..Traffic::clone(&current.traffic) },
        revision: Revisions { routing: current.routing_revision, traffic: current.traffic_revision },
    }))
}

pub(super) async fn services(Extract(state): Extract<State>) -> Json<ServiceList> {
    Json(view::services(&state.control.current()))
}

pub(super) async fn service(
    Extract(state): Extract<State>,
    Path(name): Path<String>,
) -> Result<Json<ServiceView>, ApiError> {
    let current = state.control.current();
    let position = current.service(&name);
    let unknown = || ApiError::new(StatusCode::NOT_FOUND, format!("There is no service {name:?}."));
    Ok(Json(view::service(&current, position.ok_or_else(unknown)?)))
}

pub(super) async fn traffic(Extract(state): Extract<State>) -> ([(HeaderName, HeaderValue); 1], Json<Traffic>) {
    let current = state.control.current();
    let traffic = Traffic { revision: current.traffic_revision, ..Traffic::clone(&current.traffic) };
    ([(ETAG, etag(current.traffic_revision))], Json(traffic))
}

pub(super) async fn history(
    Extract(state): Extract<State>,
    RawQuery(query): RawQuery,
) -> Result<Json<HistoryPage>, ApiError> {
    let query = query.as_deref();
    let limit = param(query, "limit").map_or(Ok(HISTORY_PAGE), str::parse);
    let limit = limit.ok().filter(|limit| (1..=1_000).contains(limit));
    let limit = limit.ok_or_else(|| ApiError::new(StatusCode::BAD_REQUEST, "`limit` is a number from 1 to 1,000."))?;
    let document = match param(query, "document") {
        None => None,
        Some(document @ ("routing" | "traffic")) => Some(document.to_owned()),
        Some(_) => return Err(ApiError::new(StatusCode::BAD_REQUEST, "`document` is `routing` or `traffic`.")),
    };
    let mut entries = blocking(&state, |state| state.control.history()).await?;
    entries.retain(|entry| document.as_ref().is_none_or(|document| *document == entry.document));
    entries.truncate(limit);
    Ok(Json(HistoryPage { entries }))
}

pub(super) async fn explain(
    Extract(state): Extract<State>,
    Body(question): Body<Question>,
) -> Result<Json<Explanation>, ApiError> {
    Ok(Json(explain::explain(&state.control.current(), &state.trusted, &question)?))
}

pub(super) async fn preview(
    Extract(state): Extract<State>,
    Body(proposal): Body<Proposal>,
) -> Result<Json<Preview>, ApiError> {
    Ok(Json(preview::preview(&state.control.current(), &proposal)?))
}

pub(super) async fn openapi() -> Json<Value> {
    Json(super::openapi())
}

/// The value of a query parameter; no value is an empty one. The values that are asked for here need no decoding.
pub(super) fn param<'a>(query: Option<&'a str>, name: &str) -> Option<&'a str> {
    let mut pairs = query?.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    pairs.find(|(key, _)| *key == name).map(|(_, value)| value)
}

/// Runs something that may wait for the disk on a thread that may.
pub(super) async fn blocking<T: Send + 'static>(
    state: &State,
    act: impl FnOnce(&State) -> T + Send + 'static,
) -> Result<T, ApiError> {
    let state = state.clone();
    let done = tokio::task::spawn_blocking(move || act(&state)).await;
    done.map_err(|error| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
}

/// Who asks, as a header says it: at most 64 characters, nothing invisible. Without it, the name of the token.
pub(super) fn operator(headers: &HeaderMap, token: Option<&str>) -> String {
    let text = headers.get(super::OPERATOR).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let name: String = text.trim().chars().filter(|c| c.is_ascii_graphic() || *c == ' ').take(64).collect();
    if name.is_empty() { token.unwrap_or("unknown").to_owned() } else { name }
}
