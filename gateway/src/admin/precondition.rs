//! `ETag` and `If-Match` of the traffic document: its revision in quotes.

use http::header::IF_MATCH;
use http::{HeaderMap, HeaderValue, StatusCode};

use super::problem::ApiError;

/// The tag of a revision.
pub(super) fn etag(revision: u64) -> HeaderValue {
    HeaderValue::from_str(&format!("\"{revision}\"")).unwrap_or_else(|_| HeaderValue::from(revision))
}

/// The revision that a change is made for, by its `If-Match`; `None` if any will do.
///
/// # Errors
/// If the header is `required` and missing (428), or names nothing that could be in force (412).
pub(super) fn expected(headers: &HeaderMap, current: u64, required: bool) -> Result<Option<u64>, ApiError> {
    let lines: Vec<&str> = headers.get_all(IF_MATCH).iter().filter_map(|line| line.to_str().ok()).collect();
    if !headers.contains_key(IF_MATCH) {
        let missing = "Send the ETag that GET /v1/traffic gave as If-Match, so that nobody's change is overwritten.";
        return if required { Err(ApiError::new(StatusCode::PRECONDITION_REQUIRED, missing)) } else { Ok(None) };
    }
    let mut tags = lines.iter().flat_map(|line| line.split(',')).map(str::trim).peekable();
    if tags.peek() == Some(&"*") {
        return Ok(None);
    }
    // A weak tag never matches here (RFC 9110 section 13.1.1).
    let revisions: Vec<u64> = tags.filter_map(|tag| tag.strip_prefix('"')?.strip_suffix('"')?.parse().ok()).collect();
    let in_force = revisions.iter().find(|&&revision| revision == current);
    let none = || ApiError::stale(format!("If-Match names no revision; \"{current}\" is in force."), current);
    in_force.or(revisions.first()).copied().map(Some).ok_or_else(none)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn if_match() {
        type Case = (&'static [&'static str], bool, Result<Option<u64>, u16>);
        let cases: [Case; 10] = [
            (&[], false, Ok(None)),
            (&[], true, Err(428)),
            (&["*"], true, Ok(None)),
            (&["\"7\""], true, Ok(Some(7))),
            (&["\"6\""], true, Ok(Some(6))),
            (&["\"6\", \"7\""], true, Ok(Some(7))),
            (&["\"6\"", "\"7\""], false, Ok(Some(7))),
            (&["W/\"7\""], false, Err(412)),
            (&["7"], false, Err(412)),
            (&[""], false, Err(412)),
        ];
        for (lines, required, outcome) in cases {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(IF_MATCH, line.parse().unwrap());
            }
            let got = expected(&headers, 7, required);
            let got = got.map_err(|error| axum::response::IntoResponse::into_response(error).status().as_u16());
            assert_eq!(got, outcome, "{lines:?} {required}");
        }
    }
}
