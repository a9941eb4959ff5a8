//! Decides what a wait was for: from the thread's state, its system call, what the JVM stores about it, and its stack.

use crate::{
    process::blocking_call::{Operation, file_of_call, waits_for_files},
    stack::Frame,
    trace::waits::{
        event::{THROTTLED, UNSEEN, wait_event},
        wait::Kind,
    },
};

/// `__TASK_STOPPED` and `__TASK_TRACED` of include/linux/sched.h.
const STOPPED: u32 = 0x4 | 0x8;

/// Functions of the JVM in which a thread waits for the end of a safepoint or a handshake.
const SAFEPOINT: [&str; 6] = [
    "SafepointSynchronize::block",
    "SafepointMechanism::process",
    "SafepointMechanism::block_or_handshake",
    "ThreadSafepointState::handle_polling_page_exception",
    "SafepointMechanism::block_if_requested_slow",
    "HandshakeState::process_by_self",
];

/// Functions of the kernel that bring memory back, on x86-64 and aarch64.
const PAGE_FAULT: [&str; 5] =
    ["handle_mm_fault", "do_user_addr_fault", "asm_exc_page_fault", "do_page_fault", "el0_da"];

/// Reason of a wait, before names are looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// One that needs no names.
    Of(Kind),
    /// An operation on an open file.
    File(Operation, u32),
}

/// Returns the reason of a wait. `java` and `kernel` are the stacks, outermost frame first. `by_vm_thread`: the JVM's VM
/// Thread has ended the wait.
pub(super) fn reason(
    event: &wait_event,
    stack: &[Frame],
    kernel: &[Frame],
    by_vm_thread: bool,
) -> Reason {
    if event.state & STOPPED != 0 {
        return Reason::Of(Kind::Stopped);
    }
    // The state of a thread that left the processor before the trace is not known.
    if event.state == 0 && event.flags & UNSEEN == 0 {
        let is_throttled = event.flags & THROTTLED != 0;
        return Reason::Of(if is_throttled { Kind::Throttled } else { Kind::RunQueue });
    }
    let in_kernel = |names: &[&str]| kernel.iter().any(|frame| names.contains(&&*frame.name));
    if in_kernel(&PAGE_FAULT) || event.call < 0 {
        return Reason::Of(Kind::PageFault);
    }
    let call = event.call.unsigned_abs();
    match i64::from(call) {
        libc::SYS_futex => return Reason::Of(of_futex(event, stack, by_vm_thread)),
        libc::SYS_nanosleep | libc::SYS_clock_nanosleep => return Reason::Of(Kind::Sleep),
        libc::SYS_wait4 | libc::SYS_waitid => return Reason::Of(Kind::Child),
        _ => {}
    }
    if let Some((operation, descriptor)) =
        file_of_call(call, [event.args[0], event.args[1]], || Some(event.word))
    {
        return Reason::File(operation, descriptor);
    }
    Reason::Of(if waits_for_files(call) { Kind::Poll } else { Kind::Unknown })
}

/// Returns the kind of an operation on a file whose name is `file`; `None` if the file is not open any more.
pub(super) fn kind_of_file(operation: Operation, file: Option<&str>, kernel: &[Frame]) -> Kind {
    let in_kernel = |part: &str| kernel.iter().any(|frame| frame.name.contains(part));
    let is_socket = match file {
        Some(file) => !file.starts_with('/'),
        None => in_kernel("sock_") || in_kernel("_poll"),
    };
    match operation {
        Operation::Accept => Kind::Accept,
        Operation::Connect => Kind::Connect,
        // A FIFO has a path.
        _ if in_kernel("pipe_") || file.is_some_and(|file| file.starts_with("pipe:")) => Kind::Pipe,
        Operation::Read if is_socket => Kind::SocketRead,
        Operation::Write if is_socket => Kind::SocketWrite,
        Operation::Read => Kind::FileRead,
        Operation::Write => Kind::FileWrite,
    }
}

/// Returns the kind of a wait in a futex: locks and conditions of the JVM and of libraries are made of them.
fn of_futex(event: &wait_event, stack: &[Frame], by_vm_thread: bool) -> Kind {
    if stack
        .iter()
        .rev()
        .take_while(|frame| !frame.is_java())
        .any(|frame| SAFEPOINT.contains(&&*frame.name))
    {
        return Kind::Safepoint;
    }
    if event.enters.monitor != 0 {
        return Kind::Monitor;
    }
    if event.waits_for.monitor != 0 {
        return Kind::Wait;
    }
    // The JavaThread of a thread that has just started is not known yet.
    let has = |function: &str| stack.iter().any(|frame| &*frame.name == function);
    if event.java_thread == 0 && has("ObjectMonitor::enter") {
        return Kind::Monitor;
    }
    let innermost = stack.iter().rev().find(|frame| frame.is_java());
    let innermost = innermost.map_or("", |frame| &*frame.name);
    if innermost.ends_with("Unsafe.park") {
        Kind::Park
    } else if innermost.starts_with("java.lang.Thread.sleep") {
        Kind::Sleep
    } else if innermost.starts_with("java.lang.Object.wait") {
        Kind::Wait
    } else if by_vm_thread {
        Kind::Safepoint
    } else {
        Kind::NativeLock
    }
}

