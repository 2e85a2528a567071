//! The page of the admin API, from its OpenAPI document.

use std::fmt::Write as _;

use serde_json::Value;

use super::cell;

/// One row per operation, then what the parameters mean.
pub(super) fn page(document: &Value) -> String {
    let mut page = "# Admin API\n\nJSON over HTTP at `admin.address`; the OpenAPI 3.1 document is at \
                    `GET /v1/openapi.json`. Errors are problem\ndocuments (RFC 9457). With `admin.token_file` \
                    everything but what is marked open wants `Authorization: Bearer TOKEN`.\nA change with `If-Match` \
                    is made only if that revision is in force, else it is answered 412.\n\n\
                    | request | what it does | parameters | body |\n|---|---|---|---|\n"
        .to_owned();
    for (path, operations) in document["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            let summary = operation["summary"].as_str().unwrap();
            let open = if operation["security"] == serde_json::json!([{}]) { " (open)" } else { "" };
            let parameters: Vec<_> = operation["parameters"].as_array().unwrap().iter().map(parameter).collect();
            let _ = writeln!(
                page,
                "| `{} {path}`{open} | {} | {} | {} |",
                method.to_uppercase(),
                cell(summary),
                parameters.join("; "),
                body(operation),
            );
        }
    }
    page
}

fn parameter(parameter: &Value) -> String {
    let name = parameter["name"].as_str().unwrap();
    let about = parameter["description"].as_str().map(|about| format!(": {}", cell(about.trim_end_matches('.'))));
    format!("`{name}` ({}){}", parameter["in"].as_str().unwrap(), about.unwrap_or_default())
}

fn body(operation: &Value) -> String {
    let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
    let name = schema["$ref"].as_str().and_then(|name| name.rsplit('/').next());
    name.map_or(String::new(), |name| format!("`{name}`"))
}
