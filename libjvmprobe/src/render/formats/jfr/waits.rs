//! Events of waits.

use std::{
    io::{self, Write},
    net::SocketAddr,
};

use super::{
    encode::Buffer,
    names::class_name,
    pools::{NONE, Pools, Thread},
    recording::Recording,
    types::{
        FILE_READ, FILE_WRITE, MONITOR_ENTER, MONITOR_WAIT, SOCKET_READ, SOCKET_WRITE, THREAD_PARK,
        THREAD_SLEEP, Type, VIRTUAL_THREAD_PINNED, WAIT,
    },
};
use crate::{
    stack::Frame,
    trace::waits::{Awaited, Kind, Relation, ThreadName, Wait},
};

/// Name of the processes by which readers group threads.
const COMMAND: &str = "java";

impl<W: Write> Recording<W> {
    /// Adds a wait that began at `begin_ns`, in nanoseconds since 1970.
    ///
    /// # Errors
    /// Errors of the writer.
    pub fn wait(&mut self, wait: &Wait, begin_ns: u64) -> io::Result<()> {
        let of = event(wait.kind);
        let (duration_ns, awaited) = (wait.length_ns(), &wait.awaited);
        self.event(of, (begin_ns, begin_ns.saturating_add(duration_ns)), |pools, to| {
            to.number(duration_ns);
            to.number(thread(&wait.thread, pools));
            let stack: Vec<_> = match of.id == WAIT.id {
                true => wait.stack.iter().chain(wait.kernel_stack.iter()).collect(),
                false => java_part(&wait.stack).iter().collect(),
            };
            let keys: Vec<_> = stack.iter().rev().map(|frame| pools.frame(frame)).collect();
            to.number(pools.stack(&keys));
            let ended_by = |relation: Relation, pools: &mut Pools| {
                let holder = wait.holder.as_ref().filter(|holder| holder.relation == relation);
                holder.map_or(NONE, |holder| thread(&holder.thread, pools))
            };
            match wait.kind {
                Kind::Monitor => {
                    class(awaited, pools, to);
                    to.number(ended_by(Relation::Held, pools));
                    to.number(awaited.address);
                }
                Kind::Wait => {
                    class(awaited, pools, to);
                    to.number(ended_by(Relation::Woke, pools));
                    to.number(awaited.address);
                }
                Kind::Park => {
                    class(awaited, pools, to);
                    to.number(awaited.address);
                }
                Kind::SocketRead | Kind::SocketWrite => peer(&awaited.name, to),
                Kind::FileRead | Kind::FileWrite => to.text(&awaited.name),
                Kind::Sleep | Kind::Pinned => {}
                _ => {
                    to.text(wait.kind.name());
                    to.text(&awaited.name);
                }
            }
        })
    }
}

fn event(kind: Kind) -> &'static Type {
    match kind {
        Kind::Monitor => &MONITOR_ENTER,
        Kind::Wait => &MONITOR_WAIT,
        Kind::Park => &THREAD_PARK,
        Kind::Sleep => &THREAD_SLEEP,
        Kind::Pinned => &VIRTUAL_THREAD_PINNED,
        Kind::SocketRead => &SOCKET_READ,
        Kind::SocketWrite => &SOCKET_WRITE,
        Kind::FileRead => &FILE_READ,
        Kind::FileWrite => &FILE_WRITE,
        _ => &WAIT,
    }
}

fn thread(of: &ThreadName, pools: &mut Pools) -> u64 {
    let ThreadName { pid, tid, name, virtual_thread } = of;
    let thread = Thread {
        pid: pid.0,
        tid: *tid,
        name: name.clone(),
        virtual_thread: virtual_thread.unwrap_or(0),
    };
    pools.thread(thread, COMMAND)
}

/// Appends the class of an object.
fn class(awaited: &Awaited, pools: &mut Pools, to: &mut Buffer) {
    let key = awaited.class.as_deref().map(|class| pools.class(&class_name(class)));
    to.number(key.unwrap_or(NONE));
}

/// Appends address and port of a peer, whose name is unknown. The JDK has the address as name then, too.
fn peer(name: &str, to: &mut Buffer) {
    match name.parse::<SocketAddr>() {
        Ok(peer) => {
            let address = peer.ip().to_string();
            to.text(&address);
            to.text(&address);
            to.number(peer.port().into());
        }
        Err(_) => {
            to.text(name);
            to.no_text();
            to.number(0);
        }
    }
}

/// Returns a stack without native code at its innermost end, which the JDK's events do not have. Stacks without Java code are
/// complete.
fn java_part(stack: &[Frame]) -> &[Frame] {
    stack.iter().rposition(Frame::is_java).map_or(stack, |last| &stack[..=last])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_of_a_peer_is_split() {
        let encoded = |name: &str| {
            let mut to = Buffer::default();
            peer(name, &mut to);
            to.bytes().to_vec()
        };
        assert_eq!(encoded("[::1]:80"), b"\x03\x03::1\x03\x03::1\x50");
        assert_eq!(encoded("socket:[7]"), b"\x03\x0asocket:[7]\x00\x00");
    }
}
