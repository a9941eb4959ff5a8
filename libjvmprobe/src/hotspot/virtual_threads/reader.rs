//! Reads virtual threads.

use std::{
    collections::{HashMap, HashSet},
    mem,
    sync::Arc,
    time::Instant,
};

use super::{
    Container, VirtualState, VirtualThread, VirtualThreads,
    chunks::{ChunkFrame, Frames, MAX_FRAMES},
    classes::Classes,
    containers::{Found, Owned},
};
use crate::{
    Addr, Error, Result,
    hotspot::{
        boot_classes::BootClasses,
        java_threads::{
            Block, BlockKind, BlockedOn, Owner, StoredOwner,
            owners::{ANONYMOUS, DEFLATER, MAX_LOCKS},
            reader::{Reader as Threads, ThreadFields},
        },
        layout::Item,
        loaded::at,
        pages::Pages,
        resolved::Layout,
        threads,
    },
    process::memory::Memory,
};

/// Number of threads that are read together.
pub(super) const AT_ONCE: usize = 128;
/// Maximum number of times that a thread is read.
const MAX_READS: usize = 5;
/// Maximum number of chunks of a stack, and maximum size of a chunk in words.
const MAX_CHUNKS: usize = 16;
const MAX_CHUNK: u32 = 1 << 17;
/// Offset of `ObjectWaiter::_monitor` in JDK 24 and later: after `_next`, `_prev`, `_thread` and `_vthread`.
const MONITOR_OF_WAITER: u64 = 32;
/// Plausibility limit for the offset of a field that the JVM adds to a class.
const MAX_OFFSET: u64 = 1024;
/// Maximum number of stored frames for each virtual thread that may be read. Threads with equal stacks share the
/// frames.
const FRAMES_PER_THREAD: usize = 4;

/// Position of a stack in the heap: the first chunk, the stack pointer of this chunk, and the address at
/// which the innermost frame continues.
type Position = (Addr, u32, u64);

/// Data by which a change of a thread between two reads is detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mark {
    state: u32,
    carrier: Option<Addr>,
    position: Option<Position>,
}

/// Data of a virtual thread from one read.
#[derive(Clone, Debug)]
struct Facts {
    mark: Mark,
    number: u64,
    name: Option<Arc<str>>,
    /// The JavaThread of the carrier.
    carrier: Option<Addr>,
    container: Option<Addr>,
    scopes: Option<Addr>,
    block: Option<Block>,
    frames: Arc<[ChunkFrame]>,
    /// Objects in its lock stack if it is not mounted.
    locks: Vec<Addr>,
    /// Whether its name, its carrier, its stack and the object that it waits for could be read.
    is_complete: bool,
}

/// A platform thread.
#[derive(Clone, Debug)]
pub(super) struct Platform {
    pub(super) thread: Addr,
    pub(super) number: u64,
    pub(super) mounted: Option<Addr>,
    pub(super) container: Option<Addr>,
    pub(super) scopes: Option<Addr>,
    /// Objects in its lock stack. If a virtual thread is mounted, the virtual thread has locked these
    /// objects.
    locks: Vec<Addr>,
}

/// Reads the virtual threads of a JVM.
pub(super) struct Reader {
    memory: Memory,
    layout: Layout,
    pub(super) threads: Threads,
    pub(super) classes: Classes,
    frames: Frames,
    /// Offset of the field in which a `VirtualThread` refers to its `ObjectWaiter`.
    waiter: Option<u64>,
    /// Offset of the field of a `StackChunk` that contains the number of objects in the thread's lock stack.
    /// The lock stack is at the beginning of the chunk's stack.
    lock_count: Option<u64>,
    /// Containers, and threads that are not read yet.
    pub(super) found: Found,
    /// Maximum number of threads that are read.
    pub(super) max: usize,
    /// The distinct stacks.
    stacks: HashSet<Arc<[ChunkFrame]>>,
    /// Number of frames that may still be stored.
    frames_left: usize,
}

impl Reader {
    /// Creates a reader; `None` if the JVM has no virtual threads.
    ///
    /// # Errors
    /// [`Error::Layout`] naming the missing field, [`Error::Memory`].
    pub(super) fn new(
        memory: &Memory,
        layout: &Layout,
        classes: &BootClasses,
        (max, until): (usize, Instant),
    ) -> Result<Option<Self>> {
        let threads = Threads::new(memory, layout)?;
        let pages = &mut Pages::sequential(memory);
        let Some(classes) = Classes::find(pages, &threads, layout, classes, until)? else {
            return Ok(None);
        };
        let added_field = |item| {
            let offset = layout.try_address(item).and_then(|at| memory.u32(at).ok());
            offset.map(u64::from).filter(|offset| (8..MAX_OFFSET).contains(offset))
        };
        Ok(Some(Self {
            memory: memory.clone(),
            layout: layout.clone(),
            threads,
            classes,
            frames: Frames::new(pages, layout)?,
            waiter: added_field(Item::ObjectWaiterAt),
            lock_count: added_field(Item::LockStackSizeAt),
            found: Found::default(),
            max,
            stacks: HashSet::new(),
            frames_left: max.saturating_mul(FRAMES_PER_THREAD),
        }))
    }

