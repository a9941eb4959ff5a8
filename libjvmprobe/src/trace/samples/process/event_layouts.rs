//! Labels of events: finds the JVM's layouts by which the kernel side and user space read them.

use std::sync::Arc;

use crate::{
    Error, Pid, Result,
    hotspot::{Collector, HotSpot, deopt::Traps},
    trace::samples::{
        event::{class_place, java_layout},
        events::{EventKind, EventSpec, java::JavaEvent},
        session::{self, Session},
    },
};

/// Configures the kernel side to read the labels of the given events in this JVM. Returns the encoding of
/// deoptimization requests if such events are sampled. If something cannot be read, the events have stacks without
/// labels.
pub(super) fn configure_events(
    pid: Pid,
    hotspot: &HotSpot,
    events: &[EventSpec],
    session: &Session,
) -> Option<Arc<Traps>> {
    let unknown = |what: &str, error: &Error| {
        log::debug!("process {pid}: {what} is unknown: {error}");
    };
    let wants = |filter: fn(JavaEvent) -> bool| {
        events.iter().any(|event| matches!(event.what, EventKind::Java(java) if filter(java)))
    };
    let mut layout = None;
    if wants(JavaEvent::reads_classes) {
        let read = classes_of(hotspot).map(|classes| layout = Some(classes));
        read.unwrap_or_else(|error| unknown("the class of objects", &error));
    }
    if wants(|java| java == JavaEvent::Compiles) {
        match hotspot.compile_task() {
            Ok((task_level, task_osr_bci)) => {
                layout =
                    Some(java_layout { task_level, task_osr_bci, ..layout.unwrap_or_default() });
            }
            Err(error) => unknown("the tier of compilations", &error),
        }
    }
    if let Some(layout) = layout {
        session::set_java_layout(session, pid.0.into(), &layout)
            .unwrap_or_else(|error| unknown("the layout of classes or compilations", &error));
    }
    if wants(|java| java == JavaEvent::Stalls)
        && !matches!(hotspot.collector, Collector::Z | Collector::GenerationalZ)
    {
        let name = hotspot.collector.name();
        log::warn!("process {pid} runs {name}: allocation stalls only occur with ZGC");
    }
    if !wants(|java| java == JavaEvent::Deopt) {
        return None;
    }
    let traps =
        hotspot.traps().inspect_err(|error| unknown("the reason of deoptimizations", error));
    traps.ok().map(Arc::new)
}

/// Returns the layout by which the kernel side reads the class of an object.
fn classes_of(hotspot: &HotSpot) -> Result<java_layout> {
    let layout = hotspot.class_layout()?;
    let offset = |at: u64| {
        let implausible = |_| Error::Layout { what: format!("implausible field offset {at}") };
        u32::try_from(at).map_err(implausible)
    };
    let class = hotspot.class_field()?.place();
    Ok(java_layout {
        klass_name: offset(layout.klass_name)?,
        symbol_length: offset(layout.symbol_length)?,
        symbol_body: offset(layout.symbol_body)?,
        class: class_place {
            bytes: class.bytes,
            at: class.at,
            bit: class.bit,
            shift: class.shift,
            base: class.base,
        },
        ..java_layout::default()
    })
}
