//! Reads JavaThreads and their Java objects.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Instant,
};

use super::{
    Block, BlockKind, Facts, Found, JavaSide, JavaState, JavaThread, MonitorWords, ReadThread,
    StoredOwner, ThreadStatus, finished,
};
use crate::{
    Addr, Error, Result,
    hotspot::{
        classes::{MAX_NAME, java_name},
        fields::Fields,
        hashing::NumberMap,
        layout::Item,
        loaded::at,
        pages::Pages,
        processor::BYTECODE,
        references::{References, first_characters},
        resolved::Layout,
        threads,
    },
    names::clean,
    process::memory::Memory,
    sys::budget::Reservation,
};

/// The first JDK whose threads and monitors refer to Java objects by handles.
pub(super) const FIRST_WITH_HANDLES: u32 = 16;
/// The first JDK whose monitors hold the number of their owner.
pub(super) const FIRST_WITH_OWNER_NUMBERS: u32 = 24;
/// Maximum number of characters of a name; longer names are truncated.
const MAX_CHARACTERS: u16 = 512;
/// Maximum number of classes cached.
const MAX_CLASSES: usize = 1 << 14;
/// Number of threads that are read together.
pub(super) const AT_ONCE: usize = 64;
/// Approximate number of bytes that a thread takes while all threads are read.
const THREAD_BYTES: usize = size_of::<ReadThread>() + size_of::<JavaThread>() + 128;
/// Maximum number of times that a thread is read.
const MAX_READS: usize = 5;

/// Names of classes. Names with slashes have the form of class files, names with dots that of Java source.
const THREAD: &str = "java/lang/Thread";
const HOLDER: &str = "java.lang.Thread$FieldHolder";
const STRING: &str = "java.lang.String";
pub(super) const SYNCHRONIZER: &str = "java/util/concurrent/locks/AbstractOwnableSynchronizer";
/// A thread is virtual if its class or one of its superclasses has one of these names.
const VIRTUAL: [&str; 2] = ["java/lang/BaseVirtualThread", "java/lang/VirtualThread"];

/// Offsets of the parts of JavaThreads and monitors.
#[derive(Clone, Copy, Debug)]
pub(in crate::hotspot) struct Offsets {
    os_thread: u64,
    /// `None` with the Zero VM, which does not export this field.
    os_thread_id: Option<u64>,
    pub(in crate::hotspot) object: u64,
    pub(super) pending: u64,
    pub(super) waiting: u64,
    pub(super) stack_base: u64,
    pub(super) stack_size: u64,
    /// Offsets in a JavaThread: of the first object of the lock stack, and of the lock stack's `_top`. The
    /// value of `_top` is an offset in the JavaThread, too.
    pub(in crate::hotspot) locks: Option<(u64, u64)>,
    pub(in crate::hotspot) virtual_thread: Option<u64>,
    pub(super) owner_id: Option<u64>,
    pub(super) monitor_object: u64,
    monitor_owner: u64,
    stack_locker: Option<u64>,
}

impl Offsets {
    fn read(layout: &Layout) -> Result<Self> {
        let locks = || {
            let stack = layout.get(Item::LockStackOf).ok()?;
            let part = |item| stack.checked_add(layout.get(item).ok()?);
            Some((part(Item::LockStackBase)?, part(Item::LockStackTop)?))
        };
        Ok(Self {
            os_thread: layout.get(Item::OsThread)?,
            os_thread_id: layout.get(Item::OsThreadId).ok(),
            object: layout.get(Item::ThreadObject)?,
            pending: layout.get(Item::PendingMonitor)?,
            waiting: layout.get(Item::WaitingMonitor)?,
            stack_base: layout.get(Item::StackBase)?,
            stack_size: layout.get(Item::StackSize)?,
            locks: locks(),
            virtual_thread: layout.get(Item::VirtualThreadOf).ok(),
            owner_id: layout.get(Item::MonitorOwnerId).ok(),
            monitor_object: layout.get(Item::MonitorObject)?,
            monitor_owner: layout.get(Item::MonitorOwner)?,
            stack_locker: layout.get(Item::StackLocker).ok(),
        })
    }
}

