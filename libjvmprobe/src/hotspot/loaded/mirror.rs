//! Where a class comes from: by its mirror, the `java.lang.Class` object, which has a protection
//! domain, which has a code source, which has a location.
//!
//! Sources: hotspot/share/oops/{klass,oopHandle,compressedOops}.hpp, classfile/javaClasses.hpp;
//! java.base's java/security/{ProtectionDomain,CodeSource}.java. Which field of an object is
//! the one is not looked up: each object says by its header what it is, and of the classes in
//! question no object has two fields of the next one's class, but for a string: of `CodeSource` it
//! is the location.
//!
//! Collectors move objects. What is read counts only if each object on the way was of its class
//! when it was looked at; what is copied elsewhere meanwhile says what it said before. ZGC's
//! references are no plain addresses: there nothing is read.

use std::sync::Arc;

use crate::{
    Addr, Error, Result,
    hotspot::{
        Collector, flags::Flags, hashing::NumberMap, layout::Item, loaded::at, objects::ClassField,
        pages::Pages, resolved::Layout,
    },
    names::clean,
    process::memory::Memory,
};

/// The objects on the way are smaller; of a mirror the first fields suffice.
const MAX_OBJECT: usize = 256;
/// As many layout helpers are kept.
const MAX_HELPERS: usize = 4096;
/// A path is not longer.
const MAX_LOCATION: u32 = 16 << 10;

/// What a class's mirror says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Mirror {
    /// The location of its code source, a URL.
    pub(super) source: Option<Arc<str>>,
    /// Whether the class was redefined; `None` where that is unknown.
    pub(super) is_redefined: Option<bool>,
}

/// Reads mirrors.
#[derive(Debug)]
pub(super) struct Mirrors {
    mirror: u64,
    klass_name: u64,
    symbol_length: u64,
    symbol_body: u64,
    layout_helper: u64,
    class: ClassField,
    /// What is added to compressed references once they were shifted.
    narrow: Option<(u64, u32)>,
    /// Where mirrors count how often their class was redefined.
    redefined: Option<u64>,
    /// Where mirrors have their protection domain.
    domain: Option<u64>,
    /// The ways from an object to the next.
    hops: [Hop; 4],
    /// The class of mirrors, once one was seen.
    class_of_mirrors: Option<Addr>,
    /// Layout helpers by class: objects are of few classes.
    helpers: NumberMap<Addr, i32>,
    /// Mirrors of the classes that were read since the last check of whether all is as it was, and the
    /// locations by protection domain. Most have the same.
    seen: Vec<Seen>,
    sources: NumberMap<Addr, Option<Arc<str>>>,
}

/// A mirror that was read.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// Where its address was, and its address.
    handle: Addr,
    mirror: Addr,
    /// Its field for the protection domain, if that was known, and what it referred to.
    domain: Option<(usize, Option<Addr>)>,
}

/// From an object to one that it refers to.
#[derive(Clone, Copy, Debug)]
struct Hop {
    /// The class of that one, as class files name it.
    class: &'static str,
    /// Where the reference is, once one was found, and the class's Klass.
    known: Option<(usize, Addr)>,
}

const HOPS: [&str; 4] =
    ["java/security/ProtectionDomain", "java/security/CodeSource", "java/lang/String", "[B"];

