//! Lists all classes that a JVM has loaded: their loader, origin and state, and which of their
//! methods were called since the JVM started.
//!
//! | module | contents |
//! |---|---|
//! | `walk` | the lists of loaders and of their classes |
//! | `class` | one class: name, state, size |
//! | `method` | one method: name and call counters |
//! | `family` | superclasses and subclasses of each class |
//! | `refs` | the methods that constants and bytecodes name |
//! | `reach` | the methods that compiled code may have inlined without counting them |
//! | `usage` | the conclusion: called, not called or unknown |
//! | `loader` | names of loaders, packages and modules, for which vmStructs has no fields |
//! | `mirror` | the origin of a class, from its objects in the Java heap |
//!
//! Everything is read from the JVM's memory while it runs on, so classes may be loaded and unloaded
//! during the listing. A class is reported only if it still refers to the loader under which it was
//! listed. Lists that cannot be followed to their ends are read again.

mod class;
mod family;
mod loader;
mod method;
mod mirror;
mod reach;
mod refs;
mod usage;
mod walk;

use std::{collections::HashSet, sync::Arc, time::Instant};

use crate::{
    Addr, Error, Pid, Result,
    hotspot::{HotSpot, pages::Pages, resolved::Layout, symbols::Symbols},
    process::memory::Memory,
};

pub use usage::{Usage, Why};

use class::ClassReader;
use method::MethodReader;
use mirror::Mirrors;
use reach::Reach;
use refs::{Callee, Refs};
use usage::{Counting, InCode};

/// The initialisation state of a class (`InstanceKlass::ClassState`, JVMS 5.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// Its class file was read.
    Loaded,
    /// It was verified and linked.
    Linked,
    /// A thread is currently running its initialiser or that of a superclass.
    Initializing,
    /// It can be used.
    Initialized,
    /// Its initialiser threw: it cannot be used.
    Failed,
}

impl State {
    /// Returns the state's name in reports and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Loaded => "loaded",
            Self::Linked => "linked",
            Self::Initializing => "initializing",
            Self::Initialized => "initialized",
            Self::Failed => "failed",
        }
    }

    /// Converts HotSpot's number, the same from JDK 8 to 28. Returns `None` for `allocated` (0), which is
    /// not a class yet.
    fn of(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Loaded,
            2 => Self::Linked,
            3 => Self::Initializing,
            4 => Self::Initialized,
            5 => Self::Failed,
            _ => return None,
        })
    }
}

/// A class loader. A hidden class may have its own ClassLoaderData, but is listed under the loader that
/// defined it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Loader {
    /// Its class; `None` for the boot loader, and where the class cannot be determined.
    pub class: Option<Arc<str>>,
    /// Its name, if it has one: `app`, `platform`, or a name given by the program.
    pub name: Option<Arc<str>>,
    /// Name and identity hash as the JVM writes them into its log: `com.acme.Loader @6d06d69c`.
    pub identity: Option<Arc<str>>,
    /// Whether it is the boot loader.
    pub is_boot: bool,
}

/// A class that is loaded.
#[derive(Clone, Debug)]
pub struct LoadedClass {
    /// Its name as in Java source, without the address suffix of hidden classes.
    pub name: Arc<str>,
    /// Whether it is a hidden class, or was defined by `Unsafe.defineAnonymousClass`, the predecessor of
    /// hidden classes.
    pub is_hidden: bool,
    /// Its loader: an index into [`Loaded::loaders`].
    pub loader: usize,
    /// Its initialisation state.
    pub state: State,
    /// Thread ID of the thread that runs its initialiser, in the JVM's PID namespace.
    pub initializer: Option<u32>,
    /// The name of its module; `None` for unnamed modules, and if it cannot be read.
    pub module: Option<Arc<str>>,
    /// The location of its module, as a URL: `jrt:/java.base`.
    pub module_location: Option<Arc<str>>,
    /// The location its code was loaded from, as a URL, from its protection domain. `None` for classes
    /// that the JDK or the program generated, and where it cannot be read.
    pub source: Option<Arc<str>>,
    /// Whether `source` could be read.
    pub has_source_read: bool,
    /// Whether it comes from an archive of classes (CDS, AOT cache).
    pub is_archived: bool,
    /// Whether it was redefined since it was loaded; `None` if unknown.
    pub is_redefined: Option<bool>,
    /// Bytes of metaspace used by the class itself, its constants, and its methods with their
    /// bytecodes. Annotations and caches, such as that of the constant pool, are not included, so the
    /// estimate is somewhat low.
    pub bytes: u64,
    /// The methods that it declares, without inherited ones.
    pub methods: Vec<LoadedMethod>,
}