    /// Reads all virtual threads.
    ///
    /// # Errors
    /// [`Error::Memory`] if the JVM has exited.
    pub(super) fn read(&mut self, until: Instant) -> Result<VirtualThreads> {
        let memory = self.memory.clone();
        let pages = &mut Pages::scattered(&memory);
        let platform = self.platform(pages, until)?;
        self.registered(pages, until);
        for thread in &platform {
            self.found.threads.extend(thread.mounted);
            let owner = Owned { number: thread.number, container: thread.container };
            self.owned(pages, thread.scopes, owner, until);
        }
        let mut read: Vec<(Addr, Facts, bool)> = Vec::new();
        let mut seen = HashSet::new();
        // A virtual thread may own containers, which have further threads.
        while !self.found.threads.is_empty() {
            let mut new: Vec<_> = mem::take(&mut self.found.threads);
            new.retain(|&thread| seen.insert(thread));
            new.sort_unstable();
            let max = self.max.saturating_sub(read.len());
            self.found.is_incomplete |= new.len() > max;
            new.truncate(max);
            let from = read.len();
            for some in new.chunks(AT_ONCE) {
                if Instant::now() >= until {
                    self.found.is_incomplete = true;
                    break;
                }
                self.some(pages, some, until, &mut read);
            }
            let owners: Vec<_> = (read[from..].iter())
                .filter_map(|(_, facts, _)| {
                    facts.scopes?;
                    let (number, container) = (facts.number, facts.container);
                    Some((facts.scopes, Owned { number, container }))
                })
                .collect();
            pages.clear();
            for (scopes, owner) in owners {
                if Instant::now() >= until {
                    self.found.is_incomplete = true;
                    break;
                }
                self.owned(pages, scopes, owner, until);
            }
        }
        Ok(self.finished(&platform, read))
    }

    /// Reads the platform threads. Leaves out threads that have no Java object or cannot be read.
    fn platform(&mut self, pages: &mut Pages<'_>, until: Instant) -> Result<Vec<Platform>> {
        let addresses = threads::addresses(&self.memory, &self.layout)?;
        let mut platform = Vec::with_capacity(addresses.len());
        for some in addresses.chunks(AT_ONCE) {
            let read = pages.read_batched(some, |pages, &thread| {
                (Instant::now() < until).then(|| self.platform_thread(pages, thread).ok())?
            });
            platform.extend(read.into_iter().flatten());
        }
        Ok(platform)
    }

    fn platform_thread(&mut self, pages: &mut Pages<'_>, thread: Addr) -> Result<Platform> {
        let mounted = self.threads.mounted(pages, thread);
        let locks = self.threads.locks(pages, thread);
        let object = self.threads.root(pages, at(thread, self.threads.offsets.object)?)?;
        let object =
            object.ok_or_else(|| Error::layout("a JavaThread without a java.lang.Thread"))?;
        let (fields, _) = self.threads.thread_fields(pages, object)?;
        let number = pages.u64(at(object, fields.number)?);
        let container = self.reference(pages, object, self.classes.container);
        let scopes = self.reference(pages, object, self.classes.scopes);
        let (number, container, scopes) = (number?, container?, scopes?);
        // The virtual thread may have moved or been unmounted meanwhile. Then it is unknown which thread has these locks.
        let (mounted, locks) = match mounted {
            Ok(mounted) => (mounted.map(|(object, _)| object), locks?),
            Err(_) => (None, Vec::new()),
        };
        Ok(Platform { thread, number, mounted, container, scopes, locks })
    }

    /// Reads the lock stack in a chunk.
    fn locks(&self, pages: &mut Pages<'_>, chunk: Addr) -> Result<Vec<Addr>> {
        let Some(field) = self.lock_count else { return Ok(Vec::new()) };
        let [count] = pages.array(at(chunk, field)?)?;
        let mut locks = Vec::new();
        for index in 0..u64::from(count).min(MAX_LOCKS) {
            let word = pages.u64(at(chunk, self.classes.chunk.stack.saturating_add(index * 8))?)?;
            locks.extend(self.threads.references.heap_lock_candidates(pages, word)?);
        }
        Ok(locks)
    }