/// Offsets of the fields of `java.lang.Thread`; `None` for those that a JDK does not have.
#[derive(Clone, Copy, Debug)]
pub(in crate::hotspot) struct ThreadFields {
    name: Option<u64>,
    pub(in crate::hotspot) number: u64,
    pub(in crate::hotspot) java_thread: u64,
    pub(in crate::hotspot) park_blocker: Option<u64>,
    /// The field that refers to the `Thread$FieldHolder`, if status, priority and daemon are there.
    holder: Option<u64>,
    state: Option<StateFields>,
}

/// Offsets of the fields of `Thread$FieldHolder`, or of the same fields of `java.lang.Thread`.
#[derive(Clone, Copy, Debug)]
struct StateFields {
    daemon: u64,
    priority: u64,
    status: u64,
}

impl StateFields {
    fn of([daemon, priority, status]: [Option<u64>; 3]) -> Option<Self> {
        Some(Self { daemon: daemon?, priority: priority?, status: status? })
    }
}

/// Offsets of the fields of `java.lang.String`.
#[derive(Clone, Copy, Debug)]
struct StringFields {
    value: u64,
    /// `None` if strings have arrays of `char`.
    coder: Option<u64>,
}

/// A class, as far as it matters for threads and their locks.
#[derive(Clone, Debug)]
pub(in crate::hotspot) struct ClassInfo {
    /// Name as in Java source.
    pub(in crate::hotspot) name: Arc<str>,
    /// Klass of `java.lang.Thread`, if it is a superclass or the class itself.
    pub(in crate::hotspot) thread: Option<Addr>,
    /// Klass of `AbstractOwnableSynchronizer`, if it is a superclass or the class itself.
    pub(super) synchronizer: Option<Addr>,
    pub(super) is_virtual: bool,
}

/// Reads threads.
#[derive(Debug)]
pub(in crate::hotspot) struct Reader {
    pub(super) memory: Memory,
    pub(super) layout: Layout,
    pub(in crate::hotspot) references: References,
    pub(in crate::hotspot) fields: Fields,
    pub(in crate::hotspot) offsets: Offsets,
    klass_name: u64,
    symbol_length: u64,
    symbol_body: u64,
    pub(super) has_handles: bool,
    pub(super) has_owner_numbers: bool,
    /// Number of words below the frame pointer at which an interpreted frame refers to its list of monitors.
    pub(super) monitors_slot: u64,
    classes: NumberMap<Addr, ClassInfo>,
    /// Offsets of fields, each with the Klass that declares them.
    thread: Option<(Addr, ThreadFields)>,
    holder: Option<(Addr, StateFields)>,
    string: Option<(Addr, StringFields)>,
    synchronizer: Option<(Addr, u64)>,
}

impl Reader {
    pub(in crate::hotspot) fn new(memory: &Memory, layout: &Layout) -> Result<Self> {
        Ok(Self {
            memory: memory.clone(),
            layout: layout.clone(),
            references: References::new(memory, layout)?,
            fields: Fields::new(layout)?,
            offsets: Offsets::read(layout)?,
            klass_name: layout.get(Item::KlassName)?,
            symbol_length: layout.get(Item::SymbolLength)?,
            symbol_body: layout.get(Item::SymbolBody)?,
            has_handles: layout.major >= FIRST_WITH_HANDLES,
            has_owner_numbers: layout.major >= FIRST_WITH_OWNER_NUMBERS,
            // It is the slot below that of the bytecode (`interpreter_frame_initial_sp_offset`). A frame of JDK 8 has no
            // mirror of its class.
            monitors_slot: if layout.is_jdk_8() { 8 } else { BYTECODE.unsigned_abs() + 1 },
            classes: NumberMap::default(),
            thread: None,
            holder: None,
            string: None,
            synchronizer: None,
        })
    }

