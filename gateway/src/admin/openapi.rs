//! The OpenAPI 3.1 document, made from the table of endpoints and the types of their bodies. OpenAPI 3.1 takes JSON
//! Schema as it is, so the schemas are those that bodies are checked against.

use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use super::ProblemDocument;
use super::endpoint::{Endpoint, Returns};

/// The document of these endpoints.
pub(super) fn document(endpoints: &[Endpoint]) -> Value {
    let settings = SchemaSettings::draft2020_12().with(|s| s.definitions_path = "/components/schemas".into());
    let mut schemas = settings.for_deserialize().into_generator();
    let problem = schemas.subschema_for::<ProblemDocument>();
    let mut paths = Map::new();
    for endpoint in endpoints {
        let operations = paths.entry(endpoint.path).or_insert_with(|| json!({}));
        operations[endpoint.method.as_str().to_ascii_lowercase()] = operation(endpoint, &mut schemas);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Serin admin API",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Reads and flips what is in force. Errors are problem documents (RFC 9457). With tokens \
                            configured, everything but probes needs one whose role is at least the one named.",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "servers": [{ "url": "http://127.0.0.1:9901" }],
        "security": [{ "token": [] }, {}],
        "paths": paths,
        "components": {
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
            "responses": {
                "Problem": {
                    "description": "What was wrong.",
                    "content": { "application/problem+json": { "schema": problem } },
                },
            },
            "schemas": schemas.take_definitions(true),
        },
    })
}

fn operation(endpoint: &Endpoint, schemas: &mut SchemaGenerator) -> Value {
    let mut operation = json!({
        "operationId": operation_id(endpoint),
        "summary": endpoint.summary,
        "parameters": parameters(endpoint),
        "responses": {
            "200": answer(endpoint, schemas),
            "default": { "$ref": "#/components/responses/Problem" },
        },
    });
    if let Some(takes) = endpoint.takes {
        let schema = takes(schemas);
        operation["requestBody"] = json!({ "required": true, "content": { "application/json": { "schema": schema } } });
    }
    // OpenAPI 3.1 lets a scheme of any kind name the roles that are needed.
    operation["security"] = json!([{ "token": [endpoint.role.as_str()] }, {}]);
    if endpoint.open {
        operation["security"] = json!([{}]);
    }
    operation
}

/// `put_v1_switches_switch`: unique, as the method and the path are.
fn operation_id(endpoint: &Endpoint) -> String {
    let words = endpoint.path.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let method = endpoint.method.as_str().to_ascii_lowercase();
    std::iter::once(&*method).chain(words).collect::<Vec<_>>().join("_")
}

fn parameters(endpoint: &Endpoint) -> Vec<Value> {
    let path = endpoint.path_params().map(|name| {
        let mut schema = json!({ "type": "string" });
        if name == "switch" {
            schema["enum"] = json!(["balancer", "canary", "limits"]);
        }
        json!({ "name": name, "in": "path", "required": true, "schema": schema })
    });
    let query = endpoint.query.iter().map(|param| {
        let schema = json!({ "type": param.kind });
        json!({ "name": param.name, "in": "query", "description": param.about, "schema": schema })
    });
    let precondition = endpoint.conditional.map(|required| {
        json!({
            "name": "If-Match",
            "in": "header",
            "required": required,
            "description": "Change only this revision: the ETag of GET /v1/traffic, or `*`.",
            "schema": { "type": "string" },
        })
    });
    let operator = endpoint.conditional.map(|_| {
        json!({
            "name": super::OPERATOR,
            "in": "header",
            "description": "Who the caller is, for the history: at most 64 characters.",
            "schema": { "type": "string" },
        })
    });
    path.chain(query).chain(precondition).chain(operator).collect()
}

fn answer(endpoint: &Endpoint, schemas: &mut SchemaGenerator) -> Value {
    let mut answer = json!({
        "description": "Done.",
        "content": match endpoint.returns {
            Returns::Json(schema) => json!({ "application/json": { "schema": schema(schemas) } }),
            Returns::Any => json!({ "application/json": { "schema": { "type": "object" } } }),
            Returns::Lines => json!({ "application/x-ndjson": { "schema": { "type": "string" } } }),
            Returns::Text => json!({ "text/plain": { "schema": { "type": "string" } } }),
        },
    });
    if endpoint.tagged {
        answer["headers"] = json!({
            "ETag": { "description": "Revision of the traffic document in quotes.", "schema": { "type": "string" } },
        });
    }
    answer
}