    /// Reads a field; `None` for null and for a field that the JDK does not have.
    pub(super) fn reference(
        &self,
        pages: &mut Pages<'_>,
        object: Addr,
        field: Option<u64>,
    ) -> Result<Option<Addr>> {
        match field {
            Some(field) => self.threads.references.read_reference(pages, object, field),
            None => Ok(None),
        }
    }

    /// Reads each of some threads until its [`Mark`] is the same before and after the read, at most
    /// [`MAX_READS`] times. Adds the threads to `read`. The flag there says whether the thread is moving: its
    /// mark changed during each read, or a part of its data could not be read.
    fn some(
        &mut self,
        pages: &mut Pages<'_>,
        threads: &[Addr],
        until: Instant,
        read: &mut Vec<(Addr, Facts, bool)>,
    ) {
        let mut open: Vec<(Addr, Option<Facts>)> =
            threads.iter().map(|&thread| (thread, None)).collect();
        for _ in 0..MAX_READS {
            if open.is_empty() || Instant::now() >= until {
                break;
            }
            pages.clear();
            let new = pages.read_batched(&open, |pages, &(thread, _)| {
                (Instant::now() < until).then(|| self.facts(pages, thread).ok())?
            });
            pages.clear();
            let marks =
                pages.read_batched(&open, |pages, &(thread, _)| self.mark(pages, thread).ok());
            let mut still_open = Vec::new();
            for (((thread, before), facts), mark) in open.into_iter().zip(new).zip(marks) {
                match facts {
                    Some(facts) if facts.is_complete && mark == Some(facts.mark) => {
                        read.push((thread, facts, false));
                    }
                    facts => still_open.push((thread, facts.or(before))),
                }
            }
            open = still_open;
        }
        self.found.is_incomplete |= open.iter().any(|(_, facts)| facts.is_none());
        read.extend(open.into_iter().filter_map(|(thread, facts)| Some((thread, facts?, true))));
    }

    /// Reads the state, the carrier and the position of the stack of a thread.
    fn mark(&self, pages: &mut Pages<'_>, thread: Addr) -> Result<Mark> {
        let classes = &self.classes;
        if self.threads.references.class_of(pages, thread)? != classes.virtual_thread {
            return Err(Error::layout("not a virtual thread"));
        }
        let state = pages.u32(at(thread, classes.state)?);
        let carrier = self.reference(pages, thread, Some(classes.carrier));
        let continuation = self.reference(pages, thread, Some(classes.continuation))?;
        let chunk = match continuation {
            Some(continuation) => self.reference(pages, continuation, Some(classes.tail))?,
            None => None,
        };
        let position = match chunk {
            Some(chunk) => Some(self.position(pages, chunk)?),
            None => None,
        };
        Ok(Mark { state: state?, carrier: carrier?, position })
    }

    fn position(&self, pages: &mut Pages<'_>, chunk: Addr) -> Result<Position> {
        let fields = self.classes.chunk;
        if self.threads.references.class_of(pages, chunk)? != fields.class {
            return Err(Error::layout("not a stack chunk"));
        }
        let sp = pages.u32(at(chunk, fields.sp)?)?;
        let pc = (u64::from(sp) * 8).saturating_add(fields.stack).saturating_sub(8);
        Ok((chunk, sp, pages.u64(at(chunk, pc)?)?))
    }

    /// Reads a thread once. If one part cannot be read, the other parts are read nevertheless, so that
    /// [`Pages::read_batched`] can read the missing pages of all parts in one request.
    fn facts(&mut self, pages: &mut Pages<'_>, thread: Addr) -> Result<Facts> {
        let mark = self.mark(pages, thread)?;
        let (fields, _) = self.threads.thread_fields(pages, thread)?;
        let state = self.classes.state(mark.state);
        let number = pages.u64(at(thread, fields.number)?);
        let name = self.threads.name(pages, thread, &fields);
        let container = self.reference(pages, thread, self.classes.container);
        let scopes = self.reference(pages, thread, self.classes.scopes);
        let carrier = match mark.carrier {
            Some(carrier) => self.carrier(pages, carrier),
            None => Ok(None),
        };
        let block = self.block(pages, thread, &fields, state);
        let mut frames = Vec::new();
        let (stack, locks) = match mark.position {
            Some(position) => {
                (self.stack(pages, position, &mut frames), self.locks(pages, position.0))
            }
            None => (Ok(()), Ok(Vec::new())),
        };
        let is_complete = name.is_ok() && carrier.is_ok() && block.is_ok() && stack.is_ok();
        Ok(Facts {
            mark,
            number: number?,
            name: name.ok().flatten(),
            carrier: carrier.ok().flatten(),
            container: container.ok().flatten(),
            scopes: scopes.ok().flatten(),
            block: block.ok().flatten(),
            frames: self.shared(frames),
            locks: locks.unwrap_or_default(),
            is_complete,
        })
    }

