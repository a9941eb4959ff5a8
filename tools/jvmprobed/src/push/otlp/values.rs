//! Attributes, and who a JVM is in them.

use std::fs;

use libjvmprobe::follow::host_name;
use opentelemetry_proto::tonic::{
    common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value::Value},
    resource::v1::Resource,
};

use crate::window::Identity;

/// A random UUID of each boot: random(4).
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// An attribute.
pub fn attribute(name: &str, value: Value) -> KeyValue {
    KeyValue { key: name.to_owned(), value: Some(any(value)), ..KeyValue::default() }
}

/// A text.
pub fn text(text: &str) -> Value {
    Value::StringValue(text.to_owned())
}

/// Any value.
pub fn any(value: Value) -> AnyValue {
    AnyValue { value: Some(value) }
}

/// Who a JVM is. What other tools add (`k8sattributes`) goes by these names.
pub fn resource(who: &Identity) -> Resource {
    let mut attributes = vec![
        attribute("service.name", text(&who.name)),
        attribute("process.pid", Value::IntValue(who.pid.into())),
    ];
    let others = who.attributes.iter();
    let others =
        others.filter(|(name, _)| !matches!(name.as_str(), "service.name" | "process.pid"));
    attributes.extend(others.map(|(name, value)| attribute(name, text(value))));
    Resource { attributes, ..Resource::default() }
}

/// The daemon as a resource: what it says of itself. One runs on a host, so that the boot of the kernel tells instances
/// apart, also on hosts of one name.
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

/// Who has taken it.
pub fn scope() -> InstrumentationScope {
    InstrumentationScope {
        name: "jvmprobed".into(),
        version: env!("CARGO_PKG_VERSION").into(),
        ..InstrumentationScope::default()
    }
}
