//! OTLP attributes and resources.

use std::{fs, process};

use libjvmprobe::jvms::{configured_attributes, host_attributes};
use opentelemetry_proto::tonic::{
    common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value::Value},
    resource::v1::Resource,
};

use sha2::{Digest, Sha256};

use crate::{push::labels, window::Identity};

/// Random UUID that the kernel generates at each boot: random(4).
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Attributes whose values are integers in the semantic conventions. All others are strings.
const INTEGERS: [&str; 3] = ["process.pid", "process.user.id", "process.vpid"];

/// Returns an attribute.
pub fn attribute(name: &str, value: Value) -> KeyValue {
    KeyValue { key: name.to_owned(), value: Some(any(value)), ..KeyValue::default() }
}

/// Returns a string value.
pub fn text(text: &str) -> Value {
    Value::StringValue(text.to_owned())
}

/// Wraps a value in OTLP's `AnyValue`.
pub fn any(value: Value) -> AnyValue {
    AnyValue { value: Some(value) }
}

/// Attribute that distinguishes the instances of a service.
const INSTANCE: &str = "service.instance.id";

/// Returns the resource of a JVM. Processors such as `k8sattributes` look for these attribute names. Back ends distinguish
/// the JVMs of a service by `service.instance.id`, so a JVM that sets none gets one.
pub fn resource(identity: &Identity) -> Resource {
    let identity = &*labels::limited(identity);
    let pid = identity.pid.to_string();
    let instance = identity.attributes.get(INSTANCE).cloned();
    let instance = instance.unwrap_or_else(|| instance_id(identity));
    let first = [("service.name", &*identity.name), ("process.pid", &*pid), (INSTANCE, &*instance)];
    let others = identity.attributes.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let others = others.filter(|(name, _)| !first.iter().any(|(first, _)| first == name));
    resource_of(first.into_iter().chain(others))
}

/// Returns a UUID that is the same for all data of a process, even after a restart of the daemon.
fn instance_id(identity: &Identity) -> String {
    let host = ["host.id", "host.name"].iter().find_map(|&key| identity.attributes.get(key));
    let host = host.map_or("", String::as_str);
    let text = format!("{host}\0{}\0{}", identity.pid, identity.started_ns);
    let mut bytes = [0; 16];
    bytes.iter_mut().zip(Sha256::digest(text)).for_each(|(to, byte)| *to = byte);
    uuid::Builder::from_custom_bytes(bytes).into_uuid().to_string()
}

fn resource_of<'a>(attributes: impl Iterator<Item = (&'a str, &'a str)>) -> Resource {
    let typed = |(name, value): (&str, &str)| {
        let number = value.parse().ok().filter(|_| INTEGERS.contains(&name));
        attribute(name, number.map_or_else(|| text(value), Value::IntValue))
    };
    Resource { attributes: attributes.map(typed).collect(), ..Resource::default() }
}

/// Returns the daemon's own resource. One daemon runs on a host, so the boot ID of the kernel identifies the
/// instance, even if several hosts have the same name. The attributes in the daemon's
/// `OTEL_RESOURCE_ATTRIBUTES` override these.
pub fn own_resource() -> Resource {
    let instance = fs::read_to_string(BOOT_ID).unwrap_or_default();
    let mut attributes = host_attributes().clone();
    for (name, value) in [
        ("process.pid", &*process::id().to_string()),
        (INSTANCE, instance.trim()),
        ("service.name", "jvmprobed"),
        ("service.version", env!("CARGO_PKG_VERSION")),
    ] {
        attributes.insert(name.to_owned(), value.to_owned());
    }
    attributes.extend(configured_attributes().clone());
    resource_of(attributes.iter().map(|(name, value)| (name.as_str(), value.as_str())))
}

/// Returns the scope, which names the program that recorded the data.
pub fn scope() -> InstrumentationScope {
    InstrumentationScope {
        name: "jvmprobed".into(),
        version: env!("CARGO_PKG_VERSION").into(),
        ..InstrumentationScope::default()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn value(resource: &Resource, key: &str) -> Option<Value> {
        let found = resource.attributes.iter().find(|attribute| attribute.key == key);
        found?.value.clone()?.value
    }

    fn identity(pid: u32, attributes: &[(&str, &str)]) -> Identity {
        let attributes = attributes.iter().map(|&(key, value)| (key.to_owned(), value.to_owned()));
        let attributes = attributes.collect::<BTreeMap<_, _>>();
        Identity { pid, started_ns: 5, name: "shop".into(), attributes }
    }

    #[test]
    fn resource_has_typed_attributes_once() {
        let attributes = [
            ("process.pid", "7"),
            ("process.user.id", "1000"),
            ("process.vpid", "many"),
            ("service.name", "shop"),
            ("service.version", "2"),
        ];
        let resource = resource(&identity(7, &attributes));
        assert_eq!(resource.attributes.len(), 6);
        for (key, expected) in [
            ("process.pid", Value::IntValue(7)),
            ("process.user.id", Value::IntValue(1000)),
            ("process.vpid", text("many")),
            ("service.version", text("2")),
        ] {
            assert_eq!(value(&resource, key), Some(expected));
        }
    }

    #[test]
    fn each_jvm_has_an_instance_id() {
        let id = |pid, attributes: &[(&str, &str)]| {
            let resource = resource(&identity(pid, attributes));
            let Some(Value::StringValue(id)) = value(&resource, INSTANCE) else { panic!() };
            id
        };
        let one = id(7, &[("host.id", "a")]);
        assert_eq!((one.len(), &one[14..15]), (36, "8"), "{one}");
        assert_eq!(one, id(7, &[("host.id", "a"), ("host.name", "b")]));
        assert_ne!(one, id(8, &[("host.id", "a")]));
        assert_ne!(one, id(7, &[("host.id", "b")]));
        assert_eq!(id(7, &[(INSTANCE, "own")]), "own");
    }
}
