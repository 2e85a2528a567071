//! Who tells: the attributes of the resource (<https://opentelemetry.io/docs/specs/semconv/resource/>), with
//! `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` before our own.

use opentelemetry::KeyValue;
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::transform::common::tonic::ResourceAttributesWithSchema;
use percent_encoding::percent_decode_str;

use super::receiver::{Env, Variable};
use crate::conf::Node;

/// The resource of this process. A variable that cannot be read is left out as a whole, with a warning, as the
/// specification has it.
#[must_use]
pub fn resource(node: &Node, env: Env<'_>) -> Resource {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname")
        .map_or_else(|_| String::new(), |name| name.trim().to_owned());
    let id = node.id.as_ref().map_or_else(|| host.clone(), ToString::to_string);
    let own = [
        ("service.name", Some("serin".to_owned())),
        ("service.version", Some(env!("CARGO_PKG_VERSION").to_owned())),
        ("service.instance.id", Some(id)),
        ("host.name", Some(host)),
        ("telemetry.sdk.name", Some("serin".to_owned())),
        ("telemetry.sdk.language", Some("rust".to_owned())),
        ("telemetry.sdk.version", Some(env!("CARGO_PKG_VERSION").to_owned())),
        ("serin.zone", node.zone.as_ref().map(ToString::to_string)),
        ("serin.cluster", node.cluster.as_ref().map(ToString::to_string)),
    ];
    let own = own.into_iter().filter_map(|(key, value)| Some(KeyValue::new(key, value?)));
    let own = own.chain([KeyValue::new("process.pid", i64::from(std::process::id()))]);
    let told = Variable::named("OTEL_RESOURCE_ATTRIBUTES", env).map_or_else(Vec::new, |told| {
        attributes(&told.value).unwrap_or_else(|| {
            tracing::warn!("OTEL_RESOURCE_ATTRIBUTES is left out: expected pairs such as team=edge,stage=live");
            Vec::new()
        })
    });
    let name = Variable::named("OTEL_SERVICE_NAME", env).map(|told| KeyValue::new("service.name", told.value));
    // Later ones take the place of earlier ones of the same key.
    let all =
        opentelemetry_sdk::Resource::builder_empty().with_attributes(own).with_attributes(told).with_attributes(name);
    let ResourceAttributesWithSchema { attributes, .. } = (&all.build()).into();
    Resource { attributes: attributes.0, ..Resource::default() }
}

fn attributes(text: &str) -> Option<Vec<KeyValue>> {
    let pair = |pair: &str| {
        let (key, value) = pair.split_once('=')?;
        let decode = |text: &str| percent_decode_str(text.trim()).decode_utf8().ok().map(|text| text.into_owned());
        Some(KeyValue::new(decode(key).filter(|key| !key.is_empty())?, decode(value)?))
    };
    text.split(',').filter(|part| !part.trim().is_empty()).map(pair).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use opentelemetry_proto::tonic::common::v1::any_value::Value;

    use super::*;

    fn told(vars: &[(&str, &str)]) -> BTreeMap<String, String> {
        let env = |name: &str| vars.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        let pairs = resource(&Node::default(), &env).attributes.into_iter().filter_map(|pair| {
            let Some(Value::StringValue(value)) = pair.value.unwrap().value else { return None };
            Some((pair.key, value))
        });
        pairs.collect()
    }

    #[test]
    fn the_environment_goes_before_our_own() {
        assert_eq!(told(&[])["service.name"], "serin");
        let attributes = ("OTEL_RESOURCE_ATTRIBUTES", "service.name=a, team=e%20dge,");
        let all = told(&[attributes]);
        assert_eq!((&*all["service.name"], &*all["team"]), ("a", "e dge"));
        assert_eq!(told(&[attributes, ("OTEL_SERVICE_NAME", "b")])["service.name"], "b");
        assert!(!told(&[("OTEL_RESOURCE_ATTRIBUTES", "team=edge,what")]).contains_key("team"));
    }
}