    pub(super) fn threads(&mut self, until: Instant) -> Result<Found> {
        let memory = self.memory.clone();
        let mut pages = Pages::scattered(&memory);
        let mut seen = HashSet::new();
        let mut addresses = threads::addresses(&memory, &self.layout)?;
        addresses.retain(|&thread| thread.0 != 0 && seen.insert(thread));
        drop(seen);
        // A JVM can list more threads than its process has.
        let mut space = Reservation::within(&memory.share());
        let all = addresses.len();
        while !addresses.is_empty() && !space.reserve(addresses.len() * THREAD_BYTES) {
            addresses.truncate(addresses.len() / 2);
        }
        let left_out = (all - addresses.len()) as u64;
        let mut read = Vec::with_capacity(addresses.len());
        for some in addresses.chunks(AT_ONCE) {
            read.extend(self.some(&mut pages, some, until));
        }
        // The memory of a thread that has exited may have been reused before it was read.
        let still: HashSet<_> = threads::addresses(&memory, &self.layout)?.into_iter().collect();
        read.retain(|thread| still.contains(&thread.address));
        let has_new = still.len() > read.len();
        let owners = self.owners(&mut pages, &read, has_new, until);
        let threads = read.into_iter().zip(owners);
        let threads = threads.map(|(thread, owner)| finished(thread, owner)).collect();
        Ok(Found { threads, left_out, tenant: Arc::clone(space.tenant()) })
    }

    /// Returns the names that the threads' Java objects hold, by thread ID in the JVM's PID namespace. Harmful characters
    /// are not escaped. Reads each thread once. Leaves out names for which `is_wanted` is false, and threads that are
    /// not read by `until`.
    ///
    /// # Errors
    /// [`Error::Layout`] if the JVM does not show thread IDs (Zero VM), [`Error::Memory`].
    pub(in crate::hotspot) fn names(
        &mut self,
        until: Instant,
        is_wanted: impl Fn(&str) -> bool,
    ) -> Result<HashMap<u32, String>> {
        self.layout.get(Item::OsThreadId)?;
        let memory = self.memory.clone();
        let mut pages = Pages::scattered(&memory);
        let threads = threads::addresses(&memory, &self.layout)?;
        let mut names = HashMap::new();
        for some in threads.chunks(AT_ONCE) {
            let read = pages.read_batched(some, |pages, &thread| {
                // A hostile JVM may have a list of threads that takes long to read.
                (Instant::now() < until).then(|| self.tid_and_name(pages, thread).ok().flatten())?
            });
            names.extend(read.into_iter().flatten().filter(|(_, name)| is_wanted(name)));
        }
        Ok(names)
    }

    fn tid_and_name(
        &mut self,
        pages: &mut Pages<'_>,
        thread: Addr,
    ) -> Result<Option<(u32, String)>> {
        let tid = self.tid(pages, thread);
        let Some(object) = self.root(pages, at(thread, self.offsets.object)?)? else {
            return Ok(None);
        };
        let (fields, _) = self.thread_fields(pages, object)?;
        let name = self.unescaped_name(pages, object, &fields)?;
        Ok(tid?.zip(name))
    }

    /// Reads some threads until two successive reads of each agree.
    fn some(&mut self, pages: &mut Pages<'_>, threads: &[Addr], until: Instant) -> Vec<ReadThread> {
        let unread = |&address| ReadThread { address, facts: Facts::default(), is_moving: true };
        let mut read: Vec<_> = threads.iter().map(unread).collect();
        for _ in 0..MAX_READS {
            let mut open: Vec<_> = read.iter_mut().filter(|thread| thread.is_moving).collect();
            if open.is_empty() || Instant::now() >= until {
                break;
            }
            pages.clear();
            let addresses: Vec<_> = open.iter().map(|thread| thread.address).collect();
            // A hostile JVM may have objects that take long to read.
            let new = pages.read_batched(&addresses, |pages, &address| {
                (Instant::now() < until).then(|| self.facts(pages, address))
            });
            for (thread, facts) in open.iter_mut().zip(new) {
                let Some(facts) = facts else { continue };
                thread.is_moving = !facts.agrees(&thread.facts);
                // An incomplete read does not replace an earlier complete one.
                if facts.is_complete || !thread.facts.is_complete {
                    thread.facts = facts;
                }
            }
        }
        read
    }

