//! Text about one wait.

use libjvmprobe::{
    render::{table::Times, units::span},
    stack::StackFrame,
    trace::waits::{Awaited, Holder, Kind, Relation, ThreadName, Wait, application_frame},
};

/// Returns the name of what a wait was for; `None` if there is none. An object is shown by its class and, if
/// `with_address`, its address.
pub fn awaited(awaited: &Awaited, with_address: bool) -> Option<String> {
    if let Some(resource) = awaited.resource() {
        return Some(resource.to_owned());
    }
    let Awaited { class, object: address, name, .. } = awaited;
    match (class, address) {
        _ if !name.is_empty() => Some(name.to_string()),
        (Some(class), address) if with_address => Some(format!("{class}@{address:#x}")),
        (Some(class), _) => Some(class.to_string()),
        (None, 0) => None,
        (None, address) if with_address => Some(format!("{address:#x}")),
        (None, _) => Some("an unknown object".into()),
    }
}

/// Returns the name of a thread.
pub fn thread(thread: &ThreadName) -> String {
    match thread.virtual_thread {
        Some(number) if thread.tid == 0 && thread.name.is_empty() => {
            format!("virtual thread #{number}")
        }
        Some(number) if thread.tid == 0 => format!("virtual thread #{number} \"{}\"", thread.name),
        Some(number) => format!("virtual thread #{number} on \"{}\"", thread.name),
        None => format!("\"{}\"", thread.name),
    }
}

/// Returns a line about a wait that has ended.
pub fn line(wait: &Wait, times: Times) -> String {
    let so_far = if wait.is_in_progress { " so far" } else { "" };
    let mut text = format!(
        "{} {:>9}{so_far} {:<13} {}",
        times.show(wait.end_ns),
        span(wait.length_ns()),
        wait.kind.name(),
        thread(&wait.thread)
    );
    if let Some(on) = awaited(&wait.awaited, true) {
        text += &format!(" for {on}");
    }
    if let Some(frame) = wait.application_frame() {
        text += &format!(" at {}", StackFrame::from(frame));
    }
    if let Some(reason) = wait.pinned_by {
        text += &format!(", pinned by a {reason}");
    }
    if wait.run_queue_ns > 1_000_000 && !matches!(wait.kind, Kind::RunQueue | Kind::Throttled) {
        let why = if wait.was_throttled { "throttled" } else { "waiting for a processor" };
        text += &format!(", {} of it {why}", span(wait.run_queue_ns));
    }
    if let Some(holder) = &wait.holder {
        text += &format!("; {}", self::holder(holder, wait.thread.pid.0));
    }
    text
}

/// Describes the thread that ended a wait of a thread of process `pid`.
pub fn holder(holder: &Holder, pid: u32) -> String {
    let mut text = match holder.relation {
        Relation::Held if holder.held_ns == 0 => "held for an unknown time by ".into(),
        Relation::Held if holder.is_exact => format!("held for {} by ", span(holder.held_ns)),
        Relation::Held => format!("held for at least {} by ", span(holder.held_ns)),
        Relation::Woke => "woken by ".into(),
    };
    text += &thread(&holder.thread);
    if holder.thread.pid.0 != pid {
        text += &format!(" of process {}", holder.thread.pid);
    }
    if let Some(frame) = application_frame(&holder.stack) {
        text += &format!(" at {}", StackFrame::from(frame));
    }
    if let Some(waited) = &holder.waited {
        text +=
            &format!(", which waited {} itself: {}", span(waited.length_ns()), waited.kind.name());
        if let Some(on) = awaited(&waited.awaited, true) {
            text += &format!(" for {on}");
        }
        if let Some(frame) = waited.application_frame() {
            text += &format!(" at {}", StackFrame::from(frame));
        }
        if let Some(next) = &waited.holder {
            text += &format!(", {}", self::holder(&Holder { waited: None, ..next.clone() }, pid));
        }
    }
    text
}
