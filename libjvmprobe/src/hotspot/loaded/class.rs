//! One class: its name, state and size.
//!
//! Sources: hotspot/share/oops/{klass,instanceKlass,array,constantPool}.hpp, runtime/osThread.hpp.

use std::sync::Arc;

use crate::{
    Addr, Error, Result,
    hotspot::{
        classes::java_name,
        layout::Item,
        loaded::{LoadedClass, Reader, State, at, walk::Entry},
        resolved::Layout,
    },
    names::code::mask_hidden,
};

/// A class has at most 65,535 methods (JVMS 4.1); HotSpot may add some.
const MAX_METHODS: u32 = 70_000;
/// `InstanceKlass::_misc_has_been_redefined` of JDK 11 and 17, and the flag of `InstanceKlassFlags`.
const REDEFINED_11: u16 = 1 << 9;
const REDEFINED_17: u16 = 1 << 7;
const REDEFINED: u16 = 1 << 2;
/// `InstanceKlass::_misc_has_resolved_methods` of JDK 11 and 17, and the flag of `InstanceKlassFlags`.
const HANDLED_11: u16 = 1 << 15;
const HANDLED_17: u16 = 1 << 13;
const HANDLED: u16 = 1 << 1;
/// `InstanceKlassFlags::_misc_rewritten`: set in every linked class.
const REWRITTEN: u16 = 1 << 0;
/// Plausibility limit for a class's vtable and itable, in words.
const MAX_TABLE: u32 = 1 << 20;

/// Reads classes.
#[derive(Debug)]
pub(super) struct ClassReader {
    name: u64,
    state: u64,
    thread: u64,
    methods: u64,
    constants: u64,
    pool_length: u64,
    pool_size: u64,
    class_size: u64,
    vtable: u64,
    itable: u64,
    array_length: u64,
    array_data: u64,
    loader_of: u64,
    /// Offset and mask of the flag of redefined classes.
    redefined: Option<(u64, u16)>,
    /// Offset and mask of the flag of classes with a method handle for one of their methods.
    has_method_handles: Option<(u64, u16)>,
    /// Whether these flags are in `InstanceKlassFlags::_status`, which follows `_flags`.
    has_status: bool,
    os_thread: Option<(u64, u64)>,
}

impl ClassReader {
    pub(super) fn new(layout: &Layout) -> Result<Self> {
        // The flag bits are known only for JDK 11, 17 and 21 to 26.
        let flags = |of_11, of_17, mask| match layout.major {
            11 => layout.get(Item::MiscFlags).ok().map(|field| (field, of_11)),
            17 => layout.get(Item::MiscFlags).ok().map(|field| (field, of_17)),
            // `InstanceKlass::_misc_flags` follows `_init_state` and `_reference_type`; its first two bytes
            // contain REWRITTEN. JDK 27 and later differ.
            21..=26 => {
                let state = layout.get(Item::InitState).ok();
                state.map(|state| ((state + 2).next_multiple_of(2) + 2, mask))
            }
            _ => None,
        };
        let thread = |of, id| Some((layout.get(of).ok()?, layout.get(id).ok()?));
        Ok(Self {
            name: layout.get(Item::KlassName)?,
            state: layout.get(Item::InitState)?,
            thread: layout.get(Item::InitThread)?,
            methods: layout.get(Item::MethodsOf)?,
            constants: layout.get(Item::ConstantsOf)?,
            pool_length: layout.get(Item::PoolLength)?,
            pool_size: layout.get(Item::PoolSize)?,
            class_size: layout.get(Item::ClassSize)?,
            vtable: layout.get(Item::VtableLength)?,
            itable: layout.get(Item::ItableLength)?,
            array_length: layout.get(Item::MethodArrayLength)?,
            array_data: layout.get(Item::MethodArrayData)?,
            loader_of: layout.get(Item::ClassLoaderOf)?,
            redefined: flags(REDEFINED_11, REDEFINED_17, REDEFINED),
            has_method_handles: flags(HANDLED_11, HANDLED_17, HANDLED),
            has_status: layout.major >= 21,
            os_thread: thread(Item::OsThread, Item::OsThreadId),
        })
    }

    /// Prefetches the pages that [`Self::read`] and [`Self::methods`] need for these classes, in few requests.
    pub(super) fn prefetch(&self, reader: &mut Reader<'_>, entries: &[Entry]) {
        reader.prefetch(entries, &[self.methods, self.constants]);
        reader.prefetch_names(entries.iter().map(|entry| entry.klass), self.name);
    }

    /// Returns the Symbol of a class's name.
    pub(super) fn symbol(&self, reader: &mut Reader<'_>, klass: Addr) -> Result<Addr> {
        reader.pages.pointer(at(klass, self.name)?)
    }

    /// Returns a class's name as its Symbol has it, with the address suffix of hidden classes.
    pub(super) fn raw_name(&self, reader: &mut Reader<'_>, klass: Addr) -> Result<Arc<str>> {
        let symbol = self.symbol(reader, klass)?;
        reader.text(symbol)
    }

