//! Finds deadlocks: cycles of threads that each wait for a lock of the next one.
//!
//! A cycle counts only if all of its threads were walked in the same attempt and none of them ran during that
//! attempt. At that time, each thread therefore waited for its lock and held the lock that the previous
//! thread waited for.

use std::collections::{HashMap, HashSet};

use crate::{
    Addr,
    hotspot::java_threads::{BlockKind, BlockedOn, Owner},
    trace::threads::{Activity, Thread},
};

/// Returns the lock that a thread waits for (a monitor or an ownable synchronizer), and the address of the
/// JavaThread that owns the lock. Returns `None` if the owner is not a listed thread, or if the waiting
/// thread ran while it was walked. A thread in `Object.wait` does not wait for a lock.
fn waits_for(thread: &Thread) -> Option<(&BlockedOn, Addr)> {
    let java = thread.java.as_ref().filter(|java| !java.is_moving)?;
    let blocked_on = java.blocked_on.as_ref().filter(|on| on.kind != BlockKind::Wait)?;
    match blocked_on.owner {
        Owner::Thread(owner) if thread.activity == Activity::Still => Some((blocked_on, owner)),
        _ => None,
    }
}

/// Returns the deadlocks of a dump: for each one, the positions of its threads. Each thread waits for a lock that the
/// next one owns, and the last one for a lock of the first.
pub fn deadlocks(threads: &[Thread]) -> Vec<Vec<usize>> {
    let by_address: HashMap<_, _> = (threads.iter().enumerate())
        .filter_map(|(at, thread)| Some((thread.java.as_ref()?.address, at)))
        .collect();
    let next = |at: usize| {
        let thread = threads.get(at)?;
        let (_, owner) = waits_for(thread)?;
        let owner = *by_address.get(&owner)?;
        (threads.get(owner)?.attempt == thread.attempt).then_some(owner)
    };
    let (mut visited, mut cycles) = (HashSet::new(), Vec::new());
    for start in 0..threads.len() {
        // Each thread waits for at most one lock, so a path has no branches.
        let (mut path, mut at) = (Vec::new(), start);
        while visited.insert(at) {
            path.push(at);
            match next(at) {
                Some(owner) => at = owner,
                None => break,
            }
        }
        if let Some(begin) =
            path.iter().position(|&seen| seen == at && next(path[path.len() - 1]) == Some(at))
        {
            cycles.push(path[begin..].to_vec());
        }
    }
    cycles
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{hotspot::java_threads::JavaThread, process::os_threads::OsThread};

    /// Makes a thread that waits for a lock of another one.
    fn thread(number: u32, kind: BlockKind, owner: Owner) -> Thread {
        let blocked_on =
            BlockedOn { kind, object: Addr(0x1000), class: "java.lang.Object".into(), owner };
        let java = JavaThread {
            address: Addr(number.into()),
            tid: Some(number),
            object: None,
            name: None,
            number: None,
            is_daemon: None,
            priority: None,
            status: None,
            vm_state: None,
            blocked_on: Some(blocked_on),
            is_moving: false,
        };
        let os = OsThread {
            tid: number,
            namespace_tid: number,
            name: String::new(),
            nice: 0,
            cpu: Duration::ZERO,
            elapsed: Duration::ZERO,
        };
        Thread { os, java: Some(java), frames: Vec::new(), activity: Activity::Still, attempt: 0 }
    }

    fn on(number: u64) -> Owner {
        Owner::Thread(Addr(number))
    }

    #[test]
    fn cycles_are_found_once_without_the_threads_that_wait_for_them() {
        let threads = [
            thread(1, BlockKind::Enter, on(2)),
            thread(2, BlockKind::Park, on(3)),
            thread(3, BlockKind::Enter, on(2)),
            thread(4, BlockKind::Enter, on(3)),
            thread(5, BlockKind::Enter, on(5)),
            thread(6, BlockKind::Enter, Owner::None),
        ];
        assert_eq!(deadlocks(&threads), [vec![1, 2], vec![4]]);
    }

    #[test]
    fn running_threads_and_waits_for_notification_are_no_deadlock() {
        let mut running = thread(1, BlockKind::Enter, on(2));
        running.activity = Activity::Running;
        let other = || thread(2, BlockKind::Enter, on(1));
        assert!(deadlocks(&[running, other()]).is_empty());
        assert!(deadlocks(&[thread(1, BlockKind::Wait, on(2)), other()]).is_empty());
        let mut moving = thread(1, BlockKind::Enter, on(2));
        moving.java.as_mut().unwrap().is_moving = true;
        assert!(deadlocks(&[moving, other()]).is_empty());
        // Read at another time than the other thread.
        let mut later = thread(1, BlockKind::Enter, on(2));
        later.attempt = 1;
        assert!(deadlocks(&[later, other()]).is_empty());
    }
}
