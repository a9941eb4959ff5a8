//! All classes that a JVM has loaded: by which loader, from where, in which state, and which of
//! their methods were called since it started.
//!
//! | module | what it knows |
//! |---|---|
//! | `walk` | the lists of loaders and of their classes |
//! | `class` | one class: name, state, size |
//! | `method` | one method: name, and what its counters tell |
//! | `family` | which classes are above and below which |
//! | `refs` | which methods constants and bytecodes name |
//! | `reach` | which methods compiled code may have inlined without counting them |
//! | `usage` | what follows from that: called, not called, unknown |
//! | `loader` | names of loaders, packages and modules, for which vmStructs has no fields |
//! | `mirror` | where a class comes from, by its objects in the Java heap |
//!
//! Nothing is asked of the JVM and it is not stopped: classes may come and go while it is read. A
//! class counts only if it says itself whose it is; lists that break are read once more.

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
    own::remark,
    process::memory::Memory,
};

pub use usage::{Usage, Why};

use class::ClassReader;
use method::MethodReader;
use mirror::Mirrors;
use reach::Reach;
use refs::{Callee, Refs};
use usage::{Counting, InCode};

/// How far a class has got (`InstanceKlass::ClassState`, JVMS 5.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// Its class file was read.
    Loaded,
    /// It was verified and linked.
    Linked,
    /// A thread is running its initialiser, or those of its superclasses, just now.
    Initializing,
    /// It can be used.
    Initialized,
    /// Its initialiser threw: it cannot be used.
    Failed,
}

impl State {
    /// As people and JSON read it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Loaded => "loaded",
            Self::Linked => "linked",
            Self::Initializing => "initializing",
            Self::Initialized => "initialized",
            Self::Failed => "failed",
        }
    }

    /// `allocated` is no class yet; the numbers are the same from JDK 8 to 28.
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

/// A class loader. Each hidden class may have data of its own; these are one loader here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Loader {
    /// Its class; `None` for the boot loader, and where that cannot be told.
    pub class: Option<Arc<str>>,
    /// Its name, where it has one: `app`, `platform`, or what the program gave it.
    pub name: Option<Arc<str>>,
    /// Name and identity hash as the JVM writes them into its log: `com.acme.Loader @6d06d69c`.
    pub identity: Option<Arc<str>>,
    /// Whether it is the boot loader.
    pub is_boot: bool,
}

/// A class that is loaded.
#[derive(Clone, Debug)]
pub struct LoadedClass {
    /// Its name as Java's source has it; without the address that a hidden class carries.
    pub name: Arc<str>,
    /// Whether it is hidden, or of the kind that came before (`Unsafe.defineAnonymousClass`).
    pub is_hidden: bool,
    /// Its loader: an index into [`Loaded::loaders`].
    pub loader: usize,
    /// How far it has got.
    pub state: State,
    /// Which thread runs its initialiser, by its number in its own PID namespace.
    pub initializer: Option<u32>,
    /// Its module, if that has a name.
    pub module: Option<Arc<str>>,
    /// Where its module is, as a URL: `jrt:/java.base`.
    pub module_location: Option<Arc<str>>,
    /// Where its code comes from, as a URL, by its protection domain; none for what the JDK or the
    /// program made itself, and where that cannot be read.
    pub source: Option<Arc<str>>,
    /// Whether that could be read.
    pub has_source_read: bool,
    /// Whether it comes from an archive of classes (CDS, AOT cache).
    pub is_archived: bool,
    /// Whether it was replaced since it was loaded; `None` where that is unknown.
    pub is_redefined: Option<bool>,
    /// What it takes of metaspace, in bytes: itself, its constants, its methods with their
    /// bytecodes. Without annotations and what was cached beside it: an estimate, somewhat low.
    pub bytes: u64,
    /// Its methods, those that it inherits apart.
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
    /// How often its counters have seen it called: a lower bound, for compiled code of the highest
    /// tiers does not count.
    pub counted: u64,
    /// Whether it is compiled now.
    pub is_compiled: bool,
}

