//! `GET /v1/tail`: decisions as they happen.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{RawQuery, State as Extract};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use http::StatusCode;
use http::header::CONTENT_TYPE;
use percent_encoding::percent_decode_str;

use super::State;
use super::problem::ApiError;
use super::read::param;
use crate::control::generation::Generation;
use crate::telemetry::tail::{Filter, MOST, Refused};

/// What is sent: JSON objects, each on a line.
const LINES: &str = "application/x-ndjson";

pub(super) async fn tail(Extract(state): Extract<State>, RawQuery(query): RawQuery) -> Result<Response, ApiError> {
    let text = |name| {
        let given = param(query.as_deref(), name).filter(|value| !value.is_empty());
        given.map(|value| percent_decode_str(&value.replace('+', " ")).decode_utf8_lossy().into_owned())
    };
    let filter = Filter { service: text("service"), subset: text("subset"), user: text("user") };
    check(&filter, &state.control.current())?;
    let tail = Arc::clone(&state.control.metrics().tail);
    let refused = |refused| {
        let detail = match refused {
            Refused::Full => format!("{MOST} readers listen already."),
            Refused::Stopping => "The gateway is about to stop.".to_owned(),
        };
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, detail)
    };
    let listening = tail.listen(filter).map_err(refused)?;
    let lines = stream::unfold(listening, |mut listening| async move {
        let lines = listening.next().await?;
        Some((Ok::<_, Infallible>(lines), listening))
    });
    Ok(([(CONTENT_TYPE, LINES)], Body::from_stream(lines)).into_response())
}

/// A name that is not there would wait for ever.
fn check(filter: &Filter, generation: &Generation) -> Result<(), ApiError> {
    let mut services = generation.core.services.iter();
    let mut wanted = services.clone().filter(|each| filter.service.as_deref().is_none_or(|name| *each.name == *name));
    let has = |subset: &str| wanted.any(|each| each.subsets.iter().any(|known| *known.name == *subset));
    if let Some(name) = filter.service.as_deref().filter(|name| !services.any(|each| *each.name == **name)) {
        return Err(ApiError::new(StatusCode::NOT_FOUND, format!("There is no service {name:?}.")));
    }
    match filter.subset.as_deref() {
        Some(subset) if !{ has }(subset) => {
            Err(ApiError::new(StatusCode::NOT_FOUND, format!("There is no subset {subset:?}.")))
        }
        _ => Ok(()),
    }
}
