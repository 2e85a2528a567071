//! Guarded ramps: start, pause, resume, abort, and how they stand.

use std::time::Instant;

use axum::Json;
use axum::extract::{Path, State as Extract};
use axum::response::Response;
use http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serin_core::ramp::{self, Finding, missing};

use super::State;
use super::body::Body;
use super::problem::ApiError;
use super::write::{Caller, Reason, flip, readable};
use crate::conf::{Guard, Moment, Name, Percent, Ramp, Span};
use crate::control::change::Change;
use crate::control::generation::Generation;
use crate::control::ramp::driver::{Ramps, Standing, plan};
use crate::control::ramp::{Act, RampChange};

/// A ramp that is to begin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RampStart {
    /// The subset whose share is to grow.
    pub to: Name,
    /// Its shares, ascending.
    #[schemars(length(min = 1))]
    pub steps: Vec<Percent>,
    /// How long a step lasts at least [5m].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<Span>,
    /// What has to hold: `success_rate >= 99%`, `p99 <= 1.2 x stable`, ...
    #[serde(default)]
    pub guards: Vec<Guard>,
    /// Requests of a step below which nothing is concluded [200].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub min_requests: Option<u64>,
    /// Why, for the history.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// All ramps.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct RampList {
    /// Of services that have one, in the order of the routing document.
    pub ramps: Vec<RampView>,
}

/// A ramp and how it stands.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct RampView {
    /// The service.
    pub service: String,
    /// Its stable subset.
    pub stable: String,
    /// The ramp, as the traffic document has it.
    pub ramp: Ramp,
    /// Weight in the traffic document of the subset that it is to.
    pub weight: Percent,
    /// Seconds that the step has lasted; none unless the ramp goes on by itself.
    pub elapsed_seconds: Option<f64>,
    /// Seconds until the step has lasted.
    pub left_seconds: Option<f64>,
    /// Requests of the step that it is judged by: those of the target and those that it left to others.
    pub requests: Option<u64>,
    /// Requests to the stable subset in the meantime.
    pub stable_requests: Option<u64>,
    /// What is missing to judge the step by.
    pub missing: Option<String>,
    /// Guards, in their order.
    pub guards: Vec<GuardView>,
}

/// How a guard stands.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct GuardView {
    /// The guard.
    pub guard: Guard,
    /// Whether it holds; none if there is too little to tell by.
    pub good: Option<bool>,
    /// What the target measures, such as `99.8%` or `12.5ms`.
    pub value: Option<String>,
    /// What that is compared with.
    pub bound: Option<String>,
}

pub(super) async fn list(Extract(state): Extract<State>) -> Json<RampList> {
    let (current, now) = (state.control.current(), Instant::now());
    let services = current.core.services.iter().map(|service| &*service.name);
    let ramps = services.filter_map(|name| view(&current, state.control.ramps(), name, now)).collect();
    Json(RampList { ramps })
}

pub(super) async fn show(Extract(state): Extract<State>, Path(name): Path<String>) -> Result<Json<RampView>, ApiError> {
    let current = state.control.current();
    let missing = || {
        let known = current.service(&name).is_some();
        let detail = if known { format!("{name} has no ramp.") } else { format!("There is no service {name:?}.") };
        ApiError::new(StatusCode::NOT_FOUND, detail)
    };
    view(&current, state.control.ramps(), &name, Instant::now()).map(Json).ok_or_else(missing)
}

pub(super) async fn start(
    Extract(state): Extract<State>,
    Path(name): Path<String>,
    caller: Caller,
    Body(body): Body<RampStart>,
) -> Result<Response, ApiError> {
    let fresh = Ramp::new(body.to, body.steps);
    let ramp = Ramp {
        every: body.every.unwrap_or(fresh.every),
        guards: body.guards,
        min_requests: body.min_requests.unwrap_or(fresh.min_requests),
        ..fresh
    };
    change(state, name, caller, body.reason, |_| Act::Start(Box::new(ramp))).await
}

pub(super) async fn pause(
    Extract(state): Extract<State>,
    Path(name): Path<String>,
    caller: Caller,
    Body(body): Body<Reason>,
) -> Result<Response, ApiError> {
    change(state, name, caller, body.reason, |who| Act::Pause(format!("paused by {who}"))).await
}

pub(super) async fn resume(
    Extract(state): Extract<State>,
    Path(name): Path<String>,
    caller: Caller,
    Body(body): Body<Reason>,
) -> Result<Response, ApiError> {
    change(state, name, caller, body.reason, |_| Act::Resume).await
}

pub(super) async fn abort(
    Extract(state): Extract<State>,
    Path(name): Path<String>,
    caller: Caller,
    Body(body): Body<Reason>,
) -> Result<Response, ApiError> {
    change(state, name, caller, body.reason, |who| Act::Abort(format!("aborted by {who}"))).await
}

/// `act` gets who does it, and why if that was said.
async fn change(
    state: State,
    service: String,
    caller: Caller,
    reason: Option<String>,
    act: impl FnOnce(&str) -> Act,
) -> Result<Response, ApiError> {
    let reason = readable(&reason.unwrap_or_default())?;
    let by = caller.by.clone();
    let who = if reason.is_empty() { by.clone() } else { format!("{by}: {reason}") };
    let change = RampChange { service, act: act(&who), by, at: Moment::of(std::time::SystemTime::now()) };
    flip(state, caller, Change::Ramp(change), Some(reason), false).await
}

fn view(generation: &Generation, ramps: &Ramps, name: &str, now: Instant) -> Option<RampView> {
    let entry = generation.traffic.services.get(name)?;
    let (ramp, stable) = (entry.ramp.as_ref()?, generation.routing.services.get(name)?.stable());
    let standing = ramps.standing(generation, name, now);
    let (every, seen) = (ramp.every.duration(), standing.as_ref());
    let left = |standing: &Standing| every.saturating_sub(standing.elapsed).as_secs_f64();
    Some(RampView {
        service: name.to_owned(),
        stable: stable.to_owned(),
        weight: entry.weights.get(ramp.to.as_str()).copied().unwrap_or_default(),
        elapsed_seconds: seen.map(|standing| tenths(standing.elapsed.as_secs_f64())),
        left_seconds: seen.map(|standing| tenths(left(standing))),
        requests: seen.map(|standing| standing.target.step.requests + standing.target.step.missed),
        stable_requests: seen.map(|standing| standing.stable.step.requests),
        missing: seen.and_then(|standing| missing(&plan(ramp, standing), &standing.target, &standing.stable)),
        guards: ramp.guards.iter().map(|guard| guard_view(*guard, ramp, seen)).collect(),
        ramp: ramp.clone(),
    })
}

fn guard_view(guard: Guard, ramp: &Ramp, standing: Option<&Standing>) -> GuardView {
    let finding = standing.map(|s| guard.look(&s.target.step, &s.stable.step, ramp.min_requests));
    let (good, figures) = match finding {
        Some(Finding::Good(figures)) => (Some(true), Some(figures)),
        Some(Finding::Bad(figures)) => (Some(false), Some(figures)),
        Some(Finding::TooFew) | None => (None, None),
    };
    let show = |value: f64| ramp::Measure::show(guard.measure, value);
    GuardView { guard, good, value: figures.map(|f| show(f.value)), bound: figures.map(|f| show(f.bound)) }
}

fn tenths(seconds: f64) -> f64 {
    (seconds * 10.0).round() / 10.0
}
