//! Errors as problem documents (RFC 9457).

use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, ETAG, WWW_AUTHENTICATE};
use http::{HeaderName, HeaderValue, Method, StatusCode, Uri};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::conf::{Problem, Problems};
use crate::control::change::FlipError;
use crate::explain::BadQuestion;

/// A problem document (RFC 9457).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProblemDocument {
    /// `about:blank`: the status says what kind it is.
    #[serde(rename = "type")]
    pub kind: String,
    /// The status in words.
    pub title: String,
    /// The status.
    pub status: u16,
    /// What was wrong.
    pub detail: String,
    /// Single things that were wrong with what was sent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<Wrong>,
}

/// One thing that was wrong with what was sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Wrong {
    /// Where, such as `weights.v1`; empty for the whole.
    pub path: String,
    /// What is wrong and what was expected.
    pub message: String,
    /// What was probably meant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suggestion: Option<String>,
}

impl From<Problem> for Wrong {
    fn from(problem: Problem) -> Self {
        Self { path: problem.path, message: problem.message, suggestion: problem.suggestion }
    }
}

/// An answer that says what was wrong.
pub(super) struct ApiError {
    status: StatusCode,
    detail: String,
    problems: Vec<Wrong>,
    header: Option<Box<(HeaderName, HeaderValue)>>,
    noted: bool,
}

/// Marks a refusal that the history has noted already.
#[derive(Clone, Copy)]
pub(super) struct Noted;

impl ApiError {
    pub(super) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, detail: detail.into(), problems: Vec::new(), header: None, noted: false }
    }

    /// The body is JSON, but not what was expected.
    pub(super) fn unprocessable(problems: Vec<Wrong>) -> Self {
        let problems_of = if problems.len() == 1 { "One thing is" } else { "Several things are" };
        let detail = format!("{problems_of} wrong with what was sent.");
        Self { problems, ..Self::new(StatusCode::UNPROCESSABLE_ENTITY, detail) }
    }

    /// One value of the body is wrong.
    pub(super) fn wrong(path: &str, message: impl Into<String>) -> Self {
        Self::unprocessable(vec![Wrong { path: path.to_owned(), message: message.into(), suggestion: None }])
    }

    /// The token is missing or wrong.
    pub(super) fn unauthorized() -> Self {
        let mut error = Self::new(StatusCode::UNAUTHORIZED, "Show the token: `Authorization: Bearer TOKEN`.");
        error.header = Some(Box::new((WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"serin\""))));
        error
    }

    /// The body is something else than JSON, or does not say that it is.
    pub(super) fn not_json() -> Self {
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "Send JSON: `Content-Type: application/json`.")
    }

    /// The traffic document has another revision than the caller knows.
    pub(super) fn stale(detail: impl Into<String>, current: u64) -> Self {
        let mut error = Self::new(StatusCode::PRECONDITION_FAILED, detail);
        error.header = Some(Box::new((ETAG, super::precondition::etag(current))));
        error
    }
}

impl From<Problems> for ApiError {
    fn from(problems: Problems) -> Self {
        Self::unprocessable(problems.0.into_iter().map(Wrong::from).collect())
    }
}

impl From<FlipError> for ApiError {
    fn from(error: FlipError) -> Self {
        let refused = match error {
            FlipError::Stale { current, .. } => Self::stale(format!("{error}. Nothing was changed."), current),
            FlipError::UnknownService { .. } | FlipError::UnknownRevision(_) => {
                Self::new(StatusCode::NOT_FOUND, error.to_string())
            }
            FlipError::Contended(_) => Self::new(StatusCode::CONFLICT, format!("{error}.")),
            FlipError::Ramp(message) => Self::new(StatusCode::CONFLICT, format!("{message}.")),
            FlipError::OnlyForAll(_) => Self::wrong("service", error.to_string()),
            FlipError::Invalid(problems) => problems.into(),
        };
        Self { noted: true, ..refused }
    }
}

impl From<BadQuestion> for ApiError {
    fn from(error: BadQuestion) -> Self {
        Self::wrong(&error.field, error.message)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let document = ProblemDocument {
            kind: "about:blank".to_owned(),
            title: self.status.canonical_reason().unwrap_or("Error").to_owned(),
            status: self.status.as_u16(),
            detail: self.detail,
            problems: self.problems,
        };
        let mut response = (self.status, axum::Json(document)).into_response();
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        response.headers_mut().extend(self.header.map(|header| *header));
        if self.noted {
            response.extensions_mut().insert(Noted);
        }
        response
    }
}

/// No such path.
pub(super) async fn not_found(uri: Uri) -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, format!("There is no {}; see /v1/openapi.json.", uri.path()))
}

/// No such method on this path.
pub(super) async fn method_not_allowed(method: Method, uri: Uri) -> ApiError {
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, format!("{} does not take {method}.", uri.path()))
}
