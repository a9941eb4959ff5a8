//! Waits that have not ended when the trace ends. No BPF program runs in these threads, so their stacks are walked in user
//! space, and the JVM's data about them is read from its memory.

use std::{collections::HashMap, sync::Arc};

use crate::{
    Addr, Result,
    hotspot::{
        HotSpot,
        java_threads::{BlockKind, JavaThread, Owner},
    },
    jvms::{ByKey, Followed, Tool},
    process::{blocking_call::current_call, memory::Memory, os_threads::os_threads},
    trace::{
        asleep::{self, SleepingThread},
        samples::idle::is_idle,
        waits::{
            Sink, Tracer,
            classify::{self, Reason},
            event::wait_event,
            jvm::{Held, Jvm},
            resources, session,
            tracer::{max_gap, max_pause},
            wait::{Awaited, Holder, Kind, Others, Relation, ThreadName, Wait},
        },
    },
};

/// `TASK_INTERRUPTIBLE` of include/linux/sched.h.
const INTERRUPTIBLE: u32 = 1;

/// A Java thread, with the name that the kernel has for it.
struct Thread {
    tid: u32,
    comm: String,
    java: JavaThread,
}

impl<S: Sink> Tracer<S> {
    /// Reports the waits of Java threads that have not ended. `end_ns` is the time on `CLOCK_MONOTONIC`.
    pub(super) fn report_in_progress(&mut self, jvms: &mut ByKey<Jvm>, end_ns: u64) -> Result<()> {
        let layouts: Vec<_> = jvms
            .iter()
            .filter_map(|(&key, jvm)| Some((jvm.jvm.pid.0, key, jvm.hotspot()?.walking().ok()?)))
            .collect();
        let found = asleep::find(&mut self.session, &layouts)?;
        self.take_events(jvms, std::time::Duration::ZERO)?;
        for (_, key, _) in layouts {
            let Some(followed) = jvms.get_mut(&key) else { continue };
            let pid = followed.jvm.pid.0;
            let own: Vec<_> = found.iter().filter(|found| found.thread.0 == pid).collect();
            self.report_of(followed, &own, end_ns)?;
        }
        Ok(())
    }

    fn report_of(
        &mut self,
        followed: &mut Followed<Jvm>,
        found: &[&SleepingThread],
        end_ns: u64,
    ) -> Result<()> {
        let Followed { jvm, hotspot: Ok(hotspot), .. } = followed else { return Ok(()) };
        for thread in found {
            if let Some(walker) = self.session.walker() {
                jvm.take_stack(hotspot, &mut self.namers, walker, thread.user, &thread.stack)?;
            }
        }
        let java = hotspot.java_threads().unwrap_or_default();
        let mut java: HashMap<_, _> =
            java.into_iter().filter_map(|java| Some((java.tid?, java))).collect();
        let threads: Vec<_> = os_threads(jvm.pid)
            .unwrap_or_default()
            .into_iter()
            .filter_map(|os| {
                let java = java.remove(&os.namespace_tid)?;
                Some(Thread { tid: os.tid, comm: os.name, java })
            })
            .collect();
        let stacks: HashMap<_, _> =
            found.iter().map(|found| (found.thread.1, found.user)).collect();
        for thread in &threads {
            let Some(asleep) = found.iter().find(|found| found.thread.1 == thread.tid) else {
                continue;
            };
            let begin_ns = asleep.since.max(self.began_ns);
            let is_long = end_ns.saturating_sub(begin_ns) >= self.min_ns;
            if is_long && !thread.java.is_moving {
                let mut wait =
                    self.in_progress(jvm, hotspot, (asleep, thread), &threads, &stacks, end_ns);
                let on_ns = session::thread(&self.session, thread.tid).map(|thread| thread.on_ns);
                join_with_last(jvm, &mut wait, on_ns);
                self.report_wait(jvm, wait)?;
            }
        }
        Ok(())
    }

