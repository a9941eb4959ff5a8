//! Virtual threads that wait without a carrier. No event of the kernel shows these waits, so the threads are read from the
//! JVM's memory at intervals: how many of them wait for what, and where.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    Addr, Result,
    bpf::clock,
    hotspot::{
        HotSpot,
        java_threads::Owner,
        virtual_threads::{ChunkFrame, VirtualState, VirtualThread},
    },
    jvms::{ByKey, Followed},
    process::reader::within,
    stack::{Frame, namer::Namers},
    trace::{
        samples::idle::is_idle,
        threads::raw_stack,
        waits::{
            Sink, Tracer, classify,
            jvm::{Jvm, Stack},
            resources,
            wait::{Awaited, Kind, ThreadName},
        },
    },
};

/// Minimum time between two readings: if a JVM has had virtual threads, and if none has.
const MIN_INTERVALS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));
/// After a reading, the next one follows after this many times as long as the reading took.
const DELAY_FACTOR: u32 = 50;
/// The same for a reading at the end of an interval.
const END_FACTOR: u32 = 10;
/// Maximum time for reading and naming the threads of one JVM.
const MAX_TIME: Duration = Duration::from_secs(3);
/// Maximum number of threads that are read.
const MAX_THREADS: usize = 1 << 17;

/// Unmounted virtual threads of a JVM that wait in the same way: for the same kind of object, with the same stack.
#[derive(Clone, Debug)]
pub struct Unmounted {
    /// Kind of the wait; [`Kind::RunQueue`] for threads that could run and wait for a carrier.
    pub kind: Kind,
    /// Object for which they wait. Its addresses are 0 if there are several objects.
    pub awaited: Awaited,
    /// The thread that owns the object.
    pub owner: Option<ThreadName>,
    /// Whether they wait for work.
    pub is_idle: bool,
    /// Their stack, outermost frame first.
    pub stack: Arc<[Frame]>,
    /// Number of threads.
    pub threads: u64,
}

/// One reading of the unmounted virtual threads of a JVM.
#[derive(Clone, Debug)]
pub struct UnmountedReading {
    /// The process.
    pub pid: u32,
    /// Time of the previous reading, or the begin of the trace of this JVM, on `CLOCK_MONOTONIC` in nanoseconds.
    pub since_ns: u64,
    /// Time of this reading.
    pub at_ns: u64,
    /// The threads.
    pub groups: Vec<Unmounted>,
    /// Whether threads are missing, because time ran out or data could not be read.
    pub is_incomplete: bool,
    /// Whether the threads are those of the reading before, because another reading was not due.
    pub is_repeated: bool,
}

/// When the threads are read next.
#[derive(Debug)]
pub(super) struct Schedule {
    /// Time of the next reading.
    next: Instant,
    /// Earliest time of a reading before that, at the end of an interval.
    earliest: Instant,
    /// Whether a JVM has had virtual threads.
    has_threads: bool,
}

impl Default for Schedule {
    fn default() -> Self {
        let now = Instant::now();
        Self { next: now + MIN_INTERVALS.0, earliest: now, has_threads: false }
    }
}

impl Schedule {
    /// Returns the time until the next reading; `None` if it may be late, because no JVM has virtual threads.
    pub(super) fn time_left(&self) -> Option<Duration> {
        self.has_threads.then(|| self.next.saturating_duration_since(Instant::now()))
    }
}

impl<S: Sink> Tracer<S> {
    /// Reads the unmounted virtual threads of all JVMs if that is due. At the end of an interval (`is_end`), it is due
    /// sooner, but not if readings would then take too much time. Then the last reading stands for the rest of the
    /// interval, too.
    pub(super) fn read_unmounted(&mut self, jvms: &mut ByKey<Jvm>, is_end: bool) -> Result<()> {
        let begin = Instant::now();
        let due = if is_end { self.schedule.earliest } else { self.schedule.next };
        if !self.options.virtual_threads {
            return Ok(());
        }
        if begin < due {
            let jvms = jvms.values_mut().filter(|_| is_end);
            let mut repeated = jvms.filter_map(|followed| followed.jvm.repeat_unmounted());
            return repeated.try_for_each(|reading| self.sink.unmounted(reading));
        }
        for (&key, followed) in jvms {
            let Followed { jvm, hotspot: Ok(hotspot), .. } = followed else { continue };
            let reading = within(MAX_TIME, || read(jvm, hotspot, key, &mut self.namers));
            if let Some(reading) = reading {
                self.schedule.has_threads |= !reading.groups.is_empty();
                let mut resources =
                    reading.groups.iter().filter_map(|group| group.awaited.resource);
                let resource = resources.find(|resource| resource.is_hikari());
                for pool in jvm.connection_pools(resource) {
                    self.sink.pool(jvm.pid, pool);
                }
                self.sink.unmounted(jvm.unmounted.insert(reading))?;
            }
        }
        let (short, long) = MIN_INTERVALS;
        let interval = if self.schedule.has_threads { short } else { long };
        let took = begin.elapsed();
        self.schedule.earliest = Instant::now() + took * END_FACTOR;
        self.schedule.next = Instant::now() + interval.max(took * DELAY_FACTOR);
        Ok(())
    }
}

