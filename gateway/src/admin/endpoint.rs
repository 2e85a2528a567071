//! One row of the table of endpoints: what serves it and what the OpenAPI document says of it.

use axum::routing::MethodRouter;
use http::Method;
use schemars::{JsonSchema, Schema, SchemaGenerator};

use super::State;
use crate::conf::Role;

type MakeSchema = fn(&mut SchemaGenerator) -> Schema;

/// What an endpoint answers with if all is well.
pub(super) enum Returns {
    /// JSON of a type.
    Json(MakeSchema),
    /// Plain text.
    Text,
    /// A JSON object a line, without an end.
    Lines,
    /// JSON of any form.
    Any,
}

/// A query parameter.
pub(super) struct QueryParam {
    pub(super) name: &'static str,
    /// Its JSON type.
    pub(super) kind: &'static str,
    pub(super) about: &'static str,
}

/// One endpoint.
pub(super) struct Endpoint {
    pub(super) method: Method,
    pub(super) path: &'static str,
    pub(super) handler: MethodRouter<State>,
    pub(super) summary: &'static str,
    pub(super) query: Vec<QueryParam>,
    pub(super) takes: Option<MakeSchema>,
    pub(super) returns: Returns,
    /// Whether it can be asked without a token.
    pub(super) open: bool,
    /// What whoever asks must be allowed to do.
    pub(super) role: Role,
    /// Whether answers have an `ETag`.
    pub(super) tagged: bool,
    /// Whether `If-Match` is honoured, and whether it is required.
    pub(super) conditional: Option<bool>,
}

impl Endpoint {
    pub(super) fn new(method: Method, path: &'static str, handler: MethodRouter<State>, summary: &'static str) -> Self {
        // What changes something is an operator's, unless it is said to be for others.
        let role = if method == Method::GET { Role::Read } else { Role::Operate };
        Self {
            role,
            method,
            path,
            handler,
            summary,
            query: Vec::new(),
            takes: None,
            returns: Returns::Any,
            open: false,
            tagged: false,
            conditional: None,
        }
    }

    pub(super) fn query(mut self, name: &'static str, kind: &'static str, about: &'static str) -> Self {
        self.query.push(QueryParam { name, kind, about });
        self
    }

    pub(super) fn takes<T: JsonSchema>(mut self) -> Self {
        self.takes = Some(SchemaGenerator::subschema_for::<T>);
        self
    }

    pub(super) fn returns<T: JsonSchema>(mut self) -> Self {
        self.returns = Returns::Json(SchemaGenerator::subschema_for::<T>);
        self
    }

    pub(super) fn returns_text(mut self) -> Self {
        self.returns = Returns::Text;
        self
    }

    pub(super) fn returns_lines(mut self) -> Self {
        self.returns = Returns::Lines;
        self
    }

    pub(super) fn returns_any(mut self) -> Self {
        self.returns = Returns::Any;
        self
    }

    pub(super) fn open(mut self) -> Self {
        self.open = true;
        self
    }

    pub(super) fn needs(mut self, role: Role) -> Self {
        self.role = role;
        self
    }

    pub(super) fn tagged(mut self) -> Self {
        self.tagged = true;
        self
    }

    pub(super) fn conditional(mut self, required: bool) -> Self {
        self.conditional = Some(required);
        self.tagged = true;
        self
    }

    /// Names of the parameters in its path.
    pub(super) fn path_params(&self) -> impl Iterator<Item = &'static str> {
        self.path.split('/').filter_map(|segment| segment.strip_prefix('{')?.strip_suffix('}'))
    }
}