    /// Reads a thread once. If one part cannot be read, the other parts are read nevertheless, so that
    /// [`Pages::read_batched`] can read the missing pages of all parts in one request.
    fn facts(&mut self, pages: &mut Pages<'_>, thread: Addr) -> Facts {
        let tid = self.tid(pages, thread);
        let monitor = self.monitor(pages, thread);
        let java = self.java_side(pages, thread);
        let mounted = self.mounted_number(pages, thread);
        let is_complete = mounted.is_ok();
        let is_complete = is_complete && tid.is_ok() && monitor.is_ok() && java.is_ok();
        let (java, parked_on) = java.ok().flatten().unzip();
        let parked_on = parked_on.unwrap_or(Ok(None));
        let has_object = java.as_ref().is_none_or(|java| java.is_complete);
        let is_complete = is_complete && has_object && parked_on.is_ok();
        Facts {
            tid: tid.ok().flatten(),
            java,
            block: monitor.ok().flatten().or(parked_on.ok().flatten()),
            mounted: mounted.ok().flatten(),
            is_complete,
        }
    }

    /// Returns the number of the virtual thread that is mounted on a thread.
    fn mounted_number(&mut self, pages: &mut Pages<'_>, thread: Addr) -> Result<Option<u64>> {
        let mounted = self.mounted(pages, thread)?;
        mounted.map(|(object, fields)| pages.u64(at(object, fields.number)?)).transpose()
    }

    /// Returns the object of the virtual thread that is mounted on a thread, and its fields. If no virtual thread is
    /// mounted, the field refers to the thread's own object.
    pub(in crate::hotspot) fn mounted(
        &mut self,
        pages: &mut Pages<'_>,
        thread: Addr,
    ) -> Result<Option<(Addr, ThreadFields)>> {
        let Some(field) = self.offsets.virtual_thread else { return Ok(None) };
        let own = self.root(pages, at(thread, self.offsets.object)?);
        let Some(object) = self.root(pages, at(thread, field)?)? else { return Ok(None) };
        if own? == Some(object) {
            return Ok(None);
        }
        let (fields, class) = self.thread_fields(pages, object)?;
        Ok(class.is_virtual.then_some((object, fields)))
    }

    pub(super) fn tid(&self, pages: &mut Pages<'_>, thread: Addr) -> Result<Option<u32>> {
        let Some(field) = self.offsets.os_thread_id else { return Ok(None) };
        match pages.pointer(at(thread, self.offsets.os_thread)?)? {
            Addr(0) => Ok(None),
            os_thread => pages.u32(at(os_thread, field)?).map(Some),
        }
    }

    /// Reads the monitor that a thread waits for.
    fn monitor(&mut self, pages: &mut Pages<'_>, thread: Addr) -> Result<Option<Block>> {
        let pending = pages.pointer(at(thread, self.offsets.pending)?)?;
        let waiting = pages.pointer(at(thread, self.offsets.waiting)?)?;
        let (kind, monitor) = match (pending, waiting) {
            (Addr(0), Addr(0)) => return Ok(None),
            (Addr(0), waiting) => (BlockKind::Wait, waiting),
            (pending, _) => (BlockKind::Enter, pending),
        };
        // A raw monitor of an agent has no object.
        let Some(words) = self.monitor_words(pages, monitor)? else { return Ok(None) };
        let klass = self.references.class_of(pages, words.object)?;
        let class = self.class(pages, klass)?.name;
        Ok(Some(Block { kind, object: words.object, class, owner: StoredOwner::Monitor(words) }))
    }

    pub(in crate::hotspot) fn monitor_words(
        &self,
        pages: &mut Pages<'_>,
        monitor: Addr,
    ) -> Result<Option<MonitorWords>> {
        let owner = pages.u64(at(monitor, self.offsets.monitor_owner)?);
        let locker = match self.offsets.stack_locker {
            Some(locker) => pages.u64(at(monitor, locker)?),
            None => Ok(0),
        };
        let object = self.root(pages, at(monitor, self.offsets.monitor_object)?)?;
        let (owner, locker) = (owner?, locker?);
        Ok(object.map(|object| MonitorWords { monitor, object, owner, locker }))
    }