    /// Returns the stored copy of a stack. If too many frames are stored already, returns an empty stack.
    fn shared(&mut self, frames: Vec<ChunkFrame>) -> Arc<[ChunkFrame]> {
        if let Some(stored) = self.stacks.get(&*frames) {
            return Arc::clone(stored);
        }
        let Some(left) = self.frames_left.checked_sub(frames.len()) else {
            self.found.is_incomplete = true;
            return Arc::default();
        };
        self.frames_left = left;
        let frames: Arc<[ChunkFrame]> = frames.into();
        self.stacks.insert(Arc::clone(&frames));
        frames
    }

    /// Returns the JavaThread of a carrier.
    fn carrier(&mut self, pages: &mut Pages<'_>, object: Addr) -> Result<Option<Addr>> {
        let (fields, _) = self.threads.thread_fields(pages, object)?;
        let thread = pages.pointer(at(object, fields.java_thread)?)?;
        Ok((thread != Addr(0)).then_some(thread))
    }

    /// Reads the frames of a stack in the heap.
    fn stack(
        &mut self,
        pages: &mut Pages<'_>,
        (chunk, ..): Position,
        frames: &mut Vec<ChunkFrame>,
    ) -> Result<()> {
        let fields = self.classes.chunk;
        let mut chunk = Some(chunk);
        for _ in 0..MAX_CHUNKS {
            let Some(address) = chunk.filter(|_| frames.len() < MAX_FRAMES) else { break };
            if self.threads.references.class_of(pages, address)? != fields.class {
                return Err(Error::layout("not a stack chunk"));
            }
            let sp = pages.u32(at(address, fields.sp)?)?;
            let bottom = pages.u32(at(address, fields.bottom)?)?;
            let next = self.reference(pages, address, Some(fields.parent))?;
            if sp < bottom {
                // Two words below the stack pointer belong to the innermost frame.
                let begin = sp.checked_sub(2).filter(|_| bottom <= MAX_CHUNK);
                let begin = begin.ok_or_else(|| Error::layout("implausible stack chunk"))?;
                let first = at(address, fields.stack.saturating_add(u64::from(begin) * 8))?;
                let bytes = pages.bytes(first, (bottom - begin) as usize * 8)?;
                let words: Vec<_> =
                    bytes.as_chunks().0.iter().copied().map(u64::from_ne_bytes).collect();
                self.frames.walk(pages, &words, frames)?;
            }
            chunk = next;
        }
        Ok(())
    }

    /// Reads the object that a thread waits for.
    fn block(
        &mut self,
        pages: &mut Pages<'_>,
        thread: Addr,
        fields: &ThreadFields,
        state: VirtualState,
    ) -> Result<Option<Block>> {
        if state.is_parked() {
            let blocker = self.reference(pages, thread, fields.park_blocker)?;
            return blocker.map(|blocker| self.threads.parked_on(pages, blocker)).transpose();
        }
        let Some(waiter) = self.waiter.filter(|_| state.is_at_monitor()) else { return Ok(None) };
        let waiter = pages.pointer(at(thread, waiter)?)?;
        if waiter == Addr(0) {
            return Ok(None);
        }
        let monitor = pages.pointer(at(waiter, MONITOR_OF_WAITER)?)?;
        let Some(words) = self.threads.monitor_words(pages, monitor)? else { return Ok(None) };
        let klass = self.threads.references.class_of(pages, words.object)?;
        let class = self.threads.class(pages, klass)?.name;
        let kind = match state {
            VirtualState::Blocked => BlockKind::Enter,
            _ => BlockKind::Wait,
        };
        Ok(Some(Block { kind, object: words.object, class, owner: StoredOwner::Monitor(words) }))
    }