impl Mirrors {
    /// A reader for a JVM.
    ///
    /// # Errors
    /// [`Error::Unsupported`] of ZGC, [`Error::Layout`] naming what is missing.
    pub(super) fn new(memory: &Memory, layout: &Layout) -> Result<Self> {
        let flags = Flags::read(memory, layout)?;
        let collector = Collector::from_flags(memory, &flags, layout.major);
        if matches!(collector, Collector::Z | Collector::GenerationalZ) {
            let what = "ZGC's references are not read".into();
            return Err(Error::Unsupported { what });
        }
        let narrow = match flags.flag_bool(memory, "UseCompressedOops") {
            Some(true) => {
                let base = memory.u64(layout.address(Item::NarrowOopBase)?)?;
                match memory.u32(layout.address(Item::NarrowOopShift)?)? {
                    shift @ 0..32 => Some((base, shift)),
                    shift => {
                        let what = format!("a shift of {shift} bits is implausible");
                        return Err(Error::layout(what));
                    }
                }
            }
            _ => None,
        };
        let variable = |item| layout.try_address(item).and_then(|at| memory.u32(at).ok());
        let redefined = variable(Item::RedefinedCountAt);
        let domain = variable(Item::ProtectionDomainAt).map(u64::from);
        Ok(Self {
            mirror: layout.get(Item::Mirror)?,
            klass_name: layout.get(Item::KlassName)?,
            symbol_length: layout.get(Item::SymbolLength)?,
            symbol_body: layout.get(Item::SymbolBody)?,
            layout_helper: layout.get(Item::LayoutHelper)?,
            class: ClassField::read(memory, layout, &flags)?,
            narrow,
            // Within the fields of all mirrors, as any other.
            redefined: redefined.map(u64::from).filter(|at| (8..MAX_OBJECT as u64).contains(at)),
            domain: domain.filter(|at| (8..MAX_OBJECT as u64).contains(at)),
            hops: HOPS.map(|class| Hop { class, known: None }),
            class_of_mirrors: None,
            helpers: NumberMap::default(),
            seen: Vec::new(),
            sources: NumberMap::default(),
        })
    }

    /// Reads what [`Self::read`] will look at, of many classes in a few requests.
    pub(super) fn prefetch(
        &self,
        pages: &mut Pages<'_>,
        now: &mut Pages<'_>,
        klasses: impl Iterator<Item = Addr>,
    ) {
        let handle = |klass| pages.pointer(at(klass, self.mirror).ok()?).ok();
        let handles: Vec<_> = klasses.filter_map(handle).collect();
        now.prefetch(handles.iter().copied());
        let mirrors: Vec<_> =
            handles.into_iter().filter_map(|handle| now.pointer(handle).ok()).collect();
        let all_of = |object: Addr| [object, Addr(object.0.saturating_add(MAX_OBJECT as u64 - 1))];
        now.prefetch(mirrors.iter().copied().flat_map(all_of));
        if let Some(field) = self.domain_field() {
            let domain = |mirror| self.reference_at(now, mirror, field);
            let domains: Vec<_> = mirrors.into_iter().filter_map(domain).collect();
            now.prefetch(domains.into_iter().flat_map(all_of));
        }
    }