    /// Reads the initialisation state of a class; `None` if it is not a class yet.
    pub(super) fn state(&self, reader: &mut Reader<'_>, klass: Addr) -> Result<Option<State>> {
        let [state] = reader.pages.array(at(klass, self.state)?)?;
        Ok(State::of(state))
    }

    /// Whether a method handle was made for one of the class's methods; `None` if unknown.
    /// `ResolvedMethodTable` sets the flag when it gets the class's first method, and HotSpot never
    /// clears it (prims/resolvedMethodTable.cpp, classfile/javaClasses.cpp).
    pub(super) fn has_method_handles(
        &self,
        reader: &mut Reader<'_>,
        klass: Addr,
    ) -> Result<Option<bool>> {
        let Some((field, mask)) = self.has_method_handles else { return Ok(None) };
        Ok(self.flag(reader, klass, field, mask))
    }

    /// Reads a flag of a linked class; `None` if the flags are not at the expected offset.
    fn flag(&self, reader: &mut Reader<'_>, klass: Addr, field: u64, mask: u16) -> Option<bool> {
        let field = klass.checked_add(field)?;
        let flags = reader.pages.u16(field).ok()?;
        // Every linked class has REWRITTEN, so without it the flags lie elsewhere.
        if self.has_status && reader.pages.u16(Addr(field.0 - 2)).ok()? & REWRITTEN == 0 {
            return None;
        }
        Some(flags & mask != 0)
    }

    /// Whether a class was redefined; `None` if unknown.
    pub(super) fn is_redefined(&self, reader: &mut Reader<'_>, klass: Addr) -> Option<bool> {
        let (field, mask) = self.redefined?;
        self.flag(reader, klass, field, mask)
    }

    /// Reads a class without its methods; `None` if it is not a class yet.
    pub(super) fn read(
        &self,
        reader: &mut Reader<'_>,
        entry: &Entry,
    ) -> Result<Option<LoadedClass>> {
        let klass = entry.klass;
        let Some(state) = self.state(reader, klass)? else { return Ok(None) };
        let raw = self.raw_name(reader, klass)?;
        let name = java_name(raw.as_bytes(), raw.len() as u32);
        let redefined = self.is_redefined(reader, klass);
        Ok(Some(LoadedClass {
            is_hidden: entry.is_alone || mask_hidden(&raw) != *raw,
            name: name.into(),
            loader: 0,
            initializer: (state == State::Initializing)
                .then(|| self.thread(reader, klass))
                .flatten(),
            state,
            module: None,
            module_location: None,
            source: None,
            has_source_read: false,
            is_archived: false,
            is_redefined: redefined,
            bytes: self.bytes(reader, klass)?,
            methods: Vec::new(),
        }))
    }

    /// Returns the address of the class's pointer to its ClassLoaderData.
    pub(super) fn loader_at(&self, klass: Addr) -> Option<Addr> {
        at(klass, self.loader_of).ok()
    }

    /// Returns the addresses of the class's methods.
    pub(super) fn methods(&self, reader: &mut Reader<'_>, klass: Addr) -> Result<Vec<Addr>> {
        let array = reader.pages.pointer(at(klass, self.methods)?)?;
        if array == Addr(0) {
            return Ok(Vec::new());
        }
        let length = reader.pages.u32(at(array, self.array_length)?)?;
        if length > MAX_METHODS {
            return Err(Error::layout(format!(
                "implausible number of methods in a class: {length}"
            )));
        }
        let words = reader.pages.bytes(at(array, self.array_data)?, length as usize * 8)?;
        let word = |bytes: &[u8]| Some(Addr(u64::from_ne_bytes(bytes.try_into().ok()?)));
        Ok(words.chunks_exact(8).filter_map(word).collect())
    }

    /// Returns the OS thread ID of the thread that initialises the class.
    fn thread(&self, reader: &mut Reader<'_>, klass: Addr) -> Option<u32> {
        let (os_thread, id) = self.os_thread?;
        let thread = reader.pages.pointer(klass.checked_add(self.thread)?).ok()?;
        let native = reader.pages.pointer(at(thread, os_thread).ok()?).ok()?;
        reader.pages.u32(at(native, id).ok()?).ok()
    }

    fn bytes(&self, reader: &mut Reader<'_>, klass: Addr) -> Result<u64> {
        let mut words = |field| -> Result<u64> {
            match reader.pages.u32(at(klass, field)?)? {
                words @ ..MAX_TABLE => Ok(u64::from(words) * 8),
                words => Err(Error::layout(format!("implausible table size of {words} words"))),
            }
        };
        let own = self.class_size + words(self.vtable)? + words(self.itable)?;
        let pool = reader.pages.pointer(at(klass, self.constants)?)?;
        let entries = reader.pages.u32(at(pool, self.pool_length)?)?.min(1 << 16);
        Ok(own + self.pool_size + u64::from(entries) * 8)
    }
}
