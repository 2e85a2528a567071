//! Messages of Nacos: protobuf around JSON. The definitions follow nacos_grpc_service.proto of Nacos 2.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::sources::Lost;

/// What is around every message.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Payload {
    #[prost(message, optional, tag = "2")]
    pub(super) metadata: Option<Metadata>,
    #[prost(message, optional, tag = "3")]
    pub(super) body: Option<Body>,
}

/// What kind of message it is.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Metadata {
    #[prost(string, tag = "3")]
    pub(super) kind: String,
    #[prost(map = "string, string", tag = "7")]
    pub(super) headers: HashMap<String, String>,
    #[prost(string, tag = "8")]
    pub(super) client_ip: String,
}

/// JSON, dressed as `google.protobuf.Any`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Body {
    #[prost(string, tag = "1")]
    pub(super) type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) value: Vec<u8>,
}

impl Payload {
    /// Dresses a message up.
    pub(super) fn new(kind: &str, headers: HashMap<String, String>, body: &Value) -> Self {
        Self {
            metadata: Some(Metadata { kind: kind.to_owned(), headers, client_ip: String::new() }),
            body: Some(Body { type_url: String::new(), value: body.to_string().into_bytes() }),
        }
    }

    /// What kind of message it is.
    pub(super) fn kind(&self) -> &str {
        self.metadata.as_ref().map_or("", |metadata| &metadata.kind)
    }

    /// The message.
    pub(super) fn json(&self) -> Result<Value, Lost> {
        let bytes = self.body.as_ref().map_or(&[][..], |body| &body.value);
        serde_json::from_slice(bytes).map_err(|error| Lost(format!("a {} that is no JSON: {error}", self.kind())))
    }
}

/// What a client tells of itself.
pub(super) fn setup(tenant: &str) -> Value {
    json!({
        "clientVersion": concat!("Serin-Rust-Client:v", env!("CARGO_PKG_VERSION")),
        "tenant": tenant,
        "labels": {"source": "sdk", "module": "naming,config", "AppName": "serin"},
        "abilities": {"remoteAbility": {"supportRemoteConnection": true}},
    })
}

/// What every answer has.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Verdict {
    /// 200 if all is well.
    pub(crate) result_code: i64,
    /// What is wrong.
    pub(crate) error_code: i64,
    /// The same in words.
    pub(crate) message: Option<String>,
}

impl Verdict {
    pub(crate) const NOT_FOUND: i64 = 300;

    pub(crate) fn is_good(&self) -> bool {
        self.result_code == 200
    }

    pub(crate) fn problem(&self) -> String {
        let words = self.message.as_deref().unwrap_or_default();
        format!("refused with code {}: {words}", if self.error_code == 0 { self.result_code } else { self.error_code })
    }
}

/// A service with its instances.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ServiceInfo {
    /// Name; some servers put the group and `@@` before it.
    pub(crate) name: String,
    /// Group.
    pub(crate) group_name: String,
    /// Instances.
    pub(crate) hosts: Option<Vec<Host>>,
}

impl ServiceInfo {
    /// The name without the group.
    pub(crate) fn plain_name(&self) -> &str {
        self.name.rsplit("@@").next().unwrap_or_default()
    }
}

/// An instance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Host {
    pub(crate) ip: String,
    pub(crate) port: u32,
    pub(crate) weight: f64,
    pub(crate) healthy: bool,
    pub(crate) enabled: bool,
    pub(crate) ephemeral: bool,
    pub(crate) cluster_name: Option<String>,
    pub(crate) metadata: Option<HashMap<String, String>>,
}

impl Default for Host {
    fn default() -> Self {
        Self {
            ip: String::new(),
            port: 0,
            weight: 1.0,
            healthy: true,
            enabled: true,
            ephemeral: true,
            cluster_name: None,
            metadata: None,
        }
    }
}