    /// Follows a reference that is stored outside of the heap; `None` for null.
    pub(in crate::hotspot) fn root(
        &self,
        pages: &mut Pages<'_>,
        field: Addr,
    ) -> Result<Option<Addr>> {
        let mut word = pages.pointer(field)?;
        if self.has_handles && word != Addr(0) {
            word = pages.pointer(word)?;
        }
        self.references.read_root(pages, word)
    }

    /// Reads a thread's Java object and, if the thread is parked, its blocker. With ZGC, name and status may
    /// be unreadable for some time, because ZGC corrects the Java object's references to moved objects later.
    /// The result is then incomplete, but not an error.
    fn java_side(
        &mut self,
        pages: &mut Pages<'_>,
        thread: Addr,
    ) -> Result<Option<(JavaSide, Result<Option<Block>>)>> {
        let Some(object) = self.root(pages, at(thread, self.offsets.object)?)? else {
            return Ok(None);
        };
        let (fields, _) = self.thread_fields(pages, object)?;
        let name = self.name(pages, object, &fields);
        let state = self.state(pages, object, &fields);
        let number = pages.u64(at(object, fields.number)?)?;
        let java_thread = pages.pointer(at(object, fields.java_thread)?)?;
        // A thread that exits clears the field.
        if java_thread != thread && java_thread != Addr(0) {
            return Err(Error::layout(
                "a JavaThread refers to the java.lang.Thread of another thread",
            ));
        }
        let is_complete = name.is_ok() && state.is_ok();
        let (name, state) = (name.unwrap_or(None), state.unwrap_or(None));
        let is_parked = state.is_some_and(|state| state.status.is_parked());
        let blocker = match fields.park_blocker.filter(|_| is_parked) {
            Some(field) => self.blocker(pages, object, field),
            None => Ok(None),
        };
        Ok(Some((JavaSide { object, name, number, state, is_complete }, blocker)))
    }

    /// Reads the object that a thread is parked on, if it is known.
    fn blocker(
        &mut self,
        pages: &mut Pages<'_>,
        thread: Addr,
        field: u64,
    ) -> Result<Option<Block>> {
        let blocker = self.references.read_reference(pages, thread, field)?;
        blocker.map(|blocker| self.parked_on(pages, blocker)).transpose()
    }

    /// Reads the object that a thread is parked on.
    pub(in crate::hotspot) fn parked_on(
        &mut self,
        pages: &mut Pages<'_>,
        blocker: Addr,
    ) -> Result<Block> {
        let klass = self.references.class_of(pages, blocker)?;
        let class = self.class(pages, klass)?;
        let owner = match class.synchronizer {
            Some(synchronizer) => self.synchronizer_owner(pages, blocker, synchronizer)?,
            None => StoredOwner::None,
        };
        Ok(Block { kind: BlockKind::Park, object: blocker, class: class.name, owner })
    }

    fn synchronizer_owner(
        &mut self,
        pages: &mut Pages<'_>,
        object: Addr,
        klass: Addr,
    ) -> Result<StoredOwner> {
        let field = self.owner_field(pages, klass)?;
        let Some(owner) = self.references.read_reference(pages, object, field)? else {
            return Ok(StoredOwner::None);
        };
        let (fields, class) = self.thread_fields(pages, owner)?;
        let name = self.name(pages, owner, &fields);
        let number = pages.u64(at(owner, fields.number)?)?;
        let java_thread = pages.pointer(at(owner, fields.java_thread)?)?;
        let is_virtual = class.is_virtual;
        Ok(StoredOwner::Object { java_thread, number, is_virtual, name: name? })
    }