/// A method of a class that is loaded.
#[derive(Clone, Debug)]
pub struct LoadedMethod {
    /// Its name, `<init>` and `<clinit>` included.
    pub name: Arc<str>,
    /// Its descriptor (JVMS 4.3.3): `(I)V`.
    pub descriptor: Arc<str>,
    /// Whether it was called since the JVM started.
    pub usage: Usage,
    /// Number of calls seen by its counters. A lower bound, because compiled code of tiers 1 and 4 does not
    /// count calls.
    pub counted: u64,
    /// Whether it is compiled now.
    pub is_compiled: bool,
}

impl LoadedClass {
    /// Returns the length of its name and of the names and descriptors of its methods, in bytes.
    fn name_bytes(&self) -> usize {
        let bytes = |method: &LoadedMethod| method.name.len() + method.descriptor.len();
        self.name.len() + self.methods.iter().map(bytes).sum::<usize>()
    }
}

/// Loaders and totals of a listing of all loaded classes.
#[derive(Clone, Debug, Default)]
pub struct Loaded {
    /// The loaders, including the boot loader.
    pub loaders: Vec<Loader>,
    /// Number of classes read.
    pub classes: u64,
    /// Number of classes that had been unloaded or were inconsistent when they were read.
    pub unreadable: u64,
    /// Number of classes that the JVM has unloaded since it started, including hidden ones. The listing
    /// lacks these classes, although they may have been used. `None` if the JVM does not count them.
    pub unloaded: Option<u64>,
    /// Whether all lists were read to their ends. If not, classes are missing.
    pub is_complete: bool,
    /// If the JVM does not count calls reliably: the reason. In that case the usage of all methods without
    /// evidence of a call is unknown.
    pub not_counted: Option<Why>,
}

impl HotSpot {
    /// Passes each loaded class, except array classes, to `visit`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for JDK 8, [`Error::Layout`] naming the missing field,
    /// [`Error::Memory`] if the JVM has exited; errors that `visit` returns.
    pub fn loaded(&self, visit: impl FnMut(&Loaded, LoadedClass) -> Result<()>) -> Result<Loaded> {
        if self.layout.is_jdk_8() {
            let what = "cannot list the classes of JDK 8; use JDK 11 or later";
            return Err(Error::Unsupported { what: what.into() });
        }
        // The list of inlined methods is read before the counters. If compiled code inlines a method only
        // after this point, the method's earlier calls were counted. The counters, which are read later, then
        // show these calls.
        let inlined = self.inlined_methods()?;
        let unloads = self.class_counts.unloads();
        let unloaded = unloads.and_then(|at| self.memory.u64(at).ok());
        let listing = Loaded { unloaded, ..Loaded::default() };
        let (memory, layout) = (&self.memory, &self.layout);
        Source { memory, layout, inlined, unloads, pid: self.pid }.read(listing, visit)
    }
}

/// Counts the loaded classes, except array classes, by walking the lists until the deadline `until`.
///
/// # Errors
/// [`Error::Layout`] naming the missing field, or if the lists are longer than the maximum;
/// [`Error::Memory`] if the JVM has exited.
pub(super) fn count(memory: &Memory, layout: &Layout, until: Option<Instant>) -> Result<u64> {
    const UNCOUNTED: &str =
        "cannot read its class lists to the end: they changed, are too long, or time ran out";
    let counted = walk::count(memory, layout, until)?;
    counted.ok_or_else(|| Error::layout(UNCOUNTED))
}

/// Maximum number of times a class is read again because classes were unloaded meanwhile.
const TRIES: usize = 5;
/// Number of classes read before checking whether they stayed loaded throughout. A batch ends
/// earlier once it has METHODS_AT_ONCE methods.
const AT_ONCE: usize = 128;
const METHODS_AT_ONCE: usize = 10_000;
/// Maximum number of bytes of names in a batch, and of the methods of a class. No compiler writes such a class.
const MAX_NAMES_AT_ONCE: usize = 32 << 20;
/// Maximum number of bytes of names of a JVM's classes and methods. Names may overlap in the memory of a hostile JVM. The
/// names of 200,000 classes have about 200 MB.
const MAX_NAMES: usize = 1 << 30;