/// What was read beside the classes.
#[derive(Clone, Debug, Default)]
pub struct Loaded {
    /// The loaders, the boot loader among them.
    pub loaders: Vec<Loader>,
    /// How many classes were read.
    pub classes: u64,
    /// How many were gone, or made no sense, when their turn came.
    pub unreadable: u64,
    /// How many classes the JVM has unloaded since it started, hidden ones among them: these may
    /// have been used. `None` where it does not count them.
    pub unloaded: Option<u64>,
    /// Whether all lists were read to their ends. Else classes are missing.
    pub is_complete: bool,
    /// Why nothing can be said of methods that have no trace, where it cannot be said of any.
    pub not_counted: Option<Why>,
}

impl HotSpot {
    /// Gives all classes that are loaded to `visit`, one after the other, arrays apart.
    ///
    /// # Errors
    /// [`Error::Unsupported`] of JDK 8, [`Error::Layout`] naming what is missing,
    /// [`Error::Memory`] when it is gone; what `visit` says.
    pub fn loaded(&self, visit: impl FnMut(&Loaded, LoadedClass) -> Result<()>) -> Result<Loaded> {
        if self.layout.is_jdk_8() {
            let what = "classes of JDK 8 cannot be listed from its memory; from JDK 11 on they can";
            return Err(Error::Unsupported { what: what.into() });
        }
        // Before the counters: what is compiled later was counted before.
        let inlined = self.inlined_methods()?;
        let unloads = self.class_counts.unloads();
        let unloaded = unloads.and_then(|at| self.memory.u64(at).ok());
        let told = Loaded { unloaded, ..Loaded::default() };
        let (memory, layout) = (&self.memory, &self.layout);
        Source { memory, layout, inlined, unloads, pid: self.pid }.read(told, visit)
    }
}

/// How many classes are loaded, arrays apart: counts the lists, until some time.
///
/// # Errors
/// [`Error::Layout`] naming what is missing, or where there are more than are counted;
/// [`Error::Memory`] when it is gone.
pub(super) fn count(memory: &Memory, layout: &Layout, until: Option<Instant>) -> Result<u64> {
    let counted = walk::count(memory, layout, until)?;
    counted.ok_or_else(|| Error::layout("the lists of its classes do not end"))
}

/// How often a class is read again because others were unloaded meanwhile.
const TRIES: usize = 5;
/// So many classes are read before it is asked whether they were there all the time; or fewer, with
/// so many methods.
const AT_ONCE: usize = 128;
const METHODS_AT_ONCE: usize = 10_000;

/// Where classes are read from.
pub(super) struct Source<'a> {
    pub(super) memory: &'a Memory,
    pub(super) layout: &'a Layout,
    /// The methods that compiled code has inlined, sorted.
    pub(super) inlined: Vec<Addr>,
    /// Where the JVM counts the classes that it unloads.
    pub(super) unloads: Option<Addr>,
    pub(super) pid: Pid,
}

