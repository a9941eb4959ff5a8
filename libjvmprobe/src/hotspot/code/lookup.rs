//! Reads all code of a JVM, and looks up code and methods by address.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    Addr, Error, Result,
    hotspot::{
        HotSpot,
        code::{
            Inlining,
            cache::{self, Blob, Blobs},
            heap::{Heap, heaps},
        },
        methods::{MethodInfo, Methods},
        pages::{PAGE, Pages},
    },
    names::code::Code,
    process::reader::within,
};

/// Maximum size in bytes of the methods cached from one lookup to the next. One lookup reads at most twice as many
/// bytes; further methods have no names.
const MAX_METHODS_SIZE: usize = 16 << 20;
/// Maximum time for reading all code.
const MAX_TIME: Duration = Duration::from_secs(60);
/// Maximum number of attempts to read methods. An attempt fails if classes are unloaded meanwhile.
const TRIES: usize = 3;
/// Maximum number of bytes of a piece of code that are prefetched.
const MAX_PREFETCHED: u64 = 256 << 10;

/// A piece of code found at a requested address.
#[derive(Clone, Debug)]
pub struct FoundCode {
    /// Its first address.
    pub(crate) start: Addr,
    /// The first address after it.
    pub(crate) end: Addr,
    /// Compile ID of a compiled method, 0 for other code.
    pub(crate) compile_id: u32,
    /// Its kind and name, with the methods inlined at the requested addresses.
    pub(crate) code: Code,
}

impl HotSpot {
    /// Returns all code that exists now: methods, the interpreter, stubs; with inlined methods where
    /// `inlining` requests them. It is read from the JVM's memory without the JVM's cooperation and
    /// without stopping it.
    ///
    /// # Errors
    /// [`crate::Error::Layout`] naming the missing field, [`crate::Error::Memory`] if the JVM has exited.
    pub fn code(&self, inlining: Inlining<'_>) -> Result<Vec<(Addr, u64, Code)>> {
        let until = Instant::now() + MAX_TIME;
        let cache::CodeList { mut code, is_full, .. } =
            within(MAX_TIME, || cache::read(&self.memory, &self.layout, inlining))?;
        if is_full || Instant::now() >= until {
            let pid = self.pid;
            log::warn!("process {pid}: it has too much code to read; some of it has no name");
        }
        self.name_stubs(&mut code);
        Ok(code)
    }

    /// Returns the addresses of the methods inlined in compiled code, sorted. Inlined methods that contain
    /// neither a safepoint nor a call may be missing.
    ///
    /// # Errors
    /// The errors of [`Self::code`]; [`Error::Layout`] if the methods cannot all be read within a minute.
    pub(in crate::hotspot) fn inlined_methods(&self) -> Result<Vec<Addr>> {
        let until = Instant::now() + MAX_TIME;
        let methods = within(MAX_TIME, || cache::inlined(&self.memory, &self.layout))?;
        if Instant::now() >= until {
            return Err(Error::layout("reading the inlined methods takes too long"));
        }
        Ok(methods)
    }

    /// Creates a reader that looks up this JVM's code and methods by address.
    ///
    /// # Errors
    /// [`crate::Error::Layout`] naming the missing field.
    pub(crate) fn lookup(&self) -> Result<Lookup> {
        let methods = Methods::new(&self.layout)?.limited_to(2 * MAX_METHODS_SIZE);
        Ok(Lookup { heaps: Vec::new(), methods, unloaded: None })
    }

    /// Splits a blob that has several stubs; `None` for other blobs.
    fn stubs_of(&self, blob: &Blob, code: &Code) -> Option<Vec<FoundCode>> {
        let mut divided = vec![(blob.begin, blob.end.0 - blob.begin.0, code.clone())];
        self.name_stubs(&mut divided);
        let found = |(start, size, code): (Addr, u64, Code)| FoundCode {
            start,
            end: Addr(start.0.saturating_add(size)),
            compile_id: 0,
            code,
        };
        (divided.len() > 1).then(|| divided.into_iter().map(found).collect())
    }
}

/// Result of a [`Lookup`].
#[derive(Debug, Default)]
pub(crate) struct LookupResult {
    /// Code at the addresses, in order. Omits addresses outside the code cache, and code that is being created or
    /// discarded.
    pub(crate) code: Vec<FoundCode>,
    /// The methods, without inconsistent ones.
    pub(crate) methods: Vec<(Addr, Arc<MethodInfo>)>,
    /// Number of classes that the JVM has unloaded, if it counts them and if the number did not change during
    /// the lookup.
    pub(crate) unloaded: Option<u64>,
}