/// Everything needed to read the classes of one JVM.
pub(super) struct Source<'a> {
    pub(super) memory: &'a Memory,
    pub(super) layout: &'a Layout,
    /// The methods that are inlined in compiled code, sorted.
    pub(super) inlined: Vec<Addr>,
    /// Address of the JVM's counter of unloaded classes.
    pub(super) unloads: Option<Addr>,
    pub(super) pid: Pid,
}

impl Source<'_> {
    /// Passes all classes to `visit`. Completes `listing` and returns it.
    pub(super) fn read(
        self,
        listing: Loaded,
        mut visit: impl FnMut(&Loaded, LoadedClass) -> Result<()>,
    ) -> Result<Loaded> {
        let Self { memory, layout, inlined, unloads, pid } = self;
        let mut live = LiveClasses {
            memory,
            layout,
            unloads,
            seen: listing.unloaded,
            classes: None,
            is_complete: true,
        };
        let listed = walk::read(memory, layout)?;
        let mut reader = Reader {
            pages: Pages::sequential(memory),
            names: Pages::sequential(memory),
            symbols: Symbols::resettable(layout)?,
        };
        let classes = ClassReader::new(layout)?;
        let names = loader::Names::discover(&mut reader, layout, &classes, &listed);
        let (loaders, numbers) = names.loaders(&mut reader, &listed);
        let methods = MethodReader::new(memory, layout)?;
        let counting =
            Counting::read(memory, layout, || methods.counts_any(&mut reader, &classes, &listed));
        let reach = Reach {
            layout,
            classes: &classes,
            methods: &methods,
            counting: &counting,
            listed: &listed,
        };
        let refs = reach.read(&mut reader);
        // A class that was unloaded before this point may have called any method, and its constants are gone.
        let unloaded = unloads.and_then(|at| memory.u64(at).ok());
        let refs = if unloaded == Some(0) { refs } else { Refs::unknown() };
        let mirrors = Mirrors::new(memory, layout)
            .inspect_err(|e| log::debug!("sources of classes are unknown: {e}"))
            .ok();
        let mut listing = Loaded {
            loaders,
            is_complete: listed.is_complete,
            not_counted: counting.not_counted(),
            ..listing
        };
        let fresh_pages = Pages::scattered(memory);
        let mut parts = Parts {
            reader,
            fresh_pages,
            classes,
            names,
            methods,
            mirrors,
            counting,
            refs,
            inlined,
        };
        let mut free_bytes = MAX_NAMES;
        let mut rest = &listed.classes[..];
        while !rest.is_empty() {
            let read = parts.read_batch(rest);
            let (entries, others) = rest.split_at(read.len());
            rest = others;
            let is_sure = !live.has_changed() & parts.are_sources_unchanged();
            if !is_sure {
                parts.reader.clear();
            }
            parts
                .fresh_pages
                .prefetch(entries.iter().filter_map(|entry| parts.classes.loader_at(entry.klass)));
            for (entry, class) in entries.iter().zip(read) {
                let class = if is_sure { class } else { parts.reread(entry, &mut live) };
                if !parts.has_same_loader(entry, &listed) || !live.has(entry, &listed) {
                    continue;
                }
                match class {
                    Ok(Some(mut class)) => {
                        free_bytes =
                            free_bytes.checked_sub(class.name_bytes()).ok_or_else(|| {
                                Error::layout("the names of its classes and methods exceed 1 GiB")
                            })?;
                        class.loader = numbers.get(entry.loader).copied().unwrap_or_default();
                        listing.classes += 1;
                        visit(&listing, class)?;
                    }
                    Ok(None) => {}
                    Err(error) => {
                        listing.unreadable += 1;
                        let at = entry.klass;
                        log::debug!("process {pid}: cannot read the class at {at}: {error}");
                    }
                }
            }
        }
        listing.is_complete &= live.is_complete;
        Ok(listing)
    }
}