impl Source<'_> {
    /// Gives all classes to `visit`; adds to what is told beside them.
    pub(super) fn read(
        self,
        told: Loaded,
        mut visit: impl FnMut(&Loaded, LoadedClass) -> Result<()>,
    ) -> Result<Loaded> {
        let Self { memory, layout, inlined, unloads, pid } = self;
        let mut alive = Alive {
            memory,
            layout,
            unloads,
            seen: told.unloaded,
            classes: None,
            is_complete: true,
        };
        let listed = walk::read(memory, layout)?;
        let mut reader = Reader {
            pages: Pages::ahead(memory),
            names: Pages::ahead(memory),
            symbols: Symbols::passing(layout)?,
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
        // What was unloaded, up to now, may have called anything.
        let unloaded = unloads.and_then(|at| memory.u64(at).ok());
        let refs = if unloaded == Some(0) { refs } else { Refs::unknown() };
        let mirrors = Mirrors::new(memory, layout)
            .inspect_err(|e| remark(|| format!("where classes come from is not told: {e}")))
            .ok();
        let mut told = Loaded {
            loaders,
            is_complete: listed.is_complete,
            not_counted: counting.nothing(),
            ..told
        };
        let now = Pages::many(memory);
        let mut parts =
            Parts { reader, now, classes, names, methods, mirrors, counting, refs, inlined };
        let mut rest = &listed.classes[..];
        while !rest.is_empty() {
            let read = parts.some(rest);
            let (entries, others) = rest.split_at(read.len());
            rest = others;
            let is_sure = !alive.has_changed() & parts.are_sources_still();
            if !is_sure {
                parts.reader.forget();
            }
            parts
                .now
                .prefetch(entries.iter().filter_map(|entry| parts.classes.loader_at(entry.klass)));
            for (entry, class) in entries.iter().zip(read) {
                let class = if is_sure { class } else { parts.alone(entry, &mut alive) };
                if !parts.is_still(entry, &listed) || !alive.has(entry, &listed) {
                    continue;
                }
                match class {
                    Ok(Some(mut class)) => {
                        class.loader = numbers.get(entry.loader).copied().unwrap_or_default();
                        told.classes += 1;
                        visit(&told, class)?;
                    }
                    Ok(None) => {}
                    Err(error) => {
                        told.unreadable += 1;
                        let at = entry.klass;
                        remark(|| format!("process {pid}: the class at {at}: {error}"));
                    }
                }
            }
        }
        told.is_complete &= alive.is_complete;
        Ok(told)
    }
}

/// What all parts read with.
struct Reader<'a> {
    pages: Pages<'a>,
    /// The pages of Symbols, which lie elsewhere.
    names: Pages<'a>,
    symbols: Symbols,
}

impl Reader<'_> {
    /// Reads the pages of classes that are looked at next, and those that some of their fields refer to.
    fn prefetch(&mut self, entries: &[walk::Entry], fields: &[u64]) {
        let klasses = || entries.iter().map(|entry| entry.klass);
        self.pages.prefetch(klasses());
        let referred = pointers(&mut self.pages, klasses(), fields);
        self.pages.prefetch(referred);
    }

    /// Reads the pages of the Symbols that a field of some objects refers to.
    fn prefetch_names(&mut self, objects: impl Iterator<Item = Addr>, field: u64) {
        self.names.prefetch(pointers(&mut self.pages, objects, &[field]));
    }

    /// Forgets what was read. A class that was loaded since may lie where another one was.
    fn forget(&mut self) {
        self.pages.forget();
        self.names.forget();
        self.symbols.forget();
    }

    /// The text of a Symbol.
    fn text(&mut self, symbol: Addr) -> Result<Arc<str>> {
        self.symbols.get(&mut self.names, symbol)
    }
}

/// Returns the addresses that fields of objects refer to.
fn pointers(
    pages: &mut Pages<'_>,
    objects: impl Iterator<Item = Addr>,
    fields: &[u64],
) -> Vec<Addr> {
    let places = objects.flat_map(|object| fields.iter().map(move |&field| at(object, field)));
    places.flatten().filter_map(|place| pages.pointer(place).ok()).collect()
}

/// All that is needed to read a class; each part knows one thing.
struct Parts<'a> {
    reader: Reader<'a>,
    /// What is asked of the JVM once more after it was read.
    now: Pages<'a>,
    classes: ClassReader,
    names: loader::Names,
    methods: MethodReader,
    mirrors: Option<Mirrors>,
    counting: Counting,
    refs: Refs,
    /// The methods that compiled code has inlined, sorted.
    inlined: Vec<Addr>,
}

/// What was read of a class.
type Read = Result<Option<LoadedClass>>;

