//! The classes of java.base whose objects the reader of virtual threads reads, and the offsets of their
//! fields.

use std::{collections::HashMap, time::Instant};

use super::VirtualState;
use crate::{
    Addr, Error, Result,
    hotspot::{
        boot_classes::BootClasses, fields::FieldName, java_threads::reader::Reader as Threads,
        layout::Item, loaded::at, pages::Pages, resolved::Layout,
    },
};

const VIRTUAL_THREAD: &str = "java/lang/VirtualThread";
const THREAD: &str = "java/lang/Thread";
const CONTINUATION: &str = "jdk/internal/vm/Continuation";
const CHUNK: &str = "jdk/internal/vm/StackChunk";
const CONTAINERS: &str = "jdk/internal/vm/ThreadContainers";
const TRACKING: &str = "jdk/internal/vm/ThreadContainers$RootContainer$TrackingRootContainer";
const CONTAINER: &str = "jdk/internal/vm/ThreadContainer";
const SHARED: &str = "jdk/internal/vm/SharedThreadContainer";
const PER_TASK: &str = "java/util/concurrent/ThreadPerTaskExecutor";
const FLOCK: &str = "jdk/internal/misc/ThreadFlock";
const IN_FLOCK: &str = "jdk/internal/misc/ThreadFlock$ThreadContainerImpl";
const SCOPE: &str = "jdk/internal/vm/StackableScope";
const REFERENCE: &str = "java/lang/ref/Reference";
const VIEW: &str = "java/util/concurrent/ConcurrentHashMap$CollectionView";
const MAP: &str = "java/util/concurrent/ConcurrentHashMap";
const NODE: &str = "java/util/concurrent/ConcurrentHashMap$Node";
const BIN: &str = "java/util/concurrent/ConcurrentHashMap$TreeBin";
const FORWARDING: &str = "java/util/concurrent/ConcurrentHashMap$ForwardingNode";

/// The classes that are searched for.
pub(in crate::hotspot) const WANTED: &[&str] = &[
    VIRTUAL_THREAD,
    THREAD,
    CONTINUATION,
    CHUNK,
    CONTAINERS,
    TRACKING,
    CONTAINER,
    SHARED,
    PER_TASK,
    FLOCK,
    IN_FLOCK,
    SCOPE,
    REFERENCE,
    VIEW,
    MAP,
    NODE,
    BIN,
    FORWARDING,
];

const SET: &str = "Ljava/util/Set;";
const NODES: &str = "[Ljava/util/concurrent/ConcurrentHashMap$Node;";
const STRING: &str = "Ljava/lang/String;";

/// Constants of `VirtualThread`, whose numbers differ between JDKs.
const STATES: [(&str, VirtualState); 21] = [
    ("NEW", VirtualState::New),
    ("STARTED", VirtualState::Started),
    ("RUNNABLE", VirtualState::Runnable),
    ("RUNNING", VirtualState::Running),
    ("PARKING", VirtualState::Parking),
    ("PARKED", VirtualState::Parked),
    ("PINNED", VirtualState::Pinned),
    ("TIMED_PARKING", VirtualState::TimedParking),
    ("TIMED_PARKED", VirtualState::TimedParked),
    ("TIMED_PINNED", VirtualState::TimedPinned),
    ("UNPARKED", VirtualState::Unparked),
    ("YIELDING", VirtualState::Yielding),
    ("YIELDED", VirtualState::Yielded),
    ("BLOCKING", VirtualState::Blocking),
    ("BLOCKED", VirtualState::Blocked),
    ("UNBLOCKED", VirtualState::Unblocked),
    ("WAITING", VirtualState::Waiting),
    ("WAIT", VirtualState::Wait),
    ("TIMED_WAITING", VirtualState::TimedWaiting),
    ("TIMED_WAIT", VirtualState::TimedWait),
    ("TERMINATED", VirtualState::Terminated),
];

/// A class, with the offset of one of its fields.
pub(super) type ClassWithField = (Addr, u64);

/// The classes and the offsets of their fields.
#[derive(Clone, Debug)]
pub(super) struct Classes {
    pub(super) virtual_thread: Addr,
    pub(super) state: u64,
    pub(super) continuation: u64,
    pub(super) carrier: u64,
    /// `Thread.container` and `Thread.headStackableScopes`.
    pub(super) container: Option<u64>,
    pub(super) scopes: Option<u64>,
    /// `Continuation.tail`, which refers to the chunk with the innermost frames.
    pub(super) tail: u64,
    pub(super) chunk: Chunk,
    /// The set of the threads without a container.
    pub(super) roots: Option<Addr>,
    /// The set of weak references to the containers without an owner.
    pub(super) registry: Option<Addr>,
    /// The class `ThreadContainer`.
    pub(super) container_class: Option<Addr>,
    /// `SharedThreadContainer` with the offset of its set of threads, and the offset of its name.
    pub(super) shared: Option<(ClassWithField, Option<u64>)>,
    /// `ThreadPerTaskExecutor` with the offset of its set of threads.
    pub(super) per_task: Option<ClassWithField>,
    /// `ThreadFlock$ThreadContainerImpl.flock`, `ThreadFlock.threads` and `ThreadFlock.name`.
    pub(super) flock: Option<(ClassWithField, ClassWithField, Option<u64>)>,
    /// `StackableScope.owner` and `StackableScope.previous`.
    pub(super) scope: Option<(u64, u64)>,
    /// `Reference.referent`.
    pub(super) referent: Option<u64>,
    pub(super) map: Option<Map>,
    /// The states by the numbers that this JDK uses for them.
    states: HashMap<u32, VirtualState>,
    /// `VirtualThread.SUSPENDED`: the bit that is also set in the state of a suspended thread.
    suspended: u32,
}