/// Reads code and methods of one JVM by address, and caches methods from one lookup to the next.
///
/// Each request to the JVM's memory is a round trip to another process, so addresses that are requested
/// together are read together.
#[derive(Debug)]
pub(crate) struct Lookup {
    /// Code heaps with their complete reserved ranges. Empty until the code cache is set up.
    heaps: Vec<Heap>,
    /// Cached methods, valid while the number of unloaded classes is `unloaded`, because methods neither
    /// change nor move until their classes are unloaded.
    methods: Methods,
    unloaded: Option<u64>,
}

impl Lookup {
    /// Returns the approximate size of the cache in bytes.
    pub(crate) fn size(&self) -> usize {
        self.methods.size()
    }

    /// Makes methods that are looked up from now on have their origins.
    ///
    /// # Errors
    /// [`crate::Error::Layout`] naming the missing field.
    pub(crate) fn read_origins(&mut self, hotspot: &HotSpot) -> Result<()> {
        self.methods.read_origins(&hotspot.layout)
    }

    /// Looks up the code at some addresses, which must be sorted, and some methods. All of them existed when the number
    /// of unloaded classes was `since`.
    ///
    /// # Errors
    /// [`crate::Error::Layout`], [`crate::Error::Memory`] if the JVM has exited.
    pub(crate) fn look_up(
        &mut self,
        hotspot: &HotSpot,
        addrs: &[Addr],
        methods: &[Addr],
        since: u64,
    ) -> Result<LookupResult> {
        let pages = &mut Pages::sequential(&hotspot.memory);
        if self.heaps.is_empty() {
            let mut all = heaps(pages, &hotspot.layout)?;
            all.iter_mut().for_each(|heap| heap.high = heap.reserved_high);
            self.heaps = all;
        }
        let counts = hotspot.counts_unloaded_classes();
        let mut tries = 1..TRIES;
        loop {
            if self.unloaded.is_none() || self.methods.size() > MAX_METHODS_SIZE {
                self.methods.clear();
                self.unloaded = hotspot.classes_unloaded();
            }
            pages.clear();
            let infos = pages.read_batched(methods, |pages, &at| self.methods.get(pages, at));
            let (code, unloaded) = self.code(hotspot, pages, addrs)?;
            if unloaded == self.unloaded && unloaded.is_some() == counts {
                let methods = methods.iter().zip(infos);
                let methods = methods.filter_map(|(&at, info)| Some((at, info?))).collect();
                // HotSpot counts unloaded classes before it frees their methods. So a method that was read may belong to
                // one of these classes, and another method may take its place while the number stays the same.
                self.unloaded = self.unloaded.filter(|&unloaded| unloaded == since);
                return Ok(LookupResult { code, methods, unloaded });
            }
            // Classes were unloaded meanwhile. So when the memory at a method's address was read, it may have
            // held another method.
            self.unloaded = None;
            if tries.next().is_none() {
                // The code is valid nevertheless: code that still exists keeps its methods loaded, and their
                // names were read in this attempt.
                return Ok(LookupResult { code, ..LookupResult::default() });
            }
        }
    }

    /// Returns the code at some addresses, without code that was created or discarded while it was read, and
    /// the number of unloaded classes after the read.
    fn code(
        &mut self,
        hotspot: &HotSpot,
        pages: &mut Pages<'_>,
        addrs: &[Addr],
    ) -> Result<(Vec<FoundCode>, Option<u64>)> {
        let (heaps, methods) = (&self.heaps, &mut self.methods);
        let mut reader = Blobs::new(&hotspot.layout, Inlining::At(addrs))?;
        let blobs = pages.read_batched(addrs, |pages, &addr| reader.find(pages, heaps, addr));
        let mut blobs: Vec<Blob> = blobs.into_iter().flatten().flatten().collect();
        blobs.dedup();
        pages.prefetch(blobs.iter().flat_map(|blob| {
            let last = Addr(blob.at.0 + blob.size.min(MAX_PREFETCHED));
            (blob.at.0..last.0).step_by(PAGE).map(Addr).chain([last])
        }));
        let names = pages.read_batched(&blobs, |pages, &blob| reader.code(pages, methods, blob));
        let counter = hotspot.class_counts.unloads();
        let marks = blobs.iter().flat_map(|blob| reader.marks(blob));
        let words = hotspot.memory.words(&counter.into_iter().chain(marks).collect::<Vec<_>>())?;
        let (unloaded, marks) = words.split_at(usize::from(counter.is_some()));
        let mut found = Vec::new();
        for ((blob, code), marks) in blobs.iter().zip(names).zip(marks.as_chunks().0) {
            let Some(code) = code.filter(|_| Blobs::is_unchanged(blob, marks)) else { continue };
            match hotspot.stubs_of(blob, &code) {
                Some(stubs) => found.extend(stubs),
                None => found.push(FoundCode {
                    start: blob.begin,
                    end: blob.end,
                    compile_id: blob.compile_id,
                    code,
                }),
            }
        }
        Ok((found, unloaded.first().copied().flatten()))
    }
}