impl Parts<'_> {
    /// The first ones of some classes.
    fn some(&mut self, entries: &[walk::Entry]) -> Vec<Read> {
        let entries = &entries[..entries.len().min(AT_ONCE)];
        let klasses = || entries.iter().map(|entry| entry.klass);
        self.classes.prefetch(&mut self.reader, entries);
        if let Some(mirrors) = &self.mirrors {
            mirrors.prefetch(&mut self.reader.pages, &mut self.now, klasses());
        }
        let mut methods = 0;
        let mut read = Vec::new();
        for entry in entries {
            let class = self.read(entry);
            methods += class.as_ref().ok().and_then(Option::as_ref).map_or(0, |c| c.methods.len());
            read.push(class);
            if methods >= METHODS_AT_ONCE {
                break;
            }
        }
        read
    }

    /// A class once more, of some of which one was unloaded, or may come from elsewhere.
    fn alone(&mut self, entry: &walk::Entry, alive: &mut Alive<'_>) -> Read {
        let mut class = self.read(entry);
        // What was unloaded meanwhile may have been anything when it was read.
        for _ in 0..TRIES {
            if !alive.has_changed() & self.are_sources_still() {
                break;
            }
            self.reader.forget();
            class = self.read(entry);
        }
        self.now.forget();
        class
    }

    /// Whether where classes come from is still what was read; looks anew at all from now on.
    fn are_sources_still(&mut self) -> bool {
        let Self { now, mirrors, .. } = self;
        now.forget();
        mirrors.as_mut().is_none_or(|mirrors| mirrors.are_still(now))
    }

    /// A class; `None` where there is none yet.
    fn read(&mut self, entry: &walk::Entry) -> Read {
        let Self { reader, now, classes, names, methods, mirrors, counting, refs, inlined } = self;
        let Some(mut class) = classes.read(reader, entry)? else { return Ok(None) };
        (class.module, class.module_location) = names.module(reader, entry.klass);
        if let Some(mirrors) = mirrors {
            let mirror = mirrors.read(&mut reader.pages, now, entry.klass);
            class.has_source_read = mirror.is_some();
            let mirror = mirror.unwrap_or_default();
            class.source = mirror.source;
            class.is_redefined = class.is_redefined.or(mirror.is_redefined);
        }
        class.is_archived = methods.is_archived(entry.klass);
        let symbol = classes.symbol(reader, entry.klass)?;
        for method in classes.methods(reader, entry.klass)? {
            let facts = methods.read(reader, method)?;
            class.bytes += facts.bytes;
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

    /// Whether a class is still its loader's: asks the JVM, not what was read of it.
    fn is_still(&mut self, entry: &walk::Entry, listed: &walk::Listed) -> bool {
        let loader = self.classes.loader_at(entry.klass).and_then(|at| self.now.pointer(at).ok());
        loader.is_some() && loader == listed.loaders.get(entry.loader).copied()
    }
}

/// Which classes are alive.
///
/// What is left of a class that was unloaded may look as before, when its names have become
/// something else already, and its loader's place is another one's. So the JVM's count of unloaded
/// classes is looked at, which goes up before anything is freed; where it has changed, all is listed
/// again.
struct Alive<'a> {
    memory: &'a Memory,
    layout: &'a Layout,
    unloads: Option<Addr>,
    /// How many were unloaded when the classes were listed.
    seen: Option<u64>,
    /// Those that were listed again, with their loaders; before that, all are alive.
    classes: Option<HashSet<(Addr, Addr)>>,
    /// Whether each of these lists was read to its end. A class that a list lacks counts as dead.
    is_complete: bool,
}

impl Alive<'_> {
    /// Whether something was unloaded since the last time, and what was read is to be read again.
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
        let alive = listed.classes.iter().filter_map(|entry| Some((entry.klass, loader(entry)?)));
        self.classes = Some(alive.collect());
        true
    }

    /// Whether a class that has just been read is alive.
    fn has(&self, entry: &walk::Entry, listed: &walk::Listed) -> bool {
        let Some(classes) = &self.classes else { return true };
        let loader = listed.loaders.get(entry.loader);
        loader.is_some_and(|&loader| classes.contains(&(entry.klass, loader)))
    }
}

/// The address of a field.
pub(super) fn at(object: Addr, offset: u64) -> Result<Addr> {
    object
        .checked_add(offset)
        .filter(|_| object.0 != 0)
        .ok_or_else(|| Error::layout("a null pointer in a class"))
}