/// Page caches shared by all class, method and name readers.
struct Reader<'a> {
    pages: Pages<'a>,
    /// Cache of the pages that hold Symbols. Symbols and classes lie in different memory.
    names: Pages<'a>,
    symbols: Symbols,
}

impl Reader<'_> {
    /// Prefetches the pages of the classes read next, and the pages that the given fields refer to.
    fn prefetch(&mut self, entries: &[walk::Entry], fields: &[u64]) {
        let klasses = || entries.iter().map(|entry| entry.klass);
        self.pages.prefetch(klasses());
        let referred = pointers(&mut self.pages, klasses(), fields);
        self.pages.prefetch(referred);
    }

    /// Prefetches the pages of the Symbols that a field of these objects refers to.
    fn prefetch_names(&mut self, objects: impl Iterator<Item = Addr>, field: u64) {
        self.names.prefetch(pointers(&mut self.pages, objects, &[field]));
    }

    /// Clears the caches, because a new class may lie at the address of an unloaded one.
    fn clear(&mut self) {
        self.pages.clear();
        self.names.clear();
        self.symbols.clear();
    }

    /// Returns the text of a Symbol.
    fn text(&mut self, symbol: Addr) -> Result<Arc<str>> {
        self.symbols.get(&mut self.names, symbol)
    }
}

/// Returns the addresses that the given fields of the objects refer to.
fn pointers(
    pages: &mut Pages<'_>,
    objects: impl Iterator<Item = Addr>,
    fields: &[u64],
) -> Vec<Addr> {
    let addresses = objects.flat_map(|object| fields.iter().map(move |&field| at(object, field)));
    addresses.flatten().filter_map(|address| pages.pointer(address).ok()).collect()
}

/// The readers that together produce a class.
struct Parts<'a> {
    reader: Reader<'a>,
    /// A second page cache, which is cleared after each batch. It is for the mirrors of classes, which the
    /// collector may move, and for values that are re-read after the class was read.
    fresh_pages: Pages<'a>,
    classes: ClassReader,
    names: loader::Names,
    methods: MethodReader,
    mirrors: Option<Mirrors>,
    counting: Counting,
    refs: Refs,
    /// The methods that are inlined in compiled code, sorted.
    inlined: Vec<Addr>,
}

/// Result of reading a class; `None` if it is not a class yet.
type Read = Result<Option<LoadedClass>>;