/// Offsets of the fields of a `StackChunk`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunk {
    pub(super) class: Addr,
    /// Offset of the stack in the object. It is the size of the object without its stack.
    pub(super) stack: u64,
    pub(super) sp: u64,
    pub(super) bottom: u64,
    pub(super) parent: u64,
}

/// Offsets of the fields of a `ConcurrentHashMap`, and classes of its entries.
#[derive(Clone, Copy, Debug)]
pub(super) struct Map {
    pub(super) of_view: u64,
    pub(super) table: u64,
    pub(super) key: u64,
    pub(super) next: u64,
    pub(super) node: Addr,
    /// `TreeBin` with the offset of its field `first`.
    pub(super) bin: Option<ClassWithField>,
    /// `ForwardingNode` with the offset of its field `nextTable`.
    pub(super) forwarding: Option<ClassWithField>,
}

impl Classes {
    /// Finds the classes; `None` if the JVM has not loaded `VirtualThread`, so that there are no virtual threads.
    ///
    /// # Errors
    /// [`Error::Layout`] naming the missing class or field, [`Error::Memory`] if the JVM has exited.
    pub(super) fn find(
        pages: &mut Pages<'_>,
        threads: &Threads,
        layout: &Layout,
        classes: &BootClasses,
        until: Instant,
    ) -> Result<Option<Self>> {
        let (found, _) = classes.find(pages, layout, until)?;
        let mut finder = Finder { threads, layout, found };
        let Some(virtual_thread) = finder.class(VIRTUAL_THREAD) else { return Ok(None) };
        let [state, continuation, carrier] = finder.fields(
            pages,
            VIRTUAL_THREAD,
            [
                ("state", "I"),
                ("cont", "Ljdk/internal/vm/Continuation;"),
                ("carrierThread", "Ljava/lang/Thread;"),
            ],
        )?;
        let [tail] =
            finder.fields(pages, CONTINUATION, [("tail", "Ljdk/internal/vm/StackChunk;")])?;
        let chunk_fields =
            [("sp", "I"), ("bottom", "I"), ("parent", "Ljdk/internal/vm/StackChunk;")];
        let [sp, bottom, parent] = finder.fields(pages, CHUNK, chunk_fields)?;
        let class = finder.class(CHUNK).unwrap_or(Addr(0));
        // The layout helper of a class is the size of its objects, apart from the lowest bits, which are
        // flags.
        let stack = pages.u32(at(class, layout.get(Item::LayoutHelper)?)?)? & !7;
        let chunk = Chunk {
            class,
            stack: stack.into(),
            sp: required(sp, "StackChunk.sp")?,
            bottom: required(bottom, "StackChunk.bottom")?,
            parent: required(parent, "StackChunk.parent")?,
        };
        let thread_fields = [
            ("container", "Ljdk/internal/vm/ThreadContainer;"),
            ("headStackableScopes", "Ljdk/internal/vm/StackableScope;"),
        ];
        let [container, scopes] = finder.fields(pages, THREAD, thread_fields)?;
        let [shared_set, shared_name] =
            finder.fields(pages, SHARED, [("virtualThreads", SET), ("name", STRING)])?;
        let [per_task] = finder.fields(pages, PER_TASK, [("threads", SET)])?;
        let [of_flock] =
            finder.fields(pages, IN_FLOCK, [("flock", "Ljdk/internal/misc/ThreadFlock;")])?;
        let [flock_set, flock_name] =
            finder.fields(pages, FLOCK, [("threads", SET), ("name", STRING)])?;
        let [owner, previous] = finder.fields(
            pages,
            SCOPE,
            [("owner", "Ljava/lang/Thread;"), ("previous", "Ljdk/internal/vm/StackableScope;")],
        )?;
        let [referent] = finder.fields(pages, REFERENCE, [("referent", "Ljava/lang/Object;")])?;
        let of = |finder: &Finder<'_>, class, field: Option<u64>| finder.class(class).zip(field);
        let flock = of(&finder, IN_FLOCK, of_flock).zip(of(&finder, FLOCK, flock_set));
        let (states, suspended) = finder.states(pages)?;
        Ok(Some(Self {
            virtual_thread,
            state: required(state, "VirtualThread.state")?,
            continuation: required(continuation, "VirtualThread.cont")?,
            carrier: required(carrier, "VirtualThread.carrierThread")?,
            container,
            scopes,
            tail: required(tail, "Continuation.tail")?,
            chunk,
            roots: finder.static_object(pages, TRACKING, ("VTHREADS", SET))?,
            registry: finder.static_object(pages, CONTAINERS, ("CONTAINER_REGISTRY", SET))?,
            container_class: finder.class(CONTAINER),
            shared: of(&finder, SHARED, shared_set).map(|class| (class, shared_name)),
            per_task: of(&finder, PER_TASK, per_task),
            flock: flock.map(|(container, flock)| (container, flock, flock_name)),
            scope: owner.zip(previous),
            referent,
            map: finder.map(pages)?,
            states,
            suspended,
        }))
    }