/// Returns the kind of the wait of a parked virtual thread that is not mounted. The JDK parks it also if it sleeps or waits
/// for a socket (java.base's sun/nio/ch/Poller.java, java/lang/VirtualThread.java).
pub(super) fn of_parked_virtual_thread(stack: &[Frame]) -> Kind {
    const SOCKET: [(&str, Kind); 4] = [
        ("accept", Kind::Accept),
        ("connect", Kind::Connect),
        ("read", Kind::SocketRead),
        ("write", Kind::SocketWrite),
    ];
    let names = || stack.iter().rev().filter(|frame| frame.is_java()).map(|frame| &*frame.name);
    if names().any(|name| name.starts_with("sun.nio.ch.Poller.")) {
        let channel = names().filter(|name| name.starts_with("sun.nio.ch."));
        let methods = channel.filter_map(|name| name.rsplit_once('.'));
        let mut kinds = methods.filter_map(|(_, method)| {
            let method = method.to_ascii_lowercase();
            SOCKET.iter().find(|(part, _)| method.contains(part)).map(|(_, kind)| *kind)
        });
        return kinds.next().unwrap_or(Kind::Poll);
    }
    if names().any(|name| name.starts_with("java.lang.Thread.sleep")) {
        return Kind::Sleep;
    }
    Kind::Park
}

/// Returns whether a thread with this stack waits to acquire an `AbstractQueuedSynchronizer`.
pub(super) fn acquires(stack: &[Frame]) -> bool {
    has_method(
        stack,
        &[
            "Synchronizer.acquire",
            "Synchronizer.acquireQueued",
            "Synchronizer.acquireInterruptibly",
            "Synchronizer.doAcquireInterruptibly",
            "Synchronizer.doAcquireNanos",
            "Synchronizer.tryAcquireNanos",
        ],
    )
}

/// Returns whether a stack contains one of these methods, given without the beginning of the name of their class:
/// `java.util.concurrent.locks.AbstractQueued` or `AbstractQueuedLong`.
fn has_method(stack: &[Frame], methods: &[&str]) -> bool {
    let names = stack
        .iter()
        .filter(|frame| frame.is_java())
        .filter_map(|frame| frame.name.strip_prefix("java.util.concurrent.locks.AbstractQueued"));
    let mut names = names.map(|name| name.strip_prefix("Long").unwrap_or(name));
    names.any(|name| methods.contains(&name))
}

/// Returns whether a frame of a waker shows that it interrupted the waiting thread, and did not release anything.
fn interrupts(frame: &Frame) -> bool {
    frame.name.starts_with("java.lang.Thread.interrupt")
}

/// Returns whether a thread whose stack is `waker` has released a lock when it woke a thread that waited for the lock.
pub(super) fn releases(kind: Kind, waiter: &[Frame], waker: &[Frame]) -> bool {
    if waker.iter().rev().find(|frame| frame.is_java()).is_some_and(interrupts) {
        return false;
    }
    kind == Kind::Monitor
        || acquires(waiter)
            && has_method(waker, &["Synchronizer.release"])
            && !has_method(
                waiter,
                &["Synchronizer$ConditionObject.await", "Synchronizer$ConditionObject.awaitNanos"],
            )
}

/// Returns why a virtual thread with this stack could not be unmounted.
pub(super) fn pinned_by(kind: Kind, stack: &[Frame]) -> &'static str {
    let entry = stack
        .iter()
        .rposition(|frame| frame.name.starts_with("jdk.internal.vm.Continuation.enter"));
    let own = stack.get(entry.map_or(0, |at| at + 1)..).unwrap_or_default();
    let last_java = own.iter().rposition(Frame::is_java).unwrap_or(0);
    let has_native =
        own.get(..last_java).unwrap_or_default().iter().any(|frame| {
            matches!(frame.kind, crate::stack::Kind::Native | crate::stack::Kind::Jvm)
        });
    match (kind, has_native) {
        (_, true) => "native frame",
        (Kind::Monitor | Kind::Wait, false) => "monitor",
        _ => "held monitor",
    }
}