    /// Returns the offset of the field for the owner, by the Klass of `AbstractOwnableSynchronizer`.
    pub(super) fn owner_field(&mut self, pages: &mut Pages<'_>, klass: Addr) -> Result<u64> {
        if let Some((_, field)) = self.synchronizer.filter(|(cached, _)| *cached == klass) {
            return Ok(field);
        }
        let wanted = [("exclusiveOwnerThread", "Ljava/lang/Thread;")];
        let [field] = self.fields.offsets(pages, klass, wanted)?;
        let field = field.ok_or_else(|| {
            Error::layout("AbstractOwnableSynchronizer has no field exclusiveOwnerThread")
        })?;
        self.synchronizer = Some((klass, field));
        Ok(field)
    }

    /// Returns the offsets of the fields of a `java.lang.Thread`, and the object's class.
    pub(in crate::hotspot) fn thread_fields(
        &mut self,
        pages: &mut Pages<'_>,
        object: Addr,
    ) -> Result<(ThreadFields, ClassInfo)> {
        let klass = self.references.class_of(pages, object)?;
        let class = self.class(pages, klass)?;
        let klass = class.thread.ok_or_else(|| Error::layout("not a java.lang.Thread"))?;
        if let Some((_, fields)) = self.thread.filter(|(cached, _)| *cached == klass) {
            return Ok((fields, class));
        }
        let wanted = [
            ("name", "Ljava/lang/String;"),
            ("tid", "J"),
            ("eetop", "J"),
            ("parkBlocker", "Ljava/lang/Object;"),
            ("holder", "Ljava/lang/Thread$FieldHolder;"),
            ("daemon", "Z"),
            ("priority", "I"),
            ("threadStatus", "I"),
        ];
        let found = self.fields.offsets(pages, klass, wanted)?;
        let [name, number, java_thread, park_blocker, holder, daemon, priority, status] = found;
        let (Some(number), Some(java_thread)) = (number, java_thread) else {
            return Err(Error::layout("java.lang.Thread has no field tid or eetop"));
        };
        let state = StateFields::of([daemon, priority, status]);
        let fields = ThreadFields { name, number, java_thread, park_blocker, holder, state };
        self.thread = Some((klass, fields));
        Ok((fields, class))
    }

    /// Reads status, priority and daemon of a thread; `None` if it has no `Thread$FieldHolder` yet.
    pub(super) fn state(
        &mut self,
        pages: &mut Pages<'_>,
        thread: Addr,
        fields: &ThreadFields,
    ) -> Result<Option<JavaState>> {
        let (object, fields) = match (fields.state, fields.holder) {
            (Some(fields), _) => (thread, fields),
            (None, None) => {
                return Err(Error::layout("java.lang.Thread has no field for its status"));
            }
            (None, Some(field)) => {
                let holder = self.references.read_reference(pages, thread, field)?;
                let Some(holder) = holder else { return Ok(None) };
                (holder, self.holder_fields(pages, holder)?)
            }
        };
        let [daemon] = pages.array(at(object, fields.daemon)?)?;
        let priority = pages.u32(at(object, fields.priority)?)?.cast_signed();
        let status = ThreadStatus::of(pages.u32(at(object, fields.status)?)?);
        Ok(Some(JavaState { is_daemon: daemon != 0, priority, status }))
    }

    fn holder_fields(&mut self, pages: &mut Pages<'_>, holder: Addr) -> Result<StateFields> {
        let klass = self.references.class_of(pages, holder)?;
        if let Some((_, fields)) = self.holder.filter(|(cached, _)| *cached == klass) {
            return Ok(fields);
        }
        if &*self.class(pages, klass)?.name != HOLDER {
            return Err(Error::layout("not a Thread$FieldHolder"));
        }
        let wanted = [("daemon", "Z"), ("priority", "I"), ("threadStatus", "I")];
        let found = StateFields::of(self.fields.offsets(pages, klass, wanted)?);
        let fields = found.ok_or_else(|| {
            Error::layout("Thread$FieldHolder has no field threadStatus, priority or daemon")
        })?;
        self.holder = Some((klass, fields));
        Ok(fields)
    }

    /// Reads the name of a thread, with harmful characters escaped.
    pub(in crate::hotspot) fn name(
        &mut self,
        pages: &mut Pages<'_>,
        thread: Addr,
        fields: &ThreadFields,
    ) -> Result<Option<Arc<str>>> {
        let name = self.unescaped_name(pages, thread, fields)?;
        Ok(name.map(|name| clean::name(&name).into()))
    }