    /// Decodes `VirtualThread.state`.
    pub(super) fn state(&self, raw: u32) -> VirtualState {
        self.states.get(&(raw & !self.suspended)).copied().unwrap_or(VirtualState::Unknown)
    }
}

fn required(field: Option<u64>, name: &str) -> Result<u64> {
    field.ok_or_else(|| Error::layout(format!("this JVM has no {name}")))
}

/// Finds fields of the classes.
struct Finder<'a> {
    threads: &'a Threads,
    layout: &'a Layout,
    found: HashMap<&'static str, Addr>,
}

impl Finder<'_> {
    fn class(&self, name: &str) -> Option<Addr> {
        self.found.get(name).copied()
    }

    /// Returns the offsets of fields. They are `None` if the class is not loaded.
    fn fields<const N: usize>(
        &self,
        pages: &mut Pages<'_>,
        class: &str,
        wanted: [FieldName; N],
    ) -> Result<[Option<u64>; N]> {
        match self.class(class) {
            Some(klass) => self.threads.fields.offsets(pages, klass, wanted),
            None => Ok([None; N]),
        }
    }

    /// Returns the mirror of a class.
    fn mirror(&self, pages: &mut Pages<'_>, klass: Addr) -> Result<Option<Addr>> {
        self.threads.root(pages, at(klass, self.layout.get(Item::Mirror)?)?)
    }

    /// Returns the object to which a static field refers.
    fn static_object(
        &self,
        pages: &mut Pages<'_>,
        class: &str,
        field: FieldName,
    ) -> Result<Option<Addr>> {
        let Some(klass) = self.class(class) else { return Ok(None) };
        let [Some(field)] = self.threads.fields.static_offsets(pages, klass, [field])? else {
            return Ok(None);
        };
        let Some(mirror) = self.mirror(pages, klass)? else { return Ok(None) };
        self.threads.references.read_reference(pages, mirror, field)
    }

    /// Returns the states by their numbers, and the value of `VirtualThread.SUSPENDED`.
    fn states(&mut self, pages: &mut Pages<'_>) -> Result<(HashMap<u32, VirtualState>, u32)> {
        let mut states = HashMap::new();
        let Some(klass) = self.class(VIRTUAL_THREAD) else { return Ok((states, 0)) };
        let Some(mirror) = self.mirror(pages, klass)? else { return Ok((states, 0)) };
        let names = STATES.map(|(name, _)| (name, "I"));
        let offsets = self.threads.fields.static_offsets(pages, klass, names)?;
        for ((_, state), offset) in STATES.iter().zip(offsets) {
            if let Some(offset) = offset {
                states.insert(pages.u32(at(mirror, offset)?)?, *state);
            }
        }
        let [suspended] = self.threads.fields.static_offsets(pages, klass, [("SUSPENDED", "I")])?;
        let suspended = match suspended {
            Some(offset) => pages.u32(at(mirror, offset)?)?,
            None => 0,
        };
        Ok((states, suspended))
    }

    fn map(&self, pages: &mut Pages<'_>) -> Result<Option<Map>> {
        let [of_view] =
            self.fields(pages, VIEW, [("map", "Ljava/util/concurrent/ConcurrentHashMap;")])?;
        let [table] = self.fields(pages, MAP, [("table", NODES)])?;
        let node = [
            ("key", "Ljava/lang/Object;"),
            ("next", "Ljava/util/concurrent/ConcurrentHashMap$Node;"),
        ];
        let [key, next] = self.fields(pages, NODE, node)?;
        let tree = "Ljava/util/concurrent/ConcurrentHashMap$TreeNode;";
        let [first] = self.fields(pages, BIN, [("first", tree)])?;
        let [next_table] = self.fields(pages, FORWARDING, [("nextTable", NODES)])?;
        let (Some(of_view), Some(table), Some(key), Some(next), Some(node)) =
            (of_view, table, key, next, self.class(NODE))
        else {
            return Ok(None);
        };
        let bin = self.class(BIN).zip(first);
        let forwarding = self.class(FORWARDING).zip(next_table);
        Ok(Some(Map { of_view, table, key, next, node, bin, forwarding }))
    }
}