    /// What a class's mirror says; `None` where it makes no sense. It counts if all is still as it
    /// was ([`Self::are_still`]): what is in `now` may have been read some classes before.
    pub(super) fn read(
        &mut self,
        pages: &mut Pages<'_>,
        now: &mut Pages<'_>,
        klass: Addr,
    ) -> Option<Mirror> {
        // A handle: the address of a reference that is never compressed.
        let handle = pages.pointer(at(klass, self.mirror).ok()?).ok()?;
        let mut find = |now: &mut Pages<'_>| {
            let address = now.pointer(handle).ok()?;
            let mirror = self.mirror_at(now, address).ok()?;
            // It is that of this class if it says so itself (`java_lang_Class::_klass_offset`).
            mirror.has(klass).then_some((address, mirror))
        };
        let found = find(now).or_else(|| {
            // A collector may have moved it since.
            now.forget();
            find(now)
        });
        let (address, mirror) = found?;
        let is_redefined = self.redefined.and_then(|field| {
            let count = mirror.field::<4>(field as usize)?;
            Some(u32::from_ne_bytes(count) != 0)
        });
        let source = self.source(now, &mirror);
        let domain = self.domain_field().map(|field| (field, self.reference(&mirror, field)));
        self.seen.push(Seen { handle, mirror: address, domain });
        Some(Mirror { source, is_redefined })
    }

    fn source(&mut self, now: &mut Pages<'_>, mirror: &Object) -> Option<Arc<str>> {
        // Most classes have none: nothing has to be looked for then.
        if let Some(field) = self.domain {
            self.reference(mirror, field as usize)?;
        }
        let domain = self.domain_field().and_then(|field| self.reference(mirror, field));
        if let Some(source) = domain.and_then(|domain| self.sources.get(&domain)) {
            return source.clone();
        }
        let (address, domain) = self.follow(now, mirror, 0)?;
        let source = self.source_of(now, &domain);
        self.sources.insert(address, source.clone());
        source
    }

    /// The field of mirrors for their protection domain, once it is known.
    fn domain_field(&self) -> Option<usize> {
        let [Hop { known, .. }, ..] = self.hops;
        known.map(|(field, _)| field).or(self.domain.map(|field| field as usize))
    }

    /// Whether all mirrors and domains are still where they were, with the same locations: a
    /// collector may have moved others to the same places meanwhile. Begins anew then.
    pub(super) fn are_still(&mut self, now: &mut Pages<'_>) -> bool {
        let [Hop { known, .. }, ..] = self.hops;
        let (seen, sources) = (std::mem::take(&mut self.seen), std::mem::take(&mut self.sources));
        let mirrors = seen.iter().flat_map(|seen| {
            let field = seen.domain.map_or(0, |(field, _)| field as u64);
            [seen.handle, Addr(seen.mirror.0.saturating_add(field))]
        });
        now.prefetch(mirrors.chain(sources.keys().copied()));
        let is_still = |seen: Seen| {
            now.pointer(seen.handle).is_ok_and(|mirror| mirror == seen.mirror)
                && seen.domain.is_none_or(|(field, domain)| {
                    self.reference_at(now, seen.mirror, field) == domain
                })
        };
        seen.into_iter().all(is_still)
            && sources.into_iter().all(|(address, source)| {
                let object = self.object(now, address).ok();
                let domain =
                    object.filter(|domain| known.is_some_and(|(_, klass)| klass == domain.klass));
                domain.is_some_and(|domain| self.source_of(now, &domain) == source)
            })
    }

    /// The location of a protection domain.
    fn source_of(&mut self, now: &mut Pages<'_>, domain: &Object) -> Option<Arc<str>> {
        let (_, source) = self.follow(now, domain, 1)?;
        let (_, location) = self.follow(now, &source, 2)?;
        let (at, array) = self.follow(now, &location, 3)?;
        let text = text(now, at, &array)?;
        (!text.is_empty()).then(|| clean::name(&text).into())
    }

    /// The mirror at an address.
    fn mirror_at(&mut self, now: &mut Pages<'_>, mirror: Addr) -> Result<Object> {
        let object = self.object(now, mirror)?;
        let is_mirror = match self.class_of_mirrors {
            Some(class) => object.klass == class,
            None => self.is_of(now, &object, "java/lang/Class"),
        };
        if !is_mirror {
            return Err(Error::layout("a class's mirror is none"));
        }
        self.class_of_mirrors = Some(object.klass);
        Ok(object)
    }

    /// An object, as much of it as is looked at.
    fn object(&mut self, now: &mut Pages<'_>, address: Addr) -> Result<Object> {
        if address.0 == 0 || !address.0.is_multiple_of(8) {
            return Err(Error::layout("no reference"));
        }
        let mut bytes = [0; MAX_OBJECT];
        now.read(address, &mut bytes)?;
        let word = u64::from_ne_bytes(*bytes.first_chunk::<8>().unwrap_or(&[0; 8]));
        let behind = |n: usize| bytes.get(8..8 + n).unwrap_or_default().to_vec();
        let (klass, header) = match self.class {
            ClassField::Pointer => {
                let klass = behind(8).try_into().map_or(0, u64::from_ne_bytes);
                (klass, 16)
            }
            ClassField::Compressed { base, shift } => {
                let narrow = behind(4).try_into().map_or(0, u32::from_ne_bytes);
                (base.wrapping_add(u64::from(narrow) << shift), 12)
            }
            ClassField::Compact { base, shift } => {
                let narrow = word >> crate::hotspot::objects::COMPACT_SHIFT;
                (base.wrapping_add(narrow << shift), 8)
            }
        };
        let klass = Addr(klass);
        let helper = match self.helpers.get(&klass) {
            Some(&helper) => helper,
            None => {
                let helper = now.u32(at(klass, self.layout_helper)?)?.cast_signed();
                if self.helpers.len() >= MAX_HELPERS {
                    self.helpers.clear();
                }
                *self.helpers.entry(klass).or_insert(helper)
            }
        };
        Ok(Object { bytes, klass, header, helper })
    }

    /// Whether an object is of the class of this name.
    fn is_of(&self, now: &mut Pages<'_>, object: &Object, class: &str) -> bool {
        let mut read = || -> Result<bool> {
            let symbol = now.pointer(at(object.klass, self.klass_name)?)?;
            let length = u16::from_ne_bytes(now.array(at(symbol, self.symbol_length)?)?);
            if usize::from(length) != class.len() {
                return Ok(false);
            }
            let text = now.bytes(at(symbol, self.symbol_body)?, class.len())?;
            Ok(text == class.as_bytes())
        };
        read().unwrap_or(false)
    }

    /// Goes from an object to the next one: by the first of its fields that refers to an object
    /// of the class in question, and by the same field ever after.
    fn follow(
        &mut self,
        now: &mut Pages<'_>,
        object: &Object,
        hop: usize,
    ) -> Option<(Addr, Object)> {
        let Hop { class, known } = *self.hops.get(hop)?;
        if let Some((field, klass)) = known {
            let address = self.reference(object, field)?;
            let found = self.object(now, address).ok()?;
            return (found.klass == klass).then_some((address, found));
        }
        let end = object.size()?.min(MAX_OBJECT);
        let width = if self.narrow.is_some() { 4 } else { 8 };
        let first = object.header.next_multiple_of(width);
        for field in (first..end).step_by(width) {
            let Some(address) = self.reference(object, field) else { continue };
            let Ok(found) = self.object(now, address) else { continue };
            if self.is_of(now, &found, class) {
                if let Some(hop) = self.hops.get_mut(hop) {
                    hop.known = Some((field, found.klass));
                }
                return Some((address, found));
            }
        }
        None
    }

    /// Returns the address that a field of the object at an address refers to.
    fn reference_at(&self, now: &mut Pages<'_>, object: Addr, field: usize) -> Option<Addr> {
        let mut bytes = [0; 8];
        let width = if self.narrow.is_some() { 4 } else { 8 };
        now.read(object.checked_add(field as u64)?, &mut bytes[..width]).ok()?;
        self.decoded(bytes)
    }

    /// What a field refers to.
    fn reference(&self, object: &Object, field: usize) -> Option<Addr> {
        let mut bytes = [0; 8];
        let width = if self.narrow.is_some() { 4 } else { 8 };
        bytes[..width].copy_from_slice(object.bytes.get(field..)?.get(..width)?);
        self.decoded(bytes)
    }

    /// A reference's address; `None` of null.
    fn decoded(&self, bytes: [u8; 8]) -> Option<Addr> {
        let word = u64::from_le_bytes(bytes);
        let address = match self.narrow {
            Some((base, shift)) => (word != 0).then(|| base.wrapping_add(word << shift))?,
            None => word,
        };
        (address != 0).then_some(Addr(address))
    }
}