impl Parts<'_> {
    /// Reads the first batch of the given classes.
    fn read_batch(&mut self, entries: &[walk::Entry]) -> Vec<Read> {
        let entries = &entries[..entries.len().min(AT_ONCE)];
        let klasses = || entries.iter().map(|entry| entry.klass);
        self.classes.prefetch(&mut self.reader, entries);
        if let Some(mirrors) = &self.mirrors {
            mirrors.prefetch(&mut self.reader.pages, &mut self.fresh_pages, klasses());
        }
        let (mut methods, mut name_bytes) = (0, 0);
        let mut read = Vec::new();
        for entry in entries {
            let class = self.read(entry);
            if let Ok(Some(class)) = &class {
                methods += class.methods.len();
                name_bytes += class.name_bytes();
            }
            read.push(class);
            if methods >= METHODS_AT_ONCE || name_bytes >= MAX_NAMES_AT_ONCE {
                break;
            }
        }
        read
    }

    /// Reads one class of a batch again, because a class was unloaded or origins may have changed.
    fn reread(&mut self, entry: &walk::Entry, live: &mut LiveClasses<'_>) -> Read {
        let mut class = self.read(entry);
        // Whatever was read while classes were being unloaded may be garbage.
        for _ in 0..TRIES {
            if !live.has_changed() & self.are_sources_unchanged() {
                break;
            }
            self.reader.clear();
            class = self.read(entry);
        }
        self.fresh_pages.clear();
        class
    }

    /// Clears `fresh_pages`, and returns whether the origins of the classes read since the last call are
    /// unchanged.
    fn are_sources_unchanged(&mut self) -> bool {
        let Self { fresh_pages, mirrors, .. } = self;
        fresh_pages.clear();
        mirrors.as_mut().is_none_or(|mirrors| mirrors.are_unchanged(fresh_pages))
    }

    /// Reads a class; `None` if it is not a class yet.
    fn read(&mut self, entry: &walk::Entry) -> Read {
        let Self { reader, fresh_pages, classes, names, methods, mirrors, counting, refs, inlined } =
            self;
        let Some(mut class) = classes.read(reader, entry)? else { return Ok(None) };
        (class.module, class.module_location) = names.module(reader, entry.klass);
        if let Some(mirrors) = mirrors {
            let mirror = mirrors.read(&mut reader.pages, fresh_pages, entry.klass);
            class.has_source_read = mirror.is_some();
            let mirror = mirror.unwrap_or_default();
            class.source = mirror.source;
            class.is_redefined = class.is_redefined.or(mirror.is_redefined);
        }
        class.is_archived = methods.is_archived(entry.klass);
        let symbol = classes.symbol(reader, entry.klass)?;
        let mut name_bytes = 0;
        for method in classes.methods(reader, entry.klass)? {
            let facts = methods.read(reader, method)?;
            class.bytes += facts.bytes;
            name_bytes += facts.name.len() + facts.descriptor.len();
            if name_bytes > MAX_NAMES_AT_ONCE {
                return Err(Error::layout("the names of a class's methods are implausibly long"));
            }
            let in_code = InCode {
                is_inlined: inlined.binary_search(&method).is_ok(),
                called_at: refs.level(Callee {
                    class: symbol,
                    signature: facts.signature,
                    binding: facts.binding,
                }),
            };
            let usage = counting.judge(&facts, class.state, class.is_redefined, in_code);
            class.methods.push(LoadedMethod {
                name: facts.name,
                descriptor: facts.descriptor,
                usage,
                counted: facts.counted,
                is_compiled: facts.is_compiled,
            });
        }
        Ok(Some(class))
    }

    /// Whether a class still belongs to its loader, according to pages that were read after the class.
    fn has_same_loader(&mut self, entry: &walk::Entry, listed: &walk::Listed) -> bool {
        let loader =
            self.classes.loader_at(entry.klass).and_then(|at| self.fresh_pages.pointer(at).ok());
        loader.is_some() && loader == listed.loaders.get(entry.loader).copied()
    }
}

/// Tracks which of the listed classes are still loaded.
///
/// The memory of an unloaded class may look unchanged although its names have been reused and its
/// loader's address belongs to another loader. Therefore the JVM's count of unloaded classes is polled. The
/// JVM increments that count before it frees anything. When the count has changed, all classes are listed
/// again.
struct LiveClasses<'a> {
    memory: &'a Memory,
    layout: &'a Layout,
    unloads: Option<Addr>,
    /// The count of unloaded classes at the last check.
    seen: Option<u64>,
    /// The classes listed most recently, with their loaders; `None` until a second listing was needed.
    classes: Option<HashSet<(Addr, Addr)>>,
    /// Whether all listings after the first were read to their ends. If not, the result may lack loaded
    /// classes, because a class that is missing in the last listing counts as unloaded.
    is_complete: bool,
}

impl LiveClasses<'_> {
    /// Whether classes were unloaded since the last call, so that the caller must read again.
    fn has_changed(&mut self) -> bool {
        let now = self.unloads.and_then(|at| self.memory.u64(at).ok());
        if now == self.seen {
            return false;
        }
        self.seen = now;
        let Ok(listed) = walk::read(self.memory, self.layout) else {
            self.is_complete = false;
            return true;
        };
        self.is_complete &= listed.is_complete;
        let loader = |entry: &walk::Entry| listed.loaders.get(entry.loader).copied();
        let live = listed.classes.iter().filter_map(|entry| Some((entry.klass, loader(entry)?)));
        self.classes = Some(live.collect());
        true
    }

    /// Whether a class that has just been read is still loaded.
    fn has(&self, entry: &walk::Entry, listed: &walk::Listed) -> bool {
        let Some(classes) = &self.classes else { return true };
        let loader = listed.loaders.get(entry.loader);
        loader.is_some_and(|&loader| classes.contains(&(entry.klass, loader)))
    }
}

/// Returns the address of a field at an offset; fails for a null object.
pub(super) fn at(object: Addr, offset: u64) -> Result<Addr> {
    object
        .checked_add(offset)
        .filter(|_| object.0 != 0)
        .ok_or_else(|| Error::layout("a pointer in a class is null"))
}