    fn in_progress(
        &mut self,
        jvm: &mut Jvm,
        hotspot: &HotSpot,
        (asleep, thread): (&SleepingThread, &Thread),
        all: &[Thread],
        stacks: &HashMap<u32, u64>,
        end_ns: u64,
    ) -> Wait {
        let stack = jvm.stacks.get(&asleep.user).cloned().unwrap_or_default();
        let kernel_stack = self.kernel_stack_of_wait(asleep.kernel);
        let (call, args) = current_call(jvm.pid, thread.tid).unzip();
        let call = call.and_then(|call| i32::try_from(call).ok()).unwrap_or(-1);
        let [first, second] = args.unwrap_or_default();
        let args = [first, second, 0, 0];
        let memory = Memory::open(jvm.pid).ok();
        let word = memory.and_then(|memory| memory.u64(Addr(first)).ok()).unwrap_or(0);
        let event = wait_event { call, args, word, state: INTERRUPTIBLE, ..wait_event::default() };
        let blocked_on = thread.java.blocked_on.as_ref();
        let (kind, mut awaited) = match blocked_on.map(|on| on.kind) {
            Some(BlockKind::Enter) => (Kind::Monitor, Awaited::default()),
            Some(BlockKind::Wait) => (Kind::Wait, Awaited::default()),
            Some(BlockKind::Park) => (Kind::Park, Awaited::default()),
            None => match classify::reason(&event, &stack, &kernel_stack, false) {
                Reason::Of(kind) => (kind, Awaited::default()),
                Reason::File(operation, descriptor) => {
                    self.file(jvm.pid, operation, descriptor, &kernel_stack)
                }
            },
        };
        if kind == Kind::NativeLock {
            awaited.name = jvm.native_lock(Some(hotspot), first).unwrap_or_default();
        }
        let is_pinned = thread.java.mounted.is_some() && kind.can_be_pinned();
        let pinned_by = is_pinned.then(|| classify::pinned_by(kind, &stack));
        let mut holder = None;
        if let Some(on) = blocked_on {
            let is_lock = kind == Kind::Monitor || on.lock_owner().is_some();
            let class = Some(Arc::clone(&on.class));
            let resource = resources::resource(kind, &stack);
            let object = on.object.0;
            let address = jvm.monitor(object).unwrap_or(object);
            awaited = Awaited { class, object, address, is_lock, name: "".into(), resource };
            let begin_ns = asleep.since.max(self.began_ns);
            holder = on.lock_owner().and_then(|owner| {
                let (thread, stack) = owner_thread(jvm, owner, all, stacks)?;
                let held_ns = end_ns.saturating_sub(begin_ns);
                let relation = Relation::Held;
                Some(Holder { thread, relation, held_ns, is_exact: false, stack, waited: None })
            });
        }
        Wait {
            thread: ThreadName {
                pid: jvm.pid,
                tid: thread.tid,
                name: jvm.name(thread.tid, thread.comm.clone()),
                virtual_thread: thread.java.mounted,
            },
            kind: if is_pinned { Kind::Pinned } else { kind },
            awaited,
            begin_ns: asleep.since.max(self.began_ns),
            end_ns,
            run_queue_ns: 0,
            was_throttled: false,
            is_unseen: asleep.since == 0,
            is_in_progress: true,
            is_idle: is_idle(stack.iter()),
            pinned_by,
            stack,
            kernel_stack,
            holder,
            others: Others::default(),
        }
    }
}

/// Joins a wait for a monitor with the thread's last wait if that one goes on. `on_ns` is the running time of the thread.
fn join_with_last(jvm: &mut Jvm, wait: &mut Wait, on_ns: Option<u64>) {
    let goes_on = |held: &Held| {
        (held.wait.kind, wait.kind) == (Kind::Monitor, Kind::Monitor)
            && wait.begin_ns.saturating_sub(held.wait.end_ns) < max_gap(wait.kind)
            && on_ns.is_some_and(|on_ns| on_ns.saturating_sub(held.on_ns) < max_pause(wait.kind))
    };
    if jvm.held.get(&wait.thread.tid).is_some_and(goes_on)
        && let Some(held) = jvm.held.remove(&wait.thread.tid)
    {
        wait.begin_ns = held.wait.begin_ns;
        wait.is_unseen |= held.wait.is_unseen;
    }
}

/// Returns the thread that owns a lock, with its stack if it sleeps.
fn owner_thread(
    jvm: &mut Jvm,
    owner: &Owner,
    all: &[Thread],
    stacks: &HashMap<u32, u64>,
) -> Option<(ThreadName, Arc<[crate::stack::Frame]>)> {
    match owner {
        Owner::Thread(address) => {
            let owner = all.iter().find(|thread| thread.java.address == *address)?;
            let stack = stacks.get(&owner.tid).and_then(|user| jvm.stacks.get(user)).cloned();
            let name = jvm.name(owner.tid, owner.comm.clone());
            let virtual_thread = owner.java.mounted;
            let thread = ThreadName { pid: jvm.pid, tid: owner.tid, name, virtual_thread };
            Some((thread, stack.unwrap_or_default()))
        }
        Owner::VirtualThread { number, name } => {
            Some((ThreadName::of_owner(jvm.pid, *number, name.as_ref()), Arc::default()))
        }
        Owner::None | Owner::Unknown => None,
    }
}