/// The text of a string's array: one byte a character, or two.
fn text(now: &mut Pages<'_>, at: Addr, array: &Object) -> Option<String> {
    // Klass::_lh_header_size: where the elements of an array begin, behind its length.
    let header = u64::from(array.helper.cast_unsigned() >> 16 & 0xff);
    let length_at = array.header.next_multiple_of(4);
    let length = u32::from_ne_bytes(array.field(length_at)?);
    if length > MAX_LOCATION {
        return None;
    }
    let bytes = now.bytes(at.checked_add(header)?, length as usize).ok()?;
    // Of two bytes each where one is zero, which no path has. Latin-1 otherwise.
    if bytes.contains(&0) {
        let units = bytes.as_chunks::<2>().0.iter().map(|unit| u16::from_ne_bytes(*unit));
        return Some(String::from_utf16_lossy(&units.collect::<Vec<_>>()));
    }
    Some(bytes.iter().map(|&byte| char::from(byte)).collect())
}

/// The beginning of an object in the Java heap.
struct Object {
    bytes: [u8; MAX_OBJECT],
    klass: Addr,
    /// How long its header is, without the length of an array.
    header: usize,
    /// Its class's layout helper (`Klass::_layout_helper`).
    helper: i32,
}

impl Object {
    fn field<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        self.bytes.get(at..)?.first_chunk().copied()
    }

    /// Whether an address is among its fields.
    fn has(&self, address: Addr) -> bool {
        self.bytes.as_chunks::<8>().0.contains(&address.0.to_ne_bytes())
    }

    /// Its size; `None` of arrays, whose layout helpers are negative.
    fn size(&self) -> Option<usize> {
        // The lowest bits are flags.
        usize::try_from(self.helper).ok().map(|helper| helper & !7)
    }
}