    /// Makes the result from the platform threads and the virtual threads that were read.
    fn finished(
        &mut self,
        platform: &[Platform],
        mut read: Vec<(Addr, Facts, bool)>,
    ) -> VirtualThreads {
        let is_live = |facts: &Facts| {
            !matches!(
                self.classes.state(facts.mark.state),
                VirtualState::New | VirtualState::Terminated
            )
        };
        read.retain(|(_, facts, _)| is_live(facts));
        read.sort_by_key(|(_, facts, _)| facts.number);
        read.dedup_by_key(|(_, facts, _)| facts.number);
        let names: HashMap<_, _> =
            read.iter().map(|(_, facts, _)| (facts.number, facts.name.clone())).collect();
        let numbers: HashMap<_, _> =
            platform.iter().map(|thread| (thread.number, thread.thread)).collect();
        let numbers_of_objects: HashMap<_, _> =
            read.iter().map(|(object, facts, _)| (*object, facts.number)).collect();
        let virtual_thread = |number: u64| {
            let name = names.get(&number)?.clone();
            Some(Owner::VirtualThread { number, name })
        };
        let mut holders = Holders::default();
        for thread in platform {
            let owner = match thread.mounted {
                Some(mounted) => {
                    numbers_of_objects.get(&mounted).and_then(|&number| virtual_thread(number))
                }
                None => Some(Owner::Thread(thread.thread)),
            };
            holders.add(&thread.locks, owner);
        }
        for (_, facts, is_moving) in &read {
            // The lock stack of a mounted thread is that of its carrier.
            if !is_moving && facts.carrier.is_none() {
                holders.add(&facts.locks, virtual_thread(facts.number));
            }
        }
        let owner = |stored: &StoredOwner| match stored {
            StoredOwner::None => Owner::None,
            StoredOwner::Object { java_thread, number, is_virtual, name } => {
                let listed = numbers.get(number) == Some(java_thread);
                match (listed, is_virtual) {
                    (true, _) => Owner::Thread(*java_thread),
                    (false, true) => Owner::VirtualThread { number: *number, name: name.clone() },
                    (false, false) => Owner::Unknown,
                }
            }
            StoredOwner::Monitor(words) => match (words.owner, numbers.get(&words.owner)) {
                (0, _) => Owner::None,
                (ANONYMOUS, _) => holders.of(words.object),
                (..=DEFLATER, _) => Owner::Unknown,
                (_, Some(&thread)) => Owner::Thread(thread),
                (number, None) => virtual_thread(number).unwrap_or(Owner::Unknown),
            },
        };
        let mut threads = Vec::with_capacity(read.len());
        for (object, facts, is_moving) in read {
            let container = facts.container.and_then(|c| self.found.indexes.get(&c).copied());
            threads.push(VirtualThread {
                object,
                number: facts.number,
                name: facts.name.unwrap_or_default(),
                state: self.classes.state(facts.mark.state),
                carrier: facts.carrier,
                container: container.unwrap_or(0),
                blocked_on: facts.block.map(|block| BlockedOn {
                    kind: block.kind,
                    object: block.object,
                    class: block.class,
                    owner: owner(&block.owner),
                }),
                frames: facts.frames,
                is_moving,
            });
        }
        threads.sort_by_key(|thread| (thread.container, thread.number));
        let of_platform =
            |thread: &Platform| Some((thread.thread, *self.found.indexes.get(&thread.container?)?));
        VirtualThreads {
            containers: mem::take(&mut self.found.containers)
                .into_iter()
                .map(|(container, parent)| {
                    let parent = parent.and_then(|parent| self.found.indexes.get(&parent).copied());
                    Container { parent: parent.or(Some(0)), ..container }
                })
                .enumerate()
                .map(|(index, container)| match index {
                    0 => Container { parent: None, ..container },
                    _ => container,
                })
                .collect(),
            threads,
            platform: platform.iter().filter_map(of_platform).collect(),
            holders: holders.virtual_threads(),
            is_incomplete: self.found.is_incomplete,
        }
    }
}

/// For each object in a lock stack, the thread that has it there.
#[derive(Debug, Default)]
struct Holders(HashMap<Addr, Owner>);

impl Holders {
    /// Adds the objects in a lock stack. If several threads have the same object in their lock stacks, the
    /// owner of the object is unknown.
    fn add(&mut self, locks: &[Addr], owner: Option<Owner>) {
        let owner = owner.unwrap_or(Owner::Unknown);
        for &object in locks {
            let known = self.0.entry(object).or_insert_with(|| owner.clone());
            if *known != owner {
                *known = Owner::Unknown;
            }
        }
    }

    fn of(&self, object: Addr) -> Owner {
        self.0.get(&object).cloned().unwrap_or(Owner::Unknown)
    }

    /// Returns the objects that virtual threads have locked, each with the virtual thread.
    fn virtual_threads(self) -> HashMap<Addr, Owner> {
        let mut holders = self.0;
        holders.retain(|_, owner| matches!(owner, Owner::VirtualThread { .. }));
        holders
    }
}
