//! Handlers that change the traffic document.

use axum::Json;
use axum::extract::{FromRequestParts, Path, State as Extract};
use axum::response::{IntoResponse, Response};
use http::header::ETAG;
use http::request::Parts;
use http::{HeaderMap, StatusCode};
use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serin_core::selfguard::Trip;

use super::body::Body;
use super::precondition::{self, etag};
use super::problem::ApiError;
use super::read::{blocking, operator};
use super::{Holder, State, guard};
use crate::conf::{Abort, Name, Percent, ServiceTraffic, Switches, Traffic};
use crate::control::Flipped;
use crate::control::change::{Actor, Change, SwitchKind};

/// Longest reason, in characters.
const LONGEST_REASON: usize = 1_000;

/// A whole traffic document, and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Replacement {
    /// Of no account, so that what was read can be sent back: `If-Match` says what is to be replaced.
    #[serde(default)]
    pub revision: u64,
    /// Traffic of services by name.
    #[serde(default)]
    pub services: IndexMap<Name, ServiceTraffic>,
    /// Kill switches.
    #[serde(default)]
    pub switches: Switches,
    /// Why, for the history.
    #[serde(default)]
    pub reason: Option<String>,
}

/// A change to the traffic of one service. What is not given stays.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ServicePatch {
    /// New shares of all subsets, together 100 %.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<IndexMap<Name, Percent>>,
    /// Whether the rollout is aborted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub abort: Option<Abort>,
    /// Why, for the history.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The new position of a kill switch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SwitchTo {
    /// On or off.
    pub on: bool,
    /// For one service only.
    #[serde(default)]
    pub service: Option<Name>,
    /// Why, for the history.
    #[serde(default)]
    pub reason: Option<String>,
}

/// A revision to go back to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RollbackTo {
    /// Revision of the traffic document, as the history has it. What it said comes into force under a new revision.
    pub revision: u64,
    /// Why, for the history.
    #[serde(default)]
    pub reason: Option<String>,
}

/// Why something is done.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Reason {
    /// Why, for the history.
    #[serde(default)]
    pub reason: Option<String>,
}

/// A balancer chain that is in force again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Rearmed {
    /// Why it was out: `panicked` or `slow`; none if it was not.
    #[schemars(with = "Option<String>")]
    pub was: Option<Trip>,
}

/// A change that is in force.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Written {
    /// The new revision.
    pub revision: u64,
    /// The traffic document in force.
    pub traffic: Traffic,
    /// What went wrong besides: the file could not be written, so that the change is lost at a restart; or the config
    /// center could not be, so that the change is in force on this gateway only until the center is back.
    pub warning: Option<String>,
}

/// Who changes something, and what he believes to be in force.
pub(super) struct Caller {
    pub(super) by: String,
    from: String,
    token: Option<String>,
    headers: HeaderMap,
}

impl FromRequestParts<State> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &State) -> Result<Self, ApiError> {
        let token = parts.extensions.get::<Holder>().and_then(|holder| holder.name.as_deref());
        Ok(Self {
            by: operator(&parts.headers, token),
            from: guard::from(&parts.extensions),
            token: token.map(str::to_owned),
            headers: parts.headers.clone(),
        })
    }
}

impl Caller {
    fn actor(&self) -> Actor {
        Actor { by: self.by.clone(), from: self.from.clone(), token: self.token.clone() }
    }
}

pub(super) async fn replace(
    Extract(state): Extract<State>,
    caller: Caller,
    Body(body): Body<Replacement>,
) -> Result<Response, ApiError> {
    let Replacement { services, switches, reason, .. } = body;
    flip(state, caller, Change::Replace(Traffic { revision: 0, services, switches }), reason, true).await
}

pub(super) async fn patch_service(
    Extract(state): Extract<State>,
    Path(name): Path<String>,
    caller: Caller,
    Body(body): Body<ServicePatch>,
) -> Result<Response, ApiError> {
    let ServicePatch { weights, abort, reason } = body;
    if weights.is_none() && abort.is_none() {
        return Err(ApiError::wrong("", "changes nothing: give `weights`, `abort` or both"));
    }
    flip(state, caller, Change::Service { name, weights, abort }, reason, false).await
}

pub(super) async fn switch(
    Extract(state): Extract<State>,
    Path(kind): Path<String>,
    caller: Caller,
    Body(body): Body<SwitchTo>,
) -> Result<Response, ApiError> {
    let kind = match &*kind {
        "balancer" => SwitchKind::Balancer,
        "canary" => SwitchKind::Canary,
        "limits" => SwitchKind::Limits,
        _ => return Err(ApiError::new(StatusCode::NOT_FOUND, "The switches are `balancer`, `canary` and `limits`.")),
    };
    let service = body.service.map(|service| service.to_string());
    flip(state, caller, Change::Switch { kind, service, on: body.on }, body.reason, false).await
}

pub(super) async fn rollback(
    Extract(state): Extract<State>,
    caller: Caller,
    Body(body): Body<RollbackTo>,
) -> Result<Response, ApiError> {
    flip(state, caller, Change::Rollback(body.revision), body.reason, false).await
}

pub(super) async fn rearm(
    Extract(state): Extract<State>,
    Path(name): Path<String>,
    caller: Caller,
    Body(body): Body<Reason>,
) -> Result<Json<Rearmed>, ApiError> {
    let reason = readable(&body.reason.unwrap_or_default())?;
    let current = state.control.current();
    precondition::expected(&caller.headers, current.traffic_revision, false)?.map_or(Ok(()), |expected| {
        let stale = || format!("revision {expected} was expected, but {} is in force", current.traffic_revision);
        if expected == current.traffic_revision {
            Ok(())
        } else {
            Err(ApiError::stale(stale(), current.traffic_revision))
        }
    })?;
    let unknown = ApiError::new(StatusCode::NOT_FOUND, format!("There is no service {name:?}."));
    let actor = caller.actor();
    let was = blocking(&state, move |state| state.control.rearm(&actor, &name, &reason)).await?;
    Ok(Json(Rearmed { was: was.ok_or(unknown)? }))
}

pub(super) async fn flip(
    state: State,
    caller: Caller,
    change: Change,
    reason: Option<String>,
    if_match_required: bool,
) -> Result<Response, ApiError> {
    let current = state.control.current().traffic_revision;
    let expected = precondition::expected(&caller.headers, current, if_match_required)?;
    let reason = readable(&reason.unwrap_or_default())?;
    let actor = caller.actor();
    let flipped = blocking(&state, move |state| state.control.flip(&actor, &change, &reason, expected)).await??;
    let Flipped { traffic, warning } = flipped;
    let written = Written { revision: traffic.revision, traffic, warning };
    Ok(([(ETAG, etag(written.revision))], Json(written)).into_response())
}

/// A reason on one line.
pub(super) fn readable(reason: &str) -> Result<String, ApiError> {
    if reason.chars().count() > LONGEST_REASON {
        return Err(ApiError::wrong("reason", format!("is too long: at most {LONGEST_REASON} characters")));
    }
    Ok(reason.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).collect())
}
