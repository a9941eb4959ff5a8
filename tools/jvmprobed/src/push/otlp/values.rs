//! OTLP attributes and resources.

use std::fs;

use libjvmprobe::jvms::host_name;
use opentelemetry_proto::tonic::{
    common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value::Value},
    resource::v1::Resource,
};

use crate::window::Identity;

/// Random UUID that the kernel generates at each boot: random(4).
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

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

/// Returns the resource of a JVM. Processors such as `k8sattributes` look for these attribute names.
pub fn resource(identity: &Identity) -> Resource {
    let mut attributes = vec![
        attribute("service.name", text(&identity.name)),
        attribute("process.pid", Value::IntValue(identity.pid.into())),
    ];
    let others = identity.attributes.iter();
    let others =
        others.filter(|(name, _)| !matches!(name.as_str(), "service.name" | "process.pid"));
    attributes.extend(others.map(|(name, value)| attribute(name, text(value))));
    Resource { attributes, ..Resource::default() }
}

/// Returns the daemon's own resource. One daemon runs on a host, so the boot ID of the kernel identifies the
/// instance, even if several hosts have the same name.
pub fn own_resource() -> Resource {
    let instance = fs::read_to_string(BOOT_ID).unwrap_or_default();
    let attributes = vec![
        attribute("service.name", text("jvmprobed")),
        attribute("service.version", text(env!("CARGO_PKG_VERSION"))),
        attribute("service.instance.id", text(instance.trim())),
        attribute("host.name", text(host_name())),
    ];
    Resource { attributes, ..Resource::default() }
}

/// Returns the scope, which names the program that recorded the data.
pub fn scope() -> InstrumentationScope {
    InstrumentationScope {
        name: "jvmprobed".into(),
        version: env!("CARGO_PKG_VERSION").into(),
        ..InstrumentationScope::default()
    }
}
