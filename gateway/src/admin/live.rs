//! `GET /v1/live`: requests, errors and latencies of services and their subsets over the last seconds.

use std::time::{SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::extract::{RawQuery, State as Extract};
use http::StatusCode;
use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serin_core::instance::Instance;
use serin_core::live::{REMEMBERED, Tally};

use super::State;
use super::problem::ApiError;
use super::read::param;
use crate::conf::Percent;
use crate::control::generation::Generation;
use crate::explain::preview::in_force;

/// Seconds over which figures are, unless others are asked for.
const SECONDS: usize = 60;

/// Live numbers of all services.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct LivePage {
    /// When, in milliseconds since 1970.
    pub at: u64,
    /// Whole seconds that the figures are over: as many as were asked for, or as the gateway has run. The running second
    /// is left out.
    pub seconds: u64,
    /// By name of the service.
    pub services: IndexMap<String, ServiceLive>,
    /// The same second by second, if it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub series: Option<SeriesPage>,
}

/// Figures of some requests.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Figures {
    /// Requests that ended, per second.
    pub requests_per_second: f64,
    /// Share of them that failed: status 5xx, an answer that broke off, a gRPC status of the server's fault; 0 to 1.
    pub error_rate: f64,
    /// Median latency in milliseconds, from a request's head to the end of its response (of a stream: to its head).
    pub p50_ms: Option<f64>,
    /// 99th percentile of it.
    pub p99_ms: Option<f64>,
    /// Requests that instances are working on now.
    pub in_flight: u64,
}

/// Live numbers of one service.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ServiceLive {
    /// Figures of all of its requests.
    #[serde(flatten)]
    pub figures: Figures,
    /// By name of the subset that served; empty for requests that had none: those that a limit refused, and those that
    /// any instance served.
    pub subsets: IndexMap<String, SubsetLive>,
}

/// Live numbers of one subset.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SubsetLive {
    /// Figures of its requests.
    #[serde(flatten)]
    pub figures: Figures,
    /// Share of the service's requests, 0 to 1.
    pub share: f64,
    /// Weight in force.
    pub weight: Percent,
}

/// Live numbers second by second.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SeriesPage {
    /// Seconds per value: 1.
    pub step_seconds: u64,
    /// By names of service and subset.
    pub services: IndexMap<String, IndexMap<String, SubsetSeries>>,
}

/// Values of a subset, oldest first; the running second is left out.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct SubsetSeries {
    /// Requests that ended.
    pub requests: Vec<u64>,
    /// Failed ones among them.
    pub errors: Vec<u64>,
    /// Median latency in milliseconds; none in a second without requests.
    pub p50_ms: Vec<Option<f64>>,
    /// 99th percentile of it.
    pub p99_ms: Vec<Option<f64>>,
}

pub(super) async fn live(
    Extract(state): Extract<State>,
    RawQuery(query): RawQuery,
) -> Result<Json<LivePage>, ApiError> {
    let query = query.as_deref();
    let asked = param(query, "seconds").map_or(Ok(SECONDS), str::parse);
    let asked = asked.ok().filter(|seconds| (1..=REMEMBERED).contains(seconds));
    let wrong = || ApiError::new(StatusCode::BAD_REQUEST, format!("`seconds` is a number from 1 to {REMEMBERED}."));
    let asked = asked.ok_or_else(wrong)?;
    let series = param(query, "series").is_some_and(|value| value != "false");
    let current = state.control.current();
    Ok(Json(state.control.metrics().live.between_ticks(|known| page(&current, asked.min(known), series))))
}

fn page(generation: &Generation, seconds: usize, series: bool) -> LivePage {
    let at = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
    let positions = 0..generation.core.services.len();
    let name = |at: usize| generation.core.services[at].name.to_string();
    LivePage {
        at: u64::try_from(at).unwrap_or(u64::MAX),
        seconds: seconds as u64,
        services: positions.clone().map(|at| (name(at), service(generation, at, seconds))).collect(),
        series: series.then(|| SeriesPage {
            step_seconds: 1,
            services: positions.map(|at| (name(at), service_series(generation, at, seconds))).collect(),
        }),
    }
}

fn service(generation: &Generation, position: usize, seconds: usize) -> ServiceLive {
    let (core, side) = (&generation.core.services[position], &generation.services[position]);
    let weights = in_force(core, &generation.core.traffic[position]);
    let rows = core.subsets.iter().map(|subset| (&*subset.name, &*subset.pool.instances)).chain([("", &[][..])]);
    let mut all = Tally::default();
    let mut subsets: Vec<_> = rows
        .enumerate()
        .map(|(at, (name, instances))| {
            let tally = side.metrics.live.of(Some(at)).recent(seconds);
            all.add(&tally);
            let weight = weights.get(at).and_then(|&weight| Percent::from_hundredths(weight)).unwrap_or_default();
            (name, tally, in_flight(instances), weight)
        })
        .collect();
    subsets.retain(|(name, tally, ..)| !name.is_empty() || tally.requests > 0);
    let share = |tally: &Tally| if all.requests == 0 { 0.0 } else { tally.requests as f64 / all.requests as f64 };
    let row = |(name, tally, in_flight, weight): (&str, Tally, u64, Percent)| {
        let share = rounded(share(&tally), 1e4);
        (name.to_owned(), SubsetLive { figures: figures(&tally, seconds, in_flight), share, weight })
    };
    let subsets = subsets.into_iter().map(row).collect();
    ServiceLive { figures: figures(&all, seconds, in_flight(&core.instances)), subsets }
}

fn service_series(generation: &Generation, position: usize, seconds: usize) -> IndexMap<String, SubsetSeries> {
    let (core, side) = (&generation.core.services[position], &generation.services[position]);
    let names = core.subsets.iter().map(|subset| &*subset.name).chain([""]);
    let row = |(at, name): (usize, &str)| {
        let mut values = SubsetSeries::default();
        for second in side.metrics.live.of(Some(at)).series(seconds) {
            values.requests.push(second.requests);
            values.errors.push(second.errors);
            values.p50_ms.push(millis(&second, 0.5));
            values.p99_ms.push(millis(&second, 0.99));
        }
        (name.to_owned(), values)
    };
    let rows = names.enumerate().map(row);
    rows.filter(|(name, values)| !name.is_empty() || values.requests.iter().any(|&count| count > 0)).collect()
}

fn figures(tally: &Tally, seconds: usize, in_flight: u64) -> Figures {
    Figures {
        requests_per_second: rounded(tally.requests as f64 / seconds.max(1) as f64, 1e3),
        error_rate: rounded(tally.error_rate().unwrap_or(0.0), 1e6),
        p50_ms: millis(tally, 0.5),
        p99_ms: millis(tally, 0.99),
        in_flight,
    }
}

fn millis(tally: &Tally, share: f64) -> Option<f64> {
    tally.quantile(share).map(|millis| rounded(millis, 1e3))
}

fn in_flight(instances: &[Instance]) -> u64 {
    instances.iter().map(|instance| u64::from(instance.vitals.in_flight())).sum()
}

fn rounded(value: f64, factor: f64) -> f64 {
    (value * factor).round() / factor
}