    fn unescaped_name(
        &mut self,
        pages: &mut Pages<'_>,
        thread: Addr,
        fields: &ThreadFields,
    ) -> Result<Option<String>> {
        let Some(field) = fields.name else { return Ok(None) };
        let string = self.references.read_reference(pages, thread, field)?;
        string.map(|string| self.text(pages, string)).transpose()
    }

    /// Reads at most the first [`MAX_CHARACTERS`] characters of a string.
    pub(in crate::hotspot) fn text(
        &mut self,
        pages: &mut Pages<'_>,
        string: Addr,
    ) -> Result<String> {
        let klass = self.references.class_of(pages, string)?;
        let fields = match self.string {
            Some((cached, fields)) if cached == klass => fields,
            _ => {
                if &*self.class(pages, klass)?.name != STRING {
                    return Err(Error::layout("not a string"));
                }
                let wanted = [("value", "[B"), ("coder", "B"), ("value", "[C")];
                let [bytes, coder, characters] = self.fields.offsets(pages, klass, wanted)?;
                let value = bytes.or(characters);
                let value = value.ok_or_else(|| Error::layout("a string without characters"))?;
                let fields = StringFields { value, coder: coder.filter(|_| bytes.is_some()) };
                self.string = Some((klass, fields));
                fields
            }
        };
        let is_utf16 = match fields.coder {
            Some(coder) => pages.array(at(string, coder)?)? != [0],
            None => true,
        };
        let value = self.references.read_reference(pages, string, fields.value)?;
        let value = value.ok_or_else(|| Error::layout("a string without characters"))?;
        let array = self.references.object(pages, value)?;
        first_characters(pages, value, &array, is_utf16, MAX_CHARACTERS)
    }

    /// Clears the cached classes, because a class's address may be reused.
    pub(super) fn forget_classes(&mut self) {
        self.classes.clear();
    }

    /// Returns the name of an object's class.
    pub(super) fn class_of(&mut self, pages: &mut Pages<'_>, object: Addr) -> Result<Arc<str>> {
        let klass = self.references.class_of(pages, object)?;
        Ok(self.class(pages, klass)?.name)
    }

    /// Reads a class and its superclasses.
    pub(in crate::hotspot) fn class(
        &mut self,
        pages: &mut Pages<'_>,
        klass: Addr,
    ) -> Result<ClassInfo> {
        if let Some(class) = self.classes.get(&klass) {
            return Ok(class.clone());
        }
        let lineage = self.fields.lineage(pages, klass)?;
        let names: Vec<_> = lineage.iter().map(|&klass| self.class_name(pages, klass)).collect();
        let names: Vec<_> = names.into_iter().collect::<Result<_>>()?;
        let of_name = |wanted: &str| {
            let mut found = lineage.iter().zip(&names);
            found.find(|(_, (name, _))| name == wanted.as_bytes()).map(|(&klass, _)| klass)
        };
        let own = names.first().map(|(name, length)| java_name(name, *length));
        let class = ClassInfo {
            name: own.unwrap_or_default().into(),
            thread: of_name(THREAD),
            synchronizer: of_name(SYNCHRONIZER),
            is_virtual: VIRTUAL.iter().any(|name| of_name(name).is_some()),
        };
        if self.classes.len() >= MAX_CLASSES {
            self.classes.clear();
        }
        self.classes.insert(klass, class.clone());
        Ok(class)
    }

    /// Returns the first bytes of a class's name, and the name's full length.
    fn class_name(&self, pages: &mut Pages<'_>, klass: Addr) -> Result<(Vec<u8>, u32)> {
        let symbol = pages.pointer(at(klass, self.klass_name)?)?;
        let length = pages.u16(at(symbol, self.symbol_length)?)?;
        let bytes =
            pages.bytes(at(symbol, self.symbol_body)?, usize::from(length).min(MAX_NAME))?;
        Ok((bytes, length.into()))
    }
}
