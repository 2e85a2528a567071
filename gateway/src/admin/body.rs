//! Bodies of requests: JSON, of bounded size, checked like the documents are, so that a mistake is told with its place
//! and what was probably meant.

use std::time::Duration;

use axum::body::to_bytes;
use axum::extract::{FromRequest, Request};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderValue, StatusCode};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::problem::ApiError;
use super::{State, unique};
use crate::conf::{self, Source};

/// Longest body, in bytes.
const LIMIT: usize = 1 << 20;
/// How long a body may take to arrive.
const PATIENCE: Duration = Duration::from_secs(10);

/// A body of this type.
pub(super) struct Body<T>(pub(super) T);

impl<T: DeserializeOwned + JsonSchema> FromRequest<State> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &State) -> Result<Self, ApiError> {
        if !is_json(request.headers().get(CONTENT_TYPE)) {
            return Err(ApiError::not_json());
        }
        let announced = request.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        if announced.is_some_and(|length: u64| length > LIMIT as u64) {
            return Err(too_large());
        }
        let late = |_| ApiError::new(StatusCode::REQUEST_TIMEOUT, "The body did not arrive in time.");
        let read = tokio::time::timeout(PATIENCE, to_bytes(request.into_body(), LIMIT)).await.map_err(late)?;
        let bytes = read.map_err(|_| too_large())?;
        parse(&bytes).map(Self)
    }
}

/// Whether a `Content-Type` is that of JSON. A page of another site cannot send that without asking first (CORS).
pub(super) fn is_json(content_type: Option<&HeaderValue>) -> bool {
    let text = content_type.and_then(|value| value.to_str().ok()).unwrap_or_default();
    text.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/json")
}

fn too_large() -> ApiError {
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, format!("A body has at most {LIMIT} bytes."))
}

/// Reads a body. `null` at the top level is as good as nothing.
fn parse<T: DeserializeOwned + JsonSchema>(bytes: &[u8]) -> Result<T, ApiError> {
    let malformed =
        |error: serde_json::Error| ApiError::new(StatusCode::BAD_REQUEST, format!("This is no JSON: {error}."));
    let mut value: Value = serde_json::from_slice(bytes).map_err(malformed)?;
    unique::check(bytes).map_err(|error| ApiError::new(StatusCode::BAD_REQUEST, format!("Ambiguous: {error}.")))?;
    if let Value::Object(object) = &mut value {
        object.retain(|_, value| !value.is_null());
    }
    conf::value(&Source::inline("the body", value.to_string())).map_err(ApiError::from)
}
