//! All code of a JVM, and code by its addresses while it is there.

use std::sync::Arc;

use crate::{
    Addr, Result,
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
};

/// Maximum size of the methods that are kept from one look to the next.
const MAX_METHODS_SIZE: usize = 16 << 20;
/// Maximum number of times that methods are read because classes were unloaded meanwhile.
const TRIES: usize = 3;
/// Maximum number of bytes of a piece of code that are read before any of them is asked for.
const MAX_PREFETCHED: u64 = 256 << 10;

/// A piece of code that was found.
#[derive(Clone, Debug)]
pub struct Found {
    /// Its first address, and the first behind it.
    pub(crate) start: Addr,
    /// The first address behind it.
    pub(crate) end: Addr,
    /// A compiled method's compile id, else 0.
    pub(crate) compile_id: u32,
    /// What it is, with what was inlined at the addresses asked for.
    pub(crate) code: Code,
}

impl HotSpot {
    /// All compiled code that it has now: methods, the interpreter, stubs; with what was
    /// inlined where that is wanted. Read from its memory; it is not asked and not
    /// stopped.
    ///
    /// # Errors
    /// [`crate::Error::Layout`] naming what is missing, [`crate::Error::Memory`] when it is gone.
    pub fn code(&self, inlining: Inlining<'_>) -> Result<Vec<(Addr, u64, Code)>> {
        let mut code = cache::read(&self.memory, &self.layout, inlining)?;
        self.name_stubs(&mut code);
        Ok(code)
    }

    /// The addresses of the methods that compiled code has inlined, in order. What is inlined
    /// and can neither stop nor call may be missing.
    ///
    /// # Errors
    /// As [`Self::code`].
    pub(in crate::hotspot) fn inlined_methods(&self) -> Result<Vec<Addr>> {
        cache::inlined(&self.memory, &self.layout)
    }

    /// A reader of its code and methods by their addresses.
    ///
    /// # Errors
    /// [`crate::Error::Layout`] naming what is missing.
    pub(crate) fn lookup(&self) -> Result<Lookup> {
        Ok(Lookup { heaps: Vec::new(), methods: Methods::new(&self.layout)?, unloaded: None })
    }

    /// The stubs of a blob that has many.
    fn stubs_of(&self, blob: &Blob, code: &Code) -> Option<Vec<Found>> {
        let mut divided = vec![(blob.begin, blob.end.0 - blob.begin.0, code.clone())];
        self.name_stubs(&mut divided);
        let found = |(start, size, code): (Addr, u64, Code)| Found {
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
pub(crate) struct Seen {
    /// Code at the addresses, in order. What lies outside the code cache, or is being made or discarded just
    /// now, is left out.
    pub(crate) code: Vec<Found>,
    /// The methods, without those that make no sense.
    pub(crate) methods: Vec<(Addr, Arc<MethodInfo>)>,
    /// Number of classes that the JVM has unloaded, where it counts them: it has not changed while this was read.
    pub(crate) unloaded: Option<u64>,
}

/// Reads code and methods of one JVM by their addresses, and keeps what stays as it is.
///
/// Each request to the JVM's memory goes to another process and back, so what is asked for together is read
/// together.
#[derive(Debug)]
pub(crate) struct Lookup {
    /// Code heaps with all that is reserved for them. None until the code cache is set up.
    heaps: Vec<Heap>,
    /// Methods as they were with this number of classes unloaded: they stay as they are, and where they are,
    /// until their classes are unloaded.
    methods: Methods,
    unloaded: Option<u64>,
}

impl Lookup {
    /// About how many bytes it keeps.
    pub(crate) fn size(&self) -> usize {
        self.methods.size()
    }

    /// Looks for the code at some addresses, which are sorted, and for some methods.
    ///
    /// # Errors
    /// [`crate::Error::Layout`], [`crate::Error::Memory`] when the JVM is gone.
    pub(crate) fn look(
        &mut self,
        hotspot: &HotSpot,
        addrs: &[Addr],
        methods: &[Addr],
    ) -> Result<Seen> {
        let pages = &mut Pages::ahead(&hotspot.memory);
        if self.heaps.is_empty() {
            let mut all = heaps(pages, &hotspot.layout)?;
            all.iter_mut().for_each(|heap| heap.high = heap.reserved_high);
            self.heaps = all;
        }
        let counts = hotspot.counts_unloaded_classes();
        let mut tries = 1..TRIES;
        loop {
            if self.unloaded.is_none() || self.methods.size() > MAX_METHODS_SIZE {
                self.methods.forget();
                self.unloaded = hotspot.classes_unloaded();
            }
            pages.forget();
            let infos = pages.together(methods, |pages, &at| self.methods.get(pages, at));
            let (code, unloaded) = self.code(hotspot, pages, addrs)?;
            if unloaded == self.unloaded && unloaded.is_some() == counts {
                let methods = methods.iter().zip(infos);
                let methods = methods.filter_map(|(&at, info)| Some((at, info?))).collect();
                return Ok(Seen { code, methods, unloaded });
            }
            // Classes were unloaded meanwhile: at an address there may have been another method.
            self.unloaded = None;
            if tries.next().is_none() {
                // Code that is still there has its methods still, and these were read just now.
                return Ok(Seen { code, ..Seen::default() });
            }
        }
    }

    /// Returns the code at some addresses that was there before and after it was read, and the number of classes
    /// that were unloaded by then.
    fn code(
        &mut self,
        hotspot: &HotSpot,
        pages: &mut Pages<'_>,
        addrs: &[Addr],
    ) -> Result<(Vec<Found>, Option<u64>)> {
        let (heaps, methods) = (&self.heaps, &mut self.methods);
        let mut reader = Blobs::new(&hotspot.layout, Inlining::At(addrs))?;
        let blobs = pages.together(addrs, |pages, &addr| reader.find(pages, heaps, addr));
        let mut blobs: Vec<Blob> = blobs.into_iter().flatten().flatten().collect();
        blobs.dedup();
        pages.prefetch(blobs.iter().flat_map(|blob| {
            let last = Addr(blob.at.0 + blob.size.min(MAX_PREFETCHED));
            (blob.at.0..last.0).step_by(PAGE).map(Addr).chain([last])
        }));
        let names = pages.together(&blobs, |pages, &blob| reader.code(pages, methods, blob));
        let counter = hotspot.class_counts.unloads();
        let marks = blobs.iter().flat_map(|blob| reader.marks(blob));
        let words = hotspot.memory.words(&counter.into_iter().chain(marks).collect::<Vec<_>>())?;
        let (unloaded, marks) = words.split_at(usize::from(counter.is_some()));
        let mut found = Vec::new();
        for ((blob, code), marks) in blobs.iter().zip(names).zip(marks.as_chunks().0) {
            let Some(code) = code.filter(|_| Blobs::is_still(blob, marks)) else { continue };
            match hotspot.stubs_of(blob, &code) {
                Some(stubs) => found.extend(stubs),
                None => found.push(Found {
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