/// Reads the unmounted virtual threads of a JVM; `None` if it cannot be read now.
fn read(
    jvm: &mut Jvm,
    hotspot: &HotSpot,
    key: u64,
    namers: &mut Namers,
) -> Option<UnmountedReading> {
    let until = Instant::now() + MAX_TIME;
    let found = hotspot.virtual_threads(MAX_THREADS).ok()?;
    let at_ns = clock::monotonic_ns();
    let since_ns = std::mem::replace(&mut jvm.unmounted_read_ns, at_ns);
    let unloads = hotspot.classes_unloaded().unwrap_or(0);
    let mut owners = Owners::default();
    let mut stacks: HashMap<Arc<[ChunkFrame]>, Stack> = HashMap::new();
    let mut groups: HashMap<_, Unmounted> = HashMap::new();
    let mut is_incomplete = found.is_incomplete || found.threads.len() >= MAX_THREADS;
    for thread in found.threads.iter().filter(|thread| is_unmounted(thread)) {
        if Instant::now() >= until {
            is_incomplete = true;
            break;
        }
        let stack = stacks.entry(Arc::clone(&thread.frames)).or_insert_with(|| {
            let raw = raw_stack(key, unloads, &thread.frames);
            namers.name_without_walker(hotspot, &raw).unwrap_or_default().frames.into()
        });
        let stack = Arc::clone(stack);
        let kind = kind(thread.state, &stack);
        let on = thread.blocked_on.as_ref();
        let class = on.map(|on| Arc::clone(&on.class));
        let owner = on.and_then(|on| owners.name(jvm, on.lock_owner()?));
        let object = on.map_or(0, |on| on.object.0);
        let of = (kind, class.clone(), Arc::as_ptr(&stack), owner.clone());
        let group = groups.entry(of).or_insert_with(|| Unmounted {
            kind,
            awaited: Awaited {
                class,
                object,
                address: object,
                is_lock: on.is_some_and(|on| on.lock_owner().is_some()),
                name: if kind == Kind::RunQueue { "carrier".into() } else { "".into() },
                resource: resources::resource(kind, &stack),
            },
            owner,
            is_idle: is_idle(stack.iter()),
            stack,
            threads: 0,
        });
        group.threads += 1;
        if group.awaited.object != object {
            (group.awaited.object, group.awaited.address) = (0, 0);
        }
    }
    let groups = groups.into_values().collect();
    let (pid, is_repeated) = (jvm.pid.0, false);
    Some(UnmountedReading { pid, since_ns, at_ns, groups, is_incomplete, is_repeated })
}

/// Whether a thread waits without a carrier. A thread that changed during each reading runs. A thread that is being
/// unmounted has no carrier any more according to its field, but still runs on it.
fn is_unmounted(thread: &VirtualThread) -> bool {
    use VirtualState::{
        Blocked, Parked, Runnable, Started, TimedParked, TimedWait, Unblocked, Unparked, Wait,
        Yielded,
    };
    let waits = matches!(thread.state, Parked | TimedParked | Blocked | Wait | TimedWait);
    let is_ready = matches!(thread.state, Started | Runnable | Unparked | Yielded | Unblocked);
    thread.carrier.is_none() && (waits || is_ready) && !thread.is_moving
}

/// Returns the kind of the wait of an unmounted thread in a state.
fn kind(state: VirtualState, stack: &[Frame]) -> Kind {
    use VirtualState::{Blocked, Parked, TimedParked, TimedWait, Wait};
    match state {
        Blocked => Kind::Monitor,
        Wait | TimedWait => Kind::Wait,
        Parked | TimedParked => classify::of_parked_virtual_thread(stack),
        _ => Kind::RunQueue,
    }
}

/// The owners of locks, named when they are first needed.
#[derive(Default)]
struct Owners {
    /// Platform threads by the addresses of their JavaThreads.
    platform: Option<HashMap<Addr, ThreadName>>,
}

impl Owners {
    fn name(&mut self, jvm: &mut Jvm, owner: &Owner) -> Option<ThreadName> {
        match owner {
            Owner::Thread(address) => {
                let platform = self.platform.get_or_insert_with(|| jvm.platform_threads());
                platform.get(address).cloned()
            }
            Owner::VirtualThread { number, name } => {
                Some(ThreadName::of_owner(jvm.pid, *number, name.as_ref()))
            }
            Owner::None | Owner::Unknown => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stack;

    fn kind_of(state: VirtualState, names: &[&'static str]) -> Kind {
        let frames: Vec<_> =
            names.iter().map(|&name| Frame::new(stack::Kind::Java, name)).collect();
        kind(state, &frames)
    }

    #[test]
    fn state_and_frames_decide_the_kind() {
        let park = "java.util.concurrent.locks.LockSupport.park";
        assert_eq!(kind_of(VirtualState::Parked, &["Dao.find", park]), Kind::Park);
        assert_eq!(kind_of(VirtualState::Blocked, &["Dao.find"]), Kind::Monitor);
        assert_eq!(kind_of(VirtualState::TimedWait, &["java.lang.Object.wait0"]), Kind::Wait);
        assert_eq!(kind_of(VirtualState::Unparked, &["Dao.find", park]), Kind::RunQueue);
        assert_eq!(kind_of(VirtualState::Yielded, &[]), Kind::RunQueue);
        let sleep = ["Dao.find", "java.lang.Thread.sleep", "java.lang.VirtualThread.parkNanos"];
        assert_eq!(kind_of(VirtualState::TimedParked, &sleep), Kind::Sleep);
    }

    #[test]
    fn threads_parked_by_the_poller_wait_for_a_socket() {
        let on = |method: &'static str| {
            kind_of(VirtualState::Parked, &["Dao.find", method, "sun.nio.ch.Poller.poll"])
        };
        assert_eq!(on("sun.nio.ch.NioSocketImpl.implRead"), Kind::SocketRead);
        assert_eq!(on("sun.nio.ch.NioSocketImpl.implWrite"), Kind::SocketWrite);
        assert_eq!(on("sun.nio.ch.NioSocketImpl.accept"), Kind::Accept);
        assert_eq!(on("sun.nio.ch.NioSocketImpl.connect"), Kind::Connect);
        assert_eq!(on("sun.nio.ch.DatagramChannelImpl.other"), Kind::Poll);
    }
}
